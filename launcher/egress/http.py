"""Requests to a proxy over HTTP/1.1: read with h11, judged by form, written anew for the server (RFC 9112, RFC 9110).

What two servers could frame in different ways never gets through: a request is parsed here and written again from what
was understood, one per connection.
"""

import socket
from collections.abc import Iterable
from typing import NamedTuple

import h11

from launcher.egress import answers, sockets
from launcher.egress.exchange import TOKEN_MISSING, Exchange, Gone, presented_token, valid_token
from launcher.egress.gateway import Denied, Failed
from launcher.egress.relay import Relay
from launcher.egress.upstream import Upstream
from launcher.loop import Timeout, current, running, sleep
from policy.egress import Request, Verdict
from policy.hosts import parse_host

# RFC 9110 section 7.6.1, RFC 9112 appendix C.2.2. Framing and Host are written anew.
_HOP_BY_HOP = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"te", b"transfer-encoding", b"upgrade", b"host")
) | {b"proxy-authorization", b"proxy-authenticate", b"proxy-authentication-info", b"http2-settings"}
_HTTP_PORT = 80

# No standard has them, and frameworks obey them: another method, or another path, than the request line's.
_RESTATING = frozenset(
    (b"x-http-method-override", b"x-http-method", b"x-method-override", b"x-original-url", b"x-rewrite-url")
) | {b"x-original-uri", b"x-forwarded-uri", b"x-forwarded-prefix", b"x-forwarded-method", b"x-original-method"}


