"""Messages between the service and its sessions' shims: JSON objects over SEQPACKET sockets, with descriptors.

JSON, because the two sides may be of different versions of Paddock and of Python: a shim lives as long as its session,
and the service is upgraded meanwhile. What is too large for a packet goes as a memory file (memfd_create(2)).
"""

import json
import os
import socket
from typing import Any

_MOST_PACKET = 60 << 10
_MOST_CONTENT = 64 << 20
_MOST_DESCRIPTORS = 4
_IN_A_FILE = b"M"


def send(connection: socket.socket, content: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Sends one message whole; descriptors stay the caller's here.

    Raises:
        BlockingIOError: the other side does not read.
        OSError: the other side is gone; there is no memory for a file.
    """
    data = json.dumps(content).encode()
    if len(data) <= _MOST_PACKET:
        _send(connection, data, descriptors)
        return
    memory = os.memfd_create("message", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(memory, view) :]
        _send(connection, _IN_A_FILE, (memory, *descriptors))
    finally:
        os.close(memory)


def _send(connection: socket.socket, data: bytes, descriptors: tuple[int, ...]) -> None:
    if descriptors:
        socket.send_fds(connection, [data], list(descriptors), socket.MSG_NOSIGNAL)
    else:
        connection.send(data, socket.MSG_NOSIGNAL)


def receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """One message, and the descriptors that came with it, which are the caller's; None at the end.

    Raises:
        BlockingIOError: there is none now.
        ValueError: this is no message of ours.
    """
    try:
        data, descriptors, _, _ = socket.recv_fds(
            connection, 2 * _MOST_PACKET, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:
        return None, []
    if not data:
        return None, descriptors
    try:
        if data == _IN_A_FILE and descriptors:
            memory = descriptors.pop(0)
            try:
                data = os.pread(memory, min(os.fstat(memory).st_size, _MOST_CONTENT), 0)
            finally:
                os.close(memory)
        content = json.loads(data)
        if not isinstance(content, dict):
            raise ValueError("a message is one object")
    except ValueError:
        for fd in descriptors:
            os.close(fd)
        raise
    return content, descriptors


# Frames of the attach stream, for both of its ends: a letter, four bytes of length (little-endian), a payload.
#
# What each letter means is said where the service speaks it (`launcher.service.api.stream`); `launcher.jail.status`
# has the same form, and takes frames apart. A module of its own, because clients start quicker without the
# service's models.


HELLO, OUTPUT, ERRORS, OVER, REFUSED = b"H", b"O", b"R", b"X", b"E"
INPUT, END, SIGNAL, WINDOW = b"I", b"Z", b"K", b"W"

MOST_FRAME = 1 << 20
"""Bytes of a payload."""
HEADER = 5


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """One frame."""
    return kind + len(payload).to_bytes(4, "little") + payload
