"""One client from its first byte to its relay: what HTTP and SOCKS5 have in common."""

import base64
import binascii
import hmac
import json
import re
import socket
import time
from collections.abc import Callable

from launcher.egress import hello
from launcher.egress.gateway import Gateway
from launcher.loop import Timeout, receive, running, send_all
from policy.egress_rules import Request, Verdict
from policy.hosts import parse_host
from policy.pasted import cited

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.egress.vendors import Vendors

_CHUNK = 65536
TLS_HANDSHAKE = b"\x16"
ACCESS_DENIED = b"\x15\x03\x03\x00\x02\x02\x31"  # a fatal TLS alert (RFC 8446 section 6)
_FAREWELL = 2.0
"""Seconds in which a client may read its answer before the connection is closed."""

TOKEN_MISSING = Verdict(False, "", "the session's token is missing or wrong")

_BUFFER = bytearray(256 << 10)
_VIEW = memoryview(_BUFFER)

CLIENT, SERVER = 0, 1


class ClientLeft(Exception):
    """The client hung up, or is too slow."""


class Relay:
    """A copy between a client and a server until both have ended; owns both sockets, which are non-blocking.

    By callbacks and one shared buffer, so that a thousand idle tunnels cost sockets and little else.

    Attributes:
        last: when something was read last, on the monotonic clock.
    """

    __slots__ = (
        "_closing", "_discards", "_done", "_ended", "_ends", "_fds", "_finished", "_gate", "_loop", "_pending",
        "_refused", "_relays", "last",
    )  # fmt: skip

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        relays: "set[Relay]",
        *,
        done: Callable[[], object] = lambda: None,
        gate: hello.Handshake | None = None,
        refused: Callable[[ValueError], None] = lambda error: None,
        one_way: bool = False,
        closing: "Closing | None" = None,
    ) -> None:
        """Prepares; `start` begins.

        Args:
            client: its bytes go to the server, unless `one_way`.
            server: its bytes go to the client.
            relays: hold this one until it is closed.
            done: called once, when both sockets are closed.
            gate: judges a TLS handshake; until it is done.
            refused: called with what the gate has raised, before both sides are closed.
            one_way: nothing of the client's is passed on.
            closing: changes the head of what the server sends.
        """
        self._loop = running()
        self._ends = (client, server)
        self._fds = (client.fileno(), server.fileno())
        self._relays = relays
        self._done = done
        self._gate = gate
        self._refused = refused
        self._pending = [b"", b""]
        self._ended = [False, False]
        self._finished = [one_way, False]
        self._discards = one_way
        self._closing = closing
        self.last = time.monotonic()
        relays.add(self)

    def start(self, first: bytes = b"") -> None:
        """Begins to copy; `first` came from the client already. Ends where the kernel has no room (epoll_ctl(2))."""
        try:
            self._listen(SERVER)
            if not self._discards:
                self._listen(CLIENT)
        except OSError:
            self.close()
            return
        if first and not self._discards:
            self._take(CLIENT, first)

    def discard(self) -> None:
        """From now on reads what the client sends, and drops it. For `one_way`, when its request is complete."""
        if self._ends[CLIENT].fileno() != -1:
            self._listen(CLIENT)

    def close(self) -> None:
        """Closes both sockets. Safe to call twice."""
        if self._ends[CLIENT].fileno() == -1:
            return
        for sock, fd in zip(self._ends, self._fds, strict=True):
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)
            sock.close()
        self._relays.discard(self)
        self._done()

    def _listen(self, side: int) -> None:
        self._loop.add_reader(self._fds[side], lambda: self._readable(side))

    def _readable(self, side: int) -> None:
        try:
            count = self._ends[side].recv_into(_BUFFER)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        self.last = time.monotonic()
        if not count:
            self._end(side)
        elif side == SERVER or not self._discards:
            self._take(side, _VIEW[:count])

    def _take(self, side: int, data: "bytes | memoryview") -> None:
        if self._gate is not None:
            try:
                if side == CLIENT:
                    data = self._gate.client(bytes(data))
                else:
                    self._gate.server(data)
            except ValueError as error:
                self._refused(error)
                self.close()
                return
            if self._gate.done:
                self._gate = None
        if side == SERVER and self._closing is not None:
            data = self._closing.answer(bytes(data))
            if self._closing.done:
                self._closing = None
        if not data:
            return
        count = self._send(side, data)
        if count is not None and count < len(data):
            self._pending[side] = bytes(data[count:])
            self._loop.remove_reader(self._fds[side])
            self._loop.add_writer(self._fds[1 - side], lambda: self._flush(side))

    def _send(self, side: int, data: "bytes | memoryview") -> int | None:
        """How many bytes of one side the other one took; None when that closed the relay."""
        try:
            return self._ends[1 - side].send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self.close()
            return None

    def _flush(self, side: int) -> None:
        count = self._send(side, self._pending[side])
        if not count:
            return
        self.last = time.monotonic()
        self._pending[side] = self._pending[side][count:]
        if self._pending[side]:
            return
        self._loop.remove_writer(self._fds[1 - side])
        if self._ended[side]:
            self._finish(side)
        else:
            self._listen(side)

    def _end(self, side: int) -> None:
        """Ends the other side once it has been sent everything."""
        self._loop.remove_reader(self._fds[side])
        if side == SERVER and self._closing is not None:
            kept, self._closing = self._closing.kept, None
            self._take(side, kept)
        self._ended[side] = True
        if side == CLIENT and self._discards:
            return
        if side == CLIENT and self._gate is not None and self._gate.held:
            self.close()  # it ended in the middle of what the gate was to judge
        elif not self._pending[side]:
            self._finish(side)

    def _finish(self, side: int) -> None:
        self._finished[side] = True
        try:
            self._ends[1 - side].shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
            return
        if all(self._finished):
            self.close()


