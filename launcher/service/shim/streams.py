"""The standard streams of a live session: output goes to its log and to all clients, input comes from one.

What was put out last is kept in memory, with offsets counted over both streams, so that a client that comes back can
go on where it was. A client that does not read holds the session's output back, as a full pipe would, and is let go
when it does so for too long.
"""

import fcntl
import functools
import os
import struct
import termios
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from launcher import loop as loops
from launcher.loop import Signal
from launcher.service.log_files import LogWriter

STDOUT, STDERR = "stdout", "stderr"
PIPE, TERMINAL = "pipe", "terminal"
"""Of `launcher.service.schema.Input`."""

_PIECE = 64 << 10
_BURST = 0.25
"""Seconds of processor time for output that nobody looks at, before its command is held back: some megabytes."""
_PACE = 0.03
"""Share of a processor that such output gets then. One command that prints without end must not slow down others."""
_SETTLE_SECONDS = 1.0
"""Until what a terminal shows is in the log, though no line is whole."""
_REDRAW_SECONDS = 0.1
"""For which a terminal has another size, so that its programme draws everything anew."""
MOST_INPUT = 4 << 20
"""Bytes for standard input that wait for the command to read them."""


class Piece(NamedTuple):
    """Output: where it begins, of which stream it is, what it is."""

    offset: int
    stream: str
    data: bytes


class Subscriber(Protocol):
    """Who is attached."""

    def output(self, piece: Piece) -> None:
        """Takes a piece of output."""
        ...

    def over(self) -> None:
        """There will be no more output."""
        ...


