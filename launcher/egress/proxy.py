"""The proxy process: its imports, its own confinement, its clients. The launch path never loads it."""

import ctypes
import gc
import ipaddress
import os
import resource
import signal
import socket
import struct
import time
from collections.abc import Iterable
from typing import NoReturn

from launcher.egress import socks
from launcher.egress.exchange import ACCESS_DENIED, TLS_HANDSHAKE, ClientLeft, Exchange, Relay, http_answer
from launcher.egress.gateway import Bounds, Denied, Failed, Gateway, Unreachable, begin_connecting, dial
from launcher.egress.log import FILE, Log, Witness
from launcher.egress.names import Names, Resolver
from launcher.egress.outside import Upstreams, search_nothing
from launcher.egress.questions import Questions as Asking
from launcher.jail import cell
from launcher.loop import Loop, Task, Timeout, accept, running, sleep, writable
from policy.egress_rules import LOCALHOST, EgressPolicy, Request, Verdict
from policy.hosts import Address
from policy.plan import USAGE, Plan
from policy.promises import OWN_TMP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.egress.secured import Kept
    from launcher.egress.vendors import Vendors
    from policy.keys import Key

NAME = "paddock-proxy"
"""Of the process, as ps(1) shows it, once it is confined."""

_RESOLVER = (
    *("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services"),
    *("/etc/protocols", "/etc/networks"),
    *("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/run/nscd", "/var/run/nscd"),
)
"""What getaddrinfo(3) reads: its settings, and what they name; directories where services replace the files in them."""

_RESERVED = 64
"""Descriptors for everything that is no client's connection."""

_MOST_MEMORY = 1 << 30
"""Bytes of its own that the proxy may have (getrlimit(2), RLIMIT_DATA)."""

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER by which close(2) resets the connection (socket(7)): a client whose connection was refused is told so."""

_LOCALHOST = ipaddress.IPv4Address("127.0.0.1")

_SPEAKS_WITHIN = 1.0
"""Seconds for a client to show its protocol, when it is to be told why it is not connected."""

_UNSPECIFIED = bytes(16)

_CONNECT_SECONDS = 10.0
"""Until a server of the jail must have taken a connection to its published port."""

_PAUSE = 0.05
"""Seconds without accepting, when there are no descriptors or no memory."""


def run(
    plan: Plan,
    reach: list[tuple[bytes, int]],
    directory: str,
    secret: str,
    wanted: tuple[tuple[str, bytes, int], ...],
    handed: list[int],
    published: tuple[tuple[str, int], ...],
    held: "tuple[tuple[Key, str, str], ...]",
    kept: "Kept | None" = None,
    askers: tuple[int, ...] = (),
) -> NoReturn:
    """Serves until the launcher ends this process.

    Args:
        plan: its rules, and what else it grants.
        reach: packed address and port of each of `plan.reach`.
        directory: of the session, for the log.
        secret: the session's token.
        wanted: what each of `handed` is, as in `launcher.jail.spec.Sockets`; the proxy's own is the first.
        handed: sockets, of the jail's network namespace where it has one.
        published: listening sockets, each with the entry of `plan.publish` that it is for.
        held: keys that stay outside, each with its phantom and its value.
        kept: logins that do.
        askers: none, or a listening socket for answers, a file with what its clients must show, and sockets to who
            asks people about refused hosts.
    """
    search_nothing()
    gc.freeze()  # nothing of what was imported is garbage: the first collection would look at all of it
    gc.enable()
    log = Log(f"{directory}/{FILE}", Bounds().log_bytes)
    code = 1
    try:
        witness = Witness(os.getppid())
        try:
            sockets = [socket.socket(fileno=fd) for fd in handed]
            listeners = [(rule, socket.socket(fileno=fd)) for rule, fd in published]
            _serve(plan, reach, directory, secret, wanted, sockets, listeners, log, witness, held, kept, askers)
        finally:
            witness.close()
        log.close()
        code = 0
    except BaseException as error:
        log.fault(str(error) if isinstance(error, Exception) else repr(error))
    os._exit(code)


def _serve(
    plan: Plan,
    reach: list[tuple[bytes, int]],
    directory: str,
    secret: str,
    wanted: tuple[tuple[str, bytes, int], ...],
    handed: list[socket.socket],
    published: list[tuple[str, socket.socket]],
    log: Log,
    witness: Witness,
    held: "tuple[tuple[Key, str, str], ...]",
    kept: "Kept | None",
    askers: tuple[int, ...],
) -> None:
    """Serves until a signal, or until one of the listening sockets cannot be served any more."""
    loop = Loop(lambda error: log.fault(repr(error)))
    loop.hear_signals()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: loop.stop())
    policy = EgressPolicy.of(plan)
    gateway = Gateway(policy, Upstreams(os.environ), log, _bounded(Bounds()), witness)
    vendors = _vendors(held, kept, plan, gateway, directory) if held or kept is not None else None
    server = Server(gateway, secret, log, vendors, name_required=plan.server_name == "require")
    confine()
    gc.collect()
    gc.freeze()
    pool = Pool(sock for (kind, _, _), sock in zip(wanted, handed, strict=True) if kind == "free")
    works = [server.serve(handed[0]), server.sweep()]
    forwards = {
        (ipaddress.ip_address(packed), port): Forward(ipaddress.ip_address(packed), port, rule, log)
        for (rule, _), (packed, port) in zip(plan.reach, reach, strict=True)
    }
    names = Names(policy)
    by_name = ByName(gateway, policy, names, forwards, vendors, name_required=plan.server_name == "require")
    ipv6 = any(
        kind == "any" and sock.family == socket.AF_INET6 for (kind, _, _), sock in zip(wanted, handed, strict=True)
    )
    resolver = Resolver(gateway, policy, names, log, ipv6=ipv6)
    for (kind, packed, port), sock in zip(wanted[1:], handed[1:], strict=True):
        if kind == "udp":
            works.append(resolver.datagrams(sock))
        elif kind == "any":
            works.append(server.serve(sock, by_name))
        elif kind == "tcp":
            forward = forwards.get((ipaddress.ip_address(packed), port))
            works.append(server.serve(sock, Questions(resolver) if forward is None else forward))
    for rule, listener in published:
        works.append(server.serve(listener, Publication(pool, int(rule.rpartition(":")[2]), rule, log)))
    failed: list[BaseException] = []
    if askers:
        gateway.questions = Asking(policy, witness, _kept_apart(held, kept), proof=os.pread(askers[1], 64, 0))
        works.append(gateway.questions.serve(*(socket.socket(fileno=fd) for fd in (askers[0], *askers[2:]))))

    def ended(task: Task) -> None:
        if task.error is not None:
            failed.append(task.error)
            loop.stop()

    for work in works:
        loop.spawn(work).when_done(ended)
    loop.run()
    if failed:
        raise failed[0]


def _kept_apart(held: "tuple[tuple[Key, str, str], ...]", kept: "Kept | None") -> list[str]:
    """Rules for the hosts of keys and logins that stay outside: in another way somebody else's would get there."""
    if not held and kept is None:
        return []
    from policy import keys, phantoms

    origins = [keys.api(key.url).origin for key, _, _ in held]
    origins += [origin for login in (kept.logins if kept is not None else ()) for origin in phantoms.origins(login)]
    return [*(origin.where for origin in origins), *(rule for key, _, _ in held for rule, _ in key.covers)]


