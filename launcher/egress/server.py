"""Accepting clients, counting them, and ending those that have gone quiet."""

import socket

from launcher.egress import answers, protocol, sockets
from launcher.egress.bounds import Bounds
from launcher.egress.exchange import Exchange
from launcher.egress.forward import Forward
from launcher.egress.gateway import Gateway
from launcher.egress.log import Log
from launcher.egress.loop import Task, running, sleep
from launcher.egress.publish import Publication
from launcher.egress.relay import Relay

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
                work = protocol.serve(exchange)
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
