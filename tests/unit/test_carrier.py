"""The lanes of the process that carries standard streams (`launcher.session.carrier`), each by itself.

What they do for a command is attacked in tests/kernel/test_streams.py.
"""

import fcntl
import os
import select
import socket
from pathlib import Path

import pytest

from launcher.session.carrier import _move, _Output, _Peeked, _Sent, _Spliced


@pytest.mark.parametrize("kind", ["file", "pipe", "socket"])
def test_bytes_that_a_command_takes_back_are_waited_for_by_nobody(tmp_path: Path, kind: str) -> None:
    """It can open its pipe for reading: then nothing is there to move, which is no reason to look at the other end."""
    source, feed = os.pipe()
    with socket.socket(socket.AF_UNIX) as unconnected:
        given = unconnected.detach() if kind == "socket" else os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    lane = {"file": _Output, "pipe": _Spliced, "socket": _Sent}[kind](given, source)
    idle = lane.wanted(alone=False)
    lane.serve(source, select.POLLIN)
    assert lane.open
    assert lane.wanted(alone=False) == idle
    os.write(feed, b"late")
    lane.settle()
    assert not lane.is_idle()
    os.read(source, 10)
    assert lane.is_idle()
    os.close(feed)
    lane.end()


def test_the_last_writer_and_the_reader_may_both_be_gone() -> None:
    """A carrier that is alone gives up a stream that takes nothing, and goes on with the others."""
    (source, feed), (reader, given) = os.pipe(), os.pipe()
    lane = _Spliced(given, source)
    os.set_blocking(given, False)
    fcntl.fcntl(given, fcntl.F_SETPIPE_SZ, 4096)
    assert os.write(given, bytes(4096)) == 4096
    os.write(feed, b"late")
    os.close(feed)
    lane.serve(source, select.POLLIN)
    assert lane.open
    assert source in dict(lane.wanted(alone=True))
    lane.serve(source, select.POLLHUP)
    assert not lane.open
    os.close(reader)


def test_a_stream_takes_nothing_that_was_written_after_its_end() -> None:
    """What is due waits for a reader; what another one has added meanwhile is not due."""
    (source, feed), (reader, given) = os.pipe(), os.pipe()
    os.write(feed, b"due")
    lane = _Spliced(given, source)
    lane.settle()
    os.write(feed, b"late")
    lane.serve(source, select.POLLIN)
    assert lane.is_idle()
    lane.end()
    os.close(feed)
    assert os.read(reader, 10) == b"due"
    os.close(reader)


def test_output_without_an_end_keeps_no_input_away() -> None:
    """A stream that is to be looked at now and then is, though another one has something all the time."""
    served = []

    class Lane(_Output):
        def wanted(self, *, alone: bool) -> list[tuple[int, int]]:
            del alone
            return [(self.pipes[0], select.POLLIN)] if self.tick == -1 else []

        def serve(self, fd: int, events: int) -> None:
            del fd, events
            served.append(self.tick)
            if self.tick != -1 or len(served) == 1000:
                self.end()

        def settle(self) -> None:
            """Its end is its own affair."""

    (asked, asking), (answering, answer) = os.pipe(), os.pipe()
    pipes = [os.pipe() for _ in range(2)]
    busy, ticking = [Lane(os.dup(1), reader) for reader, _ in pipes]
    ticking.tick = 100
    os.write(pipes[0][1], b"always")
    os.write(asking, b"BF")
    _move([busy, ticking], asked, answer, -1)
    assert served.index(ticking.tick) < 999
    assert not busy.open
    for fd in (asked, asking, answering, answer, *(writer for _, writer in pipes)):
        os.close(fd)


def test_urgent_data_are_asked_for_now_and_then() -> None:
    """Of them poll(2) speaks, and recv(2) gives nothing: no reason to ask again at once."""
    (reader, writer), (one, two) = os.pipe(), socket.socketpair()
    lane = _Peeked(one.detach(), writer, os.dup(writer))
    two.send(b"!", socket.MSG_OOB)

    def said() -> list[tuple[int, int]]:
        poll = select.poll()
        for fd, events in lane.wanted(alone=False):
            poll.register(fd, events)
        return poll.poll(0)

    assert said() == [(lane.file, select.POLLIN)]
    lane.serve(lane.file, select.POLLIN)
    assert said() == []
    assert lane.tick > 0
    two.send(b"next")
    lane.serve(-1, 0)
    while lane.tick == -1 and (found := said()):
        lane.serve(*found[0])
    assert os.read(reader, 10) == b"next"
    two.close()
    lane.end()
    os.close(reader)
