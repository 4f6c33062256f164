"""Messages come whole over pipes and sockets, with their descriptors; a peer that breaks the form is refused."""

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import wire

KINDS = st.binary(min_size=1, max_size=1)


@pytest.fixture
def stream() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a stream."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def packets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a SEQPACKET socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def soon() -> float:
    return time.monotonic() + 10


@given(st.lists(st.tuples(KINDS, st.binary(max_size=40))), st.integers(1, 50))
def test_frames_come_whole_out_of_any_pieces(frames: list[tuple[bytes, bytes]], step: int) -> None:
    data = b"".join(wire.frame(*each) for each in frames)
    decoder = wire.Decoder()
    came = [each for at in range(0, len(data), step) for each in decoder.feed(data[at : at + step])]
    assert came == frames
    assert not decoder.is_within


def test_frames_before_one_that_is_too_long_are_delivered() -> None:
    came = wire.Decoder(most=3).feed(wire.frame(b"A", b"abc") + wire.frame(b"B", b"abcd")[:5])
    assert next(came) == (b"A", b"abc")
    with pytest.raises(wire.TooLong):
        next(came)


def test_a_frame_larger_than_the_sockets_buffer_arrives_with_its_descriptor(
    stream: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = stream
    payload = os.urandom(1 << 20)
    reading, writing = os.pipe()
    theirs.setblocking(False)
    sending = threading.Thread(
        target=wire.send, args=(theirs.fileno(), wire.frame(b"A", payload), (writing,)), kwargs={"deadline": soon()}
    )
    sending.start()
    descriptors: list[int] = []
    try:
        assert wire.receive(ours.fileno(), descriptors, deadline=soon()) == (b"A", payload)
        (came,) = descriptors
        assert not os.get_inheritable(came)
        assert os.fstat(came).st_ino == os.fstat(writing).st_ino
    finally:
        sending.join()
        for fd in (reading, writing, *descriptors):
            os.close(fd)


def test_a_peer_that_does_not_read_is_given_up(stream: tuple[socket.socket, socket.socket]) -> None:
    stream[0].setblocking(False)
    with pytest.raises(TimeoutError):
        wire.send(stream[0].fileno(), bytes(4 << 20), deadline=time.monotonic() + 0.01)


def test_a_peer_that_says_half_a_frame_is_given_up(stream: tuple[socket.socket, socket.socket]) -> None:
    stream[0].sendall(wire.frame(b"A", b"abc")[:-1])
    with pytest.raises(TimeoutError):
        wire.receive(stream[1].fileno(), [], deadline=time.monotonic() + 0.01)
    stream[0].close()
    assert wire.receive(stream[1].fileno(), [], deadline=soon()) == (b"", b"")


def test_a_length_is_judged_before_the_payload_is_read(stream: tuple[socket.socket, socket.socket]) -> None:
    stream[0].sendall(b"A\xff\xff\xff\xff")
    with pytest.raises(wire.TooLong):
        wire.receive(stream[1].fileno(), [], deadline=soon())


def test_nothing_behind_a_frame_is_read(stream: tuple[socket.socket, socket.socket]) -> None:
    stream[0].sendall(wire.frame(b"A", b"abc") + wire.frame(b"B"))
    assert wire.receive(stream[1].fileno(), [], deadline=soon()) == (b"A", b"abc")
    assert wire.receive(stream[1].fileno(), [], deadline=soon()) == (b"B", b"")


def test_more_descriptors_than_a_message_may_have_are_refused_and_not_leaked(
    packets: tuple[socket.socket, socket.socket],
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(packets[0], [b"x"], [0] * (wire.MOST_DESCRIPTORS + 2))
    with pytest.raises(wire.Malformed):
        wire.receive_packet(packets[1].fileno())
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("size", [1, 60 << 10, (60 << 10) + 1, 3 << 20])
def test_packets_of_any_size_arrive_with_descriptors(packets: tuple[socket.socket, socket.socket], size: int) -> None:
    payload = os.urandom(size)
    wire.send_packet(packets[0].fileno(), payload, (0,))
    came, descriptors = wire.receive_packet(packets[1].fileno())
    assert came == payload
    assert len(descriptors) == 1
    os.close(descriptors[0])
    packets[0].close()
    assert wire.receive_packet(packets[1].fileno()) == (b"", [])


def test_the_last_packets_of_a_peer_that_has_not_read_all_arrive(packets: tuple[socket.socket, socket.socket]) -> None:
    """Unlike of a stream, the kernel tells of the reset before what was sent."""
    ours, theirs = packets
    wire.send_packet(ours.fileno(), b"unread")
    wire.send_packet(theirs.fileno(), b"last")
    theirs.close()
    assert wire.receive_packet(ours.fileno()) == (b"last", [])
    assert wire.receive_packet(ours.fileno()) == (b"", [])


def test_a_packet_that_is_too_long_is_refused(packets: tuple[socket.socket, socket.socket]) -> None:
    packets[0].send(bytes(61 << 10))
    with pytest.raises(wire.Malformed):
        wire.receive_packet(packets[1].fileno())


def test_a_memory_file_that_is_too_long_is_refused(packets: tuple[socket.socket, socket.socket]) -> None:
    memory = os.memfd_create("huge")
    os.ftruncate(memory, wire.MOST_PAYLOAD + 1)
    socket.send_fds(packets[0], [b"M"], [memory])
    os.close(memory)
    with pytest.raises(wire.TooLong):
        wire.receive_packet(packets[1].fileno())


def test_there_is_nothing_now(packets: tuple[socket.socket, socket.socket]) -> None:
    packets[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        wire.receive_packet(packets[0].fileno())


def test_a_peer_is_known_by_its_process(stream: tuple[socket.socket, socket.socket]) -> None:
    assert wire.peer(stream[0].fileno()) == (os.getpid(), os.geteuid())
