"""Which protocol a client of the proxy speaks: its first byte tells."""

from launcher.egress import over_socks, socks
from launcher.egress.exchange import Exchange, Gone
from launcher.egress.loop import Timeout


async def serve(exchange: Exchange) -> None:
    """Serves one client, until a relay has it or its socket is closed."""
    relayed = False
    try:
        with Timeout(exchange.bounds.head_seconds):
            first = await exchange.receive()
        if first[0] == socks.VERSION:
            relayed = await over_socks.serve(exchange, first)
        else:
            from launcher.egress import over_http

            relayed = await over_http.serve(exchange, first)
    except (Gone, TimeoutError, OSError):
        return  # the client's affair, and there is nobody left to tell
    finally:
        if not relayed:
            exchange.client.close()