_MOST_HEAD = 64 << 10
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_LINE_END = re.compile(rb"\r?\n(?![ \t])")
_INTERIM = re.compile(rb"HTTP/1\.\d 1(?!01)\d\d\b")
_OF_CONNECTION = re.compile(rb"(?:connection|keep-alive|proxy-connection)[ \t]*:", re.IGNORECASE)


class Closing:
    """Has an answer say that its connection ends with it, which is for who ends it to say (RFC 9112 section 9.6).

    A server that only ends it lets a client take it for kept alive, and use it again in that moment.

    Attributes:
        kept: what waits for the end of a head; is passed on as it is where the server ends before.
        done: the head has been passed on.
    """

    def __init__(self) -> None:
        """Nothing has come yet."""
        self.kept, self.done = b"", False

    def answer(self, data: bytes) -> bytes:
        """What goes to the client for what came from the server, up to `done`."""
        looked_at = max(0, len(self.kept) - 3)
        self.kept += data
        passed = b""
        while not self.done and (end := _HEAD_END.search(self.kept, looked_at)):
            head, self.kept, looked_at = self.kept[: end.end()], self.kept[end.end() :], 0
            self.done = not _INTERIM.match(head)
            if self.done and head.startswith(b"HTTP/1.") and not head[8:].startswith(b" 101"):
                first, *fields = _LINE_END.split(head[: end.start()])
                own = (field for field in fields if not _OF_CONNECTION.match(field))
                head = b"\r\n".join((first, b"Connection: close", *own, b"", b""))
            passed += head
        if self.done or len(self.kept) > _MOST_HEAD:  # what is longer, nobody reads as a head
            passed, self.kept, self.done = passed + self.kept, b"", True
        return passed


