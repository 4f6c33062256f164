"""One client from its first byte to its relay, as far as every protocol does the same."""

import base64
import binascii
import hmac
import socket
from collections.abc import Callable

from launcher.egress import hello, sockets
from launcher.egress.gateway import Bounds, Gateway
from launcher.egress.relay import Relay
from launcher.loop import Timeout
from policy.egress import Request, Verdict
from policy.hosts import parse_host

_CHUNK = 65536
_ACCESS_DENIED = b"\x15\x03\x03\x00\x02\x02\x31"  # a fatal TLS alert (RFC 8446 section 6)
_FAREWELL = 2.0
"""Seconds in which a client may take its answer before the connection is closed under it."""

TOKEN_MISSING = Verdict(False, "", "the session's token is missing or wrong")


class Gone(Exception):
    """The client has left, or is too slow."""


class Exchange:
    """One client, for `http` and `over_socks`.

    Attributes:
        client: its socket, non-blocking.
        gateway: the way out.
        secret: the session's token.
        bounds: what is borne.
        adopt: to be told about a relay.
        done: to be told when it has ended.
    """

    def __init__(
        self,
        client: socket.socket,
        gateway: Gateway,
        secret: str,
        bounds: Bounds,
        adopt: Callable[[Relay], None],
        done: Callable[[Relay], None],
        *,
        name_required: bool,
    ) -> None:
        """`name_required`: tunnels must begin with a TLS client hello that names the server."""
        self.client = client
        self.gateway = gateway
        self.secret = secret
        self.bounds = bounds
        self.adopt = adopt
        self.done = done
        self._name_required = name_required

    async def receive(self) -> bytes:
        """The client's next bytes, never none. Raises `Gone` and OSError."""
        data = await sockets.receive(self.client, _CHUNK)
        if not data:
            raise Gone
        return data

    async def say(self, data: bytes) -> None:
        """Sends the client something. Raises OSError."""
        await sockets.send_all(self.client, data)

    def denied(self, wanted: Request | None, operation: str, verdict: Verdict, text: str = "") -> None:
        """Writes down that the client was refused something; see `Gateway.denied`."""
        self.gateway.denied(wanted, operation, verdict, self.client, text)

    async def last_words(self, data: bytes) -> None:
        """Answers, and lets the client read it: closing over unread bytes would take the answer back (tcp(7))."""
        await self.say(data)
        self.client.shutdown(socket.SHUT_WR)
        try:
            with Timeout(_FAREWELL):
                while await sockets.receive(self.client, _CHUNK):
                    pass
        except TimeoutError:
            return

    async def tunnel(
        self, server: socket.socket, wanted: Request, operation: str, *, answer: bytes, first: bytes
    ) -> None:
        """Tells the client that it is connected, and hands both sides to a relay.

        Args:
            server: connected; owned from now on.
            wanted: what was allowed.
            operation: for the log.
            answer: what the client is told.
            first: what the client has sent beyond its request.

        Raises:
            OSError: the client has left.
        """
        try:
            await self.say(answer)
        except BaseException:
            server.close()
            raise
        relay = Relay(
            self.client, server, self.done, gate=self._gate(wanted),
            refused=lambda error: self._turned_away(wanted, operation, error),
        )  # fmt: skip
        self.adopt(relay)
        relay.start(first)

    def _gate(self, wanted: Request) -> hello.Handshake | None:
        """Holds a tunnel's TLS to the host that was allowed: one name in CONNECT and another one in the TLS handshake
        would reach whatever a shared front end serves. An address that was granted has no name to compare.
        """
        if not isinstance(wanted.host, str):
            return None
        name = wanted.host

        return hello.Handshake(lambda found: self._objection(found, name), self.bounds.head_bytes)

    def _turned_away(self, wanted: Request, operation: str, error: ValueError) -> None:
        understood = isinstance(error, hello.Unwanted)
        why = str(error) if understood else f"the TLS client hello is not well formed: {error}"
        self.denied(wanted, operation, Verdict(False, "", why))
        if not isinstance(error, hello.Unwanted) or error.speaks_tls:
            self._alert()

    def _objection(self, found: hello.Hello | bool, name: str) -> str:
        """Why a tunnel to `name` may not begin like this; "" when it may."""
        if isinstance(found, hello.Hello) and found.server_name is not None:
            try:
                same = parse_host(found.server_name) == name
            except ValueError:
                same = False
            return "" if same else f"the tunnel is for {name}, its TLS handshake for {found.server_name!r}"
        if self._name_required:
            what = "names no server" if isinstance(found, hello.Hello) else "is no TLS"
            return f"the tunnel to {name} {what}, and network.server_name is 'require'"
        return ""

    def _alert(self) -> None:
        try:
            self.client.send(_ACCESS_DENIED)
        except OSError:
            return  # it will see the connection close


# The session's token: whoever sends it came from the session's own environment.
#
# On a proxy inside a jail's network namespace it is a second lock; on the machine's own loopback it is the only one
# that keeps other users, and other jails, out.


def presented_token(header: bytes) -> str:
    """The password in a ``Proxy-Authorization`` header's value (RFC 7617); "" when there is none."""
    scheme, _, credentials = header.strip().partition(b" ")
    if scheme.lower() != b"basic":
        return ""
    try:
        user_password = base64.b64decode(credentials.strip(), validate=True)
    except binascii.Error:
        return ""
    return user_password.partition(b":")[2].decode("latin-1")


def valid_token(given: str, token: str) -> bool:
    """Whether `given` is the token, in a time that tells nothing about it."""
    return hmac.compare_digest(given.encode("latin-1", "replace"), token.encode("latin-1"))
