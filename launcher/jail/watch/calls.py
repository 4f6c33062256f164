"""System calls by which a programme reaches for files and hosts, and what each of them wants. Data.

Launch path of `paddock learn`: no imports.
"""

READ, EXECUTE, LOOK, WRITE, CREATE, MAKE, MAKE_DIRECTORY, REMOVE, CHANGE, CONNECT = (
    "read", "execute", "look", "write", "create", "make", "mkdir", "remove", "change", "connect"
)  # fmt: skip
"""What is wanted of a path: read a file or list a directory; execute; know whether it is there; write a file that is
there; write a file, made if it is missing; make an entry; make a directory; remove an entry; change mode, owner, times;
or, of a socket address, connect."""

OPEN, OPEN_HOW = "open", "open how"
"""To be told apart by the flags: an argument of open(2), or the first word of openat2(2)'s structure."""

Row = tuple[int | None, int | None, tuple[tuple[str, int, int], ...], int]
"""Number on x86-64 and on aarch64; what is wanted, as (want, argument of the directory's descriptor or -1, argument of
the path); argument of the flags, -1 for none."""

CALLS: dict[str, Row] = {
    "open": (2, None, ((OPEN, -1, 0),), 1),
    "openat": (257, 56, ((OPEN, 0, 1),), 2),
    "openat2": (437, 437, ((OPEN_HOW, 0, 1),), 2),
    "creat": (85, None, ((CREATE, -1, 0),), -1),
    "execve": (59, 221, ((EXECUTE, -1, 0),), -1),
    "execveat": (322, 281, ((EXECUTE, 0, 1),), -1),
    "stat": (4, None, ((LOOK, -1, 0),), -1),
    "lstat": (6, None, ((LOOK, -1, 0),), -1),
    "newfstatat": (262, 79, ((LOOK, 0, 1),), -1),
    "statx": (332, 291, ((LOOK, 0, 1),), -1),
    "access": (21, None, ((LOOK, -1, 0),), -1),
    "faccessat": (269, 48, ((LOOK, 0, 1),), -1),
    "faccessat2": (439, 439, ((LOOK, 0, 1),), -1),
    "readlink": (89, None, ((LOOK, -1, 0),), -1),
    "readlinkat": (267, 78, ((LOOK, 0, 1),), -1),
    "chdir": (80, 49, ((LOOK, -1, 0),), -1),
    "mkdir": (83, None, ((MAKE_DIRECTORY, -1, 0),), -1),
    "mkdirat": (258, 34, ((MAKE_DIRECTORY, 0, 1),), -1),
    "mknod": (133, None, ((MAKE, -1, 0),), -1),
    "mknodat": (259, 33, ((MAKE, 0, 1),), -1),
    "symlink": (88, None, ((MAKE, -1, 1),), -1),
    "symlinkat": (266, 36, ((MAKE, 1, 2),), -1),
    "link": (86, None, ((READ, -1, 0), (MAKE, -1, 1)), -1),
    "linkat": (265, 37, ((READ, 0, 1), (MAKE, 2, 3)), -1),
    "rename": (82, None, ((REMOVE, -1, 0), (MAKE, -1, 1)), -1),
    "renameat": (264, 38, ((REMOVE, 0, 1), (MAKE, 2, 3)), -1),
    "renameat2": (316, 276, ((REMOVE, 0, 1), (MAKE, 2, 3)), -1),
    "unlink": (87, None, ((REMOVE, -1, 0),), -1),
    "unlinkat": (263, 35, ((REMOVE, 0, 1),), -1),
    "rmdir": (84, None, ((REMOVE, -1, 0),), -1),
    "truncate": (76, 45, ((WRITE, -1, 0),), -1),
    "connect": (42, 203, ((CONNECT, -1, 1),), 2),
    # Where a guard performs these, they are its own affair.
    "chmod": (90, None, ((CHANGE, -1, 0),), -1),
    "fchmodat": (268, 53, ((CHANGE, 0, 1),), -1),
    "fchmodat2": (452, 452, ((CHANGE, 0, 1),), -1),
    "chown": (92, None, ((CHANGE, -1, 0),), -1),
    "lchown": (94, None, ((CHANGE, -1, 0),), -1),
    "fchownat": (260, 54, ((CHANGE, 0, 1),), -1),
    "utimensat": (280, 88, ((CHANGE, 0, 1),), -1),
    "setxattr": (188, 5, ((CHANGE, -1, 0),), -1),
}


def numbers(machine: str) -> dict[int, str]:
    """Name by number on `machine` ("x86_64" or "aarch64"); calls that it lacks are left out."""
    first = machine == "x86_64"
    return {number: name for name, row in CALLS.items() if (number := row[0] if first else row[1]) is not None}
