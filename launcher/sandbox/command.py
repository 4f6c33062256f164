"""One command of a live jail, followed to its end; what it writes comes over pipes of its own, and is bounded."""

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping

from launcher import wire
from launcher.jail import minder, reports
from launcher.sandbox.live import Live, unopened
from policy.errors import Refusal

TIMED_OUT = 124
"""Exit status of a command that was ended at its timeout, as timeout(1) has it."""

CANCELLED = 128 + signal.SIGINT

_KILL_SECONDS = 10.0
"""For the jail to end a command and all below it; a jail that takes longer is ended as a whole."""

_LAST = (reports.SWEPT, reports.EXITED, reports.REFUSED)
"""Of the messages of what minds a command."""

_PIECE = 1 << 16


class Kept:
    """The beginning and the end of a stream.

    Attributes:
        dropped: bytes between the two.
    """

    def __init__(self, most: int) -> None:
        """Args: bytes of both together."""
        self._half = max(most, 2) // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.dropped = 0

    def add(self, data: bytes) -> None:
        """What comes next."""
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._half + _PIECE:
            self._cut()

    @property
    def content(self) -> bytes:
        """What is kept."""
        self._cut()
        return bytes(self._head + self._tail)

    def _cut(self) -> None:
        if (more := len(self._tail) - self._half) > 0:
            del self._tail[:more]
            self.dropped += more


class Handed(Kept):
    """A stream that somebody takes as it comes."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        """Args: called with each piece."""
        super().__init__(0)
        self._take = take

    def add(self, data: bytes) -> None:
        """What comes next."""
        if data:
            self._take(data)


class Whole(Kept):
    """A stream that is kept as a whole, or not at all."""

    def __init__(self, most: int) -> None:
        """Args: bytes that may come."""
        super().__init__(2 * most)
        self._left = most

    def add(self, data: bytes) -> None:
        """What comes next. Refusal: file-too-large."""
        self._left -= len(data)
        if self._left < 0:
            raise Refusal(
                "file-too-large", "more comes out than is allowed", context="see the limit of what was called"
            )
        self.keep(data)

    def keep(self, data: bytes) -> None:
        """Does what is to be done with it."""
        super().add(data)


class Into(Whole):
    """A stream that goes into a pipe as it comes, and whose length is bounded."""

    def __init__(self, output: int, most: int) -> None:
        """Args: a pipe, the caller's; bytes that may come."""
        super().__init__(most)
        self._output = output

    def keep(self, data: bytes) -> None:
        """Passes it on. What reads the pipe says itself why it does not any more."""
        rest = memoryview(data)
        with contextlib.suppress(BrokenPipeError):
            while rest:
                rest = rest[os.write(self._output, rest) :]


