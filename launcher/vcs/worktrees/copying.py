"""Copying untracked files, such as ``.env``, from the parent worktree by pattern. Never through a symbolic link.

The parent may be an agent's worktree: a link there would carry a file of the user's into the new one. So every step
down is taken on a descriptor, with O_NOFOLLOW, and only regular files of one link are read.
"""

import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase

from launcher.jail import syscalls
from policy.errors import Refusal

LARGEST = 64 << 20
"""Bytes of one copied file."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST = 1000


def check(pattern: str) -> str:
    """`pattern` itself, when it stays in the worktree.

    Refusals: copy-pattern.
    """
    parts = pattern.split("/")
    if not pattern or pattern.startswith("/") or ".." in parts or "" in parts or ".git" in parts or "\0" in pattern:
        raise Refusal(
            "copy-pattern",
            f"{pattern!r} is no pattern for files of a worktree",
            context="it is relative to the worktree's root, without '..', '.git' and empty names",
            hint="paddock worktree add T-1 --copy .env --copy 'config/*.local'",
        )
    return pattern


def copy(source: str, target: str, patterns: tuple[str, ...]) -> list[str]:
    """Copies the files below `source` that match a pattern to the same places below `target`.

    Args:
        source: root of the parent worktree.
        target: root of the new one, which nobody else writes yet.
        patterns: relative, checked by `check`; ``*``, ``?`` and ``[...]`` match inside one name.

    Returns:
        what was copied, as relative paths. What the new worktree has already (tracked files) is left as it is.

    Refusals: copy-too-large, copy-failed.
    """
    copied: list[str] = []
    try:
        root = syscalls.open_canonical(source, _DIRECTORY)
        try:
            for pattern in patterns:
                for relative in _matches(root, pattern.split("/"), ""):
                    if relative not in copied and _copied(root, target, relative):
                        copied.append(relative)
                    if len(copied) > _MOST:
                        raise Refusal("copy-too-large", f"more than {_MOST} files match {', '.join(patterns)}",
                                      hint="name fewer files")  # fmt: skip
        finally:
            os.close(root)
    except OSError as error:
        raise Refusal("copy-failed", f"cannot copy {error.filename or 'a file'} from {source}",
                      context=error.strerror or str(error)) from None  # fmt: skip
    return copied


def _matches(directory: int, parts: list[str], prefix: str) -> Iterator[str]:
    for name in sorted(os.listdir(directory)):
        if name == ".git" or not fnmatchcase(name, parts[0]):
            continue
        if name.startswith(".") and not parts[0].startswith("."):
            continue  # as in a shell
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        if len(parts) == 1:
            if stat.S_ISREG(mode):
                yield prefix + name
        elif stat.S_ISDIR(mode):
            below = os.open(name, _DIRECTORY, dir_fd=directory)
            try:
                yield from _matches(below, parts[1:], f"{prefix}{name}/")
            finally:
                os.close(below)


def _copied(root: int, target: str, relative: str) -> bool:
    """Copies one file; False when it is there already, or is no plain file any more."""
    *directories, name = relative.split("/")
    source = _descended(root, directories)
    try:
        try:
            reading = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=source)
        except OSError:
            return False  # replaced meanwhile
        try:
            found = os.fstat(reading)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                return False  # a second name may be that of a file elsewhere
            if found.st_size > LARGEST:
                raise Refusal("copy-too-large", f"{relative} is larger than {LARGEST >> 20} MiB",
                              hint="copy it yourself, or leave it out")  # fmt: skip
            return _written(reading, target, directories, name, stat.S_IMODE(found.st_mode) & 0o777)
        finally:
            os.close(reading)
    finally:
        os.close(source)


def _written(reading: int, target: str, directories: list[str], name: str, mode: int) -> bool:
    root = syscalls.open_canonical(target, _DIRECTORY)
    try:
        writing_in = _descended(root, directories, make=True)
    except NotADirectoryError:
        return False  # a tracked link or file stands where the directory was
    finally:
        os.close(root)
    try:
        try:
            writing = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=writing_in)
        except FileExistsError:
            return False
        try:
            left = LARGEST
            while left > 0 and (block := os.read(reading, min(left, 1 << 20))):
                left -= len(block)
                while block:
                    block = block[os.write(writing, block) :]
            os.fchmod(writing, mode)
        finally:
            os.close(writing)
        return True
    finally:
        os.close(writing_in)


def _descended(root: int, names: list[str], *, make: bool = False) -> int:
    here = os.dup(root)
    for name in names:
        if make:
            try:
                os.mkdir(name, dir_fd=here)
            except FileExistsError:
                pass
        try:
            below = os.open(name, _DIRECTORY, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here
