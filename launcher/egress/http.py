"""A client that speaks HTTP/1.1: its token, its one request, the answer (RFC 9112, RFC 9110).

What two servers could frame in different ways never gets through: h11 parses a request, this module judges it by form
and writes it again from what was understood, one per connection. Loaded when it is needed, because h11 takes as long
to load as everything else of the proxy.
"""

import re
import socket
import time
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import h11

from launcher.egress.exchange import (
    TOKEN_MISSING,
    ClientLeft,
    Closing,
    Exchange,
    Relay,
    http_answer,
    presented_token,
    valid_token,
)
from launcher.egress.gateway import Denied, Failed
from launcher.egress.log import requested
from launcher.egress.outside import Upstream
from launcher.loop import Timeout, current, send_all, sleep
from policy.egress_rules import Request, Verdict
from policy.hosts import parse_host
from policy.pasted import cited

_FRAMING = frozenset((b"content-length", b"transfer-encoding"))
_OTHERWISE_SPELT = _FRAMING | {b"connection", b"host", b"te", b"trailer", b"upgrade", b"expect"}
"""Headers about the message itself, which count in one spelling only; to some servers, `_` and `-` are the same."""

# RFC 9110 section 7.6.1, RFC 9112 appendix C.2.2; Host is written anew.
_HOP_BY_HOP = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"te", b"upgrade", b"host", b"http2-settings")
) | {b"proxy-authorization", b"proxy-authenticate", b"proxy-authentication-info"}
_PORT = 80

