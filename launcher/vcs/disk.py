"""What finding a repository asks of the disk."""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from launcher.safefs import walk
from policy.launch import Trail
from policy.plan import beneath

_MOST_LINKS = 40  # path_resolution(7)
KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "dir",
    stat.S_IFLNK: "link",
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "fifo",
    stat.S_IFCHR: "char",
    stat.S_IFBLK: "block",
}


class Names:
    """What each name on a path was when it was first looked at: a name that existed is not asked about twice.

    So all paths walked here agree about every symbolic link, however often somebody replaces it meanwhile. A name that
    was absent is looked at again.
    """

    def __init__(self) -> None:
        """Nothing has been looked at."""
        self._entries: dict[str, tuple[os.stat_result, str | None]] = {}

    def entry(self, path: str) -> tuple[os.stat_result, str | None] | None:
        """The status of the entry itself, and its text if it is a symbolic link; None when it is not there.

        Args:
            path: canonical but for its last component, as `Trail.entry` is.
        """
        found = self._entries.get(path)
        if found is None:
            found = _looked_at(path)
            if found is not None:
                self._entries[path] = found
        return found

    def walk(self, path: str) -> Trail:
        """Where an absolute path leads, and the links on its way: path_resolution(7), one component after another."""
        links: list[tuple[str, str]] = []
        above, _, name = path.rpartition("/")
        known = self._entries.get(above)  # what has been looked at has a canonical name, and no link above it
        from_there = known is not None and known[1] is None and name not in ("", ".", "..")
        rest = [name] if from_there else _components(path)
        own = len(rest)  # how many of the path's own components are left; they are at the end of `rest`
        done, entry = above if from_there else "/", None if rest else "/"
        while rest:
            part = rest.pop(0)
            here = os.path.dirname(done) if part == ".." else f"{done}/{part}" if done != "/" else f"/{part}"
            if len(rest) < own:
                own = len(rest)
                entry = None if own else here
            found = self.entry(done) if part == ".." else self.entry(here)
            if found is None or (part == ".." and not stat.S_ISDIR(found[0].st_mode)):
                return Trail(None, tuple(links), entry, here)
            if found[1] is None:
                done = here
                continue
            links.append((here, found[1]))
            if len(links) > _MOST_LINKS:
                return Trail(None, tuple(links), entry, here)
            done = "/" if found[1].startswith("/") else done
            rest = _components(found[1]) + rest
        return Trail(done, tuple(links), entry, done)


def _components(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _looked_at(path: str) -> tuple[os.stat_result, str | None] | None:
    """Status and link text of one entry, both from one descriptor where it is a link."""
    try:
        found = os.lstat(path)
        if not stat.S_ISLNK(found.st_mode):
            return found, None
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        found = os.fstat(descriptor)
        return found, os.readlink("", dir_fd=descriptor) if stat.S_ISLNK(found.st_mode) else None
    finally:
        os.close(descriptor)


def in_hands_of(worktree: str, path: str) -> bool:
    """Whether whoever writes a worktree (canonical root) decides what `path` is, by its place or a link."""
    return decided_in(worktree, Names().walk(path))


def decided_in(worktree: str, trail: Trail) -> bool:
    """The same for a walk that was made; its result is then used as `Trail.canonical` without walking again."""
    return beneath(trail.reached, worktree) or any(beneath(link, worktree) for link, _ in trail.links)


class Disk(Protocol):
    """The part of `policy.launch.Host` that `checkout` needs. Paths are absolute `str` (surrogateescape)."""

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
        originals: `.git` files that are swapped now, and their original content (`private.swap`).
    """

    def __init__(self, originals: Mapping[str, bytes] | None = None) -> None:
        self._originals = originals or {}

    def kind(self, path: str) -> str | None:
        """What lstat(2) says `path` is; None when absent."""
        if path in self._originals:
            return "file"
        try:
            return KINDS.get(stat.S_IFMT(os.lstat(path).st_mode))
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

        Nothing else is opened, whatever lies there.
        """
        if path in self._originals:
            return self._originals[path]
        try:
            return walk.read_regular(path, limit, follow=True)
        except (OSError, ValueError):
            return None


class Seen:
    """Files as each was when it was first asked for: `read` opens exactly what `trail` was judged by."""

    def __init__(self) -> None:
        """Nothing has been looked at."""
        self._names = Names()
        self._trails: dict[str, Trail] = {}

    def trail(self, path: str) -> Trail:
        """Where `path` leads and how, from one walk."""
        if path not in self._trails:
            self._trails[path] = self._names.walk(path)
        return self._trails[path]

    def read(self, path: str, limit: int = 65536) -> bytes | None:
        """As `Present.read`, of what the walk has found; None also where a link has come into the way meanwhile."""
        with opened(self.trail(path).canonical) as descriptor:
            return None if descriptor is None else Present().read(f"/proc/self/fd/{descriptor}", limit)


@contextmanager
def opened(canonical: str | None, *, directory: bool = False) -> Iterator[int | None]:
    """A descriptor (O_PATH) of what a canonical path names; None when it has been lost, or a link has come into it."""
    flags = os.O_PATH | (os.O_DIRECTORY if directory else 0)
    try:
        descriptor = None if canonical is None else walk.open_canonical(canonical, flags)
    except (OSError, ValueError):
        descriptor = None
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def readable(size: int) -> str:
    """Bytes for people."""
    number, unit = float(size), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            break
        number /= 1024
    return f"{size} byte{'' if size == 1 else 's'}" if unit == "bytes" else f"{number:.1f} {unit}"
