"""Who may see the page: whose the connection is, the address it asks for, its cookie, and where a request comes from.

The page is no Unix socket: everything on this machine can connect, every site that the user looks at can send requests,
and cookies know no ports. So each request must pass all of this, or nothing that the service knows is in the answer:

- The connecting socket belongs to the service's user, or root, as the kernel says.
- `Host` is the name that this listener was given: random, below `.localhost`, so that no other server on this machine
  is sent the cookie that does not know the name, and no name that leads here is taken for it (DNS rebinding). Name and
  token are in no command line: a jail without a PID namespace, of the same user, sees those.
- Its cookie names a session, which a token began; a token is for one use, and a short time.
- Requests that change something come from the page itself (`Origin`, `Sec-Fetch-Site`) and carry its session's token.
"""

import contextlib
import hmac
import math
import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl

from policy.errors import Refusal

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "paddock-page"
FIELD, HEADER = "csrf", b"x-csrf"
"""Where a request that changes something carries its session's token: a form's field, or a header."""
ENTRY = "/enter"
_ENTERED = (b'<!doctype html><meta http-equiv="refresh" content="0;url=/"><link rel="icon" href="data:,">'
            b'<title>Paddock</title><a href="/">Paddock</a>')  # fmt: skip
FILE = "page-"
"""How the names of files begin that lead a browser here."""
STATIC = "/static/"

TOKEN_SECONDS = 300.0
IDLE_SECONDS = 12 * 3_600.0
LONGEST_SECONDS = 7 * 86_400.0
MOST_TOKENS, MOST_SESSIONS = 16, 32
MOST_BODY = 64 << 10
_SAFE = ("GET", "HEAD")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # with no-referrer a form's own Origin would be null
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
)
"""Of every answer."""


# The peer: loopback connections have no credentials of their own (SO_PEERCRED), but the kernel says whose the other end
# is (sock_diag(7)). It is asked about that one: its table of all (proc_net_tcp(5)) is as long as strangers make it. A
# jail with a network of its own cannot connect at all.

_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1
_ANY_STATE = _ANY_COOKIE = 0xFFFF_FFFF
_ESTABLISHED = 1
_HEAD = 16
_ANSWER = 72


def owner_of(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """The user of the socket at the other end of a loopback connection; None when no process holds it any more.

    Whoever has closed his end leaves a socket behind that is said to be user 0's: it is not believed.

    Args:
        peer: address and port of the other end.
        own: those of this end.

    Raises:
        OSError: the address is no plain one of IPv4 or IPv6.
    """
    family = socket.AF_INET6 if ":" in own[0] else socket.AF_INET
    ends = struct.pack(
        "!HH16s16s", peer[1], own[1], socket.inet_pton(family, peer[0]), socket.inet_pton(family, own[0])
    )
    asked = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE) + ends
    asked += struct.pack("=III", 0, _ANY_COOKIE, _ANY_COOKIE)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.setblocking(False)  # its answer is there when `send` returns
            kernel.send(struct.pack("=IHHII", _HEAD + len(asked), _BY_FAMILY, _REQUEST, 0, 0) + asked)
            said = kernel.recv(4_096)
    except OSError:
        return None
    kind, answer = int.from_bytes(said[4:6], sys.byteorder), said[_HEAD:]
    if kind != _BY_FAMILY or len(answer) < _ANSWER or answer[4 : 4 + len(ends)] != ends:
        return None
    uid, inode = struct.unpack_from("=II", answer, 64)
    return int(uid) if answer[1] == _ESTABLISHED and inode else None


# Tokens and sessions.


