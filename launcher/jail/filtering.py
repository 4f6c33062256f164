"""Applying a system call filter that has been composed: `seccomp.program`, or the guard's.

Launch path: see launcher/jail/syscalls.py.
"""

import errno

from launcher.jail import syscalls
from launcher.lean import ctypes
from policy.errors import Refusal

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
