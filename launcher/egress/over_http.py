"""A client that speaks HTTP (RFC 9112): its token, its one request, the answer.

Loaded when it is needed: h11 and what comes with it take as long as all of the rest.
"""

import socket

import h11

from launcher.egress import answers, http, sockets, token
from launcher.egress.exchange import TOKEN_MISSING, Exchange, Gone
from launcher.egress.gateway import Denied, Failed
from launcher.egress.loop import Timeout, current, running, sleep
from launcher.egress.relay import Relay
from launcher.egress.upstream import Upstream
from policy.egress import Verdict

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_PHRASES = {431: "Request Header Fields Too Large", 501: "Not Implemented", 505: "HTTP Version Not Supported"}


async def serve(exchange: Exchange, first: bytes) -> bool:
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
        if not token.valid(token.presented(http.authorization(request)), exchange.secret):
            exchange.denied(None, "http", TOKEN_MISSING, request.target.decode("latin-1"))
            await exchange.last_words(answers.unauthorized())
            return False
        head = http.understood(request)
        operation = "connect" if head.tunnel else head.wanted.method
        server, through = await exchange.gateway.open(head.wanted, operation, exchange.client)
    except h11.RemoteProtocolError as error:
        await _bad(exchange, error.error_status_hint, str(error), "")
    except http.Bad as error:
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
    exchange: Exchange, connection: h11.Connection, head: http.Head, server: socket.socket, through: Upstream | None
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
        await sockets.send_all(server, writer.send(http.for_server(head, through)) or b"")
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
