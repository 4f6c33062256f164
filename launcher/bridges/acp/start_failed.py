"""What a client is told when nothing can be started for it: editors show the answer to a request, few a standard error.

The first request of a client, `initialize`, is answered with the refusal, as an error. Who has nothing to say, or is a
person at a terminal, reads it on standard error alone.
"""

import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.bridges.acp import rpc
from launcher.bridges.acp.lines import FIRST_WORDS, Sink
from policy.errors import Refusal

_LEAVING = 1.0
"""Seconds for a client to leave by itself, before this process ends: some look at that before they read the answer."""

_LONGEST = 1 << 20


@contextmanager
def answering(client: tuple[int, int] = (0, 1)) -> Iterator[None]:
    """Answers the client's first request with a Refusal that comes up before any was read, and lets it pass on."""
    try:
        yield
    except Refusal as refusal:
        answer(refusal, client)
        raise


def answer(refusal: Refusal, client: tuple[int, int], patience: float = FIRST_WORDS) -> None:
    """Answers the client's first request with an error. Whoever is no client is left alone.

    Args:
        client: descriptors to read what it says and to write to it; nothing of it has been read.
        patience: seconds to wait for that request.
    """
    if os.isatty(client[0]) or os.isatty(client[1]):
        return
    number = _asked(client[0], time.monotonic() + patience)
    if number is None:
        return
    sink = Sink(os.dup(client[1]))
    try:
        sink.write(bytearray(rpc.error(number, rpc.INTERNAL_ERROR, str(refusal), refusal.as_dict())))
    except OSError:
        return  # it has gone
    finally:
        sink.close()
    end = time.monotonic() + _LEAVING
    while _read(client[0], end):
        pass


def _asked(fd: int, end: float) -> rpc.Id | None:
    """The id of the request in the first line; None when there is none in time."""
    data = b""
    while b"\n" not in data:
        more = _read(fd, end)
        if not more or len(data) > _LONGEST:
            return None
        data += more
    try:
        message = rpc.parse(data[: data.index(b"\n")])
    except rpc.Ambiguous:
        return None
    return rpc.usable_id(message) if "method" in message else None


def _read(fd: int, end: float) -> bytes:
    """What comes next; b"" at the end of the input, or of the time."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
        return b""
    try:
        return os.read(fd, 1 << 16)
    except OSError:
        return b""
