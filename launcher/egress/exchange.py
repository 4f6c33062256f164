"""One client from its first byte to its relay: which protocol it speaks, its token, its one request, the answer."""

import asyncio
import socket
from collections.abc import Callable

import h11

from launcher.egress import answers, hello, http, socks, token
from launcher.egress.bounds import Bounds
from launcher.egress.gateway import Denied, Failed, Gateway
from launcher.egress.relay import Gate, Relay
from launcher.egress.upstream import Upstream
from policy.egress import Request, Verdict
from policy.hosts import parse_host

_CHUNK = 65536
_ACCESS_DENIED = b"\x15\x03\x03\x00\x02\x02\x31"  # a fatal TLS alert (RFC 8446 section 6)
_PHRASES = {431: "Request Header Fields Too Large", 501: "Not Implemented", 505: "HTTP Version Not Supported"}
_FAREWELL = 2.0
"""Seconds in which a client may take its answer before the connection is closed under it."""

_TOKEN_MISSING = Verdict(False, "", "the session's token is missing or wrong")


class _Gone(Exception):
    """The client has left, or is too slow."""


class Exchange:
    """One client. `run` ends with a relay started, or with the socket closed."""

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
        """Prepares.

        Args:
            client: accepted, non-blocking; owned.
            gateway: the way out.
            secret: the session's token.
            bounds: what is borne.
            adopt: told about the relay.
            done: told when the relay has ended.
            name_required: tunnels must begin with a TLS client hello that names the server.
        """
        self._client = client
        self._gateway = gateway
        self._secret = secret
        self._bounds = bounds
        self._adopt = adopt
        self._done = done
        self._name_required = name_required
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Serves the client."""
        relayed = False
        try:
            async with asyncio.timeout(self._bounds.head_seconds):
                first = await self._receive()
            if first[0] == socks.VERSION:
                relayed = await self._socks(first)
            else:
                relayed = await self._http(first)
        except (_Gone, TimeoutError, OSError):
            return  # the client's affair, and there is nobody left to tell
        finally:
            if not relayed:
                self._client.close()

    async def _receive(self) -> bytes:
        data = await self._loop.sock_recv(self._client, _CHUNK)
        if not data:
            raise _Gone
        return data

    async def _say(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._client, data)

    def _denied(self, wanted: Request | None, operation: str, verdict: Verdict, text: str = "") -> None:
        self._gateway.denied(wanted, operation, verdict, self._client, text)

    async def _last_words(self, data: bytes) -> None:
        """Answers, and lets the client read it: closing over unread bytes would take the answer back (tcp(7))."""
        await self._say(data)
        self._client.shutdown(socket.SHUT_WR)
        try:
            async with asyncio.timeout(_FAREWELL):
                while await self._loop.sock_recv(self._client, _CHUNK):
                    pass
        except TimeoutError:
            return

    # HTTP

    async def _http(self, first: bytes) -> bool:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=self._bounds.head_bytes)
        try:
            async with asyncio.timeout(self._bounds.head_seconds):
                request = await self._head(connection, first)
            if not token.valid(token.presented(http.authorization(request)), self._secret):
                self._denied(None, "http", _TOKEN_MISSING, request.target.decode("latin-1"))
                await self._last_words(answers.unauthorized())
                return False
            head = http.understood(request)
            operation = "connect" if head.tunnel else head.wanted.method
            server, through = await self._gateway.open(head.wanted, operation, self._client)
        except h11.RemoteProtocolError as error:
            await self._bad(error.error_status_hint, str(error), "")
        except http.Bad as error:
            await self._bad(error.status, str(error), error.host)
        except Denied as refusal:
            await self._last_words(answers.denied(refusal))
        except Failed as error:
            status = 502
            await self._last_words(answers.answer(status, "Bad Gateway", "egress-unreachable", str(error)))
        else:
            return await self._forward(connection, head, server, through)
        return False

    async def _head(self, connection: h11.Connection, data: bytes) -> h11.Request:
        connection.receive_data(data)
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                raise _Gone
            connection.receive_data(await self._receive())

    async def _bad(self, status: int, message: str, host: str) -> None:
        verdict = Verdict(False, "", f"not well formed: {message}")
        self._denied(None, "http", verdict, host)
        phrase = _PHRASES.get(status, "Bad Request")
        await self._last_words(answers.answer(status, phrase, "egress-request", message))

    async def _forward(
        self, connection: h11.Connection, head: http.Head, server: socket.socket, through: Upstream | None
    ) -> bool:
        if head.tunnel:
            connection.next_event()  # the end of a request without a body
            try:
                await self._say(b"HTTP/1.1 200 Connection established\r\n\r\n")
            except BaseException:
                server.close()
                raise
            self._tunnel(server, head.wanted, "connect", connection.trailing_data[0])
            return True
        pumping = asyncio.current_task()
        assert pumping is not None

        def done(relay: Relay) -> None:
            pumping.cancel()  # it may wait for more of a body that nobody wants any more
            self._done(relay)

        relay = Relay(self._client, server, done, one_way=True)
        self._adopt(relay)
        try:
            writer = h11.Connection(h11.CLIENT)
            await self._loop.sock_sendall(server, writer.send(http.for_server(head, through)) or b"")
            relay.start()
            await self._body(connection, writer, server, relay)
            relay.discard()
        except (h11.ProtocolError, _Gone, OSError):
            relay.close()  # what the server has got so far is no complete request, and it can tell
        except BaseException:
            relay.close()
            raise
        return True

    async def _body(
        self, connection: h11.Connection, writer: h11.Connection, server: socket.socket, relay: Relay
    ) -> None:
        """Passes the request's body on, framed anew."""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await self._receive())
                relay.last = self._loop.time()
            elif isinstance(event, h11.Data):
                await self._loop.sock_sendall(server, writer.send(event) or b"")
            elif isinstance(event, h11.EndOfMessage):
                # Without the fields behind the content, which nobody has judged (RFC 9110 section 6.5.1 lets them go).
                await self._loop.sock_sendall(server, writer.send(h11.EndOfMessage()) or b"")
                return
            else:
                raise _Gone

    # SOCKS

    async def _socks(self, first: bytes) -> bool:
        try:
            async with asyncio.timeout(self._bounds.head_seconds):
                wish, rest = await self._wish(first)
        except socks.Malformed as error:
            self._denied(None, "socks", Verdict(False, "", f"not well formed: {error}"))
            return False
        if wish is None:
            return False
        if wish.command != socks.CONNECT:
            return await self._no(wish, socks.BAD_COMMAND, "only CONNECT can be used, no BIND and no UDP")
        if wish.host is None or not wish.port:
            return await self._no(wish, socks.NOT_ALLOWED, "it is no host and port")
        wanted = Request(wish.host, wish.port)
        try:
            server, _ = await self._gateway.open(wanted, "socks", self._client)
        except Denied:
            await self._last_words(socks.reply(socks.NOT_ALLOWED))
            return False
        except Failed as error:
            await self._last_words(socks.reply(socks.REFUSED if error.refused else socks.UNREACHABLE))
            return False
        try:
            await self._say(socks.reply(socks.SUCCEEDED))
        except BaseException:
            server.close()
            raise
        self._tunnel(server, wanted, "socks", rest)
        return True

    async def _no(self, wish: socks.Wish, code: int, reason: str) -> bool:
        self._denied(None, "socks", Verdict(False, "", reason), f"{wish.text}:{wish.port}")
        await self._last_words(socks.reply(code))
        return False

    async def _wish(self, data: bytes) -> tuple[socks.Wish | None, bytes]:
        """The client's request, once it has shown the token; None when it has not."""
        while (greeted := socks.greeting(data)) is None:
            data += await self._receive()
        knows_password, data = greeted
        if not knows_password:
            self._denied(None, "socks", _TOKEN_MISSING)
            await self._last_words(bytes((socks.VERSION, socks.NOTHING_ACCEPTABLE)))
            return None, b""
        await self._say(bytes((socks.VERSION, socks.PASSWORD)))
        while (shown := socks.password(data)) is None:
            data += await self._receive()
        password, data = shown
        if not token.valid(password, self._secret):
            self._denied(None, "socks", _TOKEN_MISSING)
            await self._last_words(b"\x01\x01")
            return None, b""
        await self._say(b"\x01\x00")
        while (wished := socks.wish(data)) is None:
            data += await self._receive()
        return wished

    # tunnels

    def _tunnel(self, server: socket.socket, wanted: Request, operation: str, first: bytes) -> None:
        relay = Relay(self._client, server, self._done, gate=self._gate(wanted, operation))
        self._adopt(relay)
        relay.start(first)

    def _gate(self, wanted: Request, operation: str) -> Gate | None:
        """Holds a tunnel's TLS to the host that was allowed: one name in CONNECT and another one in the TLS handshake
        would reach whatever a shared front end serves. An address that was granted has no name to compare.
        """
        if not isinstance(wanted.host, str):
            return None
        name = wanted.host

        def judge(data: bytes) -> bool | None:
            try:
                found = hello.read(data)
                if found is None:
                    if len(data) <= self._bounds.head_bytes:
                        return None
                    raise hello.Malformed("it is too long")
                why = self._objection(found, name)
            except hello.Malformed as error:
                why = f"the TLS client hello is not well formed: {error}"
            if not why:
                return True
            self._denied(wanted, operation, Verdict(False, "", why))
            if data[:1] == b"\x16":
                self._alert()
            return False

        return judge

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
            self._client.send(_ACCESS_DENIED)
        except OSError:
            return  # it will see the connection close
