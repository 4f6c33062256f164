"""The machine's own proxy on the way out: used, exempted, and said when it refuses."""

import asyncio
import socket
from base64 import b64encode
from ipaddress import ip_address
from pathlib import Path

import pytest

from launcher.egress import outside
from policy.hosts import Address
from tests.support.proxied import AUTH, Handler, asked, opened, prompt, proxy, run, server


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
        if host == "127.0.0.1":
            return [ip_address(host)]
        raise socket.gaierror(socket.EAI_NONAME, "not known")

    monkeypatch.setattr(outside, "look_up", look_up)


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
