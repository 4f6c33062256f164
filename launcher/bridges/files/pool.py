"""Workers by session: started when they are needed, kept while they are used, ended when they are not."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from launcher.bridges.files.answers import Answer
from launcher.bridges.files.calls import Call

MOST = 32
"""Workers at the same time. The one that was used longest ago makes room."""

IDLE_SECONDS = 300.0
"""Workers that nobody has used for so long are ended, with their jails."""


class Worker(Protocol):
    """What does a session's calls; see `launcher.bridges.files.process.WorkerProcess`."""

    def call(self, call: Call, *, sweep: bool = False) -> Answer:
        """Has one call done."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


class Room(Protocol):
    """Where a session's work is done."""

    @property
    def process(self) -> Worker:
        """The worker."""
        ...

    @property
    def usable(self) -> bool:
        """Whether it can take calls."""
        ...

    def command(self, line: str, directory: str) -> list[str]:
        """The words that run a line of sh(1) there."""
        ...

    def refused(self, call: Call) -> None:
        """Told of each call that was refused for its path."""
        ...


class _Entry:
    """A session's room, made by the first thread that needs it, while others wait for that session alone."""

    def __init__(self, key: object) -> None:
        self.key = key
        self.lock = threading.Lock()
        self.room: Room | None = None
        self.users = 0
        self.used = time.monotonic()


class Lease:
    """A room in use, which is not ended meanwhile. A context manager."""

    def __init__(self, pool: "Pool", entry: _Entry, room: Room) -> None:
        self._pool = pool
        self._entry = entry
        self.room = room

    def __enter__(self) -> Room:
        return self.room

    def __exit__(self, *_: object) -> None:
        self._pool.release(self._entry)


class Pool:
    """All rooms of one router. Safe to share between threads.

    Args:
        most: rooms at the same time; more only while all of them are in use.
        idle_seconds: see `IDLE_SECONDS`.
    """

    def __init__(self, most: int = MOST, idle_seconds: float = IDLE_SECONDS) -> None:
        self._most = most
        self._idle = idle_seconds
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._closed = threading.Event()
        self._caretaker: threading.Thread | None = None

    def __len__(self) -> int:
        """How many there are."""
        return len(self._entries)

    def lease(self, session_id: str, key: object, make: Callable[[], Room]) -> Lease:
        """The session's room, made when there is none that is usable.

        Args:
            session_id: whose.
            key: what it was made from; another one makes a new room.
            make: makes it. What it raises is passed on.
        """
        with self._lock:
            entry = self._entries.get(session_id)
            if entry is None or entry.key != key:
                old = entry
                entry = self._entries[session_id] = _Entry(key)
            else:
                old = None
            self._entries.move_to_end(session_id)
            entry.users += 1
            leaving = self._leaving()
            if self._caretaker is None:
                self._caretaker = threading.Thread(target=self._take_care, daemon=True)
                self._caretaker.start()
        if old is not None and old.users == 0:
            leaving.append(old)
        for each in leaving:
            _end(each)
        try:
            with entry.lock:
                if entry.room is not None and not entry.room.usable:
                    entry.room.process.close()
                    entry.room = None
                if entry.room is None:
                    entry.room = make()
                return Lease(self, entry, entry.room)
        except BaseException:
            self.release(entry)
            raise

    def release(self, entry: _Entry) -> None:
        """One user less."""
        with self._lock:
            entry.users -= 1
            entry.used = time.monotonic()
            orphaned = entry.users == 0 and entry not in self._entries.values()
        if orphaned:
            _end(entry)

    def close(self) -> None:
        """Ends all workers, at the same time."""
        self._closed.set()
        with self._lock:
            entries = list(self._entries.values())
            self._entries.clear()
        threads = [threading.Thread(target=_end, args=(entry,)) for entry in entries]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _take_care(self) -> None:
        """Ends what is idle while no call comes: work that was committed in a jail is harvested when that ends."""
        while not self._closed.wait(self._idle / 4):
            with self._lock:
                leaving = self._leaving()
            for each in leaving:
                _end(each)

    def _leaving(self) -> list[_Entry]:
        """Takes out what is too much or too old. The lock is held."""
        limit = time.monotonic() - self._idle
        found = []
        for name, entry in list(self._entries.items()):
            if entry.users == 0 and (entry.used < limit or len(self._entries) > self._most):
                found.append(self._entries.pop(name))
        return found


def _end(entry: _Entry) -> None:
    with entry.lock:
        if entry.room is not None:
            entry.room.process.close()
            entry.room = None
