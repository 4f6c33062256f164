"""What finding a repository asks of the disk."""

import os
import stat
from collections.abc import Mapping
from typing import Protocol

from policy.plan import beneath

_MOST_LINKS = 40  # path_resolution(7)
_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "dir",
    stat.S_IFLNK: "link",
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "fifo",
    stat.S_IFCHR: "char",
    stat.S_IFBLK: "block",
}


def links(path: str) -> tuple[tuple[str, str], ...]:
    """Symbolic links met while resolving an absolute path, as (path of the link, its text), in order.

    The paths are canonical but for their last component. A loop gives what was met before it closed.
    """
    found: list[tuple[str, str]] = []
    done = "/"
    rest = [part for part in path.split("/") if part and part != "."]
    while rest and len(found) < _MOST_LINKS:
        part = rest.pop(0)
        if part == "..":
            done = os.path.dirname(done)
            continue
        here = os.path.join(done, part)
        try:
            text = os.readlink(here)
        except OSError:
            done = here
            continue
        found.append((here, text))
        if text.startswith("/"):
            done = "/"
        rest = [piece for piece in text.split("/") if piece and piece != "."] + rest
    return tuple(found)


def in_hands_of(worktree: str, path: str) -> bool:
    """Whether who writes a worktree (canonical root) decides what is at `path`: it lies there, or is led from there."""
    return beneath(os.path.realpath(path), worktree) or any(beneath(link, worktree) for link, _ in links(path))


class Disk(Protocol):
    """The part of `policy.host.Host` that `checkout` needs. Paths are absolute `str` (surrogateescape)."""

    def kind(self, path: str) -> str | None:
        """``file``, ``dir``, ``link``, ``socket``, ``fifo``, ``char``, ``block``; None when absent. Like lstat(2)."""

    def resolve(self, path: str) -> str | None:
        """The canonical path; None when it does not exist or cannot be reached."""

    def listing(self, path: str) -> tuple[str, ...] | None:
        """Sorted names in a directory; None when it cannot be listed."""

    def read(self, path: str, limit: int = 65536) -> bytes | None:
        """Content of a regular file, at most `limit` bytes (longer: None); None when it cannot be read."""


class Present:
    """The `Disk` as it is now. `launcher.session.machine.Machine` answers the same and records the questions.

    Args:
        originals: `.git` files that are another thing for a while, and their true content (`quarantine.swap`).
    """

    def __init__(self, originals: Mapping[str, bytes] | None = None) -> None:
        self._originals = originals or {}

    def kind(self, path: str) -> str | None:
        """What lstat(2) says `path` is; None when absent."""
        if path in self._originals:
            return "file"
        try:
            return _KINDS.get(stat.S_IFMT(os.lstat(path).st_mode))
        except (OSError, ValueError):
            return None

    def resolve(self, path: str) -> str | None:
        """The canonical path, None when it does not exist or cannot be reached."""
        if path in self._originals:
            return path
        try:
            return os.path.realpath(path, strict=True)
        except (OSError, ValueError):
            return None

    def listing(self, path: str) -> tuple[str, ...] | None:
        """Sorted names in a directory; None when it cannot be listed."""
        try:
            return tuple(sorted(os.listdir(path)))
        except OSError:
            return None

    def read(self, path: str, limit: int = 65536) -> bytes | None:
        """Content of a regular file up to `limit` bytes; None when longer, not regular, or unreadable.

        A FIFO or a terminal in its place neither blocks nor becomes ours.
        """
        if path in self._originals:
            return self._originals[path]
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except (OSError, ValueError):
            return None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            content = b""
            while len(content) <= limit:
                block = os.read(descriptor, limit + 1 - len(content))
                if not block:
                    return content
                content += block
            return None
        except OSError:
            return None
        finally:
            os.close(descriptor)