@dataclass
class Visit:
    """A browser's session.

    Attributes:
        host: the only one that its requests may name.
        csrf: what its requests that change something carry.
        began, seen: on the monotonic clock.
        reviewed: ids of worktrees, and the commit of each that was shown.
    """

    host: str
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    began: float = field(default_factory=time.monotonic)
    seen: float = field(default_factory=time.monotonic)
    reviewed: dict[str, str] = field(default_factory=dict)

    def used(self) -> None:
        """It is in use."""
        self.seen = time.monotonic()

    def end(self) -> None:
        """Lets nobody in with it any more."""
        self.began = -math.inf

    @property
    def over(self) -> bool:
        """Whether it has expired."""
        now = time.monotonic()
        return now - self.seen > IDLE_SECONDS or now - self.began > LONGEST_SECONDS


class Admissions:
    """Tokens that were given out, and the sessions that they have begun; in memory only.

    Args:
        port: where the page listens.
    """

    def __init__(self, port: int) -> None:
        self.host = f"paddock-{secrets.token_hex(10)}.localhost:{port}"
        self.plain = (f"127.0.0.1:{port}", f"localhost:{port}")
        self._tokens: dict[str, tuple[float, bool]] = {}
        self._files: dict[str, str] = {}
        self._visits: dict[str, Visit] = {}

    def invite(self, *, plain: bool) -> str:
        """An address that lets one browser in, once.

        Args:
            plain: with 127.0.0.1 in it, whose cookies every server on this machine is sent.
        """
        token = secrets.token_urlsafe(32)
        self._tokens[token] = (time.monotonic() + TOKEN_SECONDS, plain)
        while len(self._tokens) > MOST_TOKENS:
            self._taken(next(iter(self._tokens)))
        return f"http://{self.plain[0] if plain else self.host}{ENTRY}?token={token}"

    def file_of(self, address: str, directory: str) -> str:
        """A file that leads a browser to an address, for its command line. It goes when the address is used.

        Args:
            address: of `invite`.
            directory: of the user's alone, and in no jail.
        """
        path = f"{directory}/{FILE}{secrets.token_hex(8)}.html"
        self._files[address.rpartition("=")[2]] = path
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(
                f'<!doctype html><meta http-equiv="refresh" content="0;url={address}"><a href="{address}">page</a>'
            )
        return path

    def _taken(self, token: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._files.pop(token, ""))
        self._tokens.pop(token, None)

    def close(self) -> None:
        """Forgets all addresses, and ends all sessions: another server may have the port next, and be sent a cookie."""
        for token in list(self._tokens):
            self._taken(token)
        for visit in self._visits.values():
            visit.end()

    def sweep(self) -> None:
        """Forgets the addresses that are too old."""
        for token in [token for token, (until, _) in self._tokens.items() if time.monotonic() > until]:
            self._taken(token)

    def known_host(self, host: str) -> bool:
        """Whether a request may name this host."""
        return host == self.host or host in self.plain

    def enter(self, token: str, host: str) -> str | None:
        """The cookie's value for whoever has a token; None for one that is not valid, here or any more.

        A token is used up where it lets somebody in: the one whom it is for can still come after another request.
        """
        until, plain = self._tokens.get(token, (0.0, False))
        if time.monotonic() > until or host not in (self.plain if plain else (self.host,)):
            return None
        self._taken(token)
        value = secrets.token_urlsafe(32)
        self._visits = {name: visit for name, visit in self._visits.items() if not visit.over}
        self._visits[value] = Visit(host)
        while len(self._visits) > MOST_SESSIONS:
            del self._visits[next(iter(self._visits))]
        return value

    def visit(self, value: str, host: str) -> Visit | None:
        """The session of a cookie."""
        visit = self._visits.get(value)
        if visit is None or visit.over or visit.host != host:
            return None
        visit.used()
        return visit