class Exchange:
    """One client, for `http` and `socks`.

    Attributes:
        client: its socket, non-blocking.
        gateway: the way out.
        secret: the session's token.
        relays: all that are open.
        vendors: what a client may take the proxy for.
    """

    def __init__(
        self,
        client: socket.socket,
        gateway: Gateway,
        secret: str,
        relays: set[Relay],
        vendors: "Vendors | None" = None,
        *,
        name_required: bool,
    ) -> None:
        """`vendors`: where TLS for some hosts ends; `name_required`: a tunnel begins with TLS that names its server."""
        self.client = client
        self.vendors = vendors
        self.gateway = gateway
        self.secret = secret
        self.relays = relays
        self._name_required = name_required

    async def receive(self) -> bytes:
        """The client's next bytes, never none. Raises `ClientLeft` and OSError."""
        data = await receive(self.client, _CHUNK)
        if not data:
            raise ClientLeft
        return data

    async def send(self, data: bytes) -> None:
        """Sends the client something. Raises OSError."""
        await send_all(self.client, data)

    def denied(self, wanted: Request | None, operation: str, verdict: Verdict, text: str = "") -> None:
        """Logs that the client was refused something; see `Gateway.denied`."""
        self.gateway.denied(wanted, operation, verdict, self.client, text)

    async def dismiss(self, answer: bytes) -> None:
        """Answers, and lets the client read it: closing over unread bytes would take the answer back (tcp(7))."""
        await self.send(answer)
        await self._end()
        self.client.shutdown(socket.SHUT_WR)
        try:
            with Timeout(_FAREWELL):
                while await receive(self.client, _CHUNK):
                    pass
        except TimeoutError:
            return

    async def _end(self) -> None:
        """What a client is told at the end, besides the end of the connection."""

    async def connect(self, wanted: Request, operation: str, *, answer: bytes, first: bytes) -> None:
        """Connects the client with what it wants, through a relay, or with the login that belongs there.

        Args:
            wanted: host and port.
            operation: for the log.
            answer: for the client, that it is connected.
            first: what it has sent beyond its request.

        Raises:
            Denied: the rules say no; the log has it.
            Failed: the destination cannot be reached.
            ClientLeft, OSError: the client has left.
        """
        if self.vendors is not None and self.vendors.ends_tls(wanted, operation, self.client):
            await self.send(answer)
            await self.vendors.secure(self, wanted, first)
            self.client.close()
            return
        server, _ = await self.gateway.open(wanted, operation, self.client)
        await self.tunnel(server, wanted, operation, answer=answer, first=first)

    async def tunnel(
        self, server: socket.socket, wanted: Request, operation: str, *, answer: bytes, first: bytes
    ) -> None:
        """Answers the client that it is connected, and hands both sides to a relay.

        Args:
            server: connected; owned from now on.
            wanted: what was allowed.
            operation: for the log.
            answer: for the client.
            first: what the client has sent beyond its request.

        Raises:
            OSError: the client has left.
        """
        try:
            await self.send(answer)
        except BaseException:
            server.close()
            raise
        gate = None
        if isinstance(wanted.host, str):
            # One name in CONNECT and another one in the TLS handshake would reach whatever a shared front end serves.
            # An address that was granted has no name to compare.
            name = wanted.host
            gate = hello.Handshake(lambda opening: self._objection(opening, name), self.gateway.bounds.head_bytes)

        def refused(error: ValueError) -> None:
            understood = isinstance(error, hello.Unwanted)
            why = str(error) if understood else f"the TLS client hello is malformed: {error}"
            self.denied(wanted, operation, Verdict(False, "", why))
            if not isinstance(error, hello.Unwanted) or error.speaks_tls:
                try:
                    self.client.send(ACCESS_DENIED)
                except OSError:
                    return  # it will see the connection close

        Relay(self.client, server, self.relays, gate=gate, refused=refused).start(first)

    def _objection(self, opening: hello.Hello | bool, name: str) -> str:
        """Why a tunnel to `name` may not begin like this; "" when it may."""
        if isinstance(opening, hello.Hello) and opening.server_name is not None:
            try:
                same = parse_host(opening.server_name) == name
            except ValueError:
                same = False
            return "" if same else f"the tunnel is for {name}, its TLS handshake for {cited(opening.server_name)}"
        if self._name_required:
            what = "names no server" if isinstance(opening, hello.Hello) else "is not TLS"
            return f"the tunnel to {name} {what}, and network.server_name is 'require'"
        return ""


# The session's token: its owner comes from the session's own environment. On a proxy inside a jail's network namespace
# it is a second lock; on the machine's own loopback it alone keeps other users, and other jails, out.


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


def valid_token(presented: str, token: str) -> bool:
    """Whether `presented` is the token, in a time that reveals nothing about it."""
    return hmac.compare_digest(presented.encode("latin-1", "replace"), token.encode("latin-1"))


def http_answer(
    status: int, phrase: str, reference: str, message: str, hint: str = "", headers: tuple[tuple[str, str], ...] = ()
) -> bytes:
    """A complete response, after which the connection closes: JSON in the shape of every other error of Paddock.

    Args:
        status: of HTTP.
        phrase: begins the reason phrase; `message` follows, because tools like pip show nothing else.
        reference: stable identifier.
        message: one sentence.
        hint: what to do next.
        headers: further ones; those with an empty value are dropped.
    """
    body = json.dumps(
        {"error": True, "errorType": reference, "message": message, "context": "paddock's network proxy", "hint": hint}
    ).encode()
    lines = [f"HTTP/1.1 {status} {_plain(f'{phrase}: {message}')}"]
    lines += [f"{name}: {_plain(value)}" for name, value in headers if value]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body) + 1}", "Connection: close",
              "Proxy-Connection: close", "Cache-Control: no-store"]  # fmt: skip
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body + b"\n"


def _plain(text: str) -> str:
    """One line, whatever a client has sent."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)[:300]
