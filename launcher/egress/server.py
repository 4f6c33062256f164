"""Accepting clients, counting them, and ending those that have gone quiet."""

import ctypes
import os
import socket
from collections.abc import Callable, Iterable

from launcher.egress import answers, over_socks, sockets, socks
from launcher.egress.dial import Forward
from launcher.egress.exchange import Exchange, Gone
from launcher.egress.gateway import Bounds, Gateway
from launcher.egress.log import Log
from launcher.egress.relay import Relay
from launcher.loop import Task, Timeout, running, sleep
from policy.egress import Verdict

# A port of the machine's loopback that leads to a port of the jail's: what --publish grants.
#
# Only a socket that was made inside a network namespace can connect there. So the jail's first process hands out a
# number of them, unconnected, and each is used again when its connection has ended: no process of ours stays
# inside.


_UNSPECIFIED = bytes(16)
_PATIENCE = 10.0
"""Seconds until a server of the jail must have taken a connection."""


class Pool:
    """The sockets of a jail's network namespace; owns them."""

    def __init__(self, sockets: Iterable[socket.socket]) -> None:
        self._free = list(sockets)

    def take(self) -> socket.socket | None:
        """One that is not connected, to be given back; None when all are in use."""
        return self._free.pop() if self._free else None

    def give_back(self, sock: socket.socket) -> None:
        """Disconnects a socket (connect(2), AF_UNSPEC), and keeps it for another connection."""
        disconnect = ctypes.CDLL(None, use_errno=True)["connect"]
        if disconnect(sock.fileno(), _UNSPECIFIED, len(_UNSPECIFIED)) == 0:
            self._free.append(sock)
        else:
            sock.close()


class Publication:
    """One published port."""

    def __init__(self, pool: Pool, port: int, rule: str, log: Log) -> None:
        """`port`: the jail's; `rule`: the grant as it was written, for the log."""
        self._pool = pool
        self._port = port
        self._rule = rule
        self._log = log

    async def run(self, client: socket.socket, adopt: Callable[[Relay], None], done: Callable[[Relay], None]) -> None:
        """Leads one client into the jail; owns it."""
        self._log.decision("publish", "127.0.0.1", self._port, Verdict(True, self._rule, ""))
        kept = self._pool.take()
        if kept is None:
            client.close()
            return
        try:
            with Timeout(_PATIENCE):
                await sockets.connect(kept, ("127.0.0.1", self._port))
        except BaseException as error:
            client.close()
            self._pool.give_back(kept)
            if isinstance(error, OSError):
                return  # nobody listens there
            raise

        def ended(relay: Relay) -> None:
            self._pool.give_back(kept)
            done(relay)

        # The relay closes what it is given: a second descriptor of the same socket.
        server = socket.socket(fileno=os.dup(kept.fileno()))
        server.setblocking(False)
        relay = Relay(client, server, ended)
        adopt(relay)
        relay.start()


# Which protocol a client of the proxy speaks: its first byte tells.


async def serve(exchange: Exchange) -> None:
    """Serves one client, until a relay has it or its socket is closed."""
    relayed = False
    try:
        with Timeout(exchange.bounds.head_seconds):
            first = await exchange.receive()
        if first[0] == socks.VERSION:
            relayed = await over_socks.serve(exchange, first)
        else:
            from launcher.egress import http

            relayed = await http.serve_http(exchange, first)
    except (Gone, TimeoutError, OSError):
        return  # the client's affair, and there is nobody left to tell
    finally:
        if not relayed:
            exchange.client.close()


_PAUSE = 0.05
"""Seconds without accepting, when there are no descriptors or no memory."""


class Server:
    """Serves listening sockets until the process ends."""

    def __init__(self, gateway: Gateway, secret: str, log: Log, bounds: Bounds, *, name_required: bool) -> None:
        """Prepares; see `Exchange` for the arguments."""
        self._gateway = gateway
        self._secret = secret
        self._log = log
        self._bounds = bounds
        self._name_required = name_required
        self._relays: set[Relay] = set()
        self._starting: set[Task] = set()

    async def serve(self, listener: socket.socket, forward: Forward | Publication | None = None) -> None:
        """Accepts from a non-blocking listening socket, for ever; with `forward` each client goes to one place."""
        while True:
            await sleep(0)  # however many come: who is connected has his turn in between
            try:
                client = await sockets.accept(listener)
            except OSError:
                await sleep(_PAUSE)
                continue
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if len(self._relays) + len(self._starting) >= self._bounds.connections:
                self._turn_away(client, speaks_http=forward is None)
                continue
            if forward is None:
                exchange = Exchange(
                    client, self._gateway, self._secret, self._bounds, self._relays.add, self._relays.discard,
                    name_required=self._name_required,
                )  # fmt: skip
                work = serve(exchange)
            else:
                work = forward.run(client, self._relays.add, self._relays.discard)
            task = running().spawn(work)
            self._starting.add(task)
            task.when_done(self._started)

    async def sweep(self) -> None:
        """Ends relays in which nothing has moved for too long. For ever."""
        while True:
            await sleep(min(30.0, self._bounds.idle_seconds / 4))
            before = running().time() - self._bounds.idle_seconds
            for relay in [relay for relay in self._relays if relay.last < before]:
                relay.close()

    def close(self) -> None:
        """Ends everything that is open."""
        for task in self._starting:
            task.cancel()
        for relay in list(self._relays):
            relay.close()

    def _started(self, task: Task) -> None:
        self._starting.discard(task)
        if task.error is not None:
            self._log.fault(repr(task.error))

    def _turn_away(self, client: socket.socket, *, speaks_http: bool) -> None:
        with client:
            if speaks_http:
                many = f"{self._bounds.connections} connections are open, as many as one session may have"
                try:
                    client.send(answers.answer(503, "Service Unavailable", "egress-busy", many))
                except OSError:
                    return  # it has left
