"""The carrier on real descriptors: order, slow and vanished readers, ends, any kind of stream."""

import os
import select
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.bridges.acp.lines import HIGH_WATER, Carrier, Lines, Sink
from launcher.bridges.acp.rpc import Outcome

LINE = b'{"jsonrpc":"2.0","method":"session/update","params":{}}\n'
ASKED = b'{"id":1,"method":"fs/read_text_file"}\n'


def _none(why: str) -> Outcome:
    return Outcome()


class Loop:
    """A carrier between two pairs of descriptors, and the ends that a test holds."""

    def __init__(self, client: tuple[int, int], agent: tuple[int, int]) -> None:
        self.poll = select.poll()
        up = Lines(lambda line: Outcome(back=b"no\n") if b"fs/" in line else Outcome(line + b"\n"), _none)
        down = Lines(lambda line: Outcome(line + b"\n"), _none)
        for fd in (agent[0], agent[1]):
            os.set_blocking(fd, False)
        self.up, self.down = up, down
        self.carrier = Carrier(self.poll, client, agent, down, up)

    def turn(self, patience: float = 0.0) -> bool:
        """Handles what is at hand; False when there is nothing."""
        events = [event for event in self.poll.poll(patience) if event[0] in self.carrier.descriptors]
        for fd, mask in events:
            if fd in self.carrier.descriptors:
                self.carrier.serve(fd, mask)
        return bool(events)

    def until(self, done: Callable[[], bool], turns: int = 10_000) -> None:
        for _ in range(turns):
            if done():
                return
            self.turn(10.0)
        raise AssertionError("it does not come to that")

    def settle(self) -> None:
        while self.turn():
            pass


class Pipes(Loop):
    """All four are pipes."""

    def __init__(self) -> None:
        client_in, self.client_says = os.pipe()
        self.client_hears, client_out = os.pipe()
        agent_out, self.agent_says = os.pipe()
        self.agent_hears, agent_in = os.pipe()
        super().__init__((client_in, client_out), (agent_out, agent_in))
        self.ends = [self.client_says, self.client_hears, self.agent_says, self.agent_hears]
        for fd in self.ends:
            os.set_blocking(fd, False)

    def close(self, fd: int) -> None:
        self.ends.remove(fd)
        os.close(fd)

    def heard(self, fd: int) -> bytes:
        data = b""
        while True:
            try:
                piece = os.read(fd, 1 << 20)
            except BlockingIOError:
                if not self.turn():
                    return data
                continue
            if not piece:
                return data
            data += piece


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    made.carrier.close()
    for fd in made.ends:
        os.close(fd)


def test_both_directions_are_carried(pipes: Pipes) -> None:
    """Whole lines at once, pieces when they are complete, answers in between."""
    os.write(pipes.agent_says, LINE + LINE[:10])
    assert pipes.heard(pipes.client_hears) == LINE
    os.write(pipes.agent_says, LINE[10:] + ASKED + LINE)
    assert pipes.heard(pipes.client_hears) == LINE + LINE
    assert pipes.heard(pipes.agent_hears) == b"no\n"
    os.write(pipes.client_says, b"any\r\nthing\n")
    assert pipes.heard(pipes.agent_hears) == b"any\r\nthing\n"


def test_a_slow_reader_holds_its_writer_back(pipes: Pipes) -> None:
    """No more than the high-water mark waits here; the other direction goes on; nothing is lost."""
    sent = 0
    for _ in range(200):
        try:
            sent += os.write(pipes.agent_says, LINE * 1000)
        except BlockingIOError:
            if not pipes.turn():
                break
    assert len(pipes.up.out) < 2 * HIGH_WATER
    with pytest.raises(BlockingIOError):
        os.write(pipes.agent_says, LINE * 1000)
    os.write(pipes.client_says, b"still\n")
    assert pipes.heard(pipes.agent_hears) == b"still\n"
    got = pipes.heard(pipes.client_hears)
    assert len(got) + len(pipes.up.out) <= sent
    pipes.close(pipes.agent_says)
    got += pipes.heard(pipes.client_hears)
    assert sent <= len(got) <= sent + 1  # a line that was cut gets its newline


