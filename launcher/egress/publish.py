"""A port of the machine's loopback that leads to a port of the jail's: what --publish grants.

Only a socket that was made inside a network namespace can connect there. So the jail's first process hands out a number
of them, unconnected, and each is used again when its connection has ended: no process of ours stays inside.
"""

import ctypes
import os
import socket
from collections.abc import Callable, Iterable

from launcher.egress import sockets
from launcher.egress.log import Log
from launcher.egress.loop import Timeout
from launcher.egress.relay import Relay
from policy.egress import Verdict

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
