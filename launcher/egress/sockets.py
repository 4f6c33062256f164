"""What a task does with non-blocking sockets: a call returns when it is done, and others are served meanwhile."""

import errno
import os
import socket
from collections.abc import Iterable

from launcher.loop import Callback, Signal, Timer, running


async def accept(listener: socket.socket) -> socket.socket:
    """The next client of a listening socket: non-blocking, owned by the caller. Raises OSError (accept(2))."""
    while True:
        try:
            client, _ = listener.accept()
        except (BlockingIOError, InterruptedError):
            await readable(listener)
        else:
            client.setblocking(False)
            return client


async def receive(sock: socket.socket, most: int) -> bytes:
    """Up to `most` bytes; b"" when the other side has said all. Raises OSError (recv(2))."""
    while True:
        try:
            return sock.recv(most)
        except (BlockingIOError, InterruptedError):
            await readable(sock)


async def send_all(sock: socket.socket, data: bytes) -> None:
    """Sends everything. Raises OSError (send(2))."""
    left = memoryview(data)
    while left:
        try:
            left = left[sock.send(left) :]
        except (BlockingIOError, InterruptedError):
            await writable((sock,))


async def connect(sock: socket.socket, address: tuple[str, int]) -> None:
    """Connects to a numeric address. Raises OSError (connect(2))."""
    if begin(sock, address):
        await writable((sock,))
        outcome(sock)


def begin(sock: socket.socket, address: tuple[str, int]) -> bool:
    """Begins to connect: whether it goes on, to be waited for with `writable`. Raises OSError (connect(2))."""
    code = sock.connect_ex(address)
    if code not in (0, errno.EINPROGRESS, errno.EINTR):
        raise OSError(code, os.strerror(code))
    return code != 0


def outcome(sock: socket.socket) -> None:
    """How a connection attempt has ended that `begin` began: raises OSError when badly (connect(2))."""
    if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(code, os.strerror(code))


async def readable(sock: socket.socket) -> None:
    """Waits until there is something to read, the end included."""
    loop, fd, ready = running(), sock.fileno(), Signal()
    callback = ready.set
    loop.add_reader(fd, callback)
    try:
        await ready
    finally:
        loop.remove_reader(fd, callback)


async def writable(socks: Iterable[socket.socket], patience: float | None = None) -> list[socket.socket]:
    """Waits until one of them can be written, or has failed.

    Args:
        socks: connecting or connected ones.
        patience: seconds, None for ever.

    Returns:
        Those of them that are ready; none when the time is over.
    """
    loop, some = running(), Signal()
    ready: list[socket.socket] = []
    watched: list[tuple[int, Callback]] = []

    def watch(sock: socket.socket) -> None:
        def callback() -> None:
            loop.remove_writer(fd, callback)
            ready.append(sock)
            some.set()

        fd = sock.fileno()
        loop.add_writer(fd, callback)
        watched.append((fd, callback))

    timer: Timer | None = None
    try:
        for sock in socks:
            watch(sock)
        if patience is not None:
            timer = loop.call_later(patience, some.set)
        await some
    finally:
        if timer is not None:
            timer.cancel()
        for fd, callback in watched:
            loop.remove_writer(fd, callback)
    return ready
