"""The proxy's server in a thread of this process, on this machine's loopback, and something to connect it with."""

import asyncio
import ipaddress
import json
import os
import select
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import trustme

from launcher.egress.gateway import Bounds, Gateway
from launcher.egress.log import FILE, Log
from launcher.egress.outside import Upstreams
from launcher.egress.proxy import Forward, Server
from launcher.egress.spending import Spending
from launcher.egress.vendors import Vendors
from launcher.loop import Loop, Signal
from policy.egress_rules import EgressPolicy
from policy.keys import Key
from tests.support import internet
from tests.support.identity import Who, Word

# A machine with an Internet of its own (`internet.py`), for tests that need public addresses and names.

CERTIFIED = ("good.example", "*.good.example", "other.example", "second.example", "six.example", "both.example")
ONE_ATTEMPT = ("--env=PIP_RETRIES=0", "--env=npm_config_fetch_retries=0")
"""Options of `paddock run`: who is denied would ask again and again otherwise, pip for 8 seconds and npm for 70."""
_PROGRAM = Path(internet.__file__)


@dataclass(frozen=True)
class World:
    """A running world.

    Attributes:
        directory: holds `www`, which the servers serve, `ca.pem`, which certified them, and `seen.jsonl`.
        prefix: words in front of a command that is to run on the machine; it needs the suite's own rights.
    """

    directory: Path
    prefix: tuple[str, ...]

    def run(
        self,
        who: Who,
        argv: Sequence[Word],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> "subprocess.CompletedProcess[str]":
        """Runs `argv` on the machine, as `who`, to its end."""
        return subprocess.run(
            [*self.prefix, "env", f"--chdir={cwd}", *who.command(argv)],
            cwd=cwd,
            env=who.environment(env),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def start(
        self, who: Who, argv: Sequence[Word], *, cwd: Path, env: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[str]":
        """Starts `argv` on the machine, as `who`, with pipes; the caller ends it."""
        return subprocess.Popen(
            [*self.prefix, "env", f"--chdir={cwd}", *who.command(argv)],
            cwd=cwd,
            env=who.environment(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def seen(self, since: int = 0) -> list[dict[str, Any]]:
        """What has arrived anywhere, without the first `since` entries."""
        file = self.directory / "seen.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()][since:]


@contextmanager
def world(directory: Path) -> Iterator[World]:
    """Makes a world in `directory`, which every user can enter."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(directory / "ca.pem")
    ca.issue_cert(*CERTIFIED).private_key_and_cert_chain_pem.write_to_path(directory / "server.pem")
    (directory / "www").mkdir()
    (directory / "seen.jsonl").touch()
    root = os.geteuid() == 0
    user = () if root else ("--user", "--map-current-user", "--keep-caps")
    process = subprocess.Popen(
        ["unshare", *user, "--net", "--mount", "--", sys.executable, _PROGRAM, "machine", directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n", "the world was not made"
        namespaces = ("--net", "--mount") if root else ("--user", "--preserve-credentials", "--net", "--mount")
        yield World(directory, ("nsenter", f"--target={process.pid}", *namespaces, "--"))
    finally:
        process.stdin.close()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.stdout.close()


# A company's proxy that lets nobody out but to its own stand-ins of vendors, and remembers who wanted where: what
# leaves a jail would come by here.


@dataclass
class CompanyProxy:
    """A running proxy.

    Attributes:
        port: on 127.0.0.1.
        asked: first lines of the requests.
        vendors: hosts, each with the port of the loopback that stands for it.
        tls: in which it speaks for them.
    """

    port: int
    asked: list[str] = field(default_factory=list)
    vendors: dict[str, int] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What the launcher is told, so that its own proxy goes through this one."""
        return dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"), f"http://127.0.0.1:{self.port}")


class _Handler(socketserver.StreamRequestHandler):
    timeout = 30

    def handle(self) -> None:
        line = self.rfile.readline(4096).decode("latin-1").strip()
        proxy: CompanyProxy = self.server.proxy  # type: ignore[attr-defined]  # ours, below
        proxy.asked.append(line)
        host = line.split()[1].partition(":")[0] if " " in line else ""
        if host in proxy.vendors and proxy.tls is not None:
            while self.rfile.readline(4096).strip():
                pass
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            self._stand_for(proxy.vendors[host], proxy.tls)
            return
        self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def _stand_for(self, port: int, tls: ssl.SSLContext) -> None:
        """By one thread: OpenSSL's connection is none that two may read and write at once (SSL_read(3))."""
        with (
            suppress(OSError),
            tls.wrap_socket(self.connection, server_side=True) as client,
            socket.create_connection(("127.0.0.1", port)) as there,
        ):
            while True:
                ready = [client] if client.pending() else select.select([client, there], [], [])[0]
                for sock, other in ((client, there), (there, client)):
                    if sock in ready:
                        sock.setblocking(False)
                        with suppress(ssl.SSLWantReadError):
                            if not (data := sock.recv(65536)):
                                return
                            other.setblocking(True)
                            other.sendall(data)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    proxy: CompanyProxy


@contextmanager
def company_proxy() -> Iterator[CompanyProxy]:
    """A proxy for as long as the context lasts."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.proxy = CompanyProxy(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.proxy
        finally:
            server.shutdown()
            thread.join()


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
    directory: Path,
    bounds: Bounds = BOUNDS,
    env: Mapping[str, str] = {},
    forward_to: int = 0,
    *,
    allow: Sequence[str] = ("127.0.0.1", "localhost", "example.com"),
    held: Sequence[tuple[Key, str, str]] = (),
    spending: Spending | None = None,
) -> AsyncIterator[int]:
    """A proxy: its port. It allows localhost and 127.0.0.1 without more, and holds keys."""
    log = Log(f"{directory}/{FILE}", bounds.log_bytes)
    gateway = Gateway(EgressPolicy(allow), Upstreams(env), log, bounds)
    vendors = Vendors(tuple(held), allow, (), (), gateway, env, (), spending or Spending({})) if held else None
    serving = Server(gateway, SECRET, log, vendors, name_required=False)
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


async def asked(port: int, request: bytes, *, end: bool = False) -> bytes:
    """The whole answer to some bytes; with `end` nothing follows them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    if end:
        writer.write_eof()
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