def _vendors(
    held: "tuple[tuple[Key, str, str], ...]", kept: "Kept | None", plan: Plan, gateway: Gateway, directory: str
) -> "Vendors":
    from launcher.egress.spending import Spending
    from launcher.egress.vendors import Vendors  # TLS takes long to load

    allow, deny = (rule for rule, _ in plan.domains), (rule for rule, _ in plan.domains_denied)
    counts = Spending(dict(plan.budget), f"{directory}/{USAGE}")
    writable = tuple(path for path, access, who in plan.grants if "w" in access and who != OWN_TMP)
    return Vendors(held, allow, deny, plan.internal, gateway, os.environ, writable, counts, kept)


def _bounded(bounds: Bounds) -> Bounds:
    """As many connections as there can be descriptors for, two each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * bounds.connections + _RESERVED
    soft = max(soft, min(wanted, hard) if hard != resource.RLIM_INFINITY else wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return bounds._replace(connections=min(bounds.connections, (soft - _RESERVED) // 2))


def confine() -> None:
    """Keeps of the user's files what a resolver needs, and the way to the network; see `cell.confine`."""
    try:
        # Loads what the first name would: a codec, and the resolver's modules.
        socket.getaddrinfo("localhost", 1, type=socket.SOCK_STREAM)
    except OSError:
        pass  # no hosts file: names are tried as they come
    # What a client sends is small beside what it can become here, JSON above all; no limit of the session's counts it.
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
    cell.confine(NAME, readable=_RESOLVER, network=True)


