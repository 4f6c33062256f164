"""The first words of a TLS client: which server name it asks for (RFC 8446 section 4.1.2, RFC 6066 section 3).

Strict: what a server could read in another way than this does is `Malformed`, never "no name".
"""

from typing import NamedTuple

_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0
_LONGEST_RECORD = 1 << 14


class Malformed(ValueError):
    """Begins like TLS and is not."""


class Hello(NamedTuple):
    """A complete client hello; `server_name` as sent, None when the client names none."""

    server_name: str | None


class _Short(Exception):
    """More bytes are needed."""


class _Reader:
    """Length-prefixed fields, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if self._at + count > len(self._data):
            raise Malformed("a field ends behind the message")
        self._at += count
        return self._data[self._at - count : self._at]

    def vector(self, prefix: int) -> bytes:
        """A field with a length of `prefix` bytes in front."""
        return self.take(int.from_bytes(self.take(prefix), "big"))

    @property
    def left(self) -> bool:
        """Whether anything is left."""
        return self._at < len(self._data)


def read(data: bytes) -> Hello | bool | None:
    """What a client's first bytes are.

    Args:
        data: from the connection's start on.

    Returns:
        A `Hello`; False when this is not TLS; None when more bytes must be seen first.

    Raises:
        Malformed: TLS that no server should understand.
    """
    if not data:
        return None
    if data[0] != _HANDSHAKE:
        return False
    if len(data) > 1 and data[1] != 3:
        return False  # no version of TLS begins like this
    try:
        return _hello(_message(data))
    except _Short:
        return None


def _message(data: bytes) -> bytes:
    """The body of the first handshake message, put together from its records."""
    content = b""
    at = 0
    while True:
        if len(content) >= 4:
            if content[0] != _CLIENT_HELLO:
                raise Malformed("the first message is no client hello")
            end = 4 + int.from_bytes(content[1:4], "big")
            if len(content) >= end:
                return content[4:end]
        if len(data) < at + 5:
            raise _Short
        length = int.from_bytes(data[at + 3 : at + 5], "big")
        if data[at] != _HANDSHAKE or data[at + 1] != 3 or not 0 < length <= _LONGEST_RECORD:
            raise Malformed("a record is not part of a handshake")
        if len(data) < at + 5 + length:
            raise _Short
        content += data[at + 5 : at + 5 + length]
        at += 5 + length


def _hello(body: bytes) -> Hello:
    reader = _Reader(body)
    reader.take(2 + 32)  # version, random
    reader.vector(1)  # session
    reader.vector(2)  # cipher suites
    reader.vector(1)  # compression methods
    if not reader.left:
        return Hello(None)
    extensions = _Reader(reader.vector(2))
    if reader.left:
        raise Malformed("something follows the extensions")
    seen = set()
    name = None
    while extensions.left:
        kind = int.from_bytes(extensions.take(2), "big")
        content = extensions.vector(2)
        if kind in seen:
            raise Malformed("an extension comes twice")
        seen.add(kind)
        if kind == _SERVER_NAME:
            name = _server_name(content)
    return Hello(name)


def _server_name(content: bytes) -> str:
    outer = _Reader(content)
    names = _Reader(outer.vector(2))
    if outer.left:
        raise Malformed("something follows the server names")
    kind = names.take(1)[0]
    name = names.vector(2)
    if names.left or kind != _HOST_NAME:
        raise Malformed("there is not exactly one server name")
    if not name or not name.isascii() or not name.decode().isprintable():
        raise Malformed("the server name is no host name")
    return name.decode()
