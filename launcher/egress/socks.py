"""A client that speaks SOCKS5 (RFC 1928) with user name and password (RFC 1929): its token, its one request."""

import ipaddress
from typing import NamedTuple

from launcher.egress.exchange import TOKEN_MISSING, Exchange, valid_token
from launcher.egress.gateway import Denied, Failed
from launcher.loop import Timeout
from policy.egress_rules import Request, Verdict
from policy.hosts import Address, parse_host

VERSION = 5

_PASSWORD, _NOTHING_ACCEPTABLE = 2, 0xFF
_CONNECT = 1
_SUCCEEDED, _NOT_ALLOWED, _UNREACHABLE, _REFUSED, _BAD_COMMAND = 0, 2, 4, 5, 7
_IPV4, _NAME, _IPV6 = 1, 3, 4


class Malformed(ValueError):
    """What the client sent is not SOCKS5."""


class Wish(NamedTuple):
    """A client's request: its command, and the destination as a canonical host; `text` is the host as sent."""

    command: int
    host: str | Address | None
    port: int
    text: str


async def serve(exchange: Exchange, first: bytes) -> bool:
    """Serves a client: whether a relay has it now; see `http.serve`."""
    try:
        with Timeout(exchange.gateway.bounds.head_seconds):
            wanted, behind = await _wish(exchange, first)
    except Malformed as error:
        exchange.denied(None, "socks", Verdict(False, "", f"malformed: {error}"))
        return False
    if wanted is None:
        return False
    if wanted.command != _CONNECT:
        return await _no(exchange, wanted, _BAD_COMMAND, "only CONNECT is supported, not BIND or UDP")
    if wanted.host is None or not wanted.port:
        return await _no(exchange, wanted, _NOT_ALLOWED, "it is not a host and port")
    request = Request(wanted.host, wanted.port)
    try:
        await exchange.connect(request, "socks", answer=_reply(_SUCCEEDED), first=behind)
    except Denied:
        await exchange.dismiss(_reply(_NOT_ALLOWED))
    except Failed as error:
        await exchange.dismiss(_reply(_REFUSED if error.refused else _UNREACHABLE))
    else:
        return True
    return False


async def _no(exchange: Exchange, wanted: Wish, code: int, reason: str) -> bool:
    exchange.denied(None, "socks", Verdict(False, "", reason), f"{wanted.text}:{wanted.port}")
    await exchange.dismiss(_reply(code))
    return False


def _reply(code: int) -> bytes:
    """The answer to a request. The address the proxy dialled from is nobody's business: zeros."""
    return bytes((VERSION, code, 0, _IPV4)) + bytes(6)


async def _wish(exchange: Exchange, data: bytes) -> tuple[Wish | None, bytes]:
    """The client's request and what follows it, once the client has shown the token; None when it has not."""
    while (greeted := greeting(data)) is None:
        data += await exchange.receive()
    knows_password, data = greeted
    if not knows_password:
        exchange.denied(None, "socks", TOKEN_MISSING)
        await exchange.dismiss(bytes((VERSION, _NOTHING_ACCEPTABLE)))
        return None, b""
    await exchange.send(bytes((VERSION, _PASSWORD)))
    while (shown := password(data)) is None:
        data += await exchange.receive()
    token, data = shown
    if not valid_token(token, exchange.secret):
        exchange.denied(None, "socks", TOKEN_MISSING)
        await exchange.dismiss(b"\x01\x01")
        return None, b""
    await exchange.send(b"\x01\x00")
    while (wished := wish(data)) is None:
        data += await exchange.receive()
    return wished


# Each reads one message from the start of `data`: (its meaning, the bytes behind it), None when it is not complete.


def greeting(data: bytes) -> tuple[bool, bytes] | None:
    """Whether a password may be asked for."""
    if len(data) < 2 or len(data) < 2 + data[1]:
        return None
    if data[0] != VERSION:
        raise Malformed("another version")
    end = 2 + data[1]
    return _PASSWORD in data[2:end], data[end:]


def password(data: bytes) -> tuple[str, bytes] | None:
    """The password behind a user name."""
    if len(data) < 2 or len(data) < 3 + data[1]:
        return None
    if data[0] != 1:
        raise Malformed("unsupported version of the user name's message")
    start = 2 + data[1]
    end = start + 1 + data[start]
    if len(data) < end:
        return None
    return data[start + 1 : end].decode("latin-1"), data[end:]


def wish(data: bytes) -> tuple[Wish, bytes] | None:
    """The request; its `host` is None for a name that is none."""
    if len(data) < 5:
        return None
    version, command, reserved, kind = data[:4]
    if version != VERSION or reserved != 0:
        raise Malformed("the request's first bytes are wrong")
    start, size = 4, {_IPV4: 4, _IPV6: 16}.get(kind, 0)
    if kind == _NAME:
        start, size = 5, data[4]
    elif not size:
        raise Malformed("an unknown kind of address")
    end = start + size + 2
    if len(data) < end:
        return None
    raw = data[start : start + size]
    port = int.from_bytes(data[end - 2 : end], "big")
    if kind == _NAME:
        text = raw.decode("latin-1")
    else:
        text = str(ipaddress.ip_address(raw))
        text = f"[{text}]" if kind == _IPV6 else text
    host: str | Address | None
    try:
        host = parse_host(text)
    except ValueError:
        host = None
    return Wish(command, host, port, text), data[end:]
