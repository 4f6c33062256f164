"""Dialling one of several checked addresses: happy eyeballs (RFC 8305), with addresses and nothing else."""

import asyncio
import socket

from policy.addresses import Address

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
    if len(addresses) == 1:
        try:
            async with asyncio.timeout(patience):
                return await _connect(addresses[0], port)
        except TimeoutError:
            raise Unreachable(f"no answer within {patience:.0f} seconds", refused=False) from None
        except OSError as problem:
            refused = isinstance(problem, ConnectionRefusedError)
            raise Unreachable(problem.strerror or str(problem), refused=refused) from None
    errors: list[OSError] = []
    running: set[asyncio.Task[socket.socket]] = set()
    waiting = _interleaved(addresses)
    try:
        async with asyncio.timeout(patience):
            while waiting or running:
                if waiting:
                    running.add(asyncio.create_task(_connect(waiting.pop(0), port)))
                done, running = await asyncio.wait(
                    running, timeout=STAGGER if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                connected = []
                for task in done:
                    error = task.exception()
                    if error is None:
                        connected.append(task.result())
                    elif isinstance(error, OSError):
                        errors.append(error)
                    else:
                        raise error
                for spare in connected[1:]:
                    spare.close()
                if connected:
                    return connected[0]
    except TimeoutError:
        errors.insert(0, TimeoutError(f"no answer within {patience:.0f} seconds"))
    finally:
        for task in running:
            task.cancel()
            task.add_done_callback(_drop)
    first = errors[0] if errors else OSError("no address")
    refused = any(isinstance(error, ConnectionRefusedError) for error in errors)
    raise Unreachable(first.strerror or str(first), refused=refused)


def _drop(task: "asyncio.Task[socket.socket]") -> None:
    """Closes a connection that nobody waits for any more."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def _interleaved(addresses: list[Address]) -> list[Address]:
    first = [address for address in addresses if address.version == addresses[0].version]
    second = [address for address in addresses if address.version != addresses[0].version]
    mixed: list[Address] = []
    while first or second:
        mixed += first[:1] + second[:1]
        first, second = first[1:], second[1:]
    return mixed


async def _connect(address: Address, port: int) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock
