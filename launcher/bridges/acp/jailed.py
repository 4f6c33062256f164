"""A command that runs in the session's jail for the bridge, as `paddock exec` runs one, without any waiting for it."""

import os
import select
import signal
import socket
import time
from collections.abc import Callable

from launcher import wire
from launcher.bridges.acp.carrier import Poll
from launcher.jail import minder, reports
from policy.errors import Refusal, printable

_CHUNK = 1 << 16
_PATIENCE = 10.0
"""Seconds for the jail's init to take a request. It has nothing else to do."""

_LAST_READS = 64
"""Times that the pipe is read when the command has ended: more than it holds, and an end to what never ends."""


class Ended:
    """How a command ended: with an exit status, or by a signal's name. One of the two is None."""

    __slots__ = ("code", "signal")

    def __init__(self, code: int | None, signal_name: str | None) -> None:
        self.code = code
        self.signal = signal_name


class Jailed:
    """One running command. Its descriptors are registered with the poll object of the bridge's loop.

    Attributes:
        output: the last bytes that it wrote, as many as are kept.
        truncated: earlier ones were dropped.
        ended: None as long as it runs, or its output may still come.
    """

    def __init__(
        self,
        poll: Poll,
        connection: socket.socket,
        command: minder.Command,
        *,
        most: int,
        stdin: bytes = b"",
        on_end: Callable[["Jailed"], None],
    ) -> None:
        """Starts a command; standard output and error go to the same place.

        Args:
            poll: of the loop that hands events over.
            connection: to the session's control socket, owned from now on.
            command: what to run.
            most: bytes of output that are kept.
            stdin: what it reads.
            on_end: told when it has ended.

        Raises:
            Refusal: the request is not well formed, or too long.
            OSError: the session does not take it.
        """
        self._poll = poll
        self._connection = connection
        self._most = most
        self._input = bytearray(stdin)
        self._on_end = on_end
        self._decoder = wire.Decoder()
        self._exit: Ended | None = None
        self.output = bytearray()
        self.truncated = False
        self.ended: Ended | None = None
        inside: list[int] = []
        self._pipe = self._feed = -1
        try:
            data = wire.frame(minder.COMMAND, command.encode())
            self._pipe, writer = os.pipe()
            inside = [self._reader(), writer, os.dup(writer)]
            connection.setblocking(False)
            wire.send(connection.fileno(), data, tuple(inside), time.monotonic() + _PATIENCE)
        except BaseException:
            self.close()
            raise
        finally:
            for fd in inside:
                os.close(fd)
        os.set_blocking(self._pipe, False)
        poll.register(connection.fileno(), select.POLLIN)
        poll.register(self._pipe, select.POLLIN)
        if self._feed != -1:
            poll.register(self._feed, select.POLLOUT)

    @property
    def descriptors(self) -> frozenset[int]:
        """Those that are registered now."""
        own = self._connection.fileno()
        return frozenset(fd for fd in (own, self._pipe, self._feed) if fd != -1)

    def serve(self, fd: int) -> None:
        """Handles an event of one of `descriptors`."""
        if fd == self._pipe:
            self._read()
        elif fd == self._feed:
            self._write()
        elif fd == self._connection.fileno():
            self._listen()

    def kill(self) -> None:
        """Ends it, and everything below it."""
        self._exit = self._exit or Ended(None, "SIGKILL")
        self._finish()

    def close(self) -> None:
        """Lets go of it: what runs is ended. Safe to call twice."""
        for fd in (self._pipe, self._feed):
            self._drop(fd)
        self._pipe = self._feed = -1
        if self._connection.fileno() != -1:
            self._unregister(self._connection.fileno())
            self._connection.close()

    def _reader(self) -> int:
        """The command's standard input."""
        if not self._input:
            return os.open(os.devnull, os.O_RDONLY)
        reader, self._feed = os.pipe()
        os.set_blocking(self._feed, False)
        return reader

    def _read(self) -> bool:
        """Takes output; False when there is none now, or none any more."""
        try:
            data = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._drop(self._pipe)
            self._pipe = -1
            return False
        self.output += data
        if len(self.output) > self._most:
            del self.output[: len(self.output) - self._most]
            self.truncated = True
        return True

    def _write(self) -> None:
        try:
            count = os.write(self._feed, self._input[:_CHUNK])
        except BlockingIOError:
            return
        except BrokenPipeError:
            count = len(self._input)
        del self._input[:count]
        if not self._input:
            self._drop(self._feed)
            self._feed = -1

    def _listen(self) -> None:
        try:
            data = self._connection.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for kind, payload in self._decoder.feed(data):
            if kind == reports.REFUSED:
                self._refused(reports.refusal(payload))
            elif kind == reports.EXITED:
                self._exit = self._exit or _ended(int.from_bytes(payload, "little"))
        if not data:
            self._exit = self._exit or Ended(None, "SIGKILL")  # the jail has ended, and all in it
        if self._exit is not None:
            self._finish()

    def _refused(self, refusal: Refusal) -> None:
        """It could not be started: what a shell would say, and the status that it would give."""
        self.output += f"paddock: {printable(refusal.message)}\n".encode()
        self._exit = Ended(refusal.exit_code, None)

    def _finish(self) -> None:
        """It has ended. What it has written is in the pipe; what it left in the background may write on, unheard."""
        for _ in range(_LAST_READS):
            if self._pipe == -1 or not self._read():
                break
        self.close()
        if self.ended is None:
            self.ended = self._exit
            self._on_end(self)

    def _drop(self, fd: int) -> None:
        if fd != -1:
            self._unregister(fd)
            os.close(fd)

    def _unregister(self, fd: int) -> None:
        try:
            self._poll.unregister(fd)
        except KeyError:
            return  # it was not yet


def _ended(wait_status: int) -> Ended:
    code = os.waitstatus_to_exitcode(wait_status)
    if code >= 0:
        return Ended(code, None)
    known = {number.value: number.name for number in signal.Signals}
    return Ended(None, known.get(-code, f"SIG{-code}"))
