"""The TLS client hello: which server name a client asks for (RFC 8446 section 4.1.2, RFC 6066 section 3).

A server may ask for a second hello (HelloRetryRequest, RFC 8446 section 4.1.4), so a `Handshake` ends only when the
server has taken one; and a protocol in clear may turn to TLS later (STARTTLS), so its beginning is searched. Strict:
what a server could read differently is `Malformed`, never "no name".
"""

import re
from collections.abc import Callable
from typing import NamedTuple

_CHANGE_CIPHER_SPEC, _ALERT, _HANDSHAKE, _APPLICATION_DATA, _HEARTBEAT = 20, 21, 22, 23, 24
_RECORDS = range(_CHANGE_CIPHER_SPEC, _HEARTBEAT + 1)
_HELLO_REQUEST, _CLIENT_HELLO, _SERVER_HELLO = 0, 1, 2
_SERVER_NAME, _HOST_NAME = 0, 0
_LONGEST_RECORD = 1 << 14
_LONGEST_ENCRYPTED = _LONGEST_RECORD + 256
_SHORTEST, _LONGEST_HELLO = 41, 1 << 18
"""Bytes of a hello: with one cipher suite; and more than OpenSSL takes."""
_NO_VERSION = 16
"""Go's servers take a record of any version whose first byte is less; others take 3 alone."""
_BEGUN = re.compile(rb"\x16(?=[\x00-\x0f].[\x00-\x48].\x01)", re.DOTALL)
"""Where a client hello may begin: a record, and the type of its message."""
_BEFORE = 5
"""Bytes of that before the last one."""
_MOST_BEGUN = 64
"""Hellos that have begun and not ended: at the most 21 in 50,000 pieces of programmes and archives."""
_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The random of a server hello that is a HelloRetryRequest (RFC 8446 section 4.1.3)."""


class Malformed(ValueError):
    """Begins like TLS and is not."""


class _Torn(Malformed):
    """The fields of a message do not fit into each other."""


class Unwanted(ValueError):
    """A hello, or something else (`speaks_tls` is False), that the tunnel is not for."""

    def __init__(self, why: str, *, speaks_tls: bool) -> None:
        super().__init__(why)
        self.speaks_tls = speaks_tls


class Hello(NamedTuple):
    """A complete client hello; `server_name` as sent, None when the client names none."""

    server_name: str | None


class _Short(Exception):
    """More bytes are needed, at least so many in all."""

    def __init__(self, needed: int = 0) -> None:
        self.needed = needed


class _Reader:
    """Length-prefixed fields, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if self._at + count > len(self._data):
            raise _Torn("a field runs past the end of the message")
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
    if not (begins := _begins(data)):
        return begins
    try:
        return _hello(_message(data).body)
    except _Short:
        return None


def _begins(data: bytes) -> bool | None:
    """Whether any server could take a client's first bytes for TLS; None when more of them are needed to tell.

    By a record of whatever kind, as some servers pass over one in front of the hello. MySQL, MongoDB and 9P begin with
    a length, which may be the number of a kind: theirs is told from TLS by what would be the version.
    """
    if not data:
        return None
    if data[0] in _RECORDS:
        if len(data) < 2 or data[1] == 3 or data[1] >= _NO_VERSION:
            return None if len(data) < 2 else data[1] == 3
        if data[0] == _HANDSHAKE:
            return None if len(data) < 6 else data[5] == _CLIENT_HELLO
        if data[0] == _ALERT:
            return None if len(data) < 5 else data[3:5] == b"\0\2"
    elif 0x80 <= data[0] <= 0x90 and data[2:3] in (b"", b"\1"):
        # SSL 2's hello, with which clients of old began TLS, too (RFC 5246 appendix E.2); no RPC (RFC 5531 section 11).
        return None if len(data) < 4 else data[3] in (0, 3) and int.from_bytes(data[:2], "big") > 0x8008
    return False


