"""What the machine says of the way out: addresses of names, which of them are its own, and its own proxy."""

import base64
import errno
import ipaddress
import os
import socket
import time
from collections.abc import Mapping
from typing import NamedTuple

from launcher.loop import Signal, Threads, Timeout, running
from policy.egress_rules import Request
from policy.errors import Refusal
from policy.hosts import Address

_HTTP_PORT = 80

_LOOKUPS, _OF_ONE_RULE = 32, 8
"""Names that are resolved at the same time, and those that the same rule allows: a zone whose servers do not answer
holds up names of its own rule only.
"""

_REMEMBERED = 512
"""Names whose answers are kept."""

_UNREACHABLE = frozenset(
    (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
) | {errno.EACCES, errno.EINVAL}
"""Errors of a connect(2) without a route, so that dialling the address fails, too."""


class Upstream(NamedTuple):
    """An HTTP proxy that the machine itself must use; `authorization` is b"" without credentials."""

    host: str
    port: int
    authorization: bytes


class Upstreams:
    """Which upstream proxy serves which destination: the caller's environment, as curl(1) reads it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Reads ``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``; lower case comes first."""

        def value(name: str) -> str:
            return environ.get(name.lower()) or environ.get(name) or ""

        everything = value("ALL_PROXY")
        self._plain = _parsed(value("HTTP_PROXY") or everything)
        self._tunnel = _parsed(value("HTTPS_PROXY") or everything)
        self._exempt = [entry.strip().lower() for entry in value("NO_PROXY").split(",") if entry.strip()]

    def choose(self, wanted: Request) -> Upstream | None:
        """The proxy for a request, None when it is to be dialled directly."""
        through = self._plain if wanted.method else self._tunnel
        host = wanted.host
        if through is None or wanted.is_local:
            return None
        return None if any(_exempts(entry, host, wanted.port) for entry in self._exempt) else through


def _exempts(entry: str, host: str | Address, port: int) -> bool:
    if entry == "*":
        return True
    name, colon, entry_port = entry.rpartition(":")
    if colon and entry_port.isdigit() and (":" not in name or name.endswith("]")):
        if int(entry_port) != port:
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
        raise _refused(url, "it is not a URL") from None
    if parts.scheme != "http" or not host:
        raise _refused(url, "only http:// proxies can be used")
    credentials = b""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        credentials = b"Basic " + base64.b64encode(pair.encode())
    return Upstream(host, port or _HTTP_PORT, credentials)


def _refused(url: str, why: str) -> Refusal:
    shown = url.rpartition("@")[2]  # without credentials
    return Refusal(
        "upstream-proxy",
        f"the proxy {shown!r} in your environment cannot be used",
        context=why,
        hint="unset HTTPS_PROXY, HTTP_PROXY and ALL_PROXY, or name an http:// proxy there",
    )


def search_nothing() -> None:
    """Has names looked up as they are, without the machine's search list (resolver(5)); before the first one is.

    Else a name that is not there is asked for below others, which no rule has allowed.
    """
    os.environ["LOCALDOMAIN"] = ""


def look_up(host: str, port: int) -> list[Address]:
    """The addresses of `host` in the resolver's order (RFC 6724). Blocks (getaddrinfo(3))."""
    answers = socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(answer[4][0]).partition("%")[0]) for answer in answers]


class _Answer:
    """What is known of one name; `waiters` ask while it is looked up."""

    __slots__ = ("addresses", "error", "until", "waiters")

    def __init__(self) -> None:
        self.addresses: list[Address] = []
        self.error: Exception | None = None
        self.until = float("inf")
        self.waiters: list[Signal] | None = []


class Lookups:
    """Looks names up: each once at a time, and answers for a moment by what it remembers. Judges nothing."""

    def __init__(self, patience: float, kept: float, kept_failing: float) -> None:
        """Seconds: for one name, and how long its addresses or its failure are kept."""
        self._patience = patience
        self._kept = kept
        self._kept_failing = kept_failing
        self._threads = Threads(_LOOKUPS, _OF_ONE_RULE)
        self._answers: dict[str, _Answer] = {}

    async def addresses(self, host: str, port: int, rule: str) -> list[Address]:
        """The addresses of a name.

        Args:
            host: the name.
            port: it is asked for.
            rule: which allowed it.

        Raises:
            OSError, UnicodeError: there are none; TimeoutError when nobody answers.
        """
        answer = self._answers.get(host)
        if answer is None or answer.until <= time.monotonic():
            self._answers.pop(host, None)
            if len(self._answers) >= _REMEMBERED:
                del self._answers[next(iter(self._answers))]
            answer = self._answers[host] = _Answer()
            running().spawn(self._ask(answer, host, port, rule))
        if answer.waiters is not None:
            over = Signal()
            answer.waiters.append(over)
            await over
        if answer.error is not None:
            raise answer.error.with_traceback(None)
        return answer.addresses

    def forget(self, host: str) -> None:
        """Has a name looked up anew: nothing answers at its addresses."""
        self._answers.pop(host, None)

    async def _ask(self, answer: _Answer, host: str, port: int, rule: str) -> None:
        try:
            with Timeout(self._patience):
                answer.addresses = await self._threads.run(lambda: look_up(host, port), rule)
        except Exception as error:  # everybody who waits is told
            answer.error = error
        answer.until = time.monotonic() + (self._kept if answer.error is None else self._kept_failing)
        waiters, answer.waiters = answer.waiters or (), None
        for waiter in waiters:
            waiter.set()


def is_own(address: Address, port: int) -> bool:
    """Whether `address` is this machine's: a connection to it from here comes from the same address.

    Nothing is sent: connecting a datagram socket only looks up the route (udp(7)).
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), port))
            return ipaddress.ip_address(probe.getsockname()[0].partition("%")[0]) == address
    except OSError as error:
        return error.errno not in _UNREACHABLE  # without a descriptor, for instance, nobody knows
