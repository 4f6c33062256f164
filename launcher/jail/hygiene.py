"""What a process inherits and gives up: descriptors, umask, resource limits, privileges, system calls.

Each function does one thing and returns the fact that the ledger records.

Launch path: see launcher/jail/syscalls.py.
"""

import errno
import fcntl
from _stat import S_ISCHR, S_ISFIFO, S_ISREG, S_ISSOCK

from launcher.jail import syscalls
from launcher.lean import ctypes, os
from policy.errors import Refusal

Fact = tuple[str, int, bool, str]
"""(name of the limit, value in force, enforced, remark)."""

_LAST_FD = 0xFFFFFFFF
_TCGETS = 0x5401  # asm-generic/ioctls.h

_DEVICES = {0x103: "/dev/null", 0x105: "/dev/zero", 0x107: "/dev/full", 0x108: "/dev/random", 0x109: "/dev/urandom"}
"""What every jail has in its own /dev, by device number (Documentation/admin-guide/devices.txt)."""

# Names of `JailSpec.limits` and the resource that bounds them (asm-generic/resource.h).
RESOURCES = {"cpu_time": 0, "file_size": 1, "memory": 2, "processes": 6, "open_files": 7}
_CORE = 4
_BY_USER = {"signals": 11, "queues": 12}
"""RLIMIT_SIGPENDING, which timers use, too, and RLIMIT_MSGQUEUE."""

FAR = 4096
"""From so many processes on, a limit is there to save the machine: it need not be exact, and must cost nothing."""

_OWN_PID_MAX = (6, 14)


def fill_standard_fds() -> int:
    """Opens /dev/null on those of 0, 1 and 2 that are closed; returns how many there were.

    Otherwise the next file that is opened becomes somebody's standard input or output.
    """
    filled = 0
    while True:
        fd = os.open("/dev/null", os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return filled
        os.set_inheritable(fd, True)
        filled += 1


def streams_to_carry(streams: tuple[int, ...] = (0, 1, 2)) -> tuple[int, ...]:
    """Those standard streams that must not reach a command themselves: all but terminals and devices.

    Whoever has a file open may change its mode, its times and, opened once more by /proc, all of its content. A pipe is
    opened so for the other direction. A socket is one of the caller's network, and can be connected to another place.
    Terminals can be handed on, and `own_devices` replaces the rest.

    Raises:
        Refusal: stream-unusable, for what is no stream of bytes, or another device.
    """
    found = []
    for fd in streams:
        info = os.fstat(fd)
        mode, path_only = info.st_mode, bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH)
        if not path_only and (S_ISFIFO(mode) or S_ISREG(mode) or (S_ISSOCK(mode) and syscalls.is_stream(fd))):
            found.append(fd)
        elif path_only or not (S_ISCHR(mode) and _is_usual(fd, info.st_rdev)):
            raise Refusal(
                "stream-unusable",
                f"standard {('input', 'output', 'error')[fd]} is a directory, a device, a socket of messages or no file"
                " at all",
                context="through it, the command could reach more than its jail allows",
                hint="cat DEVICE | paddock ... reads a device, and paddock ... | cat >DEVICE writes one",
            )
    return tuple(found)


def _is_usual(fd: int, number: int) -> bool:
    """Whether a device is one of every jail's, or a terminal, even one that has hung up (EIO)."""
    if number in _DEVICES:
        return True
    try:
        fcntl.ioctl(fd, _TCGETS, bytes(64))
    except OSError as error:
        return error.errno == errno.EIO
    return True


def take_streams(streams: tuple[int, ...]) -> None:
    """Makes these descriptors 0, 1 and 2, and closes them."""
    for number, fd in enumerate(streams):
        if fd != number:
            os.dup2(fd, number, inheritable=True)
    for fd in set(streams):
        if fd > 2:
            os.close(fd)


def own_devices() -> None:
    """Opens standard streams that are devices once more, by the jail's own /dev, whose modes and times are fixed.

    A terminal that has hung up becomes /dev/null. To be called in the jail's view, before Landlock.
    """
    for fd in (0, 1, 2):
        info = os.fstat(fd)
        if not S_ISCHR(info.st_mode) or (info.st_rdev not in _DEVICES and os.isatty(fd)):
            continue
        path = _DEVICES.get(info.st_rdev, "/dev/null")
        own = os.open(path, fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE | os.O_CLOEXEC)
        if _DEVICES.get(os.fstat(own).st_rdev) != path:
            raise Refusal("stream-unusable", f"{path} is not the expected device")
        os.dup2(own, fd, inheritable=True)
        os.close(own)


