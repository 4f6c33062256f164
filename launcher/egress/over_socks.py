"""A client that speaks SOCKS5 (RFC 1928): its token, its one request, the answer."""

from launcher.egress import socks
from launcher.egress.exchange import TOKEN_MISSING, Exchange, valid_token
from launcher.egress.gateway import Denied, Failed
from launcher.loop import Timeout
from policy.egress import Request, Verdict


async def serve(exchange: Exchange, first: bytes) -> bool:
    """Serves a client: whether a relay has it now; see `http.serve_http`."""
    try:
        with Timeout(exchange.bounds.head_seconds):
            wish, rest = await _wish(exchange, first)
    except socks.Malformed as error:
        exchange.denied(None, "socks", Verdict(False, "", f"not well formed: {error}"))
        return False
    if wish is None:
        return False
    if wish.command != socks.CONNECT:
        return await _no(exchange, wish, socks.BAD_COMMAND, "only CONNECT can be used, no BIND and no UDP")
    if wish.host is None or not wish.port:
        return await _no(exchange, wish, socks.NOT_ALLOWED, "it is no host and port")
    wanted = Request(wish.host, wish.port)
    try:
        server, _ = await exchange.gateway.open(wanted, "socks", exchange.client)
    except Denied:
        await exchange.last_words(socks.reply(socks.NOT_ALLOWED))
        return False
    except Failed as error:
        await exchange.last_words(socks.reply(socks.REFUSED if error.refused else socks.UNREACHABLE))
        return False
    await exchange.tunnel(server, wanted, "socks", answer=socks.reply(socks.SUCCEEDED), first=rest)
    return True


async def _no(exchange: Exchange, wish: socks.Wish, code: int, reason: str) -> bool:
    exchange.denied(None, "socks", Verdict(False, "", reason), f"{wish.text}:{wish.port}")
    await exchange.last_words(socks.reply(code))
    return False


async def _wish(exchange: Exchange, data: bytes) -> tuple[socks.Wish | None, bytes]:
    """The client's request, once it has shown the token; None when it has not."""
    while (greeted := socks.greeting(data)) is None:
        data += await exchange.receive()
    knows_password, data = greeted
    if not knows_password:
        exchange.denied(None, "socks", TOKEN_MISSING)
        await exchange.last_words(bytes((socks.VERSION, socks.NOTHING_ACCEPTABLE)))
        return None, b""
    await exchange.say(bytes((socks.VERSION, socks.PASSWORD)))
    while (shown := socks.password(data)) is None:
        data += await exchange.receive()
    password, data = shown
    if not valid_token(password, exchange.secret):
        exchange.denied(None, "socks", TOKEN_MISSING)
        await exchange.last_words(b"\x01\x01")
        return None, b""
    await exchange.say(b"\x01\x00")
    while (wished := socks.wish(data)) is None:
        data += await exchange.receive()
    return wished
