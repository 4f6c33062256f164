"""What the jail's own /dev holds.

Launch path: see launcher/jail/syscalls.py.
"""

from _stat import S_ISCHR

from launcher.lean import os

NODES = ("null", "zero", "full", "random", "urandom", "tty")

LINKS = (
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
)


def terminal_name() -> str:
    """Path of the terminal on standard input, output or error, "" without one. Needs the outer /proc."""
    for fd in (0, 1, 2):
        try:
            name = os.ttyname(fd)
            # The name is what the kernel remembers; behind it there must still be the same device.
            if S_ISCHR(os.lstat(name).st_mode) and os.lstat(name).st_rdev == os.fstat(fd).st_rdev:
                return name
        except OSError:
            continue  # no terminal, or one of another mount namespace (a container's): it has no name here
    return ""


def nodes(terminal: str) -> list[tuple[str, str]]:
    """(path outside, name in the jail's /dev). The terminal gets the name that ttyname(3) looks for: console."""
    return [(f"/dev/{name}", name) for name in NODES] + ([(terminal, "console")] if terminal else [])
