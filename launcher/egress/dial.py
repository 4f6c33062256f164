"""Dialling one of several checked addresses: happy eyeballs (RFC 8305), with addresses and nothing else."""

import socket
import time
from collections.abc import Callable

from launcher.egress import sockets
from launcher.egress.log import Log
from launcher.egress.relay import Relay
from policy.egress import Verdict
from policy.hosts import Address

STAGGER = 0.25
"""Seconds before the next address is tried as well (RFC 8305 section 5)."""


class Unreachable(OSError):
    """None of the addresses answered; `refused` when one of them said no."""

    def __init__(self, text: str, *, refused: bool) -> None:
        super().__init__(text)
        self.refused = refused


async def dial(addresses: list[Address], port: int, patience: float) -> socket.socket:
    """A connection to the first of `addresses` that answers, non-blocking, owned by the caller.

    Args:
        addresses: checked ones; both families take turns.
        port: of all of them.
        patience: seconds for all of it.

    Raises:
        Unreachable: with the reason of the first.
    """
    waiting = _interleaved(addresses)
    trying: list[socket.socket] = []
    errors: list[OSError] = []
    deadline = time.monotonic() + patience
    try:
        while waiting or trying:
            left = deadline - time.monotonic()
            if left <= 0:
                errors.insert(0, TimeoutError(f"no answer within {patience:.0f} seconds"))
                break
            if waiting:
                try:
                    connected = _begin(waiting.pop(0), port, trying)
                except OSError as error:
                    errors.append(error)
                    continue
                if connected is not None:
                    return connected
            for sock in await sockets.writable(trying, min(left, STAGGER) if waiting else left):
                trying.remove(sock)
                try:
                    sockets.outcome(sock)
                except OSError as error:
                    sock.close()
                    errors.append(error)
                else:
                    return sock
    finally:
        for sock in trying:
            sock.close()
    first = errors[0] if errors else OSError("no address")
    refused = any(isinstance(error, ConnectionRefusedError) for error in errors)
    raise Unreachable(first.strerror or str(first), refused=refused)


def _interleaved(addresses: list[Address]) -> list[Address]:
    first = [address for address in addresses if address.version == addresses[0].version]
    second = [address for address in addresses if address.version != addresses[0].version]
    mixed: list[Address] = []
    while first or second:
        mixed += first[:1] + second[:1]
        first, second = first[1:], second[1:]
    return mixed


def _begin(address: Address, port: int, trying: list[socket.socket]) -> socket.socket | None:
    """Begins to connect. Returns the socket when that was all; else it is one of `trying` from now on."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if not sockets.begin(sock, (str(address), port)):
            return sock
    except OSError:
        sock.close()
        raise
    trying.append(sock)
    return None


# A port that leads to one place: what --reach grants, without a word of any proxy protocol.


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
