"""The proxy's server on this machine's loopback: what it bears, relays and writes down."""

import asyncio
import hashlib
import ipaddress
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.egress import gateway
from launcher.egress.gateway import Bounds, Unreachable, dial
from launcher.egress.log import FILE, Log, last_fault
from launcher.ledger import ledgers
from policy.egress_rules import Verdict
from policy.hosts import Address
from policy.pasted import cited
from tests.support.install import ROOT
from tests.support.proxied import AUTH, PATIENCE, asked, echo, lines, looped, opened, prompt, proxy, run, server


def test_the_proxy_is_loaded_without_openssl() -> None:
    """TLS passes through it and is not spoken, so the library stays out: of its time, and of what could be attacked."""
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]; from launcher.egress import handle;"
        " handle._load(lambda: None).run; print([line for line in open('/proc/self/maps') if '/lib' in line])"
    )
    paths = [str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, *paths], capture_output=True, text=True, check=True
    )
    assert "libc" in ended.stdout
    assert "libssl" not in ended.stdout
    assert "libcrypto" not in ended.stdout


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
            for sent in (b"", b"Proxy-Authorization: Basic eDp5\r\n"):
                await asked(port, b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n" + sent + b"\r\n")

    run(test())
    first, second = lines(tmp_path)  # without a token: nothing, because every client of some kinds begins like that
    assert first.pop("time") > 0
    assert first == {
        "operation": "HTTP GET", "host": "evil.example", "port": 80, "decision": "deny", "rule": "", "layer": "proxy",
        "reason": "no rule allows evil.example:80", "suggestion": "--allow-domain evil.example:80",
    }  # fmt: skip
    assert "token" in second["reason"]


@pytest.mark.parametrize("method", ["GET", "resolve", "key", "fault", "lost", "connect", "--net"])
def test_a_method_is_no_word_of_paddocks(tmp_path: Path, method: str) -> None:
    """Whatever the client calls it, it was refused, by a rule that can be added, and no fault of the proxy's."""

    async def test() -> None:
        async with proxy(tmp_path) as port:
            head = f"{method} http://evil.example/x HTTP/1.1\r\nHost: evil.example\r\n".encode()
            assert b" 403 " in (await asked(port, head + AUTH + b"\r\n"))[:20]

    run(test())
    assert last_fault(str(tmp_path)) == ""
    (found,), lost = ledgers.read_proxy_log(f"{tmp_path}/{FILE}")
    assert (found.operation, found.harmless, lost) == (f"HTTP {cited(method)}", False, 0)
    paragraph = "\n".join(ledgers.paragraph(ledgers.proxied(found)))
    assert "denied by   proxy" in paragraph
    assert "to allow it --allow-domain evil.example:80" in paragraph


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


FIRST, SECOND = ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("127.0.0.2")


def test_an_address_that_does_not_answer_does_not_hold_up_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is tried while the first hangs, and the first is given up then."""
    tried: list[socket.socket] = []
    connecting = gateway._connecting

    def noted(address: Address, port: int) -> socket.socket:
        tried.append(connecting(address, port))
        return tried[-1]

    monkeypatch.setattr(gateway, "_connecting", noted)
    with socket.create_server((str(FIRST), 0), backlog=0) as full, socket.socket() as filling:
        port = full.getsockname()[1]
        filling.connect((str(FIRST), port))  # nobody accepts it, and there is room for no other
        with socket.create_server((str(SECOND), port)), looped(dial([FIRST, SECOND], port, PATIENCE)) as found:
            assert found.getpeername() == (str(SECOND), port)
    assert tried[0].fileno() == -1


def test_dialling_says_why_it_failed() -> None:
    """Refused, out of time, or nothing to dial."""
    with socket.socket() as closed:
        closed.bind((str(FIRST), 0))
        with pytest.raises(Unreachable) as caught:
            looped(dial([FIRST, SECOND], closed.getsockname()[1], PATIENCE))
    assert caught.value.refused
    with socket.create_server((str(FIRST), 0), backlog=0) as full, socket.socket() as filling:
        filling.connect(full.getsockname())
        with pytest.raises(Unreachable, match="no answer within 0 seconds") as caught:
            looped(dial([FIRST], full.getsockname()[1], 0.1))
    assert not caught.value.refused
    with pytest.raises(Unreachable, match="no address") as caught:
        looped(dial([], 1, PATIENCE))
    assert not caught.value.refused
