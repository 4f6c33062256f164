"""A worker as the router has it: a process, two pipes, and no trust in what comes back."""

import os
import select
import signal
import subprocess
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from pydantic import ValidationError

from launcher import wire
from launcher.bridges.files import tool_calls
from launcher.bridges.files.scope import Scope
from launcher.bridges.files.tool_calls import Answer, Call
from policy.errors import printable

START_PATIENCE = 60.0
"""Seconds until a worker must have said its first words: a jail is made, modules are loaded."""

CALL_PATIENCE = 60.0
"""Seconds for one call. Searches end after ten by themselves."""

END_PATIENCE = 15.0
"""Seconds for a worker, its jail and its harvest to come to an end."""

_BLOCK = 1 << 16
_MOST_SAID = 4000


class WorkerFailed(Exception):
    """A worker that did not start, has ended, was too slow, or said what no worker of ours says.

    Args:
        why: in words.
        said: the end of what was written to standard error.
    """

    def __init__(self, why: str, said: str = "") -> None:
        # What strangers say must not drive the terminal on which it is logged.
        super().__init__(printable(f"{why}: {said}" if said else why))


class WorkerProcess:
    """One worker. Calls come one after the other; safe to share between threads.

    Args:
        argv: what starts it.
        scope: its boundaries; or what makes them of the first words of what is started, which are said before it
            becomes the worker (`begin`).
        cwd: directory to start in.
    """

    def __init__(self, argv: list[str], scope: Scope | Callable[[bytes], Scope], cwd: str) -> None:
        """Starts it and waits for its first words.

        Raises:
            WorkerFailed: it did not start.
        """
        self._lock = threading.Lock()
        self._number = 0
        self._said = b""
        try:
            self._process = subprocess.Popen(
                argv,
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # no terminal, and no signal of one
            )
        except OSError as error:
            raise WorkerFailed(f"it cannot be started: {error.strerror}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._input = self._process.stdin.fileno()
        self._output = self._process.stdout.fileno()
        self._errors = self._process.stderr.fileno()
        for fd in (self._input, self._output, self._errors):
            os.set_blocking(fd, False)
        try:
            if not isinstance(scope, Scope):
                scope = scope(self._exchange(b"", START_PATIENCE, tool_calls.MOST_REQUEST))
            tool_calls.Hello.model_validate_json(self._exchange(tool_calls.packed(scope), START_PATIENCE))
        except ValidationError:
            self.kill()
            raise WorkerFailed("it does not begin as a worker does", self.said) from None
        except WorkerFailed:
            self.kill()
            raise

    @property
    def said(self) -> str:
        """The end of what was written to standard error so far."""
        return self._said.decode(errors="backslashreplace").strip()

    @property
    def ended(self) -> bool:
        """Whether it runs no more."""
        return self._process.poll() is not None

    def call(self, call: Call, *, sweep: bool = False) -> Answer:
        """Has one call done.

        Raises:
            WorkerFailed: it was not, or not wholly. The worker has ended then.
        """
        with self._lock:
            self._number += 1
            request = tool_calls.Request(
                number=self._number, tool=call.tool, arguments=call.model_dump(mode="json"), sweep=sweep
            )
            try:
                reply = tool_calls.Reply.model_validate_json(self._exchange(tool_calls.packed(request), CALL_PATIENCE))
            except ValidationError:
                self.kill()
                raise WorkerFailed("it answers what no worker would") from None
            except WorkerFailed:
                self.kill()
                raise
            if reply.number != self._number:
                self.kill()
                raise WorkerFailed("it answers another question")
            return reply.answer

    def close(self) -> None:
        """Lets it end by itself, with its jail; after `END_PATIENCE` it is ended."""
        with self._lock:
            self._close_pipes()
            try:
                self._process.wait(END_PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Ends it: the launcher first, so that it can clean up, and by force when that takes too long."""
        self._close_pipes()
        for sent in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                os.killpg(self._process.pid, sent)
            try:
                self._process.wait(END_PATIENCE)
                return
            except subprocess.TimeoutExpired:
                continue

    def _close_pipes(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _exchange(self, data: bytes, patience: float, most: int = tool_calls.MOST_REPLY) -> bytes:
        """Sends one message and returns the next one that comes."""
        rest = memoryview(data)
        came: list[tuple[bytes, bytes]] = []
        decoder = wire.Decoder(most)
        deadline = time.monotonic() + patience
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        poll.register(self._errors, select.POLLIN)
        if rest:
            poll.register(self._input, select.POLLOUT)
        while True:
            left = deadline - time.monotonic()
            ready = poll.poll(max(0.0, left) * 1000)
            if not ready:
                raise WorkerFailed(f"it has not answered within {patience:g} seconds", self.said)
            for fd, _ in ready:
                if fd == self._input:
                    rest = self._sent(rest)
                    if not rest:
                        poll.unregister(self._input)
                elif fd == self._errors:
                    if not self._overheard():
                        poll.unregister(self._errors)
                else:
                    came += self._decoded(decoder)
            if len(came) > 1 or (came and decoder.is_within):
                raise WorkerFailed("it says more than a worker would")
            if came:
                return came[0][1]

    def _sent(self, rest: memoryview) -> memoryview:
        try:
            return rest[os.write(self._input, rest) :]
        except BlockingIOError:
            return rest
        except OSError:
            raise WorkerFailed("it has ended", self._last_words()) from None

    def _decoded(self, decoder: wire.Decoder) -> list[tuple[bytes, bytes]]:
        try:
            return list(decoder.feed(self._read()))
        except wire.Malformed:
            raise WorkerFailed("it says more than a worker would") from None

    def _read(self) -> bytes:
        try:
            data = os.read(self._output, _BLOCK)
        except BlockingIOError:
            return b""
        if not data:
            raise WorkerFailed("it has ended", self._last_words())
        return data

    def _overheard(self) -> bool:
        """Takes what was written to standard error; False at its end."""
        try:
            data = os.read(self._errors, _BLOCK)
        except BlockingIOError:
            return True
        self._said = (self._said + data)[-_MOST_SAID:]
        return bool(data)

    def _last_words(self) -> str:
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            pass
        self._overheard()
        return self.said


# Workers by session: started when they are needed, kept while they are used, ended when they are not.

MOST = 32
"""Workers at the same time. The one that was used longest ago makes room."""

IDLE_SECONDS = 300.0
"""Workers that nobody has used for so long are ended, with their jails."""


class Worker(Protocol):
    """What does a session's calls; see `launcher.bridges.files.worker_pool.WorkerProcess`."""

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
