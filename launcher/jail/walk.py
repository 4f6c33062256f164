"""Opening names that others may exchange: regular files and nothing else, and paths without any link.

A path is walked step by step where the kernel offers no openat2(2): inside another jail, whose filter hides it.

Launch path: see launcher/jail/syscalls.py.
"""

import errno
from _stat import S_ISLNK, S_ISREG

from launcher.jail import syscalls
from launcher.lean import os

_BLOCK = 16 << 20
_THE_LINK = os.O_PATH | os.O_NOFOLLOW


def open_regular(path: str, *, dir_fd: int | None = None, follow: bool = False) -> int | None:
    """A descriptor for reading a regular file; None for anything else, which is not even opened.

    Opening a FIFO waits, opening a device can act. What was looked at is what is opened.

    Args:
        path: of the file.
        dir_fd: where a relative path starts.
        follow: whether `path` itself may be a symbolic link.

    Raises:
        OSError: as open(2); ELOOP for a link.
    """
    look = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    return reopened(os.open(path, look, dir_fd=dir_fd))


def reopened(where: int) -> int | None:
    """The same for what an O_PATH descriptor is of, which gets closed."""
    try:
        found = os.fstat(where).st_mode
        if S_ISLNK(found):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if not S_ISREG(found):
            return None
        return os.open(f"/proc/self/fd/{where}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    finally:
        os.close(where)


def read_up_to(descriptor: int, limit: int) -> bytes | None:
    """What is left of an open file; None when that is more than `limit` bytes (OSError)."""
    blocks: list[bytes] = []
    size = 0
    while size <= limit and (block := os.read(descriptor, min(limit + 1 - size, _BLOCK))):
        blocks.append(block)
        size += len(block)
    return b"".join(blocks) if size <= limit else None


def read_regular(path: str, limit: int, *, dir_fd: int | None = None, follow: bool = False) -> bytes | None:
    """Content of a regular file; None for anything else, and for more than `limit` bytes. Arguments as `open_regular`.

    Raises:
        OSError: as open(2) and read(2).
    """
    descriptor = open_regular(path, dir_fd=dir_fd, follow=follow)
    if descriptor is None:
        return None
    try:
        return read_up_to(descriptor, limit)
    finally:
        os.close(descriptor)


def open_without_links(dirfd: int, path: str, flags: int) -> int:
    """Like openat2(2) with RESOLVE_NO_SYMLINKS: the errno ELOOP for a symbolic link anywhere on the way.

    Each step starts from what the step before has opened, so that no exchange of names in between leads elsewhere.

    Args:
        dirfd: where a relative path starts; syscalls.AT_FDCWD for the current directory.
        path: not empty.
        flags: of open(2). With O_PATH and O_NOFOLLOW a link in the last place is opened itself, as openat2(2) does.

    Returns:
        A descriptor that the caller owns.

    Raises:
        OSError: as open(2).
    """
    *parents, last = [step for step in path.split("/") if step not in ("", ".")] or ["."]
    if path.startswith("/"):
        here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    else:
        here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=_named(dirfd))
    try:
        for step in parents:
            found = _step(step, here)
            os.close(here)
            here = found
        directory = os.O_DIRECTORY if path.endswith(("/", "/.")) else 0
        link_itself = flags & _THE_LINK == _THE_LINK and not directory
        if not link_itself:
            os.close(_step(last, here))  # says ELOOP where open(2) says something else
        opened = os.open(last, flags | os.O_NOFOLLOW | directory, dir_fd=here)
        return opened if link_itself else _no_link(opened, last)
    finally:
        os.close(here)


def _named(dirfd: int) -> int | None:
    return None if dirfd == syscalls.AT_FDCWD else dirfd


def _step(name: str, directory: int) -> int:
    """An O_PATH descriptor of what is no link; the caller owns it."""
    return _no_link(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory), name)


def _no_link(fd: int, name: str) -> int:
    if S_ISLNK(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    return fd
