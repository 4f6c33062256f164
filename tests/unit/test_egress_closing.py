"""`launcher.egress.exchange.Closing`: each answer says that its connection ends, and is the server's in all else."""

import asyncio
from pathlib import Path

import pytest

from launcher.egress.exchange import Closing
from tests.support.proxied import AUTH, asked, proxy, run, server

OK = b"HTTP/1.1 200 OK\r\n"
CLOSE = b"Connection: close\r\n"
LONG = b"HTTP/1.1 200 OK\r\nA: " + b"a" * (70 << 10)


@pytest.mark.parametrize(
    ("sent", "passed"),
    [
        (OK + b"A: b\r\n\r\nbody\r\n\r\nConnection: x", OK + CLOSE + b"A: b\r\n\r\nbody\r\n\r\nConnection: x"),
        (OK + b"\r\n", OK + CLOSE + b"\r\n"),
        (OK + b"connection: keep-alive\r\nA: b\r\n\r\n", OK + CLOSE + b"A: b\r\n\r\n"),
        (OK + b"Connection: keep-alive,\r\n\t x\r\nKeep-Alive : timeout=5\r\n\r\n", OK + CLOSE + b"\r\n"),
        (OK + b"Connection-Id: 7\r\nA: b,\r\n c\r\n\r\n", OK + CLOSE + b"Connection-Id: 7\r\nA: b,\r\n c\r\n\r\n"),
        (b"HTTP/1.1 200 OK\nA: b\n\nbody", OK + CLOSE + b"A: b\r\n\r\nbody"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" + OK + CLOSE + b"\r\n"),
        (b"HTTP/1.1 103 E\r\nA: b\r\n\r\n", b"HTTP/1.1 103 E\r\nA: b\r\n\r\n"),
        (b"HTTP/1.1 101 S\r\nConnection: upgrade\r\n\r\nraw", b"HTTP/1.1 101 S\r\nConnection: upgrade\r\n\r\nraw"),
        (b"no head\n\nof HTTP", b"no head\n\nof HTTP"),
        (b"<html>", b""),
        (LONG, LONG),
    ],
    ids=[
        "body", "no-fields", "replaced", "folded", "other-fields", "line-feeds", "after-interim", "interim", "upgrade",
        "no-http", "no-end", "too-long",
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_the_head_says_close_however_it_arrives(sent: bytes, passed: bytes, size: int) -> None:
    """In whatever pieces; what is no head of HTTP/1 stays as it is, and waits for no more than it may."""
    if size == 1 and sent is LONG:
        size = 512
    closing, found = Closing(), b""
    for start in range(0, len(sent), size):
        piece = sent[start : start + size]
        found += piece if closing.done else closing.answer(piece)
    assert found == passed
    assert closing.kept == (b"<html>" if sent == b"<html>" else b"")


def test_a_client_hears_it_from_the_proxy(tmp_path: Path) -> None:
    """One that only closes let clients take the connection for kept alive. What is no answer arrives all the same."""

    async def test() -> None:
        for said, heard in (
            (OK + b"Content-Length: 1\r\n\r\nx", OK + CLOSE + b"Content-Length: 1\r\n\r\nx"),
            (b"an answer of 1991", b"an answer of 1991"),
            (b"", b""),
        ):

            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: bytes = said) -> None:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(said)
                writer.close()
                await writer.wait_closed()

            async with server(answer) as to, proxy(tmp_path) as port:
                request = f"GET http://localhost:{to}/ HTTP/1.1\r\nHost: localhost:{to}\r\n".encode() + AUTH + b"\r\n"
                assert await asked(port, request) == heard

    run(test())
