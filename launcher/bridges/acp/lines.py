"""The carrier of lines between a client and an agent: every line is judged on its way, none passes unread.

It knows nothing of processes: descriptors come in, lines are carried until both sides have ended. Whoever owns the loop
registers the descriptors with its own poll object and hands events over, so signals and timers can share that loop.

Neither side waits for the other's other direction: each direction stops reading when its own reader is slow, and when
the bridge's own replies to it are not read. It judges no further line then either: a piece of what was read may hold
hundreds of lines, each of which has megabytes of an answer.
"""

import os
import select
import socket
import stat
from collections.abc import Callable
from typing import Protocol

from launcher.bridges.acp.rpc import Outcome

HIGH_WATER = 1 << 18
"""Bytes that wait for a slow reader before no more is read for it."""

MOST_LINE = 64 << 20
"""Bytes of one line, which is held as a whole until it is judged; a longer one is refused."""

FIRST_WORDS = 2.0
"""Seconds for a client to say something. Those that start an agent do so to speak to it."""

_CHUNK = 1 << 16
_PIPE_BUF = 4096
"""Bytes that a pipe takes at once when poll(2) says that it can be written to (pipe(7))."""


class Poll(Protocol):
    """As much of `select.poll` as is needed."""

    def register(self, fd: int, eventmask: int, /) -> None:
        """Adds or changes a descriptor."""
        ...

    def unregister(self, fd: int, /) -> None:
        """Takes a descriptor out."""
        ...


