"""What travels between the service and its sessions' shims, and between a shim and who is attached to its session.

Service and shim: JSON objects in packets (`launcher.wire`). JSON, because the two sides may be of different versions of
Paddock and of Python: a shim lives as long as its session, and the service is upgraded meanwhile.
"""

import json
import os
import socket
from typing import Any

from launcher import wire

VERSION = 1
"""Of the messages between service and shim. One without a version is of the first release, which is 1."""


def send(connection: socket.socket, content: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Sends one message whole; descriptors stay the caller's here.

    Raises:
        BlockingIOError: the other side does not read.
        OSError: the other side is gone; there is no memory for a file.
    """
    wire.send_packet(connection.fileno(), json.dumps({"version": VERSION, **content}).encode(), descriptors)


def receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """One message, and the descriptors that came with it, which are the caller's; None at the end.

    Raises:
        BlockingIOError: there is none now.
        ValueError: this is no message, or one of a version that this side does not know.
    """
    data, descriptors = wire.receive_packet(connection.fileno())
    if not data:
        return None, descriptors
    try:
        content = json.loads(data)
        if not isinstance(content, dict) or content.pop("version", VERSION) != VERSION:
            raise wire.Malformed("a message is one object, of a known version")
    except ValueError:
        for fd in descriptors:
            os.close(fd)
        raise
    return content, descriptors


# The kinds of the frames of the attach stream, for both of its ends; `launcher.service.shim.clients` says what each
# means. Here, because clients start quicker without the service's models.

HELLO, OUTPUT, ERRORS, OVER, REFUSED = b"H", b"O", b"R", b"X", b"E"
INPUT, END, SIGNAL, WINDOW = b"I", b"Z", b"K", b"W"

MOST_FRAME = 1 << 20
"""Bytes of a frame's payload."""