def test_an_agent_that_reads_no_answers_is_held_back(pipes: Pipes) -> None:
    """It cannot fill this process with what it is answered."""
    for _ in range(400):
        try:
            os.write(pipes.agent_says, ASKED * 1000)
        except BlockingIOError:
            if not pipes.turn():
                break
    else:
        raise AssertionError("it was never held back")
    assert len(pipes.down.out) < 3 * HIGH_WATER


def test_lines_wait_until_what_came_of_the_others_is_read(pipes: Pipes) -> None:
    """A hundred lines of one write have a megabyte of an answer each: no more than one is made at a time."""
    for judged, hears, sinks in (
        (lambda line: Outcome(on=line * (1 << 20) + b"\n"), pipes.client_hears, pipes.up),
        (lambda line: Outcome(back=line * (1 << 20) + b"\n"), pipes.agent_hears, pipes.down),
    ):
        pipes.up._judge = judged
        os.write(pipes.agent_says, b"".join(b"%d\n" % (number % 10) for number in range(100)))
        pipes.settle()
        most, got = len(sinks.out), bytearray()
        while len(got) < 100 * ((1 << 20) + 1):
            got += os.read(hears, 1 << 20)
            pipes.settle()
            most = max(most, len(sinks.out))
        assert most < HIGH_WATER + (2 << 20)
        assert [line[:1] for line in got.splitlines()] == [b"%d" % (number % 10) for number in range(100)]


def test_lines_that_wait_are_judged_before_the_end(pipes: Pipes) -> None:
    """An agent that has ended has said them all the same; the client gets its last words after them."""
    pipes.up._judge = lambda line: Outcome(on=line * HIGH_WATER + b"\n")
    pipes.up._last_words = lambda: b"last\n"
    os.write(pipes.agent_says, b"a\nb\nc\nd")
    pipes.close(pipes.agent_says)
    pipes.settle()
    assert not pipes.carrier.agent_ended
    assert [line[:4] for line in pipes.heard(pipes.client_hears).splitlines()] == [
        b"aaaa", b"bbbb", b"cccc", b"dddd", b"last"
    ]  # fmt: skip
    assert pipes.carrier.agent_ended


def test_an_agent_that_is_slow_to_read_may_write_on(pipes: Pipes) -> None:
    """What waits for it is the client's, so its own words are not held back: else both would wait for ever."""
    for _ in range(200):
        try:
            os.write(pipes.client_says, LINE * 1000)
        except BlockingIOError:
            if not pipes.turn():
                break
    os.write(pipes.agent_says, LINE)
    assert pipes.heard(pipes.client_hears) == LINE


def test_the_end_of_the_client_reaches_the_agent(pipes: Pipes) -> None:
    """After everything that it has said, the last line without its newline too."""
    os.write(pipes.client_says, LINE + b"rest")
    pipes.close(pipes.client_says)
    pipes.until(lambda: pipes.carrier.client_ended)
    assert pipes.heard(pipes.agent_hears) == LINE + b"rest\n"
    assert os.read(pipes.agent_hears, 1) == b""
    os.write(pipes.agent_says, LINE)
    assert pipes.heard(pipes.client_hears) == LINE
    assert not pipes.carrier.agent_ended


def test_the_end_of_the_agent_reaches_the_client(pipes: Pipes) -> None:
    """After its last words have been read."""
    os.write(pipes.agent_says, LINE)
    pipes.close(pipes.agent_says)
    pipes.until(lambda: pipes.carrier.agent_ended)
    assert pipes.heard(pipes.client_hears) == LINE
    assert os.read(pipes.client_hears, 1) == b""


def test_a_client_that_reads_no_more_has_ended(pipes: Pipes) -> None:
    """It is noticed without a write; the agent may go on writing, into nothing, and nobody spins."""
    pipes.settle()
    pipes.close(pipes.client_hears)
    pipes.until(lambda: pipes.carrier.client_ended)
    for _ in range(20):
        os.write(pipes.agent_says, LINE * 100)
        pipes.settle()
    assert not pipes.up.out
    assert not pipes.turn()
    pipes.close(pipes.agent_says)
    pipes.until(lambda: pipes.carrier.agent_ended)


def test_an_agent_that_reads_no_more_holds_nobody_up(pipes: Pipes) -> None:
    """What the client says goes nowhere, what the agent says arrives."""
    pipes.close(pipes.agent_hears)
    for _ in range(20):
        os.write(pipes.client_says, LINE * 100)
        pipes.settle()
    os.write(pipes.agent_says, LINE)
    assert pipes.heard(pipes.client_hears) == LINE
    assert not pipes.turn()


