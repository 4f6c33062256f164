"""The proxy's server in a thread of this process, on this machine's loopback, and something to connect it with."""

import asyncio
import ipaddress
import json
import socket
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from launcher.egress.gateway import Bounds, Gateway, Upstreams
from launcher.egress.log import FILE, Log
from launcher.egress.proxy import Forward, Server
from launcher.loop import Loop, Signal
from policy.egress import EgressPolicy

SECRET = "0123456789abcdef"
AUTH = b"Proxy-Authorization: Basic " + b64encode(f"paddock:{SECRET}".encode()) + b"\r\n"
PATIENCE = 30.0
BOUNDS = Bounds()

T = TypeVar("T")
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def run(test: Awaitable[None]) -> None:
    """Runs a test's coroutine, which must end in time."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await test

    asyncio.run(bounded())


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[int]:
    """A TCP server on the loopback: its port."""
    serving = await asyncio.start_server(handler, "127.0.0.1", 0)
    async with serving:
        yield serving.sockets[0].getsockname()[1]


@asynccontextmanager
async def proxy(
    directory: Path, bounds: Bounds = BOUNDS, env: Mapping[str, str] = {}, forward_to: int = 0
) -> AsyncIterator[int]:
    """A proxy that allows localhost and 127.0.0.1: its port."""
    log = Log(f"{directory}/{FILE}", bounds.log_bytes)
    gateway = Gateway(EgressPolicy(("127.0.0.1", "localhost", "example.com")), Upstreams(env), log, bounds)
    serving = Server(gateway, SECRET, log, name_required=False)
    forward = Forward(ipaddress.ip_address("127.0.0.1"), forward_to, "rule", log) if forward_to else None
    faults: list[BaseException] = []
    loop = Loop(faults.append)

    def end() -> None:
        for relay in list(serving.relays):
            relay.close()
        loop.stop()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        tasks = [loop.spawn(serving.serve(listener, forward)), loop.spawn(serving.sweep())]
        thread = threading.Thread(target=loop.run)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            loop.post(end)
            await asyncio.to_thread(thread.join)
            log.close()
    assert not faults
    assert not any(task.error for task in tasks)


def looped(work: Coroutine[Signal, None, T]) -> T:
    """What the proxy's own loop makes of a coroutine: its value, or what it raises."""
    values: list[T] = []
    faults: list[BaseException] = []
    loop = Loop(faults.append)

    async def whole() -> None:
        values.append(await work)

    task = loop.spawn(whole())
    task.when_done(lambda _: loop.stop())
    loop.call_later(PATIENCE, loop.stop)
    loop.run()
    assert not faults
    if task.error is not None:
        raise task.error
    return values[0]


def lines(directory: Path) -> list[dict[str, Any]]:
    """What the log holds."""
    return [json.loads(line) for line in (directory / FILE).read_text().splitlines()]


async def opened(port: int, host: str, to: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A tunnel through the proxy."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"CONNECT {host}:{to} HTTP/1.1\r\nHost: {host}:{to}\r\n".encode() + AUTH + b"\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    return reader, writer


async def asked(port: int, request: bytes) -> bytes:
    """The whole answer to some bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says everything back when the client has said all."""
    data = await reader.read()
    writer.write(data)
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def prompt(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says everything back at once."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()
