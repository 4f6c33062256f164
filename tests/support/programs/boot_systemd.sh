#!/bin/sh
# Boots the machine's systemd as the init of namespaces of its own (mount, PID, cgroup and UTS; tests/support/booted.py
# has made them). Nothing that it starts, writes or removes is the machine's: /etc is a copy, /run, /tmp and /var/tmp are
# empty, and the units are the few that a supervisor needs. The network namespace stays the initial one: audit has no
# other.
#
# $1 environment to be tested, $2 directory shared with the test, $3 units from the machine, $4 a line for /etc/passwd,
# $5 `system`: the init of a PID namespace; `initial`: root's own manager (--user), in the PID namespace that audit knows
set -eu
prefix=$1 shared=$2 units=$3 account=$4 kind=$5

mount --make-rprivate /
[ "$kind" = initial ] || mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/.keep /run/.keep/prefix /run/.keep/shared /run/.keep/units /run/.keep/etc
mount --bind "$prefix" /run/.keep/prefix
mount --bind "$shared" /run/.keep/shared
cp -a "$units/." /run/.keep/units
cp -a /etc/. /run/.keep/etc
rm -rf /run/.keep/etc/systemd/system /run/.keep/etc/tmpfiles.d
mkdir -p /run/.keep/etc/systemd/system /run/.keep/etc/tmpfiles.d
echo "$account" >>/run/.keep/etc/passwd
echo 0123456789abcdef0123456789abcdef >/run/.keep/etc/machine-id
mount --bind /run/.keep/etc /etc
mkdir -p /run/systemd/journald.conf.d
printf '[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=\nForwardToSyslog=no\nRateLimitBurst=0\n' \
    >/run/systemd/journald.conf.d/paddock.conf
for directory in /var/log /var/lib/systemd /var/tmp /tmp; do
    mkdir -p "$directory"
    mount -t tmpfs -o mode=1777 tmpfs "$directory"
done
mkdir -p "$prefix" "$shared"
mount --move /run/.keep/prefix "$prefix"
mount --move /run/.keep/shared "$shared"
# Without the hierarchies of version 1: they would be found first.
umount --recursive --lazy /sys/fs/cgroup

mount -t cgroup2 cgroup2 /sys/fs/cgroup
paths=/etc/systemd/system:/run/systemd/system:/run/.keep/units
if [ "$kind" = initial ]; then
    mkdir -p /run/systemd/system /run/manager # the first one says that systemd runs here (sd_booted(3))
    exec env -i "PATH=$PATH" HOME=/root XDG_RUNTIME_DIR=/run/manager "SYSTEMD_UNIT_PATH=$paths" \
        /lib/systemd/systemd --user --unit=basic.target
fi
exec env -i "PATH=$PATH" container=paddock-test "SYSTEMD_UNIT_PATH=$paths" \
    /lib/systemd/systemd --system --unit=multi-user.target --show-status=no --log-target=journal
