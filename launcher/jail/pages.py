"""Pages of memory, after a fork: getting those that will be written before they are.

A page that two processes share is copied when the first of them writes to it, and the interpreter writes to nearly all
that it looks at (reference counts). A process that waits for its work has the time to do that ahead of it; the work
then takes half as long.

Loaded by warm helpers, with the launch path's imports: see launcher/jail/syscalls.py.
"""

import errno

from launcher.lean import ctypes

_MADV_POPULATE_WRITE = 23  # Linux 5.14
_MOST = 1 << 20


def own(proc: str = "/proc") -> None:
    """Makes this process's writable pages its own (madvise(2), MADV_POPULATE_WRITE).

    Nothing but time is lost where the kernel does not know that, or has no memory to spare.

    Args:
        proc: where proc(5) is mounted.
    """
    madvise = ctypes.CDLL(None, use_errno=True)["madvise"]
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with open(f"{proc}/self/maps", "rb", buffering=0) as file:
        content = b""
        while piece := file.read(_MOST):
            content += piece
    for line in content.splitlines():
        addresses, rights, *_ = line.split(None, 2)
        if rights != b"rw-p":  # shared ones have no copies (proc_pid_maps(5))
            continue
        start, _, end = addresses.partition(b"-")
        first = int(start, 16)
        if madvise(first, int(end, 16) - first, _MADV_POPULATE_WRITE) and ctypes.get_errno() == errno.EINVAL:
            return