class Sink:
    """A descriptor that others may share, written to without ever waiting. Owns it.

    O_NONBLOCK belongs to the open file, not to the descriptor (open(2)): set on what a client handed over, it would
    reach whoever else holds it, such as the writers of a standard error that leads to the same place.
    """

    def __init__(self, fd: int) -> None:
        """Takes over `fd`, open for writing."""
        self._socket: socket.socket | None = None
        self._most = _PIPE_BUF
        mode = os.fstat(fd).st_mode
        if stat.S_ISSOCK(mode):
            self._socket = socket.socket(fileno=fd)
        elif stat.S_ISFIFO(mode):
            fd = self._reopened(fd)
        self.fd = fd
        self._ready = False

    def write(self, data: bytearray) -> int:
        """Writes from the front of `data`; returns how many bytes were taken, 0 when none can be now.

        Raises:
            OSError: nobody reads any more (EPIPE, ECONNRESET), or it cannot be written.
        """
        try:
            if self._socket is not None:
                return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            if self._most == _PIPE_BUF and not _can_write(self.fd):
                return 0
            with memoryview(data) as view:
                return os.write(self.fd, view[: self._most])
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Closes the descriptor. Safe to call twice."""
        if self._socket is not None:
            self._socket.close()
        elif self.fd != -1:
            os.close(self.fd)
        self.fd = -1

    def _reopened(self, fd: int) -> int:
        """The same pipe as an open file of its own, which does not block; else `fd`, written to in small portions."""
        try:
            own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return fd  # another user's pipe, or no /proc
        os.close(fd)
        self._most = 1 << 18
        return own


def _can_write(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


class Lines:
    """One direction: bytes in by `feed`, judged lines out in `out`, in order.

    A line ends with a newline (https://agentclientprotocol.com/protocol/transports). What is written is only what the
    judge returns, never bytes as they came, so the reader gets exactly what was judged.

    Attributes:
        out: what the other side gets next; whoever writes it takes it away from the front.
        owed: bytes in `out` that are replies of the bridge's own, at most.
    """

    def __init__(
        self,
        judge: Callable[[bytes], Outcome],
        unreadable: Callable[[str], Outcome],
        most: int = MOST_LINE,
        last_words: Callable[[], bytes] = bytes,
    ) -> None:
        """Prepares one direction.

        Args:
            judge: judges a line without its newline.
            unreadable: answers a line that is too long to be judged, by the reason.
            most: bytes of a line.
            last_words: gives whole lines that follow the end.
        """
        self.out = bytearray()
        self.owed = 0
        self._judge = judge
        self._unreadable = unreadable
        self._most = most
        self._line = bytearray()
        self._too_long = False
        self._last_words = last_words
        self._back = self
        self._unjudged = b""

    def replies_to(self, other: "Lines") -> None:
        """Sends what is answered to a line back by the other direction."""
        self._back = other

    @property
    def waits(self) -> bool:
        """Whether something was read that is not judged yet."""
        return bool(self._unjudged)

    @property
    def has_room(self) -> bool:
        """Whether what came of the lines so far is being read, on both sides."""
        return len(self.out) < HIGH_WATER and self._back.owed < HIGH_WATER

    def feed(self, data: bytes) -> None:
        """Takes what has been read, and judges it as far as there is room."""
        self._unjudged += data
        self.go_on()

    def go_on(self, *, force: bool = False) -> None:
        """Judges what waits, as far as there is room; `force`: all of it."""
        *ends, beginning = self._unjudged.split(b"\n")
        for number, end in enumerate(ends):
            if not force and not self.has_room:
                self._unjudged = b"\n".join((*ends[number:], beginning))
                return
            self._hold(end)
            self._pass()
        self._hold(beginning)
        self._unjudged = b""

    def end(self) -> None:
        """Judges all the rest, and a last line that has no newline; there is no more to come."""
        self.go_on(force=True)
        if self._line or self._too_long:
            self._pass()
        self.out += self._last_words()

    def reply(self, data: bytes) -> None:
        """Puts whole lines of the bridge's own between the others."""
        self.owed += len(data)
        self.out += data

    def written(self, count: int) -> None:
        """Takes bytes that have been written off the front of `out`."""
        del self.out[:count]
        if not self.out:
            self.owed = 0

    def discard(self) -> None:
        """Drops what is to be written, and to be judged: there is nobody to read it any more."""
        self._unjudged = b""
        self.out.clear()
        self.owed = 0

    def _hold(self, piece: bytes) -> None:
        if not self._too_long:
            self._line += piece
            self._too_long = len(self._line) > self._most
        if self._too_long:
            self._line.clear()

    def _pass(self) -> None:
        if self._too_long:
            outcome = self._unreadable(f"the line is longer than {self._most} bytes")
        else:
            outcome = self._judge(bytes(self._line))
        self._line.clear()
        self._too_long = False
        self.out += outcome.on
        if outcome.back:
            self._back.reply(outcome.back)


class _Half:
    """One direction: from a descriptor, through its judge, to another one."""

    def __init__(self, source: int, lines: Lines, sink: int) -> None:
        self.source = source
        self.at_end = False
        self.lines = lines
        self.sink = Sink(sink)
        self.read_all = False
        self.broken = False
        self.discards = False

    def read(self) -> None:
        try:
            data = os.read(self.source, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # ECONNRESET, EIO of a terminal: there is nobody any more
        if data:
            if not self.discards:
                self.lines.feed(data)
        else:
            self.at_end = True
        self.write()

    def judge(self) -> None:
        """Judges what waits, as far as there is room; the end comes after all of it."""
        if self.lines.waits:
            self.lines.go_on()
        if self.at_end and not self.read_all and not self.lines.waits:
            self.lines.end()
            self.read_all = True

    @property
    def wants(self) -> int:
        """What its sink is polled for."""
        has_work = self.lines.out or (self.lines.waits and self.lines.has_room)
        return select.POLLOUT if has_work and not self.broken else 0

    def write(self) -> None:
        if self.broken:
            self.lines.discard()
            return
        try:
            while self.lines.out and (count := self.sink.write(self.lines.out)):
                self.lines.written(count)
        except OSError:
            self.broken = True
            self.lines.discard()

    @property
    def ended(self) -> bool:
        return self.broken or (self.read_all and not self.lines.out)


def _readable(fd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


class Carrier:
    """Carries lines between a client and an agent.

    Attributes:
        client_ended: the client has closed its side, or reads no more.
        agent_ended: the agent has closed its output, and the client has got all of it (or has gone).
    """

    def __init__(
        self, poll: Poll, client: tuple[int, int], agent: tuple[int, int], to_agent: Lines, to_client: Lines
    ) -> None:
        """Begins to carry.

        Args:
            poll: of the loop that hands events over.
            client: descriptors (to read what it says, to write to it), owned by the carrier from now on. Two numbers,
                also for one socket.
            agent: the same of the agent.
            to_agent: carries what the client says.
            to_client: carries what the agent says.
        """
        to_agent.replies_to(to_client)
        to_client.replies_to(to_agent)
        self._poll = poll
        self._down = _Half(client[0], to_agent, agent[1])
        self._up = _Half(agent[0], to_client, client[1])
        self._masks: dict[int, int] = {}
        self._busy = False
        self._heard = False
        self.client_ended = False
        self.agent_ended = False
        self._update()

    @property
    def descriptors(self) -> frozenset[int]:
        """Those that are registered now."""
        return frozenset(self._masks)

    def owns(self, fd: int) -> bool:
        """Whether a descriptor is one of `descriptors`."""
        return fd in self._masks

    def serve(self, fd: int, events: int) -> None:
        """Handles what poll said of one of `descriptors`."""
        self._busy = True
        for half in (self._down, self._up):
            if fd == half.source and events & ~select.POLLOUT:
                if half is self._up and self._down.source in self._masks:
                    # What was asked before the agent ended is answered with its end. An agent that fails at once may be
                    # quicker than the client is with its first words.
                    ended = not self._heard and events & select.POLLHUP and not events & select.POLLIN
                    if _readable(self._down.source, FIRST_WORDS if ended else 0):
                        self._down.read()
                        self._heard = True
                self._heard = self._heard or half is self._down
                half.read()
            if fd == half.sink.fd:
                if events & (select.POLLERR | select.POLLHUP | select.POLLNVAL) and not events & select.POLLOUT:
                    half.broken = True
                half.write()
        self._busy = False
        self._settle()

    def reply_to_agent(self, data: bytes) -> None:
        """Sends the agent a line of the bridge's own. Also while one of its lines is being judged."""
        self._down.lines.reply(data)
        if not self._busy:
            self._settle()

    def reply_to_client(self, data: bytes) -> None:
        """Sends the client a line of the bridge's own. Also while one of the agent's lines is being judged."""
        self._up.lines.reply(data)
        if not self._busy:
            self._settle()

    def end_agent_input(self) -> None:
        """Closes the agent's input once it has got what it was sent; nothing more is read from the client."""
        if not self._down.read_all:
            self._down.lines.end()
            self._down.at_end = self._down.read_all = True
        self._settle()

    def close(self) -> None:
        """Closes all descriptors."""
        for half in (self._down, self._up):
            self._close_source(half)
            self._close_sink(half)
            half.lines.discard()

    def _settle(self) -> None:
        self._busy = True
        for half in (self._down, self._up):
            half.write()  # a line of one direction may have been answered into the other one
            half.judge()
        for half in (self._down, self._up):
            half.write()
        self._busy = False
        if self._down.at_end or self._up.broken:
            self.client_ended = True
        if self._up.broken:
            # But not what the client says: an agent that is gone leaves its requests to be answered.
            self._up.discards = True
        self.agent_ended = self._up.read_all and self._up.ended
        for half in (self._down, self._up):
            if half.ended:
                self._close_sink(half)
            if half.read_all:
                self._close_source(half)
        self._update()

    def _update(self) -> None:
        wanted: dict[int, int] = {}
        for half in (self._down, self._up):
            if half.sink.fd != -1:
                # Registered for nothing it still tells that nobody reads any more.
                wanted[half.sink.fd] = half.wants
            if half.source != -1 and not half.at_end and not half.lines.waits and half.lines.has_room:
                wanted[half.source] = wanted.get(half.source, 0) | select.POLLIN
        for fd in self._masks.keys() - wanted.keys():
            self._poll.unregister(fd)
        for fd, mask in wanted.items():
            if self._masks.get(fd) != mask:
                self._poll.register(fd, mask)
        self._masks = wanted

    def _close_source(self, half: _Half) -> None:
        if half.source != -1:
            self._drop(half.source)
            os.close(half.source)
            half.source = -1

    def _close_sink(self, half: _Half) -> None:
        if half.sink.fd != -1:
            self._drop(half.sink.fd)
            half.sink.close()

    def _drop(self, fd: int) -> None:
        if self._masks.pop(fd, None) is not None:
            self._poll.unregister(fd)