# Frameworks and gateways obey them: another method, host or path than the request's.
_RESTATING = re.compile(
    rb"x-(forwarded|original|rewrite|override|envoy-original|ms-original|waws)-.*|x-real-path|x-(http-|rest-)?method.*"
    rb"|.*-(method|host|path)-override|_method|(x-)?request-uri|x-(host|path|uri)|forwarded|destination"
)
_TOLD = frozenset((b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-port"))
"""Of these, what says none of it."""
_RESTATING_QUERY = re.compile(
    rb"(?:^|[&;])([^0-9a-z&;=]*(?:(?:x-)?http-?(?:method|headers)[^&;=]*|(?<=-)method(?=[&;=]|$)))"
)
"""In a query, Google's system parameters and Symfony's `_method` do so, too; `_` is written as `-`."""

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_UNAUTHORIZED = http_answer(
    407, "Proxy Authentication Required", "egress-token", "the session's token is missing",
    "use the whole URL in HTTP_PROXY, with its user name and password",
    (("Proxy-Authenticate", 'Basic realm="paddock"'),),
)  # fmt: skip
_TURN = 64
"""Pieces of content until the other connections have a turn."""

_PHRASES = {431: "Request Header Fields Too Large", 501: "Not Implemented", 505: "HTTP Version Not Supported"}


class Bad(Exception):
    """A request that is not carried out; `status` for the answer, `host` as far as it could be read."""

    def __init__(self, message: str, status: int = 400, *, host: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.host = host


class Head(NamedTuple):
    """A request's head, understood.

    Attributes:
        wanted: what is asked for; without a method it is a tunnel (CONNECT).
        path: for the server, with its query.
        headers: those that are passed on, without Host and with the body's length.
    """

    wanted: Request
    path: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()


async def serve(exchange: Exchange, first: bytes, origin: Request | None = None) -> bool:
    """Serves a client: whether a relay has it now.

    Args:
        exchange: the client's.
        first: its first bytes, never empty.
        origin: the host and port that it takes this for, and not for a proxy; then it needs no token.

    Raises:
        ClientLeft: it has left.
        OSError: the same, in the kernel's words; `TimeoutError` when it is too slow.
    """
    bounds = exchange.gateway.bounds
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=bounds.head_bytes)
    try:
        connection.receive_data(first)
        with Timeout(bounds.head_seconds):
            request = await next_request(exchange, connection)
        if origin is None and exchange.vendors is not None and request.target.startswith(b"/"):
            await exchange.vendors.serve(exchange, connection, request)
            return False
        token = presented_token(_authorization(request))
        if origin is None and not valid_token(token, exchange.secret):
            if token:  # many clients ask without one first, and hear that it is needed (RFC 9110 section 11.7)
                exchange.denied(None, "http", TOKEN_MISSING, request.target.decode("latin-1"))
            await exchange.dismiss(_UNAUTHORIZED)
            return False
        head = understood(request, origin)
        if not head.wanted.method:
            connection.next_event()  # the end of a request without a body
            behind = connection.trailing_data[0]
            await exchange.connect(head.wanted, "connect", answer=_ESTABLISHED, first=behind)
            return True
        operation = requested(head.wanted.method)
        if exchange.vendors is not None:
            exchange.vendors.ends_tls(head.wanted, operation, exchange.client)  # never for a request in clear
        server, through = await exchange.gateway.open(head.wanted, operation, exchange.client)
    except h11.RemoteProtocolError as error:
        await bad(exchange, error.error_status_hint, str(error), "")
    except Bad as error:
        await bad(exchange, error.status, str(error), error.host)
    except Denied as refusal:
        await exchange.dismiss(denied(refusal.verdict))
    except Failed as error:
        await exchange.dismiss(http_answer(502, "Bad Gateway", "egress-unreachable", str(error)))
    else:
        await _forward(exchange, connection, head, server, through)
        return True
    return False


class Events:
    """What a connection holds, pieces of content joined: each that is passed on alone costs a system call.

    Whoever sends a content in pieces of one byte has the other connections wait for none of them.
    """

    def __init__(self, connection: h11.Connection) -> None:
        self._connection = connection
        self._next: h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED] | None = None

    async def next(self) -> "h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]":
        """The next event. Raises what h11 says of what was received."""
        event, self._next = self._next or self._connection.next_event(), None
        if not isinstance(event, h11.Data):
            await sleep(0)
            return event
        pieces = [bytes(event.data)]
        while True:
            if not len(pieces) % _TURN:
                await sleep(0)
            event = self._connection.next_event()
            if not isinstance(event, h11.Data):
                self._next = None if event is h11.NEED_DATA else event
                return h11.Data(data=b"".join(pieces))
            pieces.append(bytes(event.data))


async def next_request(exchange: Exchange, connection: h11.Connection) -> h11.Request:
    """The head of the client's next request. Raises `ClientLeft`, OSError, and what h11 says of a malformed one."""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            raise ClientLeft
        connection.receive_data(await exchange.receive())


def _authorization(request: h11.Request) -> bytes:
    """The value of ``Proxy-Authorization``, b"" when there is none, or more than one."""
    values = [value for name, value in request.headers if name == b"proxy-authorization"]
    return values[0] if len(values) == 1 else b""


async def bad(exchange: Exchange, status: int, message: str, host: str) -> None:
    """Tells a client that its request is not carried out, and the log."""
    exchange.denied(None, "http", Verdict(False, "", f"malformed: {message}"), host)
    await exchange.dismiss(http_answer(status, _PHRASES.get(status, "Bad Request"), "egress-request", message))


def denied(verdict: Verdict) -> bytes:
    """403, with the rule that would allow it."""
    hint = ""
    if verdict.suggestion:
        word = "" if verdict.suggestion.startswith("without ") else "with "
        hint = f"ask the user to start Paddock {word}{verdict.suggestion}"
    allow = (("X-Paddock-Allow", verdict.suggestion),)
    return http_answer(403, "Blocked by Paddock", "egress-denied", verdict.reason, hint, allow)


def understood(request: h11.Request, origin: Request | None = None) -> Head:
    """What a request asks for, of a proxy or of `origin`. Raises `Bad` for whatever could be read in two ways."""
    if request.http_version not in (b"1.0", b"1.1"):
        raise Bad("unsupported version of HTTP", 505)
    names = [name for name, _ in request.headers]
    if b"content-length" in names and b"transfer-encoding" in names:
        raise Bad("Content-Length and Transfer-Encoding contradict each other")
    if any(names.count(name) > 1 for name in _FRAMING):
        raise Bad("the body's length is given twice")
    for name in names:
        plain = re.sub(rb"[^a-z0-9]+", b"-", name).strip(b"-")
        if plain != name and plain in _OTHERWISE_SPELT:
            raise Bad(f"{cited(name.decode())} could be taken for {plain.decode()}")
    if origin is None:
        return _tunnel(request) if request.method == b"CONNECT" else _plain(request, request.target.decode("latin-1"))
    target = request.target.decode("latin-1")
    if request.method == b"CONNECT" or not target.startswith("/"):
        raise Bad("the path of a request begins with a slash", host=origin.where)
    return _plain(request, f"http://{origin.where}{target}")


def _tunnel(request: h11.Request) -> Head:
    authority = request.target.decode("latin-1")
    wanted = _authority(authority, None)
    for name, value in request.headers:
        if name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
            raise Bad("CONNECT with a body", host=authority)
    _agree(request.headers, wanted, wanted.port)
    return Head(wanted)


def _plain(request: h11.Request, target: str) -> Head:
    if target[:7].lower() != "http://":
        if target[:8].lower() == "https://":
            raise Bad("https:// URLs need CONNECT, so that nobody on the way can read them")
        raise Bad("this is a proxy: it needs the whole URL (http://HOST/PATH) or CONNECT")
    behind = target[7:]
    end = min((at for at in map(behind.find, "/?#") if at >= 0), default=len(behind))
    authority, path = behind[:end], behind[end:]
    if "#" in path:
        raise Bad("a URL with a fragment", host=authority)
    path = path if path.startswith("/") else "/" + path
    wanted = _authority(authority, _PORT)
    _agree(request.headers, wanted, _PORT)
    query = unquote_to_bytes(path.partition("?")[2].encode("latin-1")).lower().replace(b"_", b"-")
    found = _RESTATING_QUERY.search(query)
    restated = next((name for name, _ in request.headers if _restates(name)), found[1] if found else b"")
    # Whether a body follows: RFC 9112 section 6.3.
    content = any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        for name, value in request.headers
    )
    listed = {
        word.strip().lower()
        for name, value in request.headers
        if name in (b"connection", b"proxy-connection")
        for word in value.split(b",")
    }
    headers = tuple(
        (raw, value)
        for raw, value in request.headers.raw_items()
        if (name := raw.lower()) in _FRAMING or (name not in _HOP_BY_HOP and name not in listed)
    )
    wanted = wanted._replace(
        method=request.method.decode("latin-1"), path=path, content=content, restated=restated.decode("latin-1")
    )
    return Head(wanted, path.encode("latin-1"), headers)


