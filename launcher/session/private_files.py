"""Small files in directories that somebody else may be changing: found, read and replaced by descriptors alone.

The private home is the agent's to write, also while another session of the worktree lives. Each step on the way is
opened by itself and without following a link, so what is planted there can make a step fail, and nothing else. The
directory that is then open may be moved about by the agent, but only to where it could have written itself.
"""

import os
from contextlib import suppress
from typing import NamedTuple

from launcher.jail import walk

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_REPLACED = 100
"""Times that a file may be replaced while it is opened. Who does it more often is not another session."""
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Unusable(Exception):
    """A file or directory is not what it should be. The text says what it is."""


class Changing(Unusable):
    """A file that is replaced again and again while it is opened: what it is cannot be said, and is soon known."""


class Content(NamedTuple):
    """A file's bytes, and what changes when anybody writes or replaces it."""

    data: bytes
    mark: tuple[int, ...]


def directory_below(top: int, path: str, *, make: bool) -> int:
    """Opens the directory of `path`, a path below the open directory `top`. The descriptor is the caller's to close.

    Args:
        top: an open directory.
        path: relative, without ``..``; the last component is not looked at.
        make: make what is missing, with mode 0700; what is no directory is renamed.

    Raises:
        FileNotFoundError: it is missing, and is not to be made.
        Unusable: something else than a directory is in the way.
    """
    here = os.dup(top)
    try:
        for name in path.split("/")[:-1]:
            try:
                try:
                    below = _enter(here, name, make=make)
                except NotADirectoryError:
                    if not make:
                        raise
                    # Linux says so of a link, too. It is the agent's, and would keep all later sessions from a login.
                    os.rename(name, f"{name[:100]}.replaced-{os.urandom(5).hex()}", src_dir_fd=here, dst_dir_fd=here)
                    below = _enter(here, name, make=make)
            except (NotADirectoryError, PermissionError) as error:
                raise Unusable(f"{name} is no directory of ours: {error.strerror}") from None
            except OSError as error:
                if error.errno == 40:  # ELOOP: a link
                    raise Unusable(f"{name} is a symbolic link") from None
                raise
            os.close(here)
            here = below
    except BaseException:
        os.close(here)
        raise
    return here


def _enter(here: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(name, 0o700, dir_fd=here)
    except FileExistsError:
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=here)  # somebody was quicker; what it is, open(2) says
    return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=here)


def read(directory: int, name: str, limit: int, *, follow: bool = False) -> Content | None:
    """A regular file's content; None when there is none.

    Args:
        directory: open.
        name: of the file in it.
        limit: most bytes.
        follow: for a file that is never written, a link is followed and whose file it is does not matter (managers of
            settings keep them in repositories and stores).

    Raises:
        Unusable: it is a link, no regular file, somebody else's, known by another name too, or larger.
        Changing: it was replaced each time that it was looked at.
    """
    try:
        descriptor = _opened(directory, name, follow=follow)
        found = os.fstat(descriptor)
        for _ in range(_REPLACED):
            if found.st_nlink:
                break
            os.close(descriptor)  # replaced between the two calls, as another session does it
            descriptor = _opened(directory, name, follow=follow)
            found = os.fstat(descriptor)
    except FileNotFoundError:
        return None
    except OSError as error:
        what = "it is a symbolic link" if error.errno == 40 else error.strerror or str(error)
        raise Unusable(what) from None
    try:
        if not follow and found.st_uid != os.geteuid():
            raise Unusable(f"it belongs to user {found.st_uid}")
        if not found.st_nlink:
            raise Changing("it keeps changing")
        if not follow and found.st_nlink > 1:
            raise Unusable("it has several names (hard links)")
        if found.st_size > limit:
            raise Unusable(f"it is larger than {limit >> 10} KiB")
        data = walk.read_up_to(descriptor, limit)
        if data is None:
            raise Unusable(f"it is larger than {limit >> 10} KiB")
        return Content(data, _mark(os.fstat(descriptor)))
    except OSError as error:
        raise Unusable(error.strerror or str(error)) from None
    finally:
        os.close(descriptor)


def _opened(directory: int, name: str, *, follow: bool) -> int:
    descriptor = walk.open_regular(name, dir_fd=directory, follow=follow)
    if descriptor is None:
        raise Unusable("it is no regular file")
    return descriptor


def replace(directory: int, name: str, data: bytes, expected: Content | None, *, locked: bool) -> bool:
    """Puts `data` in the place of a file, in one step, with mode 0600.

    Args:
        directory: open.
        name: of the file in it.
        data: the whole content.
        expected: what was read there before; None for nothing.
        locked: the caller holds a lock that all writers take. So what a writer that was killed has left is removed.

    Returns:
        False when something else is there by now, and nothing was done.

    Raises:
        OSError: it cannot be written; the file is as it was.
    """
    temporary = f".{name}.paddock" if locked else f".{name}.{os.urandom(8).hex()}.paddock"
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    descriptor = os.open(temporary, _WRITE, 0o600, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)  # whatever the umask
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        if _mark_of(directory, name) != (expected.mark if expected is not None else None):
            os.unlink(temporary, dir_fd=directory)
            return False
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(FileNotFoundError):  # renamed already, or taken away by whoever else may write here
            os.unlink(temporary, dir_fd=directory)
        raise
    os.fsync(directory)
    return True


def _mark(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _mark_of(directory: int, name: str) -> tuple[int, ...] | None:
    try:
        return _mark(os.stat(name, dir_fd=directory, follow_symlinks=False))
    except FileNotFoundError:
        return None
