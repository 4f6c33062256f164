"""The proxy that the machine itself must use: found in the caller's environment, as curl(1) reads it.

It dials for us, so what a name leads to is its business: names are checked as far as they resolve here. Addresses and
rules are judged as always.
"""

import base64
import ipaddress
from collections.abc import Mapping
from typing import NamedTuple

from policy.egress import Request
from policy.errors import Refusal
from policy.hosts import Address

_PORTS = {"http": 80}
_ANSWER_BYTES = 65536


class Upstream(NamedTuple):
    """One HTTP proxy: where it is, and what it wants in ``Proxy-Authorization`` (b"" without credentials)."""

    host: str
    port: int
    authorization: bytes


class Upstreams:
    """Which proxy serves which destination."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Reads ``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``; lower case comes first.

        Raises:
            Refusal: ``upstream-proxy``: a proxy of another kind than HTTP.
        """

        def value(name: str) -> str:
            return environ.get(name.lower()) or environ.get(name) or ""

        everything = value("ALL_PROXY")
        self._plain = _parsed(value("HTTP_PROXY") or everything)
        self._tunnel = _parsed(value("HTTPS_PROXY") or everything)
        self._exempt = [entry.strip().lower() for entry in value("NO_PROXY").split(",") if entry.strip()]

    def choose(self, wanted: Request) -> Upstream | None:
        """The proxy for a request, None when it is to be dialled directly."""
        found = self._plain if wanted.method else self._tunnel
        return None if found is None or self._is_exempt(wanted) else found

    def _is_exempt(self, wanted: Request) -> bool:
        if not isinstance(wanted.host, str):
            if wanted.host.is_loopback:
                return True
        elif wanted.host == "localhost":
            return True
        return any(_exempts(entry, wanted.host, wanted.port) for entry in self._exempt)


def _exempts(entry: str, host: str | Address, port: int) -> bool:
    if entry == "*":
        return True
    name, colon, wanted_port = entry.rpartition(":")
    if colon and wanted_port.isdigit() and (":" not in name or name.endswith("]")):
        if int(wanted_port) != port:
            return False
        entry = name
    if isinstance(host, str):
        suffix = entry.removeprefix("*").lstrip(".")
        return bool(suffix) and (host == suffix or host.endswith("." + suffix))
    try:
        return host in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except (ValueError, TypeError):
        return False


def _parsed(url: str) -> Upstream | None:
    if not url:
        return None
    from urllib.parse import unquote, urlsplit  # most machines have no such proxy

    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _refused(url, "it is no URL") from None
    if parts.scheme not in _PORTS or not host:
        raise _refused(url, "only http:// proxies can be used")
    credentials = b""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        credentials = b"Basic " + base64.b64encode(pair.encode())
    return Upstream(host, port or _PORTS[parts.scheme], credentials)


def _refused(url: str, why: str) -> Refusal:
    shown = url.rpartition("@")[2]  # without credentials
    return Refusal(
        "upstream-proxy",
        f"the proxy {shown!r} of your environment cannot be used",
        context=why,
        hint="unset HTTPS_PROXY, HTTP_PROXY and ALL_PROXY, or name an http:// proxy there",
    )


def connect_request(upstream: Upstream, wanted: Request) -> bytes:
    """What asks `upstream` for a tunnel (RFC 9110 section 9.3.6)."""
    head = f"CONNECT {wanted.where} HTTP/1.1\r\nHost: {wanted.where}\r\n".encode()
    if upstream.authorization:
        head += b"Proxy-Authorization: " + upstream.authorization + b"\r\n"
    return head + b"\r\n"


def connect_answer(data: bytes) -> tuple[int, bytes] | None:
    """Reads the answer: (status, what came behind it); None when it is not complete.

    Raises:
        ValueError: it is no HTTP answer, or too long.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end:
        if len(data) > _ANSWER_BYTES:
            raise ValueError("its answer is too long")
        return None
    words = head.partition(b"\r\n")[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ValueError("its answer is not HTTP")
    return int(words[1]), rest
