"""Two byte streams, joined through the rules: what a client and an agent say to each other.

It knows nothing of processes: descriptors come in, bytes are carried until both sides have ended. Whoever owns the loop
registers them with its own poll object and hands events over, so signals and timers can share that loop.

Neither side waits for the other's other direction: each direction stops reading when its own reader is slow, and when
the bridge's own replies to it are not read.
"""

import os
import select
from typing import Protocol

from launcher.bridges.acp.stream import Sink
from launcher.bridges.acp.way import Way

HIGH_WATER = 1 << 18
"""Bytes that wait for a slow reader before no more is read for it."""

_CHUNK = 1 << 16


class Poll(Protocol):
    """As much of `select.poll` as is needed."""

    def register(self, fd: int, eventmask: int, /) -> None:
        """Adds or changes a descriptor."""
        ...

    def unregister(self, fd: int, /) -> None:
        """Takes a descriptor out."""
        ...


class _Half:
    """One direction: from a descriptor, through a way, to another one."""

    def __init__(self, source: int, way: Way, sink: int) -> None:
        self.source = source
        self.way = way
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
                self.way.feed(data)
        else:
            self.way.end()
            self.read_all = True
        self.write()

    def write(self) -> None:
        if self.broken:
            self.way.discard()
            return
        try:
            while self.way.out and (count := self.sink.write(self.way.out)):
                self.way.written(count)
        except OSError:
            self.broken = True
            self.way.discard()

    @property
    def ended(self) -> bool:
        return self.broken or (self.read_all and not self.way.out)


class Relay:
    """Carries lines between a client and an agent.

    Attributes:
        client_ended: the client has closed its side, or reads no more.
        agent_ended: the agent has closed its output, and the client has got all of it (or has gone).
    """

    def __init__(
        self, poll: Poll, client: tuple[int, int], agent: tuple[int, int], to_agent: Way, to_client: Way
    ) -> None:
        """Begins to carry.

        Args:
            poll: of the loop that hands events over.
            client: descriptors (to read what it says, to write to it), owned by the relay from now on. Two numbers,
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
                half.read()
            if fd == half.sink.fd:
                if events & (select.POLLERR | select.POLLHUP | select.POLLNVAL) and not events & select.POLLOUT:
                    half.broken = True
                half.write()
        self._busy = False
        self._settle()

    def reply_to_agent(self, data: bytes) -> None:
        """Sends the agent a line of the bridge's own. Also while one of its lines is being judged."""
        self._down.way.reply(data)
        if not self._busy:
            self._settle()

    def reply_to_client(self, data: bytes) -> None:
        """Sends the client a line of the bridge's own. Also while one of the agent's lines is being judged."""
        self._up.way.reply(data)
        if not self._busy:
            self._settle()

    def end_agent_input(self) -> None:
        """Closes the agent's input once it has got what it was sent; nothing more is read from the client."""
        if not self._down.read_all:
            self._down.way.end()
            self._down.read_all = True
        self._settle()

    def close(self) -> None:
        """Closes all descriptors."""
        for half in (self._down, self._up):
            self._close_source(half)
            self._close_sink(half)
            half.way.close()

    def _settle(self) -> None:
        for half in (self._down, self._up):
            half.write()  # a line of one direction may have been answered into the other one
        if self._down.read_all or self._up.broken:
            self.client_ended = True
        if self._up.broken:
            self._up.discards = True
        if self._down.broken:
            self._down.discards = True
        self.agent_ended = self._up.read_all and self._up.ended
        for half in (self._down, self._up):
            if half.ended:
                self._close_sink(half)
            if half.read_all:
                self._close_source(half)
        self._update()

    def _update(self) -> None:
        """Tells the poll object what is wanted now."""
        wanted: dict[int, int] = {}
        for half, other in ((self._down, self._up), (self._up, self._down)):
            if half.sink.fd != -1:
                # Registered for nothing it still tells that nobody reads any more.
                wanted[half.sink.fd] = select.POLLOUT if half.way.out and not half.broken else 0
            if half.source != -1 and half.way.waiting < HIGH_WATER and other.way.owed < HIGH_WATER:
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