class Bad(Exception):
    """A request that is not carried out; `status` for the answer, `host` as far as it could be read."""

    def __init__(self, message: str, status: int = 400, *, host: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.host = host


class Head(NamedTuple):
    """A request's head, understood.

    Attributes:
        wanted: what is asked for.
        tunnel: CONNECT.
        path: for the server, with its query.
        headers: those that are passed on, without Host and framing.
        framing: the header that frames the body, () when there is none.
        authorization: value of Proxy-Authorization, b"" without one.
    """

    wanted: Request
    tunnel: bool
    path: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    framing: tuple[tuple[bytes, bytes], ...]


def authorization(request: h11.Request) -> bytes:
    """The value of ``Proxy-Authorization``, b"" when there is none, or more than one."""
    found = [value for name, value in request.headers if name == b"proxy-authorization"]
    return found[0] if len(found) == 1 else b""


def understood(request: h11.Request) -> Head:
    """What a request asks for. Raises `Bad` for whatever could be read in two ways."""
    if request.http_version not in (b"1.0", b"1.1"):
        raise Bad("another version of HTTP", 505)
    names = [name for name, _ in request.headers]
    if b"content-length" in names and b"transfer-encoding" in names:
        raise Bad("Content-Length and Transfer-Encoding contradict each other")
    if names.count(b"content-length") > 1 or names.count(b"transfer-encoding") > 1:
        raise Bad("the body's length is given twice")
    hosts = [value for name, value in request.headers if name == b"host"]
    if request.method == b"CONNECT":
        return _tunnel(request, hosts)
    return _plain(request, hosts)


def _tunnel(request: h11.Request, hosts: list[bytes]) -> Head:
    authority = request.target.decode("latin-1")
    wanted = _authority(authority, None)
    for name, value in request.headers:
        if name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
            raise Bad("CONNECT with a body", host=authority)
    _agree(hosts, wanted, wanted.port)
    return Head(wanted, True, b"", (), ())


def _plain(request: h11.Request, hosts: list[bytes]) -> Head:
    target = request.target.decode("latin-1")
    if target[:7].lower() != "http://":
        if target[:8].lower() == "https://":
            raise Bad("https:// URLs need CONNECT, so that nobody on the way can read them")
        raise Bad("this is a proxy: it needs the whole URL (http://HOST/PATH) or CONNECT")
    rest = target[7:]
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    authority, path = rest[:end], rest[end:]
    if "#" in path:
        raise Bad("a URL with a fragment", host=authority)
    path = path if path.startswith("/") else "/" + path
    method = request.method.decode("latin-1")
    wanted = _authority(authority, _HTTP_PORT)._replace(method=method, path=path)
    _agree(hosts, wanted, _HTTP_PORT)
    restated = next((name for name, _ in request.headers if name.replace(b"_", b"-") in _RESTATING), b"")
    wanted = wanted._replace(content=_has_content(request), restated=restated.decode("latin-1"))
    listed = {
        word.strip().lower()
        for name, value in request.headers
        if name in (b"connection", b"proxy-connection")
        for word in value.split(b",")
    }
    kept = tuple(
        (raw, value)
        for raw, value in request.headers.raw_items()
        if (name := raw.lower()) not in _HOP_BY_HOP and name not in listed and name != b"content-length"
    )
    framing = tuple(
        (raw, value)
        for raw, value in request.headers.raw_items()
        if raw.lower() in (b"content-length", b"transfer-encoding")
    )
    return Head(wanted, False, path.encode("latin-1"), kept, framing)


def _has_content(request: h11.Request) -> bool:
    """Whether a body follows (RFC 9112 section 6.3)."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        for name, value in request.headers
    )


def _authority(text: str, default_port: int | None) -> Request:
    """HOST[:PORT], by the strict grammar of rules."""
    host, port_text = text, ""
    if "]" in text:
        host, bracket, rest = text.partition("]")
        host += bracket
        if rest and not rest.startswith(":"):
            raise Bad(f"{text[:300]!r} is no host and port", host=text)
        port_text = rest[1:] if rest else ""
        given = bool(rest)
    else:
        host, colon, port_text = text.partition(":")
        given = bool(colon)
    port = default_port
    if given:
        if not _is_port(port_text):
            raise Bad(f"{text[:300]!r} has no port from 1 to 65535", host=text)
        port = int(port_text)
    if port is None:
        raise Bad(f"{text[:300]!r} names no port", host=text)
    try:
        return Request(parse_host(host), port)
    except ValueError as error:
        raise Bad(f"{host[:300]!r} is no host: {error}", host=text) from None


def _agree(hosts: Iterable[bytes], wanted: Request, default_port: int) -> None:
    """The Host header must mean what the target means (RFC 9112 section 3.2.2 would let a proxy ignore it)."""
    for value in hosts:
        stated = _authority(value.decode("latin-1"), default_port)
        if stated.host != wanted.host or stated.port != wanted.port:
            raise Bad(f"the Host header says {stated.where}, the request {wanted.where}", host=wanted.where)


def for_server(head: Head, through: Upstream | None) -> h11.Request:
    """The request as the server gets it; with the whole URL when it goes through another proxy."""
    wanted = head.wanted
    authority = wanted.where.removesuffix(f":{_HTTP_PORT}").encode()
    headers = [(b"Host", authority), *head.headers, *head.framing, (b"Connection", b"close")]
    target = head.path
    if through is not None:
        target = b"http://" + authority + target
        if through.authorization:
            headers.append((b"Proxy-Authorization", through.authorization))
    return h11.Request(method=wanted.method.encode(), target=target, headers=headers)


def _is_port(text: str) -> bool:
    plain = text.isascii() and text.isdigit() and len(text) <= 5 and not text.startswith("0")
    return plain and int(text) <= 65535


# A client that speaks HTTP (RFC 9112): its token, its one request, the answer.
#
# Loaded when it is needed: h11 and what comes with it take as long as all of the rest.


_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_PHRASES = {431: "Request Header Fields Too Large", 501: "Not Implemented", 505: "HTTP Version Not Supported"}


async def serve_http(exchange: Exchange, first: bytes) -> bool:
    """Serves a client: whether a relay has it now.

    Args:
        exchange: the client's.
        first: its first bytes, never empty.

    Raises:
        Gone: it has left.
        OSError: the same, in the kernel's words; `TimeoutError` when it is too slow.
    """
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=exchange.bounds.head_bytes)
    try:
        with Timeout(exchange.bounds.head_seconds):
            request = await _head(exchange, connection, first)
        if not valid_token(presented_token(authorization(request)), exchange.secret):
            exchange.denied(None, "http", TOKEN_MISSING, request.target.decode("latin-1"))
            await exchange.last_words(answers.unauthorized())
            return False
        head = understood(request)
        operation = "connect" if head.tunnel else head.wanted.method
        server, through = await exchange.gateway.open(head.wanted, operation, exchange.client)
    except h11.RemoteProtocolError as error:
        await _bad(exchange, error.error_status_hint, str(error), "")
    except Bad as error:
        await _bad(exchange, error.status, str(error), error.host)
    except Denied as refusal:
        await exchange.last_words(answers.denied(refusal))
    except Failed as error:
        status = 502
        await exchange.last_words(answers.answer(status, "Bad Gateway", "egress-unreachable", str(error)))
    else:
        return await _forward(exchange, connection, head, server, through)
    return False


async def _head(exchange: Exchange, connection: h11.Connection, data: bytes) -> h11.Request:
    connection.receive_data(data)
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            raise Gone
        connection.receive_data(await exchange.receive())


async def _bad(exchange: Exchange, status: int, message: str, host: str) -> None:
    verdict = Verdict(False, "", f"not well formed: {message}")
    exchange.denied(None, "http", verdict, host)
    phrase = _PHRASES.get(status, "Bad Request")
    await exchange.last_words(answers.answer(status, phrase, "egress-request", message))


async def _forward(
    exchange: Exchange, connection: h11.Connection, head: Head, server: socket.socket, through: Upstream | None
) -> bool:
    if head.tunnel:
        connection.next_event()  # the end of a request without a body
        first = connection.trailing_data[0]
        await exchange.tunnel(server, head.wanted, "connect", answer=_ESTABLISHED, first=first)
        return True
    pumping = current()

    def done(relay: Relay) -> None:
        pumping.cancel()  # it may wait for more of a body that nobody wants any more
        exchange.done(relay)

    relay = Relay(exchange.client, server, done, one_way=True)
    exchange.adopt(relay)
    try:
        writer = h11.Connection(h11.CLIENT)
        await sockets.send_all(server, writer.send(for_server(head, through)) or b"")
        relay.start()
        await _body(exchange, connection, writer, server, relay)
        relay.discard()
    except (h11.ProtocolError, Gone, OSError):
        relay.close()  # what the server has got so far is no complete request, and it can tell
    except BaseException:
        relay.close()
        raise
    return True


async def _body(
    exchange: Exchange, connection: h11.Connection, writer: h11.Connection, server: socket.socket, relay: Relay
) -> None:
    """Passes the request's body on, framed anew."""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            await sleep(0)  # however fast it sends
            connection.receive_data(await exchange.receive())
            relay.last = running().time()
        elif isinstance(event, h11.Data):
            await sockets.send_all(server, writer.send(event) or b"")
        elif isinstance(event, h11.EndOfMessage):
            # Without the fields behind the content, which nobody has judged (RFC 9110 section 6.5.1 lets them go).
            await sockets.send_all(server, writer.send(h11.EndOfMessage()) or b"")
            return
        else:
            raise Gone
