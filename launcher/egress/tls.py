"""One side of a TLS connection over a non-blocking socket; for vendors outside, and for clients whose TLS ends here."""

import os
import re
import socket
import ssl
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from launcher.loop import receive, send_all
from launcher.safefs import walk
from policy.keys import BUNDLES, TRUST
from policy.plan import beneath

_CHUNK = 65536
_LARGEST_BUNDLE = 4 << 20
_CERTIFICATE = re.compile(rb"-----BEGIN ((?:TRUSTED |X509 )?CERTIFICATE)-----[A-Za-z0-9+/=\s]+-----END \1-----")


def trusting(environ: Mapping[str, str], untrusted: Collection[str], more: Iterable[str] = ()) -> ssl.SSLContext:
    """Trusts what the machine trusts, what the caller's variables name, and `more`, as `certificates` takes it."""
    known = (ssl.get_default_verify_paths().cafile, *filter(os.path.exists, BUNDLES))
    paths = dict.fromkeys((next(filter(None, known), None), *map(environ.get, TRUST)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    for authority in (*filter(None, paths), *filter(None, more)):
        if found := certificates(authority, untrusted):
            with suppress(OSError):  # the handshake says what is missing
                context.load_verify_locations(cadata=found.decode("ascii"))
    return context


def certificates(authority: str, untrusted: Collection[str]) -> bytes:
    """The certificates in a file, or in a text of PEM, and nothing else that is there; b"" where it does not count.

    Args:
        authority: absolute path, or the text.
        untrusted: trees that the command can write: nothing counts that lies in one, or behind a link there.
    """
    if authority.startswith("-----"):
        data = authority.encode()
    elif any(beneath(each, tree) for each in (authority, os.path.realpath(authority)) for tree in untrusted):
        return b""
    else:
        try:
            data = walk.read_regular(authority, _LARGEST_BUNDLE, follow=True) or b""
        except (OSError, ValueError):
            return b""
    return b"".join(found[0] + b"\n" for found in _CERTIFICATE.finditer(data))


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
