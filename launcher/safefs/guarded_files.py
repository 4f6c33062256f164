"""Small files that others may have prepared: read once and whole, replaced in one step.

A name in a worktree can be a symbolic link, a FIFO that never answers, a device, or a file without end. Everything
here acts on one open descriptor, so what was checked is what is used.
"""

import stat
from contextlib import suppress
from typing import NamedTuple

from launcher.lean import os
from launcher.safefs import walk
from policy.errors import Refusal

CONFIG_LIMIT = 256 << 10
"""Bytes: the largest configuration file."""


class Content(NamedTuple):
    """The bytes of a file, with the owner and mode that held while they were read."""

    data: bytes
    owner: int
    mode: int


def read(path: str, *, follow: bool, limit: int = CONFIG_LIMIT) -> Content | None:
    """A regular file's content; None when there is no such file.

    Args:
        path: absolute.
        follow: whether `path` itself may be a symbolic link.
        limit: most bytes.

    Refusals: config-symlink, config-not-a-file, config-too-large, config-unreadable.
    """
    try:
        descriptor = walk.open_regular(path, follow=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if descriptor is None:
        raise Refusal("config-not-a-file", f"{path} is not a regular file")
    try:
        found = os.fstat(descriptor)
        data = walk.read_up_to(descriptor, limit)
    except OSError as error:
        raise _unreadable(path, error) from None
    finally:
        os.close(descriptor)
    if data is None:
        raise Refusal("config-too-large", f"{path} is larger than {limit >> 10} KiB")
    return Content(data, found.st_uid, stat.S_IMODE(found.st_mode))


def _unreadable(path: str, error: OSError | ValueError) -> Refusal:
    if os.path.islink(path):
        try:
            target = os.readlink(path)
        except OSError:
            target = "somewhere else"
        return Refusal(
            "config-symlink",
            f"{path} is a symbolic link",
            context=f"it leads to {target}; whoever may write the directory could lead it anywhere",
            hint="put a regular file in its place",
        )
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Refusal("config-unreadable", f"{path} cannot be read", context=reason)


def replace(path: str, data: bytes, mode: int) -> None:
    """Writes a file so that a reader, or a power failure, sees the old content or the new and nothing between.

    Args:
        path: absolute; what is there is replaced, a symbolic link itself and not its target.
        data: the whole content.
        mode: permission bits, exactly.

    Raises:
        OSError: the directory cannot be written; `path` is unchanged.
    """
    temporary = _written_beside(path, data, mode)
    try:
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    _sync_directory(path)


def _written_beside(path: str, data: bytes, mode: int) -> str:
    temporary = f"{path}.{os.urandom(8).hex()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    return temporary


def _sync_directory(path: str) -> None:
    descriptor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