class Forward:
    """A port that leads to one address and port outside, without any proxy protocol: what --reach grants."""

    def __init__(
        self, address: Address, port: int, rule: str, log: Log, patience: float = Bounds().dial_seconds
    ) -> None:
        """`rule`: the grant as it was written, for the log."""
        self._address = address
        self._port = port
        self._rule = rule
        self._log = log

    async def run(self, client: socket.socket, relays: set[Relay]) -> None:
        """Connects one client; owns it."""
        self._log.decision("reach", str(self._address), self._port, Verdict(True, self._rule, ""))
        try:
            server = await dial([self._address], self._port, Bounds().dial_seconds)
        except Unreachable:
            client.close()
            return
        except BaseException:
            client.close()
            raise
        Relay(client, server, relays).start()


class ByName:
    """Ports of every address in the jail: which host a client means is told by the address that it connected to."""

    def __init__(
        self,
        gateway: Gateway,
        policy: EgressPolicy,
        names: Names,
        forwards: dict[tuple[Address, int], Forward],
        vendors: "Vendors | None" = None,
        *,
        name_required: bool,
    ) -> None:
        """`forwards`: granted addresses of the loopback, which these sockets stand for on their ports."""
        self._vendors = vendors
        self._gateway = gateway
        self._policy = policy
        self._names = names
        self._forwards = forwards
        self._name_required = name_required

    async def run(self, client: socket.socket, relays: set[Relay]) -> None:
        """Connects one client; owns it."""
        where, port = client.getsockname()[:2]
        address = ipaddress.ip_address(where)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        forward = self._forwards.get((address, port)) or (
            self._forwards.get((_LOCALHOST, port)) if address.is_loopback else None  # as ::1, localhost's other address
        )
        if forward is not None:
            await forward.run(client, relays)
            return
        exchange = Exchange(client, self._gateway, "", relays, self._vendors, name_required=self._name_required)
        relayed = False
        try:
            wanted = self._wanted(address, port)
            if wanted is not None and self._policy.is_narrow(wanted):
                from launcher.egress import http

                try:
                    with Timeout(self._gateway.bounds.head_seconds):
                        first = await exchange.receive()
                except TimeoutError:
                    first = b""
                if not first[:1].isalpha():  # TLS, or a client that waits for the server's first word
                    raise exchange.gateway.denied(wanted, "connect", self._policy.decide(wanted), client)
                relayed = await http.serve(exchange, first, wanted)
            elif wanted is not None:
                await exchange.connect(wanted, "connect", answer=b"", first=b"")
                relayed = True
            elif not address.is_loopback:
                verdict = Verdict(False, "", f"{address} belongs to no name that was asked for")
                exchange.denied(None, "connect", verdict)
        except Denied as refusal:
            relayed = await self._tell(exchange, 403, "egress-denied", refusal.verdict.reason)
        except Failed as error:
            relayed = await self._tell(exchange, 502, "egress-unreachable", str(error))
        except (ClientLeft, OSError):
            return
        finally:
            if not relayed:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                client.close()

    async def _tell(self, exchange: Exchange, status: int, reference: str, why: str) -> bool:
        """Tells a client that speaks first what became of its connection, in TLS or HTTP; whether it was told."""
        try:
            with Timeout(_SPEAKS_WITHIN):
                first = await exchange.receive()
            if first[:1] == TLS_HANDSHAKE:
                await exchange.dismiss(ACCESS_DENIED)
            elif first.partition(b" ")[0].isalpha() and b" " in first:
                phrase = "Blocked by Paddock" if status == 403 else "Bad Gateway"
                await exchange.dismiss(http_answer(status, phrase, reference, why))
            else:
                return False
        except (ClientLeft, OSError):
            return False
        exchange.client.close()
        return True

    def _wanted(self, address: Address, port: int) -> Request | None:
        if name := self._names.name(address):
            return Request(name, port)
        hosts: tuple[str | Address, ...] = (LOCALHOST, address) if address.is_loopback else (address,)
        for wanted in (Request(host, port) for host in hosts):
            if self._policy.decide(wanted).allowed or self._policy.is_narrow(wanted):
                return wanted
        return None


