"""Keys and logins that stay outside: a client in the jail shows a phantom, and the proxy puts the real one in.

With a key, the client takes the proxy for its vendor's API. With a login, it is the vendor's own host that it connects
to, and its TLS ends here (`launcher.egress.secured`).

Each request is judged and written again as any other (`launcher.egress.http`); the phantom goes, and every other
credential with it, and the key comes in. What is answered passes as it comes, event streams and upgraded connections
too. The vendor is spoken to by TLS with the machine's authorities. Loaded only where a session has such keys: TLS takes
as long to load as everything else of the proxy.
"""

import hmac
import math
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple
from urllib.parse import parse_qsl

import h11

from launcher.egress import http
from launcher.egress.exchange import ClientLeft, Exchange, http_answer
from launcher.egress.gateway import Denied, Failed, Gateway
from launcher.egress.held_logins import Held, Tokens, Unusable
from launcher.egress.log import requested
from launcher.egress.spending import LARGEST, Exceeded, Spending, Tally, unbounded
from launcher.egress.tls import Stream, trusting
from launcher.ledger.denial import KEY
from launcher.loop import Task, Timeout, current, receive, running, send_all
from policy import phantoms
from policy.egress_rules import EgressPolicy, Request, Verdict, canonical_path, normal_path
from policy.hosts import Address
from policy.keys import Key, api
from policy.pasted import cited_words
from policy.phantoms import Mint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.egress.secured import Kept

_CHUNK = 65536

_CREDENTIAL = re.compile(
    rb"auth(?!ority|or$)|token(?!s)|secret|passw|credential|cookie|api-?key|access-?key|subscription-?key|signature|dpop|jwt"
    rb"|^(x-)?(key|sig|code)$|user-?project|session|assertion|hmac|client-?cert|passphrase|(^|-)(sid|pwd|pass)$"
)
"""In a name by which a request could say whose it is. Of a request with a phantom, only the key itself remains: such
headers go, and with such a query it is refused, because there a foreign key would count beside the one that is put in.
"""

_VALUE = re.compile(
    rb"\b(bearer|basic) |\b(sk-[a-z0-9]|eyj[a-z0-9_-]{8,}\.|aiza[\w-]{30}|ya29\.|gh[a-z]_\w{30}|github_pat_)",
    re.IGNORECASE,
)
"""A value that is one by its looks, whatever its name."""

_LATER = re.compile(r"[^\w.~-]batches(?![\w~-])|:(batchgenerate|asyncbatch|predictlongrunning)")
"""In a path, in small letters: what is asked for there is done after the session, and nobody counts it."""

_ENCODING = re.compile(rb"(x-)?content-encoding")

_NONE = re.compile(
    rb"page-?token|(x-)?(parent-|claude-code-|claude-remote-|mcp-)?session-?(id|uuid|affinity)|x-opencode-session"
)
"""Names that only look like one: agents name their own sessions by them, for a vendor's caches."""

_REUSED_WITHIN = 20.0
"""Seconds after which an idle connection to a vendor is not used again: the other side closes it about then."""

_OF_ONE_HOP = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"upgrade"))
"""Headers of an answer that are about the connection to the vendor (RFC 9110 section 7.6.1)."""

_SWITCHING, _UNAUTHORIZED = 101, 401
_HTTP, _HTTPS = 80, 443

_DISTRUST = ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN")
_AUTHORITIES = "the authority in the session's ~/.paddock-authorities-*.pem"

_NO_ISSUER = frozenset((2, 18, 19, 20, 21))
"""Codes of X509_verify_cert(3) where a certificate's authority is not among those that are trusted."""

_NO_TOKEN = "the request shows no token of this session's login; to log in, do so outside of the jail"
_COMPRESSED = "a compressed request, whose tokens no budget could bound; have the client send it as it is"
_UNCOUNTED = "a request whose answer is not known to report its tokens, which no budget could bound"
_TOO_LONG = f"a request of more than {LARGEST >> 20} MiB, so no budget could tell what it asks for"
_NO_BUDGET = "without --budget tokens"
_NO_PHANTOM = "the request shows no key of this session"
_UNKNOWN = "start Paddock with SSL_CERT_FILE naming a file with the authority's certificate; paddock help keys"
_HINT = "the key in this environment is good in this session alone; paddock help keys"