class Handshake:
    """The first bytes of a tunnel: the client's are held until they are judged, the server's are only read.

    Of a protocol in clear nothing is held: no server acts upon a hello before its last byte.

    Attributes:
        done: nothing that follows can name another server, or a protocol in clear was searched far enough.
        held: bytes of the client that wait for more.
    """

    __slots__ = (
        "_answer", "_begun", "_clear", "_first", "_most", "_objection", "_pass", "_searched", "_settled",
        "_tail", "held",
    )  # fmt: skip

    def __init__(self, objection: Callable[[Hello | bool], str], most: int) -> None:
        """`objection`: why a hello may not pass, "" when it may; `most`: bytes of a side that are held or searched."""
        self._objection = objection
        self._most = most
        self._first: Hello | None = None
        self._settled = False
        self._answer = b""
        self._pass = 0  # bytes to come of a record that cannot be a hello
        self._clear = False
        self._searched = 0
        self._tail = b""  # of what has passed in clear
        self._begun: list[tuple[int, int]] = []  # where hellos may begin in it, and how long it is to be by then
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
            while self.held and not self._settled and not self._clear:
                size = self._next()
                judged += self.held[:size]
                self.held = self.held[size:]
        except _Short:
            if len(self.held) > self._most:
                raise Malformed("it is too long") from None
            return judged
        if self._clear and not self._settled:
            self._search(self.held)
        judged, self.held = judged + self.held, b""
        return judged

    def server(self, data: bytes | memoryview) -> None:
        """Takes bytes of the server, all of which may pass.

        Raises:
            Malformed: more than is held before the client's hello was taken.
        """
        if self._first is None or self._clear:
            return  # it answers no hello
        self._answer += data[: self._most + 1]
        try:
            self._settled = _answered(self._answer)
            self._clear = not self._settled
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
                self._clear = True
                return 0
            self._first = opening
            return _message(self.held).end
        if self.held[0] == _HANDSHAKE:
            message = _message(self.held)
            again = _hello(message.body)
            self._judge(again)
            if again != self._first:
                raise Malformed("its server name differs from the first one's")
            return message.end
        if len(self.held) < 5:
            raise _Short
        # Early data, and what middleboxes want to see (RFC 8446 appendix D.4).
        if self.held[0] not in (_CHANGE_CIPHER_SPEC, _ALERT, _APPLICATION_DATA) or self.held[1] != 3:
            raise Malformed("what follows the client hello is not a record")
        self._pass = 5 + int.from_bytes(self.held[3:5], "big")
        if self._pass > 5 + _LONGEST_ENCRYPTED:
            raise Malformed("a record is too long")
        return self._next()

    def _search(self, data: bytes) -> None:
        """Judges each hello that ends in what the client sends in clear, if it has begun early enough."""
        known = max(0, len(self._tail) - _BEFORE)
        searched = len(self._tail) + max(0, self._most - self._searched)
        self._tail += data
        found = self._begun + [(match.start(), 0) for match in _BEGUN.finditer(self._tail, known, searched)]
        self._begun = []
        for at, needed in found:
            try:
                if needed > len(self._tail):
                    raise _Short(needed - at)
                opening = _inside(self._tail[at:])
            except _Short as short:
                self._begun.append((at, at + short.needed))
            else:
                if opening is not None:
                    self._judge(opening)
        if len(self._begun) > _MOST_BEGUN:
            raise Malformed("it begins in too many places")
        if self._begun and len(self._tail) - self._begun[0][0] > self._most:
            raise Malformed("it is too long")
        start = self._begun[0][0] if self._begun else max(0, len(self._tail) - _BEFORE)
        self._tail = self._tail[start:]
        self._begun = [(at - start, needed - start) for at, needed in self._begun]
        self._searched += len(data)
        self._settled = self._searched >= self._most and not self._begun

    def _judge(self, opening: Hello | bool) -> None:
        if why := self._objection(opening):
            raise Unwanted(why, speaks_tls=isinstance(opening, Hello))


def _answered(data: bytes) -> bool:
    """Whether a server has taken a client hello, by its bytes so far; False when it does not speak TLS."""
    content = b""
    at = 0
    while at < len(data):
        if data[at] not in (_CHANGE_CIPHER_SPEC, _ALERT, _HANDSHAKE):
            return False
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
            return False
        content = content[end:]
    raise _Short


class _Message(NamedTuple):
    """A client hello: its body, where its last record ends, and what a strict server would not take; "" for nothing."""

    body: bytes
    end: int
    odd: str


def _message(data: bytes, *, forgiving: bool = False) -> _Message:
    """The client hello that `data` begins with, put together from its records; `forgiving`: as any server might."""
    content, odd = b"", ""
    at = 0
    while True:
        if len(content) >= 4:
            if content[0] != _CLIENT_HELLO:
                raise Malformed("the first message is not a client hello")
            end = 4 + int.from_bytes(content[1:4], "big")
            if len(content) > end:
                odd = "there is data after the client hello in its record"
            if len(content) >= end and (forgiving or not odd):
                return _Message(content[4:end], at, odd)
        if odd and not forgiving:
            raise Malformed(odd)
        if len(data) < at + 5:
            raise _Short(at + 5)
        length = int.from_bytes(data[at + 3 : at + 5], "big")
        if data[at] != _HANDSHAKE or data[at + 1] != 3 or not 0 < length <= _LONGEST_RECORD:
            odd = "a record is not part of a handshake"
            if not forgiving or data[at] not in _RECORDS or data[at + 1] >= _NO_VERSION:
                raise Malformed(odd)
        if data[at] == _HANDSHAKE:
            content += data[at + 5 : at + 5 + length]
            if len(content) >= 4 and not _SHORTEST <= int.from_bytes(content[1:4], "big") <= _LONGEST_HELLO:
                raise Malformed("no client hello has that length")
        if len(data) < at + 5 + length:
            raise _Short(at + 5 + length)
        at += 5 + length


def _inside(data: bytes) -> Hello | None:
    """The client hello at the beginning of `data`, in a protocol in clear; None when no server could take it for one.

    Raises:
        _Short: its end has not come.
        Malformed: some servers could.
    """
    try:
        message = _message(data, forgiving=True)
    except Malformed:
        return None
    try:
        found = _hello(message.body)
    except _Torn:
        if message.odd or message.body[:1] != b"\3":
            return None  # numbers of another protocol
        raise
    if message.odd:
        raise Malformed(message.odd)
    return found


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
        raise _Torn("there is data after the extensions")
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
