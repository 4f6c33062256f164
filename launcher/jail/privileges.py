"""Giving up privileges: every capability, in the order in which the kernel lets go of them, and system calls.

Dropping the bounding set and locking the secure bits both need CAP_SETPCAP, so they come first; the sets that give
that capability come last (capabilities(7)). The result is read back: a set that is not empty is a Refusal.

Launch path: see launcher/jail/syscalls.py.
"""

import errno

from launcher.jail import syscalls
from launcher.lean import ctypes, os
from policy.errors import Refusal

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
        raise Refusal("capabilities-kept", "capabilities are left after dropping them", context=repr(left))
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


def install(filter_program: bytes, *, log: bool = False) -> None:
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
    """As `install`, for a filter that asks a listener (seccomp_unotify(2)).

    Returns:
        The listener (close-on-exec), owned by the caller. While this process holds it, calls that nobody answers wait.

    Raises:
        Refusal: the kernel refused; EBUSY means that this process is under somebody else's listener already.
    """
    try:
        return _apply(filter_program, _NEW_LISTENER | _WAIT_KILLABLE_RECV)
    except OSError as error:
        busy = error.errno == errno.EBUSY
        raise Refusal(
            "guard-refused",
            "the kernel refused the guard's system call filter",
            context="another programme already supervises this one's system calls" if busy else str(error),
            hint="start Paddock outside of the other sandbox" if busy else "",
        ) from error


def _apply(filter_program: bytes, flags: int) -> int:
    # struct sock_fprog: length (16 bits, padded to the pointer's alignment), pointer.
    held = ctypes.create_string_buffer(filter_program, len(filter_program))
    fprog = (ctypes.c_uint64 * 2)(len(filter_program) // 8, ctypes.addressof(held))
    return syscalls.seccomp(syscalls.SECCOMP_SET_MODE_FILTER, flags, ctypes.addressof(fprog))