def test_lines_of_its_own_stand_between_the_others(pipes: Pipes) -> None:
    """To either side."""
    pipes.carrier.reply_to_agent(b"a\n")
    pipes.carrier.reply_to_client(b"c\n")
    assert pipes.heard(pipes.agent_hears) == b"a\n"
    assert pipes.heard(pipes.client_hears) == b"c\n"
    pipes.carrier.end_agent_input()
    assert os.read(pipes.agent_hears, 1) == b""


def test_sockets_are_carried_as_pipes_are() -> None:
    """Node gives its children socket pairs; one socket may be both ends."""
    client, ours = socket.socketpair()
    agent, theirs = socket.socketpair()
    with client, agent:
        loop = Loop(_both(ours), _both(theirs))
        client.sendall(LINE)
        loop.settle()
        assert agent.recv(1000) == LINE
        agent.sendall(LINE * 3)
        loop.settle()
        assert client.recv(1000) == LINE * 3
        agent.close()
        loop.until(lambda: loop.carrier.agent_ended)
        loop.carrier.close()


def _both(end: socket.socket) -> tuple[int, int]:
    fd = end.detach()
    return fd, os.dup(fd)


def test_a_sink_never_changes_the_file_of_others() -> None:
    """O_NONBLOCK would reach whoever shares the pipe's open file, such as the writers of a standard error."""
    reader, writer = os.pipe()
    shared = os.dup(writer)
    sink = Sink(writer)
    try:
        assert os.get_blocking(shared)
        data = bytearray(b"x" * (1 << 20))
        taken = 0
        while count := sink.write(data):
            taken += count
            del data[:count]
        assert 0 < taken < 1 << 20
        assert os.get_blocking(shared)
    finally:
        sink.close()
        sink.close()
        os.close(shared)
        os.close(reader)


def test_a_sink_may_be_a_file_or_a_terminal() -> None:
    """`paddock acp` by hand, or with its output in a file."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "out"
        sink = Sink(os.open(path, os.O_WRONLY | os.O_CREAT))
        data = bytearray(b"y" * 10_000)
        while data:
            del data[: sink.write(data)]
        sink.close()
        assert path.read_bytes() == b"y" * 10_000
    master, terminal = os.openpty()
    sink = Sink(terminal)
    assert sink.write(bytearray(b"z\n")) == 2
    assert os.read(master, 10) == b"z\r\n"
    sink.close()
    os.close(master)


def test_a_sink_whose_pipe_cannot_be_reopened_writes_in_small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's pipe, or no /proc: then no write is larger than what poll(2) has promised."""
    reader, writer = os.pipe()

    def refuse(*_: object) -> int:
        raise PermissionError(13, "no")

    monkeypatch.setattr(os, "open", refuse)
    sink = Sink(writer)
    monkeypatch.undo()
    data = bytearray(b"x" * (1 << 20))
    taken = 0
    while count := sink.write(data):
        assert count <= 4096
        taken += count
        del data[:count]
    assert 0 < taken < 1 << 20
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        sink.write(data)
    sink.close()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("input_first", [False, True])
def test_what_was_asked_before_the_agent_ended_is_known_when_its_end_is(late: bool, input_first: bool) -> None:
    """All is at hand at once, and which of it the kernel names first is nobody's choice: the request, that nobody reads
    the agent's input, the end of its output. The client's first words may even be later than all of it.
    """
    asked: list[bytes] = []
    pipes = Pipes()
    pipes.up._last_words = lambda: b"".join(b"no answer to " + line + b"\n" for line in asked)
    pipes.down._judge = lambda line: (asked.append(line), Outcome(line + b"\n"))[1]  # type: ignore[func-returns-value]
    says = threading.Timer(0.05 * late, os.write, (pipes.client_says, b"this\n"))
    says.start()
    if not late:
        says.join()
    pipes.close(pipes.agent_says)
    pipes.close(pipes.agent_hears)
    if input_first:
        pipes.carrier.serve(pipes.carrier._down.sink.fd, select.POLLERR)
    pipes.carrier.serve(pipes.carrier._up.source, select.POLLHUP)
    says.join()
    pipes.settle()
    assert pipes.heard(pipes.client_hears) == b"no answer to this\n"
    pipes.carrier.close()
    for fd in pipes.ends:
        os.close(fd)
