"""The confinement of Paddock's own processes that read what an agent says: `confine` gives up all they do not need.

Such a process keeps the descriptors that it has, reads Paddock's modules, and has the paths that it names. It starts no
programme, signals nobody, and reads no file of the user's; it opens sockets only where that is its work (the proxy).
What it needs beyond that it asks of a process outside, which believes nothing that it says.
"""

import errno
import os
import sys
import time

from launcher.jail import hygiene, landlock, seccomp, syscall_tables, syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# sysconf and zone data are read late by libraries; the others are what Python loads modules from and with.
_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo")
_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/nix/store", "/gnu/store")
_DEVICES = ("/dev/null", "/dev/urandom")
CAP_DAC_READ_SEARCH = 1 << 2
"""To look at paths in other users' directories (capabilities(7))."""

_SOCKETS = ("socket", "connect", "bind")
_FORBIDDEN = (
    *("listen", "kill", "prlimit64", "setpriority", "migrate_pages", "move_pages", "kcmp", "open_by_handle_at"),
    *("mount", "umount2", "move_mount", "open_tree", "fsopen", "fsmount", "pivot_root", "chroot", "unshare", "setns"),
    *("io_uring_setup", "bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key", "request_key"),
    *("shmget", "msgget", "semget", "mq_open"),
)
"""What no such process does; `_SOCKETS` neither, without a network: Landlock does not see AF_UNIX sockets."""

_FORBIDDEN_TOO = {
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
}
"""Further ones, with their numbers on `syscall_tables.MACHINES`: no jail forbids them."""


_FCNTL_SIGNALS = (8, 10, 15)
_IOCTL_SIGNALS = (0x8901, 0x8902, 0x5412)
"""F_SETOWN, F_SETSIG and F_SETOWN_EX; FIOSETOWN, SIOCSPGRP and TIOCSTI: a file's readiness, or a key, as a signal."""


def confine(
    name: str,
    *,
    readable: "Iterable[str]" = (),
    writable: "Iterable[str]" = (),
    network: bool = False,
    capability: int = 0,
) -> None:
    """Gives up every privilege and every file but Paddock's own code, for this process. Cannot be undone.

    To be called while there is only one thread. Without Landlock (a kernel of the bubblewrap backend) files stay within
    reach; the system call filter holds there too.

    Args:
        name: of the process, as ps(1) shows it from now on.
        readable: files and directories that it reads besides.
        writable: directories that it reads and writes.
        network: it opens sockets and connects.
        capability: the one to keep where it has it, as a bit.

    Raises:
        Refusal: the kernel refused.
    """
    time.tzset()
    with open("/proc/self/comm", "w") as file:
        file.write(name)
    hygiene.no_new_privs()
    _drop_capabilities(capability)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    abi = landlock.abi()
    if abi >= 1:
        grants = [(path, "r", "libraries") for path in (*_FILES, *_LIBRARIES)]
        grants += [(path, "r", "modules") for path in sys.path if path.startswith("/")]
        grants += [(path, "rw", "devices") for path in _DEVICES]
        grants += [(path, "r", "own") for path in readable]
        grants += [(path, "rw", "own") for path in writable]
        canonical = {(os.path.realpath(path), access, source) for path, access, source in grants}
        # The signal scope would also hold back PR_SET_PDEATHSIG, which the kernel sends in this process's name when it
        # dies, and what it started would outlive it. The filter closes all ways to send a signal instead.
        landlock.restrict(tuple(sorted(canonical)), abi=abi, network=network, log=False, scope_signals=False)
    hygiene.install_filter(_filter(_FORBIDDEN if network else (*_FORBIDDEN, *_SOCKETS)))


def _drop_capabilities(but: int) -> None:
    permitted = syscalls.capget()[1] & but
    if permitted:
        hygiene.drop_bounding()
        syscalls.prctl(syscalls.PR_SET_SECUREBITS, hygiene.SECUREBITS)
        syscalls.capset(permitted, permitted, 0)
    else:
        hygiene.drop_all()


def _filter(forbidden: tuple[str, ...]) -> bytes:
    """The system call filter; calls of another instruction set kill the process, because their numbers differ."""
    machine = syscalls.MACHINE
    program = seccomp.Program()
    program.load(4)  # offsetof(struct seccomp_data, arch)
    program.equal(syscall_tables.AUDIT_ARCH[machine], otherwise="killed")
    program.load(0)
    if machine == "x86_64":
        program.any_bit(syscall_tables.X32_BIT, then="killed")
    at = syscall_tables.MACHINES.index(machine)
    for number in (
        *(syscall_tables.number(call, machine) for call in forbidden),
        *(numbers[at] for numbers in _FORBIDDEN_TOO.values()),
    ):
        if number is not None:
            program.equal(number, then="forbidden")
    for call in ("fcntl", "ioctl"):
        number = syscall_tables.number(call, machine)
        assert number is not None
        program.equal(number, then=call)
    program.answer(seccomp.ALLOW)
    for call, commands in (("fcntl", _FCNTL_SIGNALS), ("ioctl", _IOCTL_SIGNALS)):
        program.label(call)
        program.load(24)  # offsetof(struct seccomp_data, args[1]), the low word
        for command in commands:
            program.equal(command, then="forbidden")
        program.answer(seccomp.ALLOW)
    program.label("forbidden")
    program.answer(seccomp.ERRNO | errno.EPERM)
    program.label("killed")
    program.answer(seccomp.KILL_PROCESS)
    return program.assemble()