class Gate:
    """An ASGI application in front of the page: checks each request, and puts the headers on each answer.

    The page finds the session of a request in its scope's state, as "visit".

    Args:
        page: what is behind it.
        admissions: who may come in.
        refused: the answer for who may not, and why.
        known: hears of a connection (its ``abort``) that a browser with a session has used.
    """

    def __init__(
        self, page: Application, admissions: Admissions, refused: Callable[[Refusal, int], tuple[bytes, bytes]],
        known: Callable[[Callable[[], None]], object] = lambda abort: None,
    ) -> None:  # fmt: skip
        self._page = page
        self._admissions = admissions
        self._refused = refused
        self._known = known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or passes it on."""

        async def sent(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in HEADERS}
                others = [(name, value) for name, value in message["headers"] if name.lower() not in own]
                message = {**message, "headers": [*others, *HEADERS]}
            await send(message)

        if scope["type"] != "http":
            raise RuntimeError(f"the page speaks no {scope['type']}")
        try:
            await self._pass(scope, receive, sent)
        except Refusal as refusal:
            kind, body = self._refused(refusal, status := 403)
            await _answer(sent, status, body, (b"content-type", kind))

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = single_headers(scope)
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._admissions.known_host(host):
            raise _refusal("the address is not the page's", "open the address that paddock page prints")
        origin, site = headers.get(b"origin", b"").decode("latin-1"), headers.get(b"sec-fetch-site", b"none")
        method, path = scope["method"], scope["path"]
        if method in _SAFE and path.startswith(STATIC):
            await self._page(scope, receive, send)
            return
        if method in _SAFE and path == ENTRY:
            await self._enter(scope, host, site, send)
            return
        # A link from elsewhere brings no cookie (SameSite); a request of another page's, to the same site, would.
        if (origin and origin != f"http://{host}") or site not in (b"same-origin", b"none"):
            raise _refusal("the request comes from another page", "")
        visit = self._admissions.visit(cookie_of(headers), host)
        if visit is None:
            raise _refusal("this browser has no session here, or it has expired", "paddock page prints an address")
        scope["state"]["visit"] = visit
        self._known(scope["state"]["abort"])
        if method not in _SAFE:
            receive = await self._checked(visit, origin, headers, receive)
        await self._page(scope, receive, send)

    async def _enter(self, scope: Scope, host: str, site: bytes, send: Send) -> None:
        token = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("token", "")
        value = self._admissions.enter(token, host)
        if value is None:
            raise _refusal("the address has been used already, or is too old", "paddock page prints a fresh one")
        cookie = f"{COOKIE}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={int(LONGEST_SECONDS)}"
        entered = (b"set-cookie", cookie.encode())
        if site == b"none":
            await _answer(send, 303, b"", (b"location", b"/"), entered)
        else:  # a redirection would be the other site's still, a file's say, and bring no cookie
            await _answer(send, 200, _ENTERED, (b"content-type", b"text/html; charset=utf-8"), entered)

    async def _checked(self, visit: Visit, origin: str, headers: Mapping[bytes, bytes], receive: Receive) -> Receive:
        """The request's body, whole, once its token is known to be the session's."""
        if not origin:
            raise _refusal("the request does not say which page it comes from", "")
        body = b""
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise _refusal("the request was not complete", "")
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > MOST_BODY:
                raise _refusal(f"the request has more than {MOST_BODY} bytes", "")
        given = headers.get(HEADER, b"")
        if not given and headers.get(b"content-type", b"") == b"application/x-www-form-urlencoded":
            given = dict(parse_qsl(body.decode("latin-1"))).get(FIELD, "").encode("latin-1", "replace")
        if not hmac.compare_digest(given, visit.csrf.encode()):
            raise _refusal("the request does not carry its session's token", "reload the page")
        messages: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> MutableMapping[str, Any]:
            return messages.pop(0) if messages else await receive()

        return replayed


def single_headers(scope: Scope) -> dict[bytes, bytes]:
    """The headers of a request. Refuses one that has several of what is decided by."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in found and name in (b"host", b"origin", b"sec-fetch-site", b"cookie", HEADER, b"content-type"):
            raise _refusal(f"the request has several {name.decode('latin-1')} headers", "")
        found[name] = value
    return found


def cookie_of(headers: Mapping[bytes, bytes]) -> str:
    """The value of the page's cookie; "" without one."""
    try:
        found = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _refusal(message: str, hint: str) -> Refusal:
    return Refusal("page-refused", message, hint=hint)


async def _answer(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