def close_inherited(keep: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Closes every descriptor above 2 except those of `keep`; returns the ones that stay open.

    Raises:
        Refusal: a descriptor to keep is not open, or the open ones cannot be listed.
    """
    kept = tuple(sorted({fd for fd in keep if fd > 2}))
    for fd in kept:
        try:
            os.fstat(fd)
        except OSError as error:
            raise Refusal("fd-not-open", f"file descriptor {fd} was to be passed on, but is not open") from error
    first = 3
    try:
        for fd in (*kept, _LAST_FD + 1):
            if first < fd:
                syscalls.close_range(first, fd - 1)
            first = fd + 1
    except OSError as error:
        # Before Linux 5.9, or an outer filter that does not know the call.
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        _close_one_by_one(kept)
    return kept


def close_callers() -> None:
    """Closes what the caller has left open for this process, from descriptor 3 on, and nothing of ours.

    What was inherited over execve(2) is not close-on-exec, and whatever is opened here is.
    """
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            if fd > 2 and not fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
                os.close(fd)
        except OSError as error:
            if error.errno != errno.EBADF:  # the one that listed the directory
                raise


def _close_one_by_one(kept: tuple[int, ...]) -> None:
    try:
        names = os.listdir("/proc/self/fd")
    except OSError as error:
        raise Refusal(
            "fds-unknown", "open file descriptors can be neither closed as a range nor listed", context=str(error)
        ) from error
    for fd in map(int, names):
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError as error:
                # The descriptor that listed the directory is among the names and closed by now.
                if error.errno != errno.EBADF:
                    raise


def umask(mask: int) -> tuple[int, int]:
    """Sets the file mode creation mask; returns (before, now)."""
    return os.umask(mask), mask


def no_new_privs() -> bool:
    """Set-uid bits and file capabilities mean nothing from now on (prctl(2)); returns what the kernel reports.

    Raises:
        Refusal: the kernel did not take it.
    """
    try:
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        held = syscalls.prctl(syscalls.PR_GET_NO_NEW_PRIVS) == 1
    except OSError as error:
        raise Refusal("privileges-kept", "no_new_privs could not be set", context=str(error)) from error
    if not held:
        raise Refusal("privileges-kept", "no_new_privs is not set although the kernel accepted it")
    return held


def rlimits(limits: tuple[tuple[str, int], ...], *, kernel_uid: int) -> tuple[Fact, ...]:
    """Sets resource limits, soft and hard, for this process and what it starts; those of `standing` always.

    Call it after unshare(CLONE_NEWUSER): the number of processes is counted per user namespace, and before it the
    caller's own processes would use the limit up.

    Args:
        limits: (name out of `RESOURCES`, value in bytes, seconds or a count). A limit that already holds and is
            lower stays.
        kernel_uid: the user id in the initial user namespace (`os.getuid()` before any unshare).

    Returns:
        For each limit (name, value in force, enforced, remark). "processes" is not enforced for kernel uid 0, which
        Linux exempts whatever the namespace and the capabilities; a cgroup must do it then.

    Raises:
        Refusal: unknown name, a value below 0, or the kernel refused.
    """
    facts = [_rlimit(name, resource, value, "") for name, resource, value in standing()]
    if facts[0][1] != 1:
        facts[0] = ("core", 0, False, "the caller's own limit: of files, the kernel's helper for core dumps has none")
    for name, value in limits:
        if name not in RESOURCES or value < 0:
            raise Refusal(
                "limit-invalid",
                f"the limit {name}={value} is not known",
                hint=f"limits are {', '.join(sorted(RESOURCES))}, with values from 0",
            )
        remark = ""
        if name == "memory":
            remark = "private memory of each process; shared memory and tmpfs are not counted"
        elif name == "processes" and kernel_uid == 0:
            remark = "Linux exempts root from this limit; a cgroup is needed"
        facts.append(_rlimit(name, RESOURCES[name], value, remark, enforced=name != "processes" or kernel_uid != 0))
    return tuple(facts)


def standing() -> tuple[tuple[str, int, int], ...]:
    """The limits that every jail has, each with its resource: a quarter of the caller's, where users are counted.

    Core dumps are off at 1: at 0 the kernel writes no file, and starts its helper all the same (fs/coredump.c).
    """
    quarters = ((name, resource, syscalls.prlimit64(0, resource)[0] // 4) for name, resource in _BY_USER.items())
    return (("core", _CORE, 1), *quarters)


def bound_pids(count: int) -> str:
    """Bounds the process ids of this PID namespace, and with them the processes and threads, root's too.

    Call it in the namespace's first process, with /proc/sys still writable. Not for small counts: ids below 300 are
    not used a second time, so fewer processes than `count` can be had (kernel/pid.c, RESERVED_PIDS).
    """
    major, _, rest = os.uname().release.partition(".")
    minor = rest.partition(".")[0].partition("-")[0]
    if (int(major), int(minor)) < _OWN_PID_MAX:
        return "a PID namespace has a pid_max of its own from Linux 6.14 on"  # before: the machine's
    try:
        fd = os.open("/proc/sys/kernel/pid_max", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, str(count).encode())
        finally:
            os.close(fd)
    except OSError as error:
        return f"/proc/sys/kernel/pid_max: {error.strerror}"
    return ""


def bound_pids_row(count: int) -> "tuple[tuple[str, str, str], ...]":
    """The same, told as a row for the ledger."""
    why = bound_pids(count)
    detail = f"{count}: pid_max of the PID namespace" if not why else f"{count}: Linux exempts root; {why}"
    return (("limit processes", "not held" if why else "held", detail),)


def _rlimit(name: str, resource: int, value: int, remark: str, *, enforced: bool = True) -> Fact:
    try:
        hard = syscalls.prlimit64(0, resource)[1]
        value = min(value, hard)
        syscalls.prlimit64(0, resource, (value, value))
        held = syscalls.prlimit64(0, resource) == (value, value)
    except OSError as error:
        raise Refusal("limit-refused", f"the limit {name}={value} could not be set", context=str(error)) from error
    if not held:
        raise Refusal("limit-refused", f"the limit {name}={value} is not in force although the kernel accepted it")
    return name, value, enforced, remark


# Giving up privileges: every capability, in the order in which the kernel lets go of them, and system calls.
#
# Dropping the bounding set and locking the secure bits both need CAP_SETPCAP, so they come first; the sets that give
# that capability come last (capabilities(7)). The result is read back: a set that is not empty is a Refusal.
#
# Launch path: see launcher/jail/syscalls.py.

CAP_SETPCAP = 8

# Each bit with its lock (the next higher bit): root is no special user, changing uids changes no capability,
# nothing is kept across setuid, and the ambient set stays empty (linux/securebits.h).
_NOROOT = 0b11 << 0
_NO_SETUID_FIXUP = 0b11 << 2
_KEEP_CAPS_LOCKED = 1 << 5
_NO_CAP_AMBIENT_RAISE = 0b11 << 6
SECUREBITS = _NOROOT | _NO_SETUID_FIXUP | _KEEP_CAPS_LOCKED | _NO_CAP_AMBIENT_RAISE


_bounding_dropped = False
"""In this process, or in one that it was forked from."""


def drop_bounding() -> None:
    """Empties the bounding set alone, ahead of `drop_all`, which then need not: forty calls of the kernel.

    Raises:
        OSError: the thread lacks CAP_SETPCAP.
    """
    global _bounding_dropped
    for number in range(64):
        try:
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, number)
        except OSError as error:
            if error.errno == errno.EINVAL:
                break  # behind the kernel's last capability
            raise
    _bounding_dropped = True


def drop_all() -> tuple[bool, bool]:
    """Empties the ambient, bounding, inheritable, permitted and effective sets of this thread and locks root out.

    Without CAP_SETPCAP (an ordinary user) the bounding set and the secure bits stay as they are; then no_new_privs,
    which the jail always sets, is what keeps set-uid programmes and file capabilities from giving any back.

    Returns:
        (bounding set is empty, secure bits are locked), both as the kernel reports them afterwards.

    Raises:
        Refusal: the kernel refused a step that it should allow, or a set is not empty afterwards.
    """
    try:
        if syscalls.capget()[0] >> CAP_SETPCAP & 1:
            # PR_SET_KEEPCAPS may be on; its lock is only useful once it is off, and SECUREBITS leaves it off.
            syscalls.prctl(syscalls.PR_SET_SECUREBITS, SECUREBITS)
            if not _bounding_dropped:
                drop_bounding()
        # The kernel keeps the ambient set within the other two, so this empties it as well.
        syscalls.capset(0, 0, 0)
    except OSError as error:
        raise Refusal("capabilities-kept", "capabilities could not be dropped", context=str(error)) from error
    left = (*syscalls.capget(), *_reported())
    if any(left[:3]) or left[4]:
        raise Refusal("capabilities-kept", "some capabilities remain after dropping them", context=repr(left))
    return not left[3], syscalls.prctl(syscalls.PR_GET_SECUREBITS) & SECUREBITS == SECUREBITS


def _reported() -> tuple[int, int]:
    """Bounding and ambient set as masks: from one file where there is a /proc, or else by 82 calls."""
    try:
        fd = os.open("/proc/thread-self/status", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(fd, 8192)
        finally:
            os.close(fd)
        words = text[text.index(b"\nCapBnd:") :].split(None, 4)
        if words[2] == b"CapAmb:":
            return int(words[1], 16), int(words[3], 16)
    except (OSError, ValueError, IndexError):
        pass  # no /proc, or one that tells something else: the calls know
    return sum(1 << number for number in bounding()), sum(1 << number for number in ambient())


def bounding() -> tuple[int, ...]:
    """Numbers of the capabilities in the bounding set of this thread."""
    return _members(lambda number: syscalls.prctl(syscalls.PR_CAPBSET_READ, number))


def ambient() -> tuple[int, ...]:
    """Numbers of the capabilities in the ambient set of this thread."""
    return _members(lambda number: syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_IS_SET, number))


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def _members(is_set: "Callable[[int], int]") -> tuple[int, ...]:
    # The kernel says EINVAL behind its last capability; that is cheaper than reading /proc/sys/kernel/cap_last_cap.
    found = []
    for number in range(64):
        try:
            if is_set(number):
                found.append(number)
        except OSError as error:
            if error.errno == errno.EINVAL:
                break
            raise
    return tuple(found)


# Applying a system call filter that has been composed: `seccomp.program`, or the guard's.
#
# Launch path: see launcher/jail/syscalls.py.

_LOG = 1 << 1  # SECCOMP_FILTER_FLAG_LOG
_NEW_LISTENER = 1 << 3
_WAIT_KILLABLE_RECV = 1 << 5
"""From RECV to SEND only a fatal signal ends the caller's wait, so nothing is performed twice (Linux 5.19)."""


def install_filter(filter_program: bytes, *, log: bool = False) -> None:
    """Applies a filter to this thread and all that it starts; no_new_privs must be set. Cannot be undone.

    With `log` the kernel's audit, if it is on, records what the filter refuses (SECCOMP_FILTER_FLAG_LOG).

    Raises:
        Refusal: the kernel refused (seccomp(2)).
    """
    try:
        _apply(filter_program, _LOG if log else 0)
    except OSError as error:
        raise Refusal(
            "seccomp-refused", "the kernel refused the system call filter", context=error.strerror or str(error)
        ) from error


def install_notifying(filter_program: bytes) -> int:
    """As `install_filter`, for a filter that asks a listener (seccomp_unotify(2))."""
    try:
        return _apply(filter_program, _NEW_LISTENER | _WAIT_KILLABLE_RECV)
    except OSError as error:
        busy = error.errno == errno.EBUSY
        raise Refusal(
            "guard-refused",
            "the kernel refused the guard's system call filter",
            context="another programme already intercepts this one's system calls" if busy else str(error),
            hint="start Paddock outside of the other sandbox" if busy else "",
        ) from error


def _apply(filter_program: bytes, flags: int) -> int:
    # struct sock_fprog: length (16 bits, padded to the pointer's alignment), pointer.
    held = ctypes.create_string_buffer(filter_program, len(filter_program))
    fprog = (ctypes.c_uint64 * 2)(len(filter_program) // 8, ctypes.addressof(held))
    return syscalls.seccomp(syscalls.SECCOMP_SET_MODE_FILTER, flags, ctypes.addressof(fprog))
