"""The proxy's server on this machine's loopback: what it bears, relays and writes down."""

import asyncio
import hashlib
import ipaddress
import json
import socket
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.egress import dial as dialling
from launcher.egress import resolve
from launcher.egress.bounds import Bounds
from launcher.egress.forward import Forward
from launcher.egress.gateway import Gateway
from launcher.egress.log import FILE, Log
from launcher.egress.server import Server
from launcher.egress.upstream import Upstreams
from policy.addresses import Address
from policy.egress import EgressPolicy, Verdict

SECRET = "0123456789abcdef"
AUTH = b"Proxy-Authorization: Basic " + b64encode(f"paddock:{SECRET}".encode()) + b"\r\n"
PATIENCE = 30.0
BOUNDS = Bounds()

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
    serving = Server(gateway, SECRET, log, bounds, name_required=False)
    forward = Forward(ipaddress.ip_address("127.0.0.1"), forward_to, "rule", log, 5) if forward_to else None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        tasks = [asyncio.create_task(serving.serve(listener, forward)), asyncio.create_task(serving.sweep())]
        try:
            yield listener.getsockname()[1]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            serving.close()
            log.close()


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


def test_each_side_may_end_first(tmp_path: Path) -> None:
    """The end of one direction is passed on, and the other one goes on."""

    async def test() -> None:
        async with server(echo) as to, proxy(tmp_path) as port:
            reader, writer = await opened(port, "localhost", to)
            writer.write(b"words")
            writer.write_eof()
            assert await reader.read() == b"words"
            writer.close()
            await writer.wait_closed()

    run(test())


def test_a_slow_reader_loses_nothing(tmp_path: Path) -> None:
    """What does not fit into a socket waits, in both directions at once."""
    block = hashlib.sha256(b"x").digest() * 32768
    count = 24

    async def test() -> None:
        async with server(prompt) as to, proxy(tmp_path) as port:
            reader, writer = await opened(port, "127.0.0.1", to)

            async def send() -> None:
                for _ in range(count):
                    writer.write(block)
                    await writer.drain()
                writer.write_eof()

            sending = asyncio.create_task(send())
            got = hashlib.sha256()
            size = 0
            while data := await reader.read(10_000):
                got.update(data)
                size += len(data)
            await sending
            assert size == len(block) * count
            assert got.digest() == hashlib.sha256(block * count).digest()
            writer.close()
            await writer.wait_closed()

    run(test())


def test_more_connections_than_it_bears_are_turned_away(tmp_path: Path) -> None:
    """With 503; when one has ended there is room again."""

    async def test() -> None:
        async with server(prompt) as to, proxy(tmp_path, Bounds(connections=2)) as port:
            tunnels = [await opened(port, "127.0.0.1", to) for _ in range(2)]
            assert (await asked(port, b"")).startswith(b"HTTP/1.1 503 ")
            for reader, writer in tunnels:
                writer.close()
                await writer.wait_closed()
                del reader
            while True:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(f"CONNECT 127.0.0.1:{to} HTTP/1.0\r\n".encode() + AUTH + b"\r\n")
                answer = await reader.readline()
                writer.close()
                await writer.wait_closed()
                if b" 200 " in answer:
                    return
                assert b" 503 " in answer

    run(test())


@pytest.mark.parametrize("said", [b"", b"GET http://127.0.0.1/ HT", b"\x05", b"\x05\x01\x02\x01\x07pad"])
def test_a_head_that_never_ends_is_cut_off(tmp_path: Path, said: bytes) -> None:
    """Nobody holds a place by saying nothing."""

    async def test() -> None:
        async with proxy(tmp_path, Bounds(head_seconds=0.2)) as port:
            assert await asked(port, said) in (b"", b"\x05\x02")

    run(test())


def test_an_idle_tunnel_is_ended(tmp_path: Path) -> None:
    """In which nothing moves; words keep it alive."""

    async def test() -> None:
        async with server(prompt) as to, proxy(tmp_path, Bounds(idle_seconds=0.4)) as port:
            reader, writer = await opened(port, "127.0.0.1", to)
            for _ in range(10):
                writer.write(b"x")
                assert await reader.readexactly(1) == b"x"
                await asyncio.sleep(0.1)
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()

    run(test())


def test_an_upload_whose_answer_comes_early_ends(tmp_path: Path) -> None:
    """A server that answers and closes in the middle of a body is heard, and the client let go."""

    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async def test() -> None:
        async with server(hasty) as to, proxy(tmp_path) as port:
            where = f"127.0.0.1:{to}"
            head = f"POST http://{where}/ HTTP/1.1\r\nHost: {where}\r\nContent-Length: 100000\r\n".encode()
            assert (await asked(port, head + AUTH + b"\r\nfew")).startswith(b"HTTP/1.1 413 ")

    run(test())


def test_an_unreachable_destination_is_said(tmp_path: Path) -> None:
    """502 with a reason, refused and unknown alike, and the decision is in the log."""

    async def test() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            to = closed.getsockname()[1]
            async with proxy(tmp_path) as port:
                request = f"CONNECT localhost:{to} HTTP/1.0\r\n".encode() + AUTH + b"\r\n"
                answer = await asked(port, request)
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert b"egress-unreachable" in answer

    run(test())
    (line,) = lines(tmp_path)
    assert (line["operation"], line["host"], line["decision"]) == ("connect", "localhost", "allow")