class Running:
    """One command. Made, followed, and gone with that.

    Attributes:
        timed_out: it was ended at its deadline.
    """

    def __init__(
        self,
        jail: Live,
        words: list[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        data: bytes,
        kept: tuple[Kept, ...],
        source: int = -1,
    ) -> None:
        """Starts it.

        Args:
            jail: where.
            words: its words.
            env: variables on top of the session's.
            cwd: canonical path to start in; "" for the session's.
            data: for its standard input.
            kept: take its standard output and error; one takes both.
            source: a pipe to read from in place of `data`; the caller's.

        Raises:
            Refusal: sandbox-closed, sandbox-ended, sandbox-unopened, request-too-long.
        """
        self.timed_out = self._over = False
        self._jail = jail
        self._data = memoryview(data)
        self._input = -1
        self._outputs: dict[int, Kept] = {}
        self._poll = select.poll()
        try:
            self._connection, other = socket.socketpair()
        except OSError as error:
            raise unopened("command", error) from None
        theirs: list[int] = [other.detach()]
        try:
            reader, self._input = os.pipe()
            theirs.append(reader)
            if source != -1:
                theirs[-1] = os.dup(source)
                os.close(reader)
            for each in kept:
                reader, writer = os.pipe()
                theirs.append(writer)
                self._outputs[reader] = each
                os.set_blocking(reader, False)
                self._poll.register(reader, select.POLLIN)
            theirs += [os.dup(theirs[-1])] if len(kept) == 1 else []
            jail.send(minder.Command(words, tuple(env.items()), cwd=cwd, insists=bool(cwd)), tuple(theirs))
        except OSError as error:
            self._close()
            raise unopened("command", error) from None
        except BaseException:
            self._close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        self._poll.register(self._connection, select.POLLIN)
        if data:
            os.set_blocking(self._input, False)
            self._poll.register(self._input, select.POLLOUT)
        else:
            self._end_input()

    def follow(self, deadline: float | None, cancel: int = -1) -> int:
        """Takes its output until it has ended; what it has left in the background then is not waited for.

        Args:
            deadline: when it is ended, with everything that it has started, on the clock of `time.monotonic`.
            cancel: a descriptor; when it can be read, it is ended in the same way.

        Returns:
            Its exit status, 128+N for signal N; `TIMED_OUT`, `CANCELLED`.

        Raises:
            Refusal: it could not be started; sandbox-ended.
        """
        if cancel != -1:
            self._poll.register(cancel, select.POLLIN)
        try:
            return self._follow(deadline, cancel)
        except BaseException:
            self._end()
            raise
        finally:
            self._close()

    def _follow(self, deadline: float | None, cancel: int) -> int:
        decoder = wire.Decoder()
        ending = 0
        while True:
            wait = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            ready = {fd for fd, _ in self._poll.poll(wait)}
            late = deadline is not None and time.monotonic() >= deadline
            if not ending and (late or cancel in ready):
                self.timed_out = late
                ending = TIMED_OUT if late else CANCELLED
                if cancel != -1:
                    self._poll.unregister(cancel)
                self._connection.shutdown(socket.SHUT_WR)  # what minds it ends all of it, and then itself
                deadline = time.monotonic() + _KILL_SECONDS
            elif late:
                self._jail.kill()
                deadline = None
            if self._input in ready:
                self._feed()
            for fd in ready & self._outputs.keys():
                self._take(fd)
            if self._connection.fileno() not in ready:
                continue
            piece = self._connection.recv(_PIECE)
            status = None
            for kind, payload in decoder.feed(piece):
                self._over = self._over or kind in _LAST
                if kind == reports.REFUSED and not ending:
                    raise reports.refusal(payload)
                if kind == reports.EXITED and not ending:
                    code = os.waitstatus_to_exitcode(reports.exited(payload)[0])
                    status = code if code >= 0 else 128 - code
            if not piece:
                if not self._over:  # what minds it was ended, and who knows what lives on
                    self._jail.kill()
                if not ending:
                    raise self._jail.gone()
                status = ending
            if status is not None:
                for fd in tuple(self._outputs):
                    while self._take(fd):
                        continue
                return status

    def _take(self, fd: int) -> bool:
        """Reads once; whether there was something."""
        try:
            data = os.read(fd, _PIECE)
        except BlockingIOError:
            return False
        self._outputs[fd].add(data)
        if not data:
            self._poll.unregister(fd)
            del self._outputs[fd]
            os.close(fd)
        return bool(data)

    def _feed(self) -> None:
        try:
            self._data = self._data[os.write(self._input, self._data[:_PIECE]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._data = self._data[:0]  # it does not read
        if not self._data:
            self._poll.unregister(self._input)
            self._end_input()

    def _end(self) -> None:
        """Ends it for an exception, KeyboardInterrupt for instance, and waits until it has ended."""
        decoder = wire.Decoder()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            self._connection.settimeout(_KILL_SECONDS)
            while piece := self._connection.recv(_PIECE):
                self._over = self._over or any(kind in _LAST for kind, _ in decoder.feed(piece))
        if not self._over:
            self._jail.kill()

    def _end_input(self) -> None:
        os.close(self._input)
        self._input = -1

    def _close(self) -> None:
        self._connection.close()
        for fd in self._outputs:
            os.close(fd)
        self._outputs.clear()
        if self._input != -1:
            self._end_input()