class Questions:
    """The resolver's TCP port."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    async def run(self, client: socket.socket, _: set[Relay]) -> None:
        """Serves one client; owns it."""
        await self._resolver.connection(client)


class Pool:
    """Unconnected sockets of a jail's network namespace; owns them.

    Only a socket that was made inside a network namespace can connect there. So the jail's first process hands out a
    number of them, and each is used again when its connection has ended: no process of Paddock stays inside.
    """

    def __init__(self, sockets: Iterable[socket.socket]) -> None:
        self._free = list(sockets)

    def take(self) -> socket.socket | None:
        """One of them, to be given back; None when all are in use."""
        return self._free.pop() if self._free else None

    def give_back(self, sock: socket.socket) -> None:
        """Disconnects a socket (connect(2), AF_UNSPEC) for another connection."""
        disconnect = ctypes.CDLL(None, use_errno=True)["connect"]
        if disconnect(sock.fileno(), _UNSPECIFIED, len(_UNSPECIFIED)) == 0:
            self._free.append(sock)
        else:
            sock.close()


class Publication:
    """A port of the machine's loopback that leads to one of the jail's: what --publish grants."""

    def __init__(self, pool: Pool, port: int, rule: str, log: Log) -> None:
        """`port`: the jail's; `rule`: the grant as it was written, for the log."""
        self._pool = pool
        self._port = port
        self._rule = rule
        self._log = log

    async def run(self, client: socket.socket, relays: set[Relay]) -> None:
        """Connects one client; owns it."""
        self._log.decision("publish", "127.0.0.1", self._port, Verdict(True, self._rule, ""))
        pooled = self._pool.take()
        if pooled is None:
            client.close()
            return
        try:
            begin_connecting(pooled, ("127.0.0.1", self._port))
            if not await writable((pooled,), _CONNECT_SECONDS) or pooled.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError("nothing listens there")
        except BaseException as error:
            client.close()
            self._pool.give_back(pooled)
            if isinstance(error, OSError):
                return
            raise
        # The relay closes what it is given: a second descriptor of the same socket.
        server = socket.socket(fileno=os.dup(pooled.fileno()))
        server.setblocking(False)
        Relay(client, server, relays, done=lambda: self._pool.give_back(pooled)).start()


Service = Forward | Publication | ByName | Questions
"""What a client can be connected with that speaks no proxy protocol."""


class Server:
    """Accepts clients, counts them, and ends idle ones.

    Attributes:
        relays: all that are open.
    """

    def __init__(
        self, gateway: Gateway, secret: str, log: Log, vendors: "Vendors | None" = None, *, name_required: bool
    ) -> None:
        """See `Exchange` for the arguments. `vendors`: what a client may take this for, which knows no proxy."""
        self._gateway = gateway
        self._secret = secret
        self._log = log
        self._vendors = vendors
        self._bounds = gateway.bounds
        self._name_required = name_required
        self._starting: set[Task] = set()
        self.relays: set[Relay] = set()

    async def serve(self, listener: socket.socket, forward: "Service | None" = None) -> None:
        """Accepts from a non-blocking listening socket, for ever; with `forward` each client goes to one place."""
        while True:
            await sleep(0)  # however many come: connected clients have a turn in between
            try:
                client = await accept(listener)
            except OSError:
                await sleep(_PAUSE)
                continue
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if len(self.relays) + len(self._starting) >= self._bounds.connections:
                self._turn_away(client, speaks_http=forward is None)
                continue
            task = running().spawn(self._exchange(client) if forward is None else forward.run(client, self.relays))
            self._starting.add(task)
            task.when_done(self._started)

    async def sweep(self) -> None:
        """Ends relays in which nothing has moved for too long. For ever."""
        while True:
            await sleep(min(30.0, self._bounds.idle_seconds / 4))
            before = time.monotonic() - self._bounds.idle_seconds
            for relay in [relay for relay in self.relays if relay.last < before]:
                relay.close()

    async def _exchange(self, client: socket.socket) -> None:
        """Serves one client until a relay has it or its socket is closed. Its first byte says which protocol."""
        required = self._name_required
        exchange = Exchange(client, self._gateway, self._secret, self.relays, self._vendors, name_required=required)
        relayed = False
        try:
            with Timeout(self._bounds.head_seconds):
                first = await exchange.receive()
            if first[0] == socks.VERSION:
                relayed = await socks.serve(exchange, first)
            else:
                from launcher.egress import http

                relayed = await http.serve(exchange, first)
        except (ClientLeft, TimeoutError, OSError):
            return  # the client has left
        finally:
            if not relayed:
                client.close()

    def _started(self, task: Task) -> None:
        self._starting.discard(task)
        if task.error is not None:
            self._log.fault(repr(task.error))

    def _turn_away(self, client: socket.socket, *, speaks_http: bool) -> None:
        with client:
            if speaks_http:
                many = f"{self._bounds.connections} connections are open, the limit of one session"
                try:
                    client.send(http_answer(503, "Service Unavailable", "egress-busy", many))
                except OSError:
                    return  # it has left