def _restates(name: bytes) -> bool:
    """Whether a header states a method, a host or a path once more; servers take `_` and `-` for the same."""
    return (
        _RESTATING.fullmatch(name if name == b"_method" else name.replace(b"_", b"-")) is not None and name not in _TOLD
    )


def _authority(text: str, default_port: int | None) -> Request:
    """HOST[:PORT], by the strict grammar of rules."""
    colon = text.find(":", text.find("]") + 1)
    host = text if colon < 0 else text[:colon]
    port = default_port
    if colon >= 0:
        digits = text[colon + 1 :]
        plain = digits.isascii() and digits.isdigit() and len(digits) <= 5 and not digits.startswith("0")
        if not plain or int(digits) > 65535:
            raise Bad(f"{cited(text)} has no port from 1 to 65535", host=text)
        port = int(digits)
    if port is None:
        raise Bad(f"{cited(text)} names no port", host=text)
    try:
        return Request(parse_host(host), port)
    except ValueError as error:
        raise Bad(f"{cited(host)} is not a host: {error}", host=text) from None


def _agree(headers: Iterable[tuple[bytes, bytes]], wanted: Request, default_port: int) -> None:
    """The Host header must mean what the target means (RFC 9112 section 3.2.2 would let a proxy ignore it)."""
    for name, value in headers:
        if name == b"host":
            stated = _authority(value.decode("latin-1"), default_port)
            if stated.host != wanted.host or stated.port != wanted.port:
                raise Bad(f"the Host header says {stated.where}, the request {wanted.where}", host=wanted.where)


def for_server(head: Head, through: Upstream | None) -> h11.Request:
    """The request as the server gets it; with the whole URL when it goes through another proxy."""
    authority = head.wanted.where.removesuffix(f":{_PORT}").encode()
    headers = [(b"Host", authority), *head.headers, (b"Connection", b"close")]
    target = head.path
    if through is not None:
        target = b"http://" + authority + target
        if through.authorization:
            headers.append((b"Proxy-Authorization", through.authorization))
    return h11.Request(method=head.wanted.method.encode(), target=target, headers=headers)


async def _forward(
    exchange: Exchange, connection: h11.Connection, head: Head, server: socket.socket, through: Upstream | None
) -> None:
    # The body's sender may wait for more of a body that nobody wants any more: the relay's end cancels it.
    relay = Relay(exchange.client, server, exchange.relays, done=current().cancel, one_way=True, closing=Closing())
    try:
        writer = h11.Connection(h11.CLIENT)
        await send_all(server, writer.send(for_server(head, through)) or b"")
        relay.start()
        await _body(exchange, connection, writer, server, relay)
        relay.discard()
    except (h11.ProtocolError, ClientLeft, OSError):
        relay.close()  # what the server has got so far is no complete request, and it can tell
    except BaseException:
        relay.close()
        raise


async def _body(
    exchange: Exchange, connection: h11.Connection, writer: h11.Connection, server: socket.socket, relay: Relay
) -> None:
    """Passes the request's body on, framed anew."""
    events = Events(connection)
    while True:
        event = await events.next()
        if event is h11.NEED_DATA:
            connection.receive_data(await exchange.receive())
            relay.last = time.monotonic()
        elif isinstance(event, h11.Data):
            await send_all(server, writer.send(event) or b"")
        elif isinstance(event, h11.EndOfMessage):
            # Without the fields behind the content, which nobody has judged (RFC 9110 section 6.5.1 lets them go).
            await send_all(server, writer.send(h11.EndOfMessage()) or b"")
            return
        else:
            raise ClientLeft
