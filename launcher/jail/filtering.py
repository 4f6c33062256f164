"""Applying a system call filter that `seccomp.program` has composed.

Launch path: see launcher/jail/syscalls.py.
"""

from launcher.jail import syscalls
from launcher.lean import ctypes
from policy.errors import Refusal

_LOG = 1 << 1  # SECCOMP_FILTER_FLAG_LOG


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