class Streams:
    """Of one session, over all its attempts. `open` before each, `drained` after it, `close` at the end."""

    def __init__(self, log: LogWriter, replay_bytes: int, window: tuple[int, int]) -> None:
        """Args: where output is logged; how much of it later clients get; rows and columns of a terminal."""
        self.log = log
        self._keep = replay_bytes
        self._kept: deque[Piece] = deque()
        self._kept_bytes = 0
        self.offset = 0
        self._subscribers: list[Subscriber] = []
        self._readers: dict[int, str] = {}
        self._stdin = -1
        self._input = bytearray()
        self._input_ended = False
        self._when_taken: list[Callable[[], None]] = []
        self._deaf = False
        self._terminal = False
        self._window = window
        self._settles = False
        self._holders: set[object] = set()
        self._budget = _BURST
        self._spent_at = time.monotonic()
        self._hurries = False
        self._drained = Signal()
        self._drained.set()
        self._over = False
        self.writer: object | None = None

    def open(self, stdin: str) -> tuple[int, int, int]:
        """Makes the pipes or the terminal of one attempt, and returns the session's ends, which the caller closes."""
        fds: list[int] = []
        try:
            if stdin == TERMINAL:
                self._open_terminal(fds)
            elif stdin == PIPE:
                theirs, self._stdin = os.pipe()
                fds.append(theirs)
                os.set_blocking(self._stdin, False)
            else:
                fds.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
            for stream in (STDOUT, STDERR) if stdin != TERMINAL else ():
                ours, theirs = os.pipe()
                os.set_blocking(ours, False)
                self._readers[ours] = stream
                fds.append(theirs)
        except OSError:
            for fd in fds:
                os.close(fd)
            self._close_all()
            raise
        self._drained = Signal()
        self._hurries = False
        if not self._holders:
            self._listen()
        self._deaf = False
        self._push()
        return fds[0], fds[1], fds[2]

    def _open_terminal(self, fds: list[int]) -> None:
        """A pseudo terminal (pty(7)); the session's end is put into `fds`, once for each standard stream."""
        ours, theirs = os.openpty()
        self._readers[ours] = STDOUT
        fds.append(theirs)
        self._stdin = os.dup(ours)
        os.set_blocking(ours, False)  # of the open file, so of both
        fds += [os.dup(theirs), os.dup(theirs)]
        self._terminal = True
        self.log.window(*self._window, new=True)
        self._set_size(*self._window)

    def resize(self, rows: int, columns: int, *, redraw: bool = False) -> None:
        """Gives the terminal, if there is one, a size; the kernel tells the programmes that it is in front of.

        With `redraw` they are told of one even if it is as before, and it is another one for a moment: many draw
        nothing anew where it did not change.
        """
        if self._window != (rows, columns):
            self._window = (rows, columns)
            if self._terminal:
                self.log.window(rows, columns, new=False)
        elif redraw and self._terminal and self.offset:
            self._set_size(rows - 1 if rows > 1 else 2, columns)
            loops.running().call_later(_REDRAW_SECONDS, lambda: self._set_size(*self._window))
            return
        self._set_size(rows, columns)

    def _set_size(self, rows: int, columns: int) -> None:
        if self._terminal and self._stdin != -1:
            fcntl.ioctl(self._stdin, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    # Output

    @property
    def first(self) -> int:
        """Offset of the first output that is kept."""
        return self._kept[0].offset if self._kept else self.offset

    @property
    def attached(self) -> int:
        """How many are attached."""
        return len(self._subscribers)

    def subscribe(self, subscriber: Subscriber, offset: int | None) -> None:
        """Attaches a client, which gets the remembered output from `offset` on at once (None: nothing)."""
        self.hold(_PACE, held=False)
        begin = self.offset if offset is None else offset
        for piece in self._kept:
            end = piece.offset + len(piece.data)
            if end > begin:
                cut = max(0, begin - piece.offset)
                subscriber.output(Piece(piece.offset + cut, piece.stream, piece.data[cut:]))
        if self._over:
            subscriber.over()
        else:
            self._subscribers.append(subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Detaches a client."""
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)
        self.hold(subscriber, held=False)
        if self.writer is subscriber:
            self.writer = None

    def hold(self, who: object, *, held: bool) -> None:
        """Stops reading the session's output while a client cannot take more, so that none is lost."""
        before = bool(self._holders)
        (self._holders.add if held else self._holders.discard)(who)
        if before != bool(self._holders):
            (self._deafen if self._holders else self._listen)()

    async def drained(self) -> None:
        """Waits until both pipes of the present attempt have ended."""
        await self._drained

    def _listen(self) -> None:
        loop = loops.running()
        for fd in self._readers:
            loop.add_reader(fd, functools.partial(self._read, fd))

    def _deafen(self) -> None:
        loop = loops.running()
        for fd in self._readers:
            loop.remove_reader(fd)

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, _PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            loops.running().remove_reader(fd)
            del self._readers[fd]
            os.close(fd)
            if not self._readers:
                self._drained.set()
            return
        begun = time.process_time()
        self._take(Piece(self.offset, self._readers[fd], data))
        self._pace(time.process_time() - begun)

    def hurry(self) -> None:
        """What comes now is the last of an attempt: it is taken as fast as it comes."""
        self._hurries = True
        self.hold(_PACE, held=False)

    @property
    def is_held(self) -> bool:
        """Whether output waits, because a client does not read."""
        return bool(self._holders)

    def _pace(self, spent: float) -> None:
        """Delays output that no client reads, once it has used more processor time than its share."""
        now = time.monotonic()
        self._budget = min(_BURST, self._budget + _PACE * (now - self._spent_at)) - spent
        self._spent_at = now
        if self._budget < 0 and not self._subscribers and not self._hurries:
            self.hold(_PACE, held=True)
            loops.running().call_later(-self._budget / _PACE, lambda: self.hold(_PACE, held=False))

    def _take(self, piece: Piece) -> None:
        self.offset += len(piece.data)
        self.log.write(piece.stream, piece.data)
        if self._terminal and not self._settles:
            self._settles = True
            loops.running().call_later(_SETTLE_SECONDS, self._settle)
        if self._keep:
            self._kept.append(piece)
            self._kept_bytes += len(piece.data)
            while self._kept_bytes > self._keep and len(self._kept) > 1:
                self._kept_bytes -= len(self._kept.popleft().data)
        for subscriber in tuple(self._subscribers):
            subscriber.output(piece)

    def _settle(self) -> None:
        self._settles = False
        if not self._over:
            self.log.settle()

    # Input

    @property
    def waiting(self) -> int:
        """Bytes of input that the command has not taken yet."""
        return len(self._input)

    @property
    def has_input(self) -> bool:
        """Whether the present attempt has a standard input that is open."""
        return self._stdin != -1

    def write(self, data: bytes, *, bounded: bool = True) -> bool:
        """Sends input, to the next attempt when there is none now.

        Input behind its end, or for a command that has closed its own, goes nowhere. Returns False, and takes nothing,
        when too much is waiting; a caller who is not `bounded` sends no more until `when_taken`.
        """
        if bounded and self._input and len(self._input) + len(data) > MOST_INPUT:  # one piece alone may be longer
            return False
        if not self._input_ended and not self._deaf:
            self._input += data
            self._push()
        return True

    def when_taken(self, callback: Callable[[], None]) -> None:
        """Has `callback` called once most of the waiting input has been taken."""
        self._when_taken.append(callback)
        self._push()

    def _taken(self) -> None:
        if len(self._input) <= MOST_INPUT // 2:
            callbacks, self._when_taken = self._when_taken, []
            for callback in callbacks:
                callback()

    def end_input(self) -> None:
        """Closes standard input, behind what was sent. At a terminal that is Ctrl-D (termios(3), VEOF)."""
        if self._terminal:
            self.write(b"\x04")
            return
        self._input_ended = True
        self._push()

    def _push(self) -> None:
        if self._stdin == -1:
            return
        loop = loops.running()
        try:
            while self._input:
                del self._input[: os.write(self._stdin, self._input[:_PIECE])]
        except BlockingIOError:
            loop.add_writer(self._stdin, self._push)
            self._taken()
            return
        except OSError:  # it has closed its end, or has ended
            self._close_input()
            self._deaf = True
            return
        loop.remove_writer(self._stdin)
        self._taken()
        if self._input_ended:
            self._close_input()

    def _close_input(self) -> None:
        if self._stdin != -1:
            loops.running().remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = -1
        self._input.clear()
        self._taken()

    # Ends

    def finish_attempt(self) -> None:
        """Closes one attempt's pipes, so that an escaped process with a pipe's end delays nothing."""
        self._close_all()

    def close(self, tell: Callable[[Subscriber], None] | None = None) -> None:
        """Ends all clients and closes the log, because the session is over."""
        self._close_all()
        self.log.close()
        self._over = True
        subscribers, self._subscribers = self._subscribers, []
        for subscriber in subscribers:
            if tell is not None:
                tell(subscriber)
            subscriber.over()
        self._holders.clear()

    def _close_all(self) -> None:
        self._close_input()
        loop = loops.running()
        for fd in self._readers:
            loop.remove_reader(fd)
            os.close(fd)
        self._readers = {}
        self._drained.set()
