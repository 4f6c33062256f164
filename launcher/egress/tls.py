"""One side of a TLS connection over a non-blocking socket; for vendors outside, and for clients whose TLS ends here."""

import socket
import ssl
from contextlib import suppress

from launcher.loop import receive, send_all

_CHUNK = 65536


class Stream:
    """TLS over a connected socket, which stays its owner's. One task reads, one writes."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_name: str | None = None) -> None:
        """`server_name`: of the other side, where that is the server; None where this one is."""
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )

    async def secure(self, first: bytes = b"") -> None:
        """The handshake; `first` came already. Raises OSError, `ssl.SSLError` among them."""
        self._incoming.write(first)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._more()
            except ssl.SSLError:
                with suppress(OSError):
                    await self._flush()  # the alert, which says why
                raise
            else:
                await self._flush()
                return

    async def receive(self) -> bytes:
        """What the other side says next; b"" at its end. Raises OSError."""
        while True:
            try:
                return self._tls.read(_CHUNK)
            except ssl.SSLWantReadError:
                # What OpenSSL wants to answer (a new key, RFC 8446 section 4.6.3) goes with what is sent next.
                await self._more()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    async def send(self, data: bytes) -> None:
        """Sends everything. Raises OSError."""
        if data:
            self._tls.write(data)
            await self._flush()

    async def end(self) -> None:
        """Says that nothing more comes. Raises OSError."""
        with suppress(ssl.SSLError):
            self._tls.unwrap()  # wants the other side's word, and needs none
        await self._flush()

    async def _flush(self) -> None:
        if data := self._outgoing.read():
            await send_all(self._sock, data)

    async def _more(self) -> None:
        data = await receive(self._sock, _CHUNK)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
