"""Copying between two connections until both have said all. By callbacks and one shared buffer, so that a thousand idle
tunnels cost sockets and little else.
"""

import socket
from collections.abc import Callable

from launcher.egress.hello import Handshake
from launcher.loop import running

_BUFFER = bytearray(256 << 10)
_VIEW = memoryview(_BUFFER)

CLIENT, SERVER = 0, 1


class Relay:
    """A running copy between a client and a server; owns both sockets, which are non-blocking.

    Attributes:
        last: when something was read last, on the loop's clock.
    """

    __slots__ = (
        "_discards", "_done", "_ended", "_ends", "_fds", "_finished", "_gate", "_loop", "_pending", "_refused", "last",
    )  # fmt: skip

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        done: "Callable[[Relay], None]",
        *,
        gate: Handshake | None = None,
        refused: Callable[[ValueError], None] = lambda error: None,
        one_way: bool = False,
    ) -> None:
        """Prepares; `start` begins.

        Args:
            client: its bytes go to the server, unless `one_way`.
            server: its bytes go to the client.
            done: called once, when both sockets are closed.
            gate: judges a TLS handshake; until it is done.
            refused: told what the gate has raised, before both sides are closed.
            one_way: nothing of the client's is passed on.
        """
        self._loop = running()
        self._ends = (client, server)
        self._fds = (client.fileno(), server.fileno())
        self._done = done
        self._gate = gate
        self._refused = refused
        self._pending = [b"", b""]
        self._ended = [False, False]
        self._finished = [one_way, False]
        self._discards = one_way
        self.last = self._loop.time()

    def start(self, first: bytes = b"") -> None:
        """Begins to copy; `first` came from the client already. Ends where the kernel has no room (epoll_ctl(2))."""
        try:
            self._listen(SERVER)
            if not self._discards:
                self._listen(CLIENT)
        except OSError:
            self.close()
            return
        if first and not self._discards:
            self._take(CLIENT, first)

    def discard(self) -> None:
        """From now on reads what the client says, and drops it. For `one_way`, when its request is complete."""
        if self._ends[CLIENT].fileno() != -1:
            self._listen(CLIENT)

    def close(self) -> None:
        """Closes both sockets. Safe to call twice."""
        if self._ends[CLIENT].fileno() == -1:
            return
        for sock, fd in zip(self._ends, self._fds, strict=True):
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)
            sock.close()
        self._done(self)

    def _listen(self, side: int) -> None:
        self._loop.add_reader(self._fds[side], lambda: self._readable(side))

    def _readable(self, side: int) -> None:
        try:
            count = self._ends[side].recv_into(_BUFFER)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        self.last = self._loop.time()
        if not count:
            self._end(side)
        elif side == SERVER or not self._discards:
            self._take(side, _VIEW[:count])

    def _take(self, side: int, data: "bytes | memoryview") -> None:
        if self._gate is not None:
            try:
                if side == CLIENT:
                    data = self._gate.client(bytes(data))
                else:
                    self._gate.server(data)
            except ValueError as error:
                self._refused(error)
                self.close()
                return
            if self._gate.done:
                self._gate = None
        if data:
            self._send(side, data)

    def _send(self, side: int, data: "bytes | memoryview") -> None:
        target = self._ends[1 - side]
        try:
            count = target.send(data)
        except (BlockingIOError, InterruptedError):
            count = 0
        except OSError:
            self.close()
            return
        if count < len(data):
            self._pending[side] = bytes(data[count:])
            self._loop.remove_reader(self._fds[side])
            self._loop.add_writer(self._fds[1 - side], lambda: self._flush(side))

    def _flush(self, side: int) -> None:
        target = self._ends[1 - side]
        try:
            count = target.send(self._pending[side])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        self.last = self._loop.time()
        self._pending[side] = self._pending[side][count:]
        if self._pending[side]:
            return
        self._loop.remove_writer(self._fds[1 - side])
        if self._ended[side]:
            self._finish(side)
        else:
            self._listen(side)

    def _end(self, side: int) -> None:
        """One side has said all: the other one is told, when everything is on its way."""
        self._loop.remove_reader(self._fds[side])
        self._ended[side] = True
        if side == CLIENT and self._discards:
            return
        if side == CLIENT and self._gate is not None and self._gate.held:
            self.close()  # it ended in the middle of what the gate was to judge
        elif not self._pending[side]:
            self._finish(side)

    def _finish(self, side: int) -> None:
        self._finished[side] = True
        try:
            self._ends[1 - side].shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
            return
        if all(self._finished):
            self.close()