class Route(NamedTuple):
    """A key, or the access token of a login, with what belongs to it.

    Attributes:
        header: in which its phantom comes.
        phantom: of such a value, whether it is the phantom's; None where there is none, for each request at the host.
        real: the value of that header; of a login, the login.
        origin: of the API.
        tls: whether that is spoken to by TLS.
        policy: what the phantom is good for.
        name: of what the phantom stands for, for people.
        suggestion: the option that opens more.
        authority: by which it is known besides, see `policy.keys.Key`.
    """

    header: bytes
    phantom: Callable[[bytes], bool] | None
    real: bytes | Held
    origin: Request
    tls: bool
    policy: EgressPolicy
    name: str
    suggestion: str
    authority: str = ""

    def is_shown(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether these headers hold the phantom, in a time that reveals nothing about it."""
        shown = False
        for name, value in headers:
            shown |= name == self.header and self.phantom is not None and self.phantom(value.strip())
        return shown


class Connection:
    """A connection to a vendor, by TLS or not; owns its socket, which is non-blocking. One task reads, one writes."""

    def __init__(self, sock: socket.socket, origin: Request, tls: bool) -> None:
        """Connected, and not secured yet."""
        self._sock = sock
        self._stream: Stream | None = None
        self._place = (origin, tls)
        self.writer = h11.Connection(h11.CLIENT)
        self.used = time.monotonic()

    async def secure(self, context: ssl.SSLContext) -> None:
        """The handshake. Raises OSError, `ssl.SSLError` among them."""
        self._stream = Stream(self._sock, context, str(self._place[0].host))
        await self._stream.secure()

    async def receive(self) -> bytes:
        """What the vendor says next; b"" at its end. Raises OSError."""
        return await (receive(self._sock, _CHUNK) if self._stream is None else self._stream.receive())

    async def send(self, data: bytes) -> None:
        """Sends everything. Raises OSError."""
        await (send_all(self._sock, data) if self._stream is None else self._stream.send(data))

    def is_fresh(self, ready: "Ready") -> bool:
        """Whether it can carry another request to the same place: nothing has come since the last answer."""
        if self._place != (ready.origin, ready.tls):
            return False
        if self.writer.our_state is not h11.IDLE or time.monotonic() - self.used > _REUSED_WITHIN:
            return False
        try:
            self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # its end, or what nobody has asked for

    def close(self) -> None:
        """Closes it. Safe to call twice."""
        self._sock.close()


class Vendors:
    """The APIs that a session's phantoms lead to."""

    def __init__(
        self,
        held: tuple[tuple[Key, str, str], ...],
        allow: Iterable[str],
        deny: Iterable[str],
        internal: Iterable[str],
        gateway: Gateway,
        environ: Mapping[str, str],
        untrusted: Collection[str],
        spending: Spending,
        kept: "Kept | None" = None,
    ) -> None:
        """Reads the machine's authorities, so it is to be made before this process is confined.

        Args:
            held: keys, each with its phantom and its value.
            allow: the session's rules: where no phantom is shown, they count, and private addresses need one of them.
            deny: what beats them, and the keys' own.
            internal: rules whose hosts may have private addresses.
            gateway: of the session.
            environ: the caller's, which may name further authorities.
            untrusted: trees that the command can write: no authority counts that lies in one, or behind a link there.
            spending: counts what the phantoms are used for.
            kept: logins that stay outside, if any.
        """
        self._spending = spending
        allowed, denied, internal = tuple(allow), tuple(deny), tuple(internal)
        self._routes = [_route(key, phantom, value, denied) for key, phantom, value in held]
        self._local = [route for route in self._routes if route.phantom is not None]
        self._ambient = [route for route in self._routes if route.phantom is None]
        self._refreshes: dict[Request, tuple[bytes, Held]] = {}
        self._authority = kept.authority if kept is not None else None
        self._hosts: dict[str | Address, list[Request]] = {}
        if kept is not None:
            mint, tokens = Mint(kept.secret), Tokens(kept.keeper)
            for number, login in enumerate(kept.logins):
                one = Held(number, login, mint, tokens)
                self._routes += [_of_login(one, url, rules, denied) for url, rules in one.how.apis]
                self._refreshes[one.refresh[0]] = (one.refresh[1], one)
                for origin in phantoms.origins(login):
                    self._hosts.setdefault(origin.host, []).append(origin)
        self._plain = EgressPolicy(allowed, denied, internal)
        own = (route.origin.where for route in self._routes)
        self._gateway = gateway.with_policy(EgressPolicy((*own, *allowed), denied, internal))
        self._context = trusting(environ, untrusted) if any(route.tls for route in self._routes) else None
        self._contexts = {  # by name and port: that is one server, whatever tool asks it
            origin: trusting(environ, untrusted, (route.authority for route in self._ambient if route.origin == origin))
            for origin in {route.origin for route in self._ambient if route.authority}
        }

    def ends_tls(self, wanted: Request, operation: str, client: socket.socket) -> bool:
        """Whether TLS ends here, because a login or a mirror's credential is used at that host and port.

        Args:
            wanted: host and port.
            operation, client: for the log.

        Raises:
            Denied: a login's host is wanted in another way, where requests could not be judged.
        """
        if wanted.host not in self._hosts:
            return any(route.origin == wanted for route in self._ambient)
        if wanted in self._hosts[wanted.host]:
            return True
        where = " and ".join(origin.where for origin in self._hosts[wanted.host])
        verdict = Verdict(
            False, "", f"with its login outside, the host is reached by TLS at {where} only", "--logins copy"
        )
        raise self._gateway.denied(wanted, operation, verdict, client)

    async def secure(self, exchange: Exchange, wanted: Request, first: bytes) -> None:
        """Serves a client that takes this for `wanted`, of `ends_tls`; `first`: what it has sent by now.

        Raises:
            ClientLeft, OSError: it has left, or does not trust the authority.
        """
        from launcher.egress.secured import Secured

        assert self._authority is not None
        client = Secured(exchange, self._authority.context)
        bounds = exchange.gateway.bounds
        try:
            with Timeout(bounds.head_seconds):
                await client.secure(first)
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            raise ClientLeft from None
        except ssl.SSLError as error:
            distrusts = error.reason is not None and error.reason.endswith(_DISTRUST)
            why = (
                f"the client does not trust {_AUTHORITIES}" if distrusts else f"no TLS of the client's: {error.reason}"
            )
            exchange.denied(wanted, KEY, Verdict(False, "", f"TLS for {wanted.where} ends at the proxy; {why}"))
            raise ClientLeft from None
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=bounds.head_bytes)
        try:
            with Timeout(bounds.head_seconds):
                request = await http.next_request(client, connection)
        except h11.RemoteProtocolError as error:
            await http.bad(client, error.error_status_hint, cited_words(str(error)), wanted.where)
        else:
            await self.serve(client, connection, request, wanted)

    async def serve(
        self, exchange: Exchange, connection: h11.Connection, request: h11.Request, host: Request | None = None
    ) -> None:
        """Serves a client's request, and all that follow on its connection.

        Args:
            exchange: the client's.
            connection: its requests.
            request: the first.
            host: what the client takes this for; None: for the API that belongs to its phantom.

        Raises:
            ClientLeft: it has left.
            OSError: the same, in the kernel's words.
        """
        vendor: Connection | None = None
        aside = 0
        try:
            while True:
                try:
                    path, login = self._refreshes.get(host, (b"", None)) if host is not None else (b"", None)
                    if login is not None and request.target.partition(b"?")[0] == path:
                        if not await self._refreshed(exchange, connection, login):
                            return
                        with Timeout(exchange.gateway.bounds.idle_seconds):
                            request = await http.next_request(exchange, connection)
                        continue
                    ready = await self._ready(exchange, request, host)
                    if ready.counted:
                        aside = await self._spending.begin(ready.request.method, dict(ready.request.headers))
                        if self._spending.counts_tokens and _has_left(exchange.client):  # while it waited
                            raise ClientLeft
                        self._spending.sent(_head_size(ready.request))
                    if vendor is None or not vendor.is_fresh(ready):
                        if vendor is not None:
                            vendor.close()
                        vendor = await self._opened(exchange, ready)
                except http.Bad as error:
                    await http.bad(exchange, error.status, str(error), error.host)
                    return
                except Foreign as error:
                    await exchange.dismiss(http_answer(401, "Unauthorized", "egress-key", str(error), _HINT))
                    return
                except Denied as refusal:
                    await exchange.dismiss(http.denied(refusal.verdict))
                    return
                except Exceeded as error:
                    await self._exceeded(exchange, error, ready.origin)
                    return
                except Failed as error:
                    if isinstance(error, Unusable):
                        exchange.denied(host, KEY, Verdict(False, "", str(error)))
                    hint = _UNKNOWN if isinstance(error, Untrusted) else ""
                    await exchange.dismiss(http_answer(502, "Bad Gateway", "egress-unreachable", str(error), hint))
                    return
                try:
                    goes_on = await self._answered(exchange, connection, vendor, ready)
                except (h11.RemoteProtocolError, OSError) as error:
                    if connection.our_state is not h11.SEND_RESPONSE:
                        raise  # in the middle of an answer there is nobody to tell
                    why = f"{ready.origin.where} gave no answer: {error or 'it closed the connection'}"
                    await exchange.dismiss(http_answer(502, "Bad Gateway", "egress-unreachable", why))
                    return
                self._spending.end(aside)
                aside = 0
                if not goes_on:
                    return
                with Timeout(exchange.gateway.bounds.idle_seconds):
                    request = await http.next_request(exchange, connection)
        except (h11.ProtocolError, TimeoutError):
            return
        finally:
            self._spending.end(aside)
            if vendor is not None:
                vendor.close()

    async def _refreshed(self, exchange: Exchange, connection: h11.Connection, login: Held) -> bool:
        """Answers an agent that wants new tokens; whether its connection can carry another request.

        Raises:
            Foreign: its token is none of the session's.
            Failed: there are none now.
        """
        body = b""
        events = http.Events(connection)
        while not isinstance(event := await events.next(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                with Timeout(exchange.gateway.bounds.head_seconds):
                    connection.receive_data(await exchange.receive())
            elif isinstance(event, h11.Data) and len(body) + len(event.data) <= phantoms.LARGEST_ENTRY:
                body += event.data
            else:
                raise http.Bad("the request for new tokens is too long", 413, host=login.refresh[0].where)
        answer = await login.answer(body)
        if answer is None:
            exchange.denied(login.refresh[0], KEY, Verdict(False, "", _NO_TOKEN))
            raise Foreign(_NO_TOKEN)
        headers = [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(answer)),
                   (b"Cache-Control", b"no-store")]  # fmt: skip
        head = connection.send(h11.Response(status_code=200, headers=headers, reason=b"OK")) or b""
        await exchange.send(head + answer)
        connection.send(h11.Data(data=answer))
        connection.send(h11.EndOfMessage())
        if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
            return False
        connection.start_next_cycle()
        return True

    async def _ready(self, exchange: Exchange, request: h11.Request, host: Request | None) -> "Ready":
        """The request as its vendor gets it. Raises `Denied`, `Foreign`, `Failed` and `http.Bad`."""
        shown = [route for route in self._routes if host in (None, route.origin) and route.is_shown(request.headers)]
        ambient = [route for route in self._ambient if route.origin == host]
        origin, tls = self._place(exchange, request, shown, ambient, host)
        words = {
            word.strip().lower()
            for name, value in request.headers
            if name == b"connection"
            for word in value.split(b",")
        }
        # Another protocol would have requests of its own, which nobody could judge: HTTP/2 (h2c), for instance.
        wanted = [value.strip().lower() for name, value in request.headers if name == b"upgrade"]
        upgrade = wanted == [b"websocket"] and b"upgrade" in words and (bool(shown) or host is None)
        raw = [(name, value) for name, value in request.headers.raw_items() if name.lower() != b"host"]
        there = h11.Request(
            method=request.method,
            target=request.target,
            headers=[(b"Host", origin.where.encode()), *raw],
            http_version=request.http_version,
        )
        head = http.understood(there, origin)
        headers = list(head.headers)
        for route in shown:
            verdict = route.policy.decide(head.wanted)
            if not verdict.allowed:
                reason = f"{verdict.reason}, and {route.name} is good for nothing else"
                verdict = verdict._replace(reason=reason, suggestion=route.suggestion)
                raise exchange.gateway.denied(head.wanted, KEY, verdict, exchange.client)
        if shown and _is_later(head.wanted.path) and not any(_is_later(rule.path) for rule in shown[0].policy.allow):
            raise self._refused(exchange, origin, "batches are worked on after the session")
        if shown and self._spending.counts_tokens and any(_is_encoded(name, value) for name, value in headers):
            raise self._refused(exchange, origin, _COMPRESSED)
        if shown and self._spending.counts_tokens and not self._spending.counts(head.wanted):
            raise self._refused(exchange, origin, _UNCOUNTED, _NO_BUDGET)
        if host is not None and not shown:
            verdict = self._plain.decide(head.wanted)
            if verdict.allowed and head.wanted.content and not ambient:
                verdict = Verdict(False, "", "a request without a phantom has no content there")
            if not verdict.allowed:
                raise exchange.gateway.denied(head.wanted, KEY, verdict, exchange.client)
        if shown or (host is not None and not ambient):
            headers = self._without_credentials(exchange, headers, head.path, origin, host)
            for route in shown:
                headers.append((route.header, route.real if isinstance(route.real, bytes) else await route.real.real()))
        elif not any(name == b"authorization" for name, _ in request.headers):
            # As npm chooses: the one for the longest path. A client's own counts, as it would in a tunnel.
            fitting = [route for route in ambient if route.policy.decide(head.wanted).allowed]
            best = max(fitting, key=lambda route: len(route.policy.allow[0].path), default=None)
            if best is not None and isinstance(best.real, bytes):
                headers.append((best.header, best.real))
        if shown:
            headers = [(name, value) for name, value in headers if name.lower() != b"accept-encoding"]
            headers.append((b"Accept-Encoding", b"identity"))  # so that its tokens can be counted
        if upgrade and not (shown and self._spending.bounded):
            headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
        default = _HTTPS if tls else _HTTP
        authority = origin.where.removesuffix(f":{default}").encode()
        target = normal_path(head.wanted.path) if shown else head.path
        final = h11.Request(method=request.method, target=target, headers=[(b"Host", authority), *headers])
        logins = [route.real for route in shown if isinstance(route.real, Held)]
        return Ready(origin, tls, head.wanted.method, bool(shown), final, logins[0] if logins else None)

    def _without_credentials(
        self,
        exchange: Exchange,
        headers: list[tuple[bytes, bytes]],
        path: bytes,
        origin: Request,
        host: Request | None,
    ) -> list[tuple[bytes, bytes]]:
        """The headers without what could say whose a request is. Raises `Denied` for such a query."""
        if name := _credential_in(path.partition(b"?")[2]):
            raise self._refused(exchange, origin, f"a credential in the URL beside the key ({name})")
        own = {route.header for route in self._routes}
        cookies = [(b"Cookie", found) for name, value in headers if (found := _front_cookies(name, value))]
        kept = [
            (name, value)
            for name, value in headers
            if not _is_credential(name, value, own) and (host is None or not _VALUE.search(value))
        ]
        return kept + (cookies if host is not None else [])

    def _place(
        self,
        exchange: Exchange,
        request: h11.Request,
        shown: list[Route],
        ambient: list[Route],
        host: Request | None,
    ) -> tuple[Request, bool]:
        """Where a request goes, and whether by TLS. Raises `Denied` and `Foreign`.

        At a vendor's own host, what shows no phantom may read, without any credentials: what is sent could be for
        somebody else's account. A mirror has no accounts of others.
        """
        if host is not None:
            if shown or ambient or request.method in (b"GET", b"HEAD"):
                return host, True
            places = [(host, True)]
        else:
            places = list(dict.fromkeys((route.origin, route.tls) for route in shown or self._local))
            if shown and len(places) > 1:
                raise self._refused(exchange, places[0][0], "phantoms of two APIs in one request")
            free = len(places) == 1 and places[0][0].host not in self._hosts
            if shown or (free and self._plain.decide(places[0][0]).allowed):
                return places[0]
        exchange.denied(places[0][0] if places else None, KEY, Verdict(False, "", _NO_PHANTOM))
        raise Foreign(_NO_PHANTOM)

    @staticmethod
    def _refused(exchange: Exchange, origin: Request, why: str, suggestion: str = "") -> Denied:
        return exchange.gateway.denied(origin, KEY, Verdict(False, "", why, suggestion), exchange.client)

    async def _opened(self, exchange: Exchange, ready: "Ready") -> Connection:
        """A connection to the vendor. Raises `Denied` and `Failed`."""
        sock, _ = await self._gateway.open(ready.origin, requested(ready.method), exchange.client)
        vendor = Connection(sock, ready.origin, ready.tls)
        try:
            if self._context is not None and ready.tls:
                with Timeout(exchange.gateway.bounds.dial_seconds):
                    await vendor.secure(self._contexts.get(ready.origin, self._context))
        except OSError as error:  # TimeoutError and ssl.SSLError are such
            vendor.close()
            why, kind = error.strerror or str(error), Failed
            if isinstance(error, ssl.SSLCertVerificationError):
                why, kind = error.verify_message, Untrusted if error.verify_code in _NO_ISSUER else Failed
            raise kind(f"{ready.origin.where} cannot be spoken to by TLS: {why}") from None
        except BaseException:
            vendor.close()
            raise
        return vendor

    async def _answered(
        self, exchange: Exchange, connection: h11.Connection, vendor: Connection, ready: "Ready"
    ) -> bool:
        """Passes one request and its answer on; whether the client's connection can carry another one."""
        final = ready.request
        strict = ready.counted and self._spending.counts_tokens
        tally = Tally(strict=strict and not self._spending.reads(final.method, final.target))
        writer = vendor.writer

        async def pass_on(event: h11.Event) -> None:
            data = connection.send(event) or b""
            try:
                await exchange.send(b"" if tally.left else data)
            except OSError:
                if not tally.awaited:
                    raise
                tally.left = True  # and what the vendor says to the end is counted

        if not tally.strict:
            await vendor.send(writer.send(ready.request) or b"")
        upload = running().spawn(self._upload(exchange, connection, vendor, ready, tally, current()))
        events = http.Events(writer)
        try:
            while True:
                event = await events.next()
                if event is h11.NEED_DATA:
                    with Timeout(exchange.gateway.bounds.idle_seconds):
                        data = await vendor.receive()
                    writer.receive_data(data)
                elif isinstance(event, h11.InformationalResponse) and event.status_code == _SWITCHING:
                    await exchange.send(connection.send(event) or b"")
                    upload.cancel()
                    await _joined(exchange, connection, vendor)
                    return False
                elif isinstance(event, h11.InformationalResponse | h11.Response):
                    headers = [
                        (name, value) for name, value in event.headers.raw_items() if name.lower() not in _OF_ONE_HOP
                    ]
                    if isinstance(event, h11.Response):
                        tally.answered(event.status_code, dict(event.headers))
                        if tally.left and not tally.awaited:
                            raise ClientLeft
                        if event.status_code == _UNAUTHORIZED and ready.login is not None:
                            ready.login.refused(dict(ready.request.headers)[b"authorization"])
                    kind = type(event)
                    passed = kind(status_code=event.status_code, headers=headers, reason=event.reason)
                    await pass_on(passed)
                elif isinstance(event, h11.Data):
                    tally.feed(bytes(event.data))
                    if ready.counted:
                        self._spending.add(tally, last=False)
                    await pass_on(event)
                    if tally.left and not tally.awaited:  # it is too long to be one that tells
                        raise ClientLeft
                elif isinstance(event, h11.EndOfMessage):
                    tally.complete()
                    if ready.counted:
                        self._spending.add(tally)
                    await pass_on(event)
                    break
                else:
                    raise h11.RemoteProtocolError("it closed the connection")
        finally:
            upload.cancel()
            if ready.counted:
                self._spending.add(tally)
        if tally.left:
            raise ClientLeft
        vendor.used = time.monotonic()
        if connection.their_state is h11.SEND_BODY:
            await exchange.dismiss(b"")  # it has its answer, and sends on
            return False
        if writer.our_state is h11.DONE and writer.their_state is h11.DONE:
            writer.start_next_cycle()
        if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
            return False
        connection.start_next_cycle()
        return True

    async def _upload(
        self,
        exchange: Exchange,
        connection: h11.Connection,
        vendor: Connection,
        ready: "Ready",
        tally: Tally,
        download: Task,
    ) -> None:
        """Passes a request's body on; then ends the download once the client has left: nobody pays for more then.

        Where the answer has to report its tokens, the vendor gets nothing before all of it is there and judged.
        """
        events = http.Events(connection)
        whole = False
        content = bytearray()
        try:
            if tally.strict and connection.they_are_waiting_for_100_continue:
                await exchange.send(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            while True:
                event = await events.next()
                if event is h11.NEED_DATA:
                    connection.receive_data(await exchange.receive())
                elif isinstance(event, h11.Data):
                    if ready.counted:
                        self._spending.sent(len(event.data))
                    if tally.strict:
                        content += event.data
                        if len(content) > LARGEST:
                            raise self._refused(exchange, ready.origin, _TOO_LONG, _NO_BUDGET)
                        continue
                    tally.sent += len(event.data)
                    await vendor.send(vendor.writer.send(event) or b"")
                elif isinstance(event, h11.EndOfMessage):
                    if tally.strict:
                        if why := unbounded(content):
                            raise self._refused(exchange, ready.origin, why, _NO_BUDGET)
                        tally.sent = len(content)
                        await vendor.send(vendor.writer.send(ready.request) or b"")
                        await vendor.send(vendor.writer.send(h11.Data(data=bytes(content))) or b"")
                    # Without the fields behind the content, which nobody has judged.
                    await vendor.send(vendor.writer.send(h11.EndOfMessage()) or b"")
                    whole = True
                    break
                else:
                    return
            connection.receive_data(await exchange.receive())  # the next request, which has its turn later
        except ClientLeft:
            tally.left = True
            # What a vendor has as a whole it may answer, and charge, as a whole: with a budget that is waited for.
            waits = whole and not tally.begun and ready.counted and self._spending.counts_tokens
            if not tally.awaited and not waits:
                download.cancel()
        except Exceeded as error:
            with suppress(OSError):
                if connection.our_state is h11.SEND_RESPONSE:
                    await self._exceeded(exchange, error, ready.origin)
            download.cancel()
        except Denied as refusal:
            with suppress(OSError):
                if connection.our_state is h11.SEND_RESPONSE:
                    await exchange.dismiss(http.denied(refusal.verdict))
            download.cancel()
        except h11.RemoteProtocolError as error:
            with suppress(OSError):
                if connection.our_state is h11.SEND_RESPONSE:
                    await http.bad(exchange, 400, str(error), ready.origin.where)
            download.cancel()
        except (OSError, h11.ProtocolError):
            return  # what the vendor says of it is still to be read

    async def _exceeded(self, exchange: Exchange, error: Exceeded, origin: Request) -> None:
        """Tells a client that a bound is reached: 429 where it may ask again, else 403, after which none does."""
        exchange.denied(origin, KEY, Verdict(False, "", str(error)))
        status, phrase = (429, "Too Many Requests") if error.wait else (403, "Blocked by Paddock")
        again = (("Retry-After", f"{math.ceil(error.wait)}"),) if error.wait else ()
        hint = "" if error.wait else "ask the user to start Paddock with a larger --budget"
        await exchange.dismiss(http_answer(status, phrase, "egress-budget", str(error), hint, again))


class Untrusted(Failed):
    """A vendor's certificate is signed by an authority that is not known here."""


class Foreign(Exception):
    """A request without a phantom of the session's, to a place that nothing else allows."""


class Ready(NamedTuple):
    """A request as its vendor gets it: where it goes, whether by TLS, its method, whether by a phantom, head, login."""

    origin: Request
    tls: bool
    method: str
    counted: bool
    request: h11.Request
    login: Held | None = None


async def _joined(exchange: Exchange, connection: h11.Connection, vendor: Connection) -> None:
    """Copies both ways after an upgrade, until one side ends."""
    download = current()

    async def up() -> None:
        try:
            await vendor.send(connection.trailing_data[0])
            while True:
                await vendor.send(await exchange.receive())
        except (ClientLeft, OSError):
            download.cancel()

    upload = running().spawn(up())
    try:
        await exchange.send(vendor.writer.trailing_data[0])
        while True:
            with Timeout(exchange.gateway.bounds.idle_seconds):
                data = await vendor.receive()
            if not data:
                return
            await exchange.send(data)
    finally:
        upload.cancel()


def _has_left(client: socket.socket) -> bool:
    poll = select.poll()
    poll.register(client, select.POLLRDHUP)
    return bool(poll.poll(0))


def _head_size(request: h11.Request) -> int:
    return len(request.target) + sum(len(name) + len(value) + len(": \r\n") for name, value in request.headers)


def _is_later(path: str) -> bool:
    """Whether a path, or one reading of an ambiguous path, is one of work that is done later."""
    plain = canonical_path(path or "/")
    return plain is None or _LATER.search(plain.lower()) is not None


def _is_encoded(name: bytes, value: bytes) -> bool:
    """Whether a header says that the content is compressed; servers take `_` and `-` for the same."""
    coded = _ENCODING.fullmatch(name.lower().replace(b"_", b"-")) is not None
    return coded and value.strip().lower() not in (b"", b"identity")


def _is_credential(name: bytes, value: bytes, dropped: set[bytes]) -> bool:
    """Whether a header goes: servers take `_` and `-` for the same, and a WebSocket's protocols may hold a key."""
    plain = re.sub(rb"[^a-z0-9]", b"-", name.lower())
    protocol = plain == b"sec-websocket-protocol" and _CREDENTIAL.search(value.lower())
    return plain in dropped or bool((_CREDENTIAL.search(plain) and not _NONE.fullmatch(plain)) or protocol)


def _front_cookies(name: bytes, value: bytes) -> bytes:
    """Of a request's cookies, those by which the vendor's front end knows a client again, which are no credentials."""
    if name.lower() != b"cookie":
        return b""
    pairs = (pair.strip() for pair in re.split(rb"[;,]", value))  # by commas, too, as servers of old (RFC 2965)
    fronts = (pair for pair in pairs if pair.startswith((b"__cf", b"_cfuvid=", b"cf_clearance=")))
    return b"; ".join(pair for pair in fronts if not _VALUE.search(pair))


def _credential_in(query: bytes) -> str:
    """The name in a query that could be one's; "" without any."""
    for name, value in parse_qsl(query.replace(b";", b"&"), keep_blank_values=True):
        plain = re.sub(rb"[^a-z0-9]+", b"-", name.lower()).strip(b"-")
        if (not _NONE.fullmatch(plain) and _CREDENTIAL.search(plain)) or _VALUE.search(value):
            return plain.decode() or "?"
    return ""


def _route(key: Key, phantom: str, value: str, denied: Iterable[str]) -> Route:
    found = api(key.url)
    own = key.origin.startswith("provider ")
    return Route(
        header=key.header.encode(),
        phantom=None if key.ambient else partial(hmac.compare_digest, key.format.replace("{key}", phantom).encode()),
        real=key.format.replace("{key}", value).encode(),
        origin=found.origin,
        tls=found.tls,
        policy=EgressPolicy(key.rules, denied),
        name=f"the key in {key.variable}" if key.variable else key.origin,
        suggestion="--keys pass" if own else f"more path= or method= in the --inject of {key.variable}",
        authority=key.authority,
    )


def _of_login(login: Held, url: str, rules: Iterable[str], denied: Iterable[str]) -> Route:
    found = api(url)
    return Route(
        header=b"authorization",
        phantom=login.is_phantom,
        real=login,
        origin=found.origin,
        tls=found.tls,
        policy=EgressPolicy(rules, denied),
        name="the login",
        suggestion="--logins copy",
    )
