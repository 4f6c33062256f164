"""How much disk some directories take, measured a little at a time while a jail fills them.

A walk through a large home takes a second or more, so it is cut in pieces, and made when something speaks for it: the
file system has lost as much space since the last one as the limit leaves, or some time has passed (space that others
free, or that the jail itself frees elsewhere, hides what is taken). What a walk cannot measure (directories without
permission to read, or nested very deep) is taken to be all that the file system has lost since the start.

Launch path of the limit that needs it: `os` and `time`.
"""

import time
from _stat import S_ISDIR

from launcher.lean import os
from launcher.session import usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

EVERY = 2.0
"""Seconds between walks that nothing speaks for; more where a walk takes long."""

_DEPTH = 100
_PIECE = 32
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class DiskUse:
    """The use of some directories. `share` is called often; it says how much of the limit is used."""

    def __init__(self, paths: tuple[str, ...], limit: int) -> None:
        self._paths = paths
        self._limit = limit
        self._devices = {os.stat(path).st_dev for path in paths}
        self._at_start = self._at_walk = self._taken()
        self._before = 0
        self._measured: int | None = None
        self._walk: Generator[None, None, None] | None = None
        self._total = 0
        self._blind = False
        self._unreadable: set[int] = set()
        self._links: set[tuple[int, int]] = set()
        self._next = 0.0
        self._spent = 0.0

    def share(self, pids: list[int], budget: float) -> float:
        """How much of the limit is in use, as far as is known after `budget` more seconds of measuring.

        More than 1 is certain. What the file system has lost since the last walk may be others' doing: it makes 1 at
        most, and a new walk.

        Args:
            pids: the jail's processes; files that they hold open without a name count.
            budget: seconds.
        """
        if self._walk is None and self._guess() <= self._limit and time.monotonic() < self._next:
            return self._guess() / self._limit
        began = time.monotonic()
        if self._walk is None:
            self._start()
        while self._walk is not None and self._total <= self._limit:
            try:
                next(self._walk)
            except StopIteration:
                self._finish(pids)
            if time.monotonic() - began > budget:
                break
        self._spent += time.monotonic() - began
        if self._total > self._limit:
            return self._total / self._limit
        return min(1.0, self._guess() / self._limit)

    def _guess(self) -> int:
        return (self._measured or 0) + max(0, self._taken() - self._at_walk)

    @property
    def idle(self) -> bool:
        """Whether no walk is under way."""
        return self._walk is None

    def _taken(self) -> int:
        """Bytes in use on the directories' file systems."""
        counted = {os.stat(path).st_dev: os.statvfs(path) for path in self._paths}
        return sum((found.f_blocks - found.f_bfree) * found.f_frsize for found in counted.values())

    def _start(self) -> None:
        self._at_walk = self._taken()
        self._total, self._spent, self._blind = 0, 0.0, False
        self._links = set()
        self._walk = self._all()

    def _finish(self, pids: list[int]) -> None:
        nameless, unreadable = usage.nameless_files(pids, self._devices)
        self._total += nameless
        if self._measured is None:
            self._before = self._total
        if self._blind or unreadable & self._unreadable:
            self._total = max(self._total, self._before + self._taken() - self._at_start)
        self._unreadable = unreadable
        self._measured = self._total
        self._walk = None
        self._next = time.monotonic() + max(EVERY, 20 * self._spent)

    def _all(self) -> "Generator[None, None, None]":
        for path in self._paths:
            yield from self._tree(path)

    def _tree(self, path: str) -> "Generator[None, None, None]":
        """Adds up what lies below `path`, without following any link; stops now and then."""
        here = self._opened(path, None)
        if here is None:
            return
        held: list[tuple[int, list[str]]] = [(here, [])]
        try:
            yield from self._entries(*held[0])
            while held:
                fd, names = held[-1]
                if not names:
                    os.close(held.pop()[0])
                    continue
                name = names.pop()
                if len(held) >= _DEPTH:
                    self._blind = True
                    continue
                below = self._opened(name, fd)
                if below is not None:
                    held.append((below, []))
                    yield from self._entries(*held[-1])
        finally:
            for fd, _ in held:
                os.close(fd)

    def _entries(self, directory: int, names: list[str]) -> "Generator[None, None, None]":
        """Adds up one directory's entries and puts the names of directories into `names`."""
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                except OSError:
                    self._blind = True
                    continue
                if S_ISDIR(found.st_mode):
                    names.append(entry.name)
                elif found.st_nlink > 1:
                    if (found.st_dev, found.st_ino) in self._links:
                        continue
                    self._links.add((found.st_dev, found.st_ino))
                self._total += found.st_blocks * 512
                if number % _PIECE == 0:
                    yield

    def _opened(self, name: str, directory: int | None) -> int | None:
        try:
            return os.open(name, _DIRECTORY, dir_fd=directory)
        except (FileNotFoundError, NotADirectoryError):
            return None  # gone meanwhile, or a link or file is there now
        except OSError:
            self._blind = True
            return None
