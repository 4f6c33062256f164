"""A port that leads to one place: what --reach grants, without a word of any proxy protocol."""

import socket
from collections.abc import Callable

from launcher.egress.dial import Unreachable, dial
from launcher.egress.log import Log
from launcher.egress.relay import Relay
from policy.egress import Verdict
from policy.hosts import Address


class Forward:
    """One granted address and port outside."""

    def __init__(self, address: Address, port: int, rule: str, log: Log, patience: float) -> None:
        """`rule`: the grant as it was written, for the log; `patience`: seconds for dialling."""
        self._address = address
        self._port = port
        self._rule = rule
        self._log = log
        self._patience = patience

    async def run(self, client: socket.socket, adopt: Callable[[Relay], None], done: Callable[[Relay], None]) -> None:
        """Leads one client there; owns it."""
        self._log.decision("reach", str(self._address), self._port, Verdict(True, self._rule, ""))
        try:
            server = await dial([self._address], self._port, self._patience)
        except Unreachable:
            client.close()
            return
        except BaseException:
            client.close()
            raise
        relay = Relay(client, server, done)
        adopt(relay)
        relay.start()