def test_a_decision_is_one_line_of_json(tmp_path: Path) -> None:
    """Who asked how for what, the decision, the rule, the reason, and what would allow it."""

    async def test() -> None:
        async with proxy(tmp_path) as port:
            await asked(port, b"GET http://evil.example/\x41 HTTP/1.1\r\nHost: evil.example\r\n" + AUTH + b"\r\n")
            await asked(port, b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n")

    run(test())
    first, second = lines(tmp_path)
    assert first.pop("time") > 0
    assert first == {
        "operation": "GET", "host": "evil.example", "port": 80, "decision": "deny", "rule": "", "layer": "proxy",
        "reason": "no rule allows evil.example:80", "suggestion": "--allow-domain evil.example:80",
    }  # fmt: skip
    assert "token" in second["reason"]


def test_the_log_has_an_end(tmp_path: Path) -> None:
    """A jail cannot fill the disk with denials; how many were left out is said."""
    log = Log(f"{tmp_path}/{FILE}", 1000)
    for _ in range(100):
        log.decision("connect", "evil.example", 443, Verdict(False, "", "no"))
    log.close()
    *written, last = lines(tmp_path)
    assert last["operation"] == "lost"
    assert len(written) + last["count"] == 100
    assert (tmp_path / FILE).stat().st_size < 2000
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def upstream_proxy(seen: list[bytes], status: bytes = b"200 OK") -> Handler:
    """Another proxy: notes what it is told, then plays the destination."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 " + status + b"\r\n\r\n")
        if seen[-1].startswith(b"CONNECT"):
            await prompt(reader, writer)
        else:
            writer.close()
            await writer.wait_closed()

    return handle


@pytest.fixture
def unresolving(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name is known here, as behind many a company's proxy."""

    def look_up(host: str, port: int) -> list[Address]:
        raise socket.gaierror(socket.EAI_NONAME, "not known")

    monkeypatch.setattr(resolve, "_look_up", look_up)


@pytest.mark.usefixtures("unresolving")
def test_the_machines_own_proxy_is_used(tmp_path: Path) -> None:
    """Tunnels in a tunnel, plain requests with their whole URL, credentials for it alone, NO_PROXY around it."""
    seen: list[bytes] = []

    async def test() -> None:
        async with server(upstream_proxy(seen)) as up, server(prompt) as direct:
            env = {"HTTPS_PROXY": f"http://u:p@127.0.0.1:{up}", "http_proxy": f"http://127.0.0.1:{up}"}
            async with proxy(tmp_path, env=env | {"no_proxy": "other.example"}) as port:
                reader, writer = await opened(port, "example.com", 443)
                writer.write(b"through both")
                assert await reader.readexactly(12) == b"through both"
                writer.close()
                await writer.wait_closed()
                answer = await asked(
                    port, b"GET http://example.com/a HTTP/1.1\r\nHost: example.com\r\n" + AUTH + b"\r\n"
                )
                assert answer.startswith(b"HTTP/1.1 200 ")
                reader, writer = await opened(port, "127.0.0.1", direct)
                writer.close()
                await writer.wait_closed()

    run(test())
    credentials = b64encode(b"u:p")
    assert seen[0] == (
        b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\nProxy-Authorization: Basic " + credentials
        + b"\r\n\r\n"
    )  # fmt: skip
    assert seen[1].startswith(b"GET http://example.com/a HTTP/1.1\r\n")
    assert b"roxy-Authorization" not in seen[1]
    assert len(seen) == 2


@pytest.mark.usefixtures("unresolving")
def test_an_upstream_proxy_that_refuses_is_said(tmp_path: Path) -> None:
    """502, in words; and what the rules deny never gets as far."""
    seen: list[bytes] = []

    async def test() -> None:
        async with (
            server(upstream_proxy(seen, b"403 No")) as up,
            proxy(tmp_path, env={"ALL_PROXY": f"127.0.0.1:{up}"}) as port,
        ):
            for host, status in (("example.com", b"502"), ("evil.example", b"403"), ("10.1.2.3", b"403")):
                request = f"CONNECT {host}:443 HTTP/1.0\r\n".encode() + AUTH + b"\r\n"
                assert (await asked(port, request)).startswith(b"HTTP/1.1 " + status)

    run(test())
    assert len(seen) == 1


def test_a_forwarded_port_leads_to_one_place(tmp_path: Path) -> None:
    """Without a word of any proxy protocol, and with a line in the log."""

    async def test() -> None:
        async with server(prompt) as to, proxy(tmp_path, forward_to=to) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x16\x03 any bytes")
            assert await reader.readexactly(12) == b"\x16\x03 any bytes"
            writer.close()
            await writer.wait_closed()

    run(test())
    assert [line["operation"] for line in lines(tmp_path)] == ["reach"]


V4, V6 = ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")


def test_an_address_that_does_not_answer_does_not_hold_up_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is tried while the first hangs, and the first is given up then."""
    given_up = []

    async def connect(address: Address, port: int) -> socket.socket:
        if address == V6:
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                given_up.append(address)
                raise
        return socket.socket()

    async def test() -> None:
        monkeypatch.setattr(dialling, "_connect", connect)
        (await dialling.dial([V6, V4], 1, PATIENCE)).close()
        await asyncio.sleep(0)

    run(test())
    assert given_up == [V6]


def test_dialling_says_why_it_failed() -> None:
    """Refused, out of time, or nothing to dial."""

    async def test() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            with pytest.raises(dialling.Unreachable) as caught:
                await dialling.dial([V4, V6], closed.getsockname()[1], PATIENCE)
        assert caught.value.refused
        with pytest.raises(dialling.Unreachable) as caught:
            await dialling.dial([], 1, PATIENCE)
        assert not caught.value.refused

    run(test())
