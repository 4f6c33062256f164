"""Applying a system call filter that `seccomp.program` has composed.

Launch path: see launcher/jail/syscalls.py.
"""

import errno

from launcher.jail import syscalls
from launcher.lean import ctypes
from policy.errors import Refusal

ALLOW = 0x7FFF0000
ERRNO = 0x00050000
USER_NOTIF = 0x7FC00000

_LOG = 1 << 1  # SECCOMP_FILTER_FLAG_LOG


def telling(filter_program: bytes) -> bytes:
    """A filter to be installed on top of `filter_program`, with `log`, so that the audit hears of what that refuses.

    The flag counts for a whole filter, and libc asks for clone3 with each thread it starts. So what is answered as if
    the kernel lacked it, and what somebody else answers, passes here, and the first filter has its say alone.
    """
    allow = _answer(ALLOW)
    silent = (_answer(ERRNO | errno.ENOSYS), _answer(USER_NOTIF))
    instructions = (filter_program[at : at + 8] for at in range(0, len(filter_program), 8))
    return b"".join(allow if instruction in silent else instruction for instruction in instructions)


def _answer(action: int) -> bytes:
    """The instruction that returns `action` (BPF_RET | BPF_K)."""
    return b"\x06\0\0\0" + action.to_bytes(4, "little")


def install(filter_program: bytes, *, log: bool = False) -> None:
    """Applies a filter to this thread and all that it starts; no_new_privs must be set. Cannot be undone.

    With `log` the kernel's audit, if it is on, records what the filter refuses (SECCOMP_FILTER_FLAG_LOG).

    Raises:
        Refusal: the kernel refused (seccomp(2)).
    """
    # struct sock_fprog: length (16 bits, padded to the pointer's alignment), pointer.
    held = ctypes.create_string_buffer(filter_program, len(filter_program))
    fprog = (ctypes.c_uint64 * 2)(len(filter_program) // 8, ctypes.addressof(held))
    try:
        syscalls.seccomp(syscalls.SECCOMP_SET_MODE_FILTER, _LOG if log else 0, ctypes.addressof(fprog))
    except OSError as error:
        raise Refusal(
            "seccomp-refused", "the kernel refused the system call filter", context=error.strerror or str(error)
        ) from error
