#!/bin/sh
# Runs a command as root in another root directory, in a mount namespace of its own (and not by chroot(2), below which the
# kernel allows no user namespaces). $1 is that directory, which stays as it is; what the command changes is in $2/changed.
set -eu
lower=$1 place=$2
shift 2
mount --make-rprivate /
mkdir -p "$place/changed" "$place/work" "$place/root"
mount -t overlay -o "lowerdir=$lower,upperdir=$place/changed,workdir=$place/work" overlay "$place/root"
cd "$place/root"
mount -t proc proc proc
mount --rbind /dev dev
mount --rbind /sys sys
mount -t tmpfs tmpfs run
pivot_root . mnt
umount -l /mnt
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
