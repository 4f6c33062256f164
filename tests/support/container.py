"""An imitation of a container: parts of /proc covered, few capabilities, a filter like the one that Docker sets.

``python -m tests.support.container OPTIONS -- COMMAND...``, as root, in the repository; the command starts in the
caller's directory when that is given with ``--cwd``. Everything happens in a mount namespace of its own.

The filter denies what Docker's documentation says its default profile denies without further capabilities; calls that
are younger than the profile are missing, as its runtime has it. No network, PID or user namespace is made: Paddock
looks at none of them from outside.
"""

import argparse
import ctypes
import errno
import os

from launcher.jail import hygiene, seccomp, syscall_tables, syscalls
from launcher.jail.seccomp import Program

# What containers cover with an empty file, with an empty directory, and make read-only.
COVERED_FILES = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/latency_stats")
COVERED_DIRECTORIES = ("/proc/acpi", "/proc/scsi", "/sys/firmware")
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

# CAP_CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, NET_RAW, SYS_CHROOT, MKNOD,
# AUDIT_WRITE, SETFCAP
CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
CAP_SYS_PTRACE = 19

# Calls that the tables of Paddock's own filter lack: numbers on x86-64 and on aarch64.
MORE: dict[str, tuple[int, int | None]] = {
    "get_mempolicy": (239, 236),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "sysfs": (139, None),
    "ustat": (136, None),
}
BY_CAPABILITY = {CAP_SYS_PTRACE: ("kcmp", "pidfd_getfd", "process_madvise")}
DENIED = (
    *("acct", "add_key", "bpf", "clock_settime", "delete_module", "fanotify_init", "finit_module", "fsconfig"),
    *("fsmount", "fsopen", "fspick", "get_mempolicy", "init_module", "io_uring_enter", "io_uring_register"),
    *("io_uring_setup", "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie"),
    *("mbind", "migrate_pages", "mount", "mount_setattr", "move_mount", "move_pages", "nfsservctl"),
    *("open_by_handle_at", "open_tree", "perf_event_open", "pidfd_getfd", "pivot_root", "process_madvise"),
    *("quotactl", "quotactl_fd", "reboot", "request_key", "set_mempolicy", "set_mempolicy_home_node"),
    *("setdomainname", "sethostname", "setns", "settimeofday", "swapoff", "swapon", "sysfs", "syslog", "umount2"),
    *("unshare", "uselib", "userfaultfd", "ustat", "vhangup"),
)
NEWEST = 452  # fchmodat2: what comes later, the profile does not know
CLONE_NEW = 0x7E020000


def number(name: str) -> int | None:
    """The number of a call on this machine; None where it lacks it."""
    machine = syscalls.MACHINE
    if name in MORE:
        return MORE[name][syscall_tables.MACHINES.index(machine)]
    return syscall_tables.number(name, machine)


def program(granted: tuple[int, ...]) -> bytes:
    """The filter for a container that has the capabilities `granted`."""
    allowed = {name for capability in granted for name in BY_CAPABILITY.get(capability, ())}
    bpf = Program()
    bpf.load(0)
    bpf.greater(NEWEST, then="missing")
    for name in DENIED:
        found = number(name)
        if name not in allowed and found is not None:
            bpf.equal(found, then="denied")
    for name, label in (("clone3", "missing"), ("clone", "clone")):
        found = number(name)
        assert found is not None
        bpf.equal(found, then=label)
    bpf.answer(seccomp.ALLOW)
    bpf.label("clone")
    bpf.load(16)
    bpf.any_bit(CLONE_NEW, "denied", "allowed")
    for label, action in (
        ("missing", seccomp.ERRNO | errno.ENOSYS),
        ("denied", seccomp.ERRNO | errno.EPERM),
        ("allowed", seccomp.ALLOW),
    ):
        bpf.label(label)
        bpf.answer(action)
    return bpf.assemble()


def mask() -> None:
    """Covers what containers cover, in a new mount namespace."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    for path in filter(os.path.exists, COVERED_FILES):
        syscalls.mount("/dev/null", path, flags=syscalls.MS_BIND)
    for path in filter(os.path.exists, COVERED_DIRECTORIES):
        syscalls.mount("tmpfs", path, "tmpfs", syscalls.MS_RDONLY)
    for path in filter(os.path.exists, READ_ONLY):
        syscalls.mount(path, path, flags=syscalls.MS_BIND | syscalls.MS_REC)
        syscalls.mount("", path, flags=syscalls.MS_BIND | syscalls.MS_REMOUNT | syscalls.MS_RDONLY)


def shed(granted: tuple[int, ...], uid: int) -> None:
    """Keeps the capabilities `granted` alone, as `uid` none of them."""
    for capability in hygiene.bounding():
        if capability not in granted:
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    else:
        bits = sum(1 << capability for capability in granted)
        syscalls.capset(bits, bits, 0)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--uid", type=int, default=0)
    parser.add_argument("--cwd", default="/")
    parser.add_argument("--unconfined", action="store_true", help="no filter")
    parser.add_argument("--ptrace", action="store_true", help="with CAP_SYS_PTRACE")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    granted = (*CAPABILITIES, *((CAP_SYS_PTRACE,) if given.ptrace else ()))
    mask()
    os.chdir(given.cwd)
    if not given.unconfined:
        # Without no_new_privs, as container runtimes do it.
        filter_program = program(granted)
        held = ctypes.create_string_buffer(filter_program, len(filter_program))
        fprog = (ctypes.c_uint64 * 2)(len(filter_program) // 8, ctypes.addressof(held))
        syscalls.seccomp(syscalls.SECCOMP_SET_MODE_FILTER, 0, ctypes.addressof(fprog))
    shed(granted, given.uid)
    hygiene.close_inherited()
    os.execvp(given.command[0], given.command)


if __name__ == "__main__":
    main()
