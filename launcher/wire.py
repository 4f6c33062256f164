"""One form of message for pipes and unix(7) sockets.

On a pipe or a stream socket a message is a frame: a kind (one byte), the payload's length (four bytes, little-endian),
the payload. On a SEQPACKET socket the kernel keeps messages apart, so a packet is its payload; what is too large for a
packet travels as a memory file (memfd_create(2)). Descriptors travel with either.

A peer is never believed: lengths are bounded before anything is read, and a peer that breaks the form is a
`Malformed`, which ends the connection.

By ctypes, because inside a jail nothing can be imported that is not there already (`_socket` may be a file of its own).
Launch path: built-in modules and `launcher.lean` only.
"""

import select
import time

from launcher.lean import ctypes, os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER = 5
"""Bytes of a frame before its payload."""
MOST_PAYLOAD = 64 << 20
"""Bytes of a payload where nobody says less."""
MOST_DESCRIPTORS = 32
"""In one message."""

_MOST_PACKET = 60 << 10
_PIECE = 1 << 16
_IN_A_FILE = b"M"  # the whole packet, when its payload is the first descriptor's content

_EINTR = 4
_SOL_SOCKET = 1
_SO_PEERCRED = 17
_SCM_RIGHTS = 1
_MSG_CTRUNC = 0x8
_MSG_TRUNC = 0x20
_MSG_DONTWAIT = 0x40
_MSG_NOSIGNAL = 0x4000
_MSG_CMSG_CLOEXEC = 0x40000000
_CMSG_HEADER = 16  # sizeof(struct cmsghdr) on 64-bit machines, where fields of it are aligned to 8 bytes


class Malformed(ValueError):
    """The peer has sent what is no message."""


class TooLong(Malformed):
    """The peer has announced more than is read from it."""


# Frames


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """The bytes of one frame."""
    return kind + len(payload).to_bytes(4, "little") + payload


class Decoder:
    """Puts frames together from the pieces that a stream delivers."""

    def __init__(self, most: int = MOST_PAYLOAD) -> None:
        """Args: bytes that a payload may have."""
        self._most = most
        self._pending = bytearray()

    @property
    def is_within(self) -> bool:
        """Whether a part of a frame has come."""
        return bool(self._pending)

    def feed(self, data: bytes) -> "Iterator[tuple[bytes, bytes]]":
        """The frames that are complete with `data`, as (kind, payload), in order.

        Raises:
            TooLong: the payload of the next one is.
        """
        self._pending += data
        while len(self._pending) >= HEADER:
            end = HEADER + _bounded(int.from_bytes(self._pending[1:HEADER], "little"), self._most)
            if len(self._pending) < end:
                break
            kind, payload = bytes(self._pending[:1]), bytes(self._pending[HEADER:end])
            del self._pending[:end]
            yield kind, payload


def _bounded(size: int, most: int) -> int:
    if size > most:
        raise TooLong(f"{size} bytes, of {most} at most")
    return size


