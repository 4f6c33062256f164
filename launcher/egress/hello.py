"""The TLS client hello: which server name a client asks for (RFC 8446 section 4.1.2, RFC 6066 section 3).

A server may ask for a second hello (HelloRetryRequest, RFC 8446 section 4.1.4), so a `Handshake` ends only when the
server has taken one. Strict: what a server could read differently is `Malformed`, never "no name".
"""

from collections.abc import Callable
from typing import NamedTuple

_CHANGE_CIPHER_SPEC, _ALERT, _HANDSHAKE, _APPLICATION_DATA = 20, 21, 22, 23
_HELLO_REQUEST, _CLIENT_HELLO, _SERVER_HELLO = 0, 1, 2
_SERVER_NAME, _HOST_NAME = 0, 0
_LONGEST_RECORD = 1 << 14
_LONGEST_ENCRYPTED = _LONGEST_RECORD + 256
_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The random of a server hello that is a HelloRetryRequest (RFC 8446 section 4.1.3)."""


class Malformed(ValueError):
    """Begins like TLS and is not."""


class Unwanted(ValueError):
    """A hello, or something else (`speaks_tls` is False), that the tunnel is not for."""

    def __init__(self, why: str, *, speaks_tls: bool) -> None:
        super().__init__(why)
        self.speaks_tls = speaks_tls


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
            raise Malformed("a field runs past the end of the message")
        self._at += count
        return self._data[self._at - count : self._at]

    def vector(self, prefix: int) -> bytes:
        """A field with a length of `prefix` bytes in front."""
        return self.take(int.from_bytes(self.take(prefix), "big"))

    @property
    def more(self) -> bool:
        """Whether fields remain."""
        return self._at < len(self._data)


def read(data: bytes) -> Hello | bool | None:
    """What a client's first bytes are: a `Hello`; False when they are not TLS; None when more of them are needed.

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
        return _hello(_message(data)[0])
    except _Short:
        return None


class Handshake:
    """The first bytes of a tunnel: the client's are held until they are judged, the server's are only read.

    Attributes:
        done: nothing that follows can name another server.
        held: bytes of the client that wait for more.
    """

    __slots__ = ("_answer", "_first", "_most", "_objection", "_pass", "_settled", "held")

    def __init__(self, objection: Callable[[Hello | bool], str], most: int) -> None:
        """`objection`: why a hello may not pass, "" when it may; `most`: bytes that are held of each side."""
        self._objection = objection
        self._most = most
        self._first: Hello | None = None
        self._settled = False
        self._answer = b""
        self._pass = 0  # bytes to come of a record that cannot be a hello
        self.held = b""

    @property
    def done(self) -> bool:
        """See the class."""
        return self._settled and not self.held

    def client(self, data: bytes) -> bytes:
        """Takes bytes of the client; returns those, held ones included, that may pass.

        Raises:
            Malformed: no TLS that a server should understand, or more than is held.
            Unwanted: there is an objection.
        """
        self.held += data
        judged = b""
        try:
            while self.held and not self._settled:
                size = self._next()
                judged += self.held[:size]
                self.held = self.held[size:]
        except _Short:
            if len(self.held) > self._most:
                raise Malformed("it is too long") from None
            return judged
        judged, self.held = judged + self.held, b""
        return judged

    def server(self, data: bytes | memoryview) -> None:
        """Takes bytes of the server, all of which may pass.

        Raises:
            Malformed: more than is held before the client's hello was taken.
        """
        if self._first is None:
            return  # it answers nothing yet
        self._answer += data[: self._most + 1]
        try:
            self._settled = _answered(self._answer)
        except _Short:
            if len(self._answer) > self._most:
                raise Malformed("the server's answer is too long") from None

    def _next(self) -> int:
        """How many of the held bytes may pass next; those of a hello once it was judged."""
        if self._pass:
            size = min(self._pass, len(self.held))
            self._pass -= size
            return size
        if self._first is None:
            opening = read(self.held)
            if opening is None:
                raise _Short
            self._judge(opening)
            if not isinstance(opening, Hello):
                self._settled = True
                return 0
            self._first = opening
            return _message(self.held)[1]
        if self.held[0] == _HANDSHAKE:
            body, size = _message(self.held)
            again = _hello(body)
            self._judge(again)
            if again != self._first:
                raise Malformed("its server name differs from the first one's")
            return size
        if len(self.held) < 5:
            raise _Short
        # Early data, and what middleboxes want to see (RFC 8446 appendix D.4).
        if self.held[0] not in (_CHANGE_CIPHER_SPEC, _ALERT, _APPLICATION_DATA) or self.held[1] != 3:
            raise Malformed("what follows the client hello is not a record")
        self._pass = 5 + int.from_bytes(self.held[3:5], "big")
        if self._pass > 5 + _LONGEST_ENCRYPTED:
            raise Malformed("a record is too long")
        return self._next()

    def _judge(self, opening: Hello | bool) -> None:
        if why := self._objection(opening):
            raise Unwanted(why, speaks_tls=isinstance(opening, Hello))


def _answered(data: bytes) -> bool:
    """Whether a server has taken a client hello, by its bytes so far: by a server hello, or by not speaking TLS."""
    content = b""
    at = 0
    while at < len(data):
        if data[at] not in (_CHANGE_CIPHER_SPEC, _ALERT, _HANDSHAKE):
            return True
        if len(data) < at + 5:
            raise _Short
        end = at + 5 + int.from_bytes(data[at + 3 : at + 5], "big")
        if data[at] == _HANDSHAKE:
            content += data[at + 5 : end]
        at = end
    while len(content) >= 4:
        end = 4 + int.from_bytes(content[1:4], "big")
        if content[0] == _SERVER_HELLO:
            if len(content) < 38:
                break
            if content[6:38] != _RETRY:
                return True
        elif content[0] != _HELLO_REQUEST:
            return True
        content = content[end:]
    raise _Short


def _message(data: bytes) -> tuple[bytes, int]:
    """The body of a client hello, put together from the records that `data` begins with, and where they end."""
    content = b""
    at = 0
    while True:
        if len(content) >= 4:
            if content[0] != _CLIENT_HELLO:
                raise Malformed("the first message is not a client hello")
            end = 4 + int.from_bytes(content[1:4], "big")
            if len(content) > end:
                raise Malformed("there is data after the client hello in its record")
            if len(content) == end:
                return content[4:end], at
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
    if not reader.more:
        return Hello(None)
    extensions = _Reader(reader.vector(2))
    if reader.more:
        raise Malformed("there is data after the extensions")
    seen = set()
    name = None
    while extensions.more:
        kind = int.from_bytes(extensions.take(2), "big")
        content = extensions.vector(2)
        if kind in seen:
            raise Malformed("an extension is listed twice")
        seen.add(kind)
        if kind == _SERVER_NAME:
            name = _server_name(content)
    return Hello(name)


def _server_name(content: bytes) -> str:
    outer = _Reader(content)
    names = _Reader(outer.vector(2))
    if outer.more:
        raise Malformed("there is data after the server names")
    kind = names.take(1)[0]
    name = names.vector(2)
    if names.more or kind != _HOST_NAME:
        raise Malformed("there is not exactly one server name")
    if not name or not name.isascii() or not name.decode().isprintable():
        raise Malformed("the server name is not a host name")
    return name.decode()
