"""Writing to descriptors that others may share, without ever waiting.

O_NONBLOCK belongs to the open file, not to the descriptor (open(2)): set on what a client handed over, it would reach
whoever else holds it, such as the writers of a standard error that leads to the same place.
"""

import os
import socket
import stat

_PIPE_BUF = 4096
"""Bytes that a pipe takes at once when poll(2) says that it can be written to (pipe(7))."""


class Sink:
    """A descriptor to write to. Owns it."""

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
    import select

    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))