def write(fd: int, data: bytes) -> None:
    """Writes all of `data` to a pipe, or to a socket whose peer reads."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def send(connection: int, data: bytes, descriptors: "tuple[int, ...]" = (), deadline: float | None = None) -> None:
    """Sends all of `data` over a stream socket, with `descriptors` on its first byte; they stay the caller's here.

    Args:
        connection: the socket.
        data: at least one byte.
        descriptors: what goes along.
        deadline: when to give up a peer that does not read, for a socket that does not block; on the clock of
            `time.monotonic`, None: never.

    Raises:
        TimeoutError: the peer has not read in time.
        OSError: the peer is gone.
    """
    while data:
        try:
            data = data[_sendmsg(connection, data, descriptors) :]
            descriptors = ()
        except BlockingIOError:
            _wait(connection, select.POLLOUT, deadline)


def receive(
    connection: int, descriptors: list[int], *, deadline: float | None, most: int = MOST_PAYLOAD
) -> tuple[bytes, bytes]:
    """The next frame of a stream socket as (kind, payload), and not a byte of what follows; (b"", b"") at the end.

    Args:
        connection: to read from.
        descriptors: takes what comes along, close-on-exec; the caller owns them, after an exception too.
        deadline: when to give up, on the clock of `time.monotonic`; None: never.
        most: bytes that the payload may have.

    Raises:
        TimeoutError: the frame was not complete in time.
        TooLong: it is.
        Malformed: it has too many descriptors.
    """
    came: list[int] = []
    try:
        head = _exactly(connection, HEADER, deadline, came)
        if not head:
            return b"", b""
        size = _bounded(int.from_bytes(head[1:], "little"), most)
        payload = _exactly(connection, size, deadline, came)
    finally:
        descriptors += came
    return (head[:1], payload) if len(payload) == size else (b"", b"")


def receive_piece(connection: int, descriptors: list[int], most: int = _PIECE) -> bytes:
    """What a socket has for its reader now, for a `Decoder`; b"" at the end (BlockingIOError: nothing now)."""
    try:
        return _recvmsg(connection, most, descriptors, _MSG_DONTWAIT)[0]
    except ConnectionResetError:
        return b""


def _exactly(connection: int, size: int, deadline: float | None, descriptors: list[int]) -> bytes:
    """So many bytes, or b"" when the peer closes before."""
    data = b""
    while len(data) < size:
        _wait(connection, select.POLLIN, deadline)
        try:
            piece = receive_piece(connection, descriptors, min(size - len(data), _PIECE))
        except BlockingIOError:
            continue
        if not piece:
            return b""
        data += piece
    return data


def _wait(connection: int, event: int, deadline: float | None) -> None:
    poll = select.poll()
    poll.register(connection, event)
    if not poll.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError("the other end did not answer in time")


# Packets


def send_packet(connection: int, payload: bytes, descriptors: "tuple[int, ...]" = ()) -> None:
    """Sends one packet over a SEQPACKET socket; descriptors stay the caller's here.

    Raises:
        BlockingIOError: the peer does not read.
        OSError: the peer is gone; there is no memory for a file.
    """
    if len(payload) <= _MOST_PACKET:
        _sendmsg(connection, payload, descriptors)
        return
    memory = os.memfd_create("message", os.MFD_CLOEXEC)
    try:
        write(memory, payload)
        _sendmsg(connection, _IN_A_FILE, (memory, *descriptors))
    finally:
        os.close(memory)


def receive_packet(connection: int) -> tuple[bytes, list[int]]:
    """The next packet and its descriptors, close-on-exec and the caller's; (b"", []) at the end.

    Raises:
        BlockingIOError: there is none now.
        Malformed: it is too long, or has too many descriptors.
    """
    descriptors: list[int] = []
    try:
        try:
            payload, flags = _recvmsg(connection, _MOST_PACKET, descriptors)
        except ConnectionResetError:  # a peer has ended without reading all: what it has sent comes after that
            payload, flags = _recvmsg(connection, _MOST_PACKET, descriptors)
        if flags & _MSG_TRUNC:
            raise Malformed("a packet that is too long")
        if payload == _IN_A_FILE and descriptors:
            memory = descriptors.pop(0)
            try:
                payload = _content(memory)
            finally:
                os.close(memory)
    except BaseException:
        for fd in descriptors:
            os.close(fd)
        raise
    return payload, descriptors


def _content(memory: int) -> bytes:
    content = b""
    for at in range(0, _bounded(os.fstat(memory).st_size, MOST_PAYLOAD), 1 << 24):
        content += os.pread(memory, 1 << 24, at)
    return content


# Sockets


def peer(connection: int) -> tuple[int, int]:
    """Process id and user id of who connected, as the caller's namespaces have them (SO_PEERCRED, unix(7)).

    A process that has no number in the caller's PID namespace is 0.
    """
    credentials = (ctypes.c_uint32 * 3)()
    size = ctypes.c_uint32(12)
    pointers = (ctypes.addressof(credentials), ctypes.addressof(size))
    _call("getsockopt", connection, _SOL_SOCKET, _SO_PEERCRED, *map(ctypes.c_void_p, pointers))
    return credentials[0], credentials[1]


def _sendmsg(connection: int, data: bytes, descriptors: "tuple[int, ...]") -> int:
    payload = ctypes.create_string_buffer(data, len(data))
    numbers = b"".join(fd.to_bytes(4, "little") for fd in descriptors)
    head = (_CMSG_HEADER + len(numbers)).to_bytes(8, "little")
    head += _SOL_SOCKET.to_bytes(4, "little") + _SCM_RIGHTS.to_bytes(4, "little")
    room = _CMSG_HEADER + (len(numbers) + 7 & ~7) if descriptors else 0
    control = ctypes.create_string_buffer(head + numbers if descriptors else b"", room)
    header, _vector = _message(payload, control)
    return _call("sendmsg", connection, header, _MSG_NOSIGNAL)


def _recvmsg(connection: int, most: int, descriptors: list[int], flags: int = 0) -> tuple[bytes, int]:
    """What there is, and the flags that recvmsg(2) returns."""
    payload = ctypes.create_string_buffer(most)
    control = ctypes.create_string_buffer(_CMSG_HEADER + 4 * MOST_DESCRIPTORS)
    header, _vector = _message(payload, control)
    count = _call("recvmsg", connection, header, flags | _MSG_CMSG_CLOEXEC)
    if header[5] > _CMSG_HEADER:
        # Nothing else than SCM_RIGHTS comes without having been asked for.
        raw = control.raw[_CMSG_HEADER : int.from_bytes(control.raw[:8], "little")]
        descriptors += [int.from_bytes(raw[at : at + 4], "little") for at in range(0, len(raw), 4)]
    if header[6] & _MSG_CTRUNC or len(descriptors) > MOST_DESCRIPTORS:
        raise Malformed("more descriptors than a message may carry")
    return memoryview(payload)[:count].tobytes(), header[6]


def _message(
    payload: "ctypes.Array[ctypes.c_char]", control: "ctypes.Array[ctypes.c_char]"
) -> "tuple[ctypes.Array[ctypes.c_uint64], object]":
    """struct msghdr in 64-bit words (recvmsg(2)), and what must live as long."""
    vector = (ctypes.c_uint64 * 2)(ctypes.addressof(payload), len(payload))
    words = (0, 0, ctypes.addressof(vector), 1, ctypes.addressof(control), len(control), 0)
    return (ctypes.c_uint64 * 7)(*words), vector


def _call(name: str, *arguments: object) -> int:
    function = ctypes.CDLL(None, use_errno=True)[name]
    function.restype = ctypes.c_ssize_t
    while True:
        result: int = function(*arguments)
        if result >= 0:
            return result
        number = ctypes.get_errno()
        if number != _EINTR:  # a signal's handler in Python has run, or will (PEP 475)
            raise OSError(number, os.strerror(number))
