"""The words of SOCKS5 (RFC 1928) with user name and password (RFC 1929): read and written, nothing else."""

import ipaddress
from typing import NamedTuple

from policy.hosts import Address, parse_host

VERSION = 5
PASSWORD, NOTHING_ACCEPTABLE = 2, 0xFF
CONNECT = 1

SUCCEEDED, FAILED, NOT_ALLOWED, UNREACHABLE, REFUSED, BAD_COMMAND, BAD_ADDRESS = 0, 1, 2, 4, 5, 7, 8

_IPV4, _NAME, _IPV6 = 1, 3, 4


class Malformed(ValueError):
    """What the client said is not SOCKS5."""


class Wish(NamedTuple):
    """A client's request: its command, and the destination as a canonical host; `text` is the host as sent."""

    command: int
    host: str | Address | None
    port: int
    text: str


def greeting(data: bytes) -> tuple[bool, bytes] | None:
    """Reads the first message: (whether a password may be asked for, the rest); None when it is not complete."""
    if len(data) < 2 or len(data) < 2 + data[1]:
        return None
    if data[0] != VERSION:
        raise Malformed("another version")
    end = 2 + data[1]
    return PASSWORD in data[2:end], data[end:]


def password(data: bytes) -> tuple[str, bytes] | None:
    """Reads user name and password: (password, the rest); None when they are not complete."""
    if len(data) < 2 or len(data) < 3 + data[1]:
        return None
    if data[0] != 1:
        raise Malformed("another version of the user name's message")
    start = 2 + data[1]
    end = start + 1 + data[start]
    if len(data) < end:
        return None
    return data[start + 1 : end].decode("latin-1"), data[end:]


def wish(data: bytes) -> tuple[Wish, bytes] | None:
    """Reads the request: (`Wish`, the rest); None when it is not complete. `host` is None for a name that is none."""
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
    host: str | Address | None
    if kind == _NAME:
        text = raw.decode("latin-1")
    else:
        text = str(ipaddress.ip_address(raw))
        text = f"[{text}]" if kind == _IPV6 else text
    try:
        host = parse_host(text)
    except ValueError:
        host = None
    return Wish(command, host, port, text), data[end:]


def reply(code: int) -> bytes:
    """The answer to a request. The address the proxy dialled from is nobody's business: zeros."""
    return bytes((VERSION, code, 0, _IPV4)) + bytes(6)
