"""Having the kernel's audit told of what the system call filter refuses.

Launch path where somebody reads the audit: see launcher/jail/syscalls.py.
"""

import errno

from launcher.jail import seccomp


def telling(filter_program: bytes) -> bytes:
    """A filter to be installed on top of `filter_program`, with `log`, so that the audit hears of what that refuses.

    The flag counts for a whole filter, and libc asks for clone3 with each thread it starts. So what is answered as if
    the kernel lacked it, and what somebody else answers, passes here, and the first filter has its say alone.
    """
    allow = _answer(seccomp.ALLOW)
    silent = (_answer(seccomp.ERRNO | errno.ENOSYS), _answer(seccomp.USER_NOTIF))
    instructions = (filter_program[at : at + 8] for at in range(0, len(filter_program), 8))
    return b"".join(allow if instruction in silent else instruction for instruction in instructions)


def _answer(action: int) -> bytes:
    """The instruction that returns `action` (BPF_RET | BPF_K)."""
    return b"\x06\0\0\0" + action.to_bytes(4, "little")
