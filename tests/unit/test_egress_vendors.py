"""Keys that stay outside, at the proxy: what a vendor gets of a request with a phantom, and what its client gets."""

import asyncio
import socket
import ssl
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import h11
import pytest
import trustme

from launcher.egress import vendors
from launcher.egress.gateway import Bounds
from launcher.egress.secured import Authority
from policy.keys import Key, local, parse_key
from tests.support.proxied import AUTH, asked, lines, proxy, run, server

PHANTOM, REAL = "sk-phantom-0123456789", "sk-the-real-one"
NOTHING: tuple[str, ...] = ("example.com",)
"""Rules that allow no way to the vendor but by the phantom."""


@dataclass
class Vendor:
    """An API that answers each request in full, on connections that stay; or with what `answer` does."""

    answer: "Callable[[h11.Request, bytes, Writer], Awaitable[bytes | None]] | None" = None
    requests: list[h11.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0

    async def serve(self, reader: Reader, writer: Writer) -> None:
        """One client."""
        self.connections += 1
        self.open += 1
        connection = h11.Connection(h11.SERVER)
        try:
            while True:
                request, body = await self._next(connection, reader)
                if request is None:
                    break
                self.requests.append(request)
                self.bodies.append(body)
                if self.answer is not None:
                    if (left := await self.answer(request, body, writer)) is None:
                        await reader.read()
                        break
                    writer.write(left)
                else:
                    response = h11.Response(status_code=200, headers=[("Content-Length", str(len(body)))])
                    for event in (response, h11.Data(body), h11.EndOfMessage()):
                        writer.write(connection.send(event) or b"")
                await writer.drain()
                if self.answer is not None:
                    break
                connection.start_next_cycle()
        except (ConnectionError, h11.ProtocolError, ssl.SSLError):
            pass
        self.left.set()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        self.open -= 1

    @staticmethod
    async def _next(connection: h11.Connection, reader: Reader) -> tuple[h11.Request | None, bytes]:
        request, body = None, b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(65536))
            elif isinstance(event, h11.Request):
                request = event
                if request.method == b"GET" and any(name == b"upgrade" for name, _ in request.headers):
                    return request, b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            else:
                return (request if isinstance(event, h11.EndOfMessage) else None), body


@asynccontextmanager
async def serving(vendor: Vendor, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The vendor's URL, while it serves."""
    server = await asyncio.start_server(vendor.serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        vendor.port = server.sockets[0].getsockname()[1]
        yield f"http{'s' if tls else ''}://127.0.0.1:{vendor.port}"
        while vendor.open:
            await asyncio.sleep(0.01)


def held(url: str, words: str = "path=/v1") -> tuple[tuple[Key, str, str], ...]:
    """A key for that API, with its phantom."""
    return ((parse_key(f"TOKEN={url},{words}"), PHANTOM, REAL),)


def request(path: str = "/v1/x", *headers: str, method: str = "POST", body: str = "", token: str = PHANTOM) -> bytes:
    """A request as an SDK sends it, on a connection that is to stay."""
    words = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1:3128", *headers]
    words += [f"Authorization: Bearer {token}"] if token else []
    words += [f"Content-Length: {len(body)}"] if method == "POST" else []
    return "\r\n".join(words).encode() + b"\r\n\r\n" + body.encode()


async def answer(reader: Reader) -> tuple[bytes, bytes]:
    """The head of an answer with a length, and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    return head, await reader.readexactly(int(length))


async def ended(writer: Writer) -> None:
    """Closes a client."""
    writer.close()
    await writer.wait_closed()


def test_the_vendor_gets_the_key_and_no_other_credential(tmp_path: Path) -> None:
    """However the client writes its headers; everything else comes as it was sent."""

    async def test() -> None:
        vendor = Vendor()
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url)) as port:
            foreign = (
                *(
                    "X-Api-Key",
                    "x_api_key",
                    "Api-Key",
                    "X-Goog-Api-Key",
                    "x_goog_api_key",
                    "Cookie",
                    "Cookie2",
                    "ApiKey",
                ),
                *("Authorization_", "X-Auth-Token", "Private-Token", "Job-Token", "X-Vault-Token", "X-Access-Token"),
                *("Ocp-Apim-Subscription-Key", "X-Amz-Security-Token", "X-Token", "X-Key", "DPoP"),
                *("X-Serverless-Authorization", "X-Goog-Iam-Authorization-Token"),
                *("X-Session", "Vmware-Api-Session-Id", "X-Metabase-Session", "X-Pwd", "X-Client-Cert", "X-Sid"),
            )
            other = (*(f"{name}: foreign" for name in foreign), "X-Odd:  Two  ", "X-Max-Tokens: 5", "session_id: 0a-1b")
            said = await asked(port, request("/v1/x?beta=true", *other, "Connection: close", body="words"))
            assert said.startswith(b"HTTP/1.1 200 ")
            assert said.endswith(b"\r\n\r\nwords")
        (got,) = vendor.requests
        names = [name for name, _ in got.headers]
        assert (got.method, got.target) == (b"POST", b"/v1/x?beta=true")
        assert dict(got.headers)[b"authorization"] == f"Bearer {REAL}".encode()
        assert dict(got.headers)[b"x-odd"] == b"Two"
        assert dict(got.headers)[b"host"] == f"127.0.0.1:{vendor.port}".encode()
        assert dict(got.headers)[b"x-max-tokens"] == b"5"
        assert dict(got.headers)[b"session_id"] == b"0a-1b"  # as codex sends it, for the vendor's cache
        assert not {name.lower().encode() for name in foreign} & set(names)
        assert b"connection" not in names
        assert names.count(b"authorization") == 1
        assert vendor.bodies == [b"words"]
        (decision,) = lines(tmp_path)
        assert (decision["decision"], decision["port"]) == ("allow", vendor.port)
        assert REAL not in str(lines(tmp_path))

    run(test())


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (b"a=b; __cf_bm=x.y-z; _cfuvid=1; sessionKey=F; cf_clearance=2", b"__cf_bm=x.y-z; _cfuvid=1; cf_clearance=2"),
        (b"__cf_x=1, sessionKey=sk-ant-sid01-F; a=b", b"__cf_x=1"),
        (b"__cf_x=sk-ant-sid01-F; _cfuvid=Bearer F", b""),
    ],
)
def test_of_cookies_only_those_of_the_front_end_remain(sent: bytes, kept: bytes) -> None:
    """However a server separates them, and none that holds a credential."""
    assert vendors._front_cookies(b"Cookie", sent) == kept


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (request(token=""), 401),
        (request(token="sk-phantom-0123456788"), 401),
        (request(token=REAL), 401),
        (request("/v1/x", f"X-Api-Key: {PHANTOM}", token=""), 401),
        (request("/v1/x", f"Proxy-Authorization: Bearer {PHANTOM}", token=""), 401),
        (request("/v2/x"), 403),
        (request("/v1"), 200),
        (request("/v10/x"), 403),
        (request("/v1/../v2/x"), 403),
        (request("/v1/%2e%2e/v2/x"), 403),
        (request("/v1//x"), 403),
        (request("/V1/x"), 403),
        (request("/v1/x", method="DELETE"), 403),
        (request("/v1/x", method="PUT"), 403),
        (request("/v1/x", "X-HTTP-Method-Override: DELETE"), 403),
        (request("/v1/x", "X-Original-URL: /v2/x"), 403),
        (request("/v1/x?key=foreign"), 403),
        (request("/v1/x?a=b&access_token=foreign"), 403),
        (request("/v1/x?x=1;key=F"), 403),
        (request("/v1/x?authorization=Bearer%20F"), 403),
        (request("/v1/x?x-goog-api-key=F"), 403),
        (request("/v1/x?%00key=F"), 403),
        (request("/v1/x?key[]=F"), 403),
        (request("/v1/x?private_token=F"), 403),
        (request("/v1/x?X-Amz-Signature=F"), 403),
        (request("/v1/x?$httpHeaders=x-goog-api-key:F"), 403),
        (request("/v1/x?%24HTTPMETHOD=DELETE"), 403),
        *(
            (request(f"/v1/x?{name}=F"), 403)
            for name in (
                "session",
                "sid",
                "assertion",
                "code",
                "pwd",
                "pass",
                "hmac",
                "client_assertion",
                "userProject",
            )
        ),
        (request("/v1/x?q=AIzaSyA0123456789012345678901234567890"), 403),
        (request("/v1/x?sessionId=F&compass=n&country_code=de&$alt=json"), 200),
        (request("/v1/x?pageToken=2&alt=sse&beta=true"), 200),
        (request("/v1/..%20/v2"), 403),
        (request("/v1/..,/v2"), 403),
        (request("/v1/a;..;/b"), 403),
        (request("/v1/..%c2%a0/x"), 403),
        (request("/v1/.well-known/..x"), 200),
        (request("/v1/messages/batches"), 403),
        (request("/v1/messages/%62atches"), 403),
        (request("/v1/messages/BATCHE%73;x/1"), 403),
        (request("/v1/m:batchGenerateContent"), 403),
        (request("/v1/m%3aasyncBatchEmbedContent"), 403),
        (request("/v1/m:batchEmbedContents"), 200),
        (request("/v1/x-batches/batches2?y=/batches"), 200),
        (request("/v1/x", "X-Forwarded-Path: /v2"), 403),
        (request("/v1/x", "X_Original_Path: /v2"), 403),
        (request("/v1/x", "X-Envoy-Original-Path: /v2"), 403),
        (request("/v1/x", "X-Goog-Method-Override: DELETE"), 403),
        (request("/v1/x", "Destination: /v2"), 403),
        (request("/v1/x", "X-Forwarded-For: 10.0.0.1"), 200),
        *(
            (request("/v1/x", f"{name}: /v2/x"), 403)
            for name in ("Forwarded", "X-Host", "X-HTTP-Host-Override", "X_HTTP_Path_Override", "X-Path", "X-Uri")
        ),
        *(
            (request(f"/v1/{path}/v2/x"), 403)
            for path in ("%EF%BC%8E%EF%BC%8E", "%E2%80%A5", "a%EF%BC%8F..", "%EF%BC%85")
        ),
        (request("/v1/%C3%A9%E2%80%A6/x"), 200),
        (request("/v1/x", method="GET", body=""), 200),
        (request("/v1/x", "Transfer-Encoding: chunked", body="5"), 400),
        (request("/v1/x", "Host: elsewhere"), 400),
        (request("http://elsewhere/v1/x"), 407),
        (b"GET /v1/x HTTP/1.1\r\n\r\n", 400),
        (b"\x00" * 40, 400),
    ],
)
def test_a_phantom_is_good_for_its_methods_and_paths_alone(tmp_path: Path, said: bytes, status: int) -> None:
    """Nothing else reaches the vendor, nor what two servers could read in two ways."""

    async def test() -> None:
        vendor = Vendor()
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            head = await reader.readuntil(b"\r\n")
            assert head.split(b" ")[1] == str(status).encode(), head
            await ended(writer)
        assert bool(vendor.connections) is (status == 200)
        if status in (401, 403):
            assert [line["decision"] for line in lines(tmp_path)] == ["deny"]

    run(test())


@pytest.mark.parametrize(
    ("words", "path", "there"),
    [
        ("path=/v1", "/v1/%7eme/%6D:%3a;a%3bb?q=%62", "/v1/~me/m:%3A;a%3Bb?q=%62"),
        ("path=/v1", "/v1/a%2fb", ""),
        ("method=*", "/v1/a%2fb", ""),
        ("method=*", "/v1%5cbatches", ""),
        ("method=*", "/v1/%2562atches", ""),
        ("method=*", "/v1/b%41tches%3Fx", ""),
        ("path=/v1/batches", "/v1/%62atches", "/v1/batches"),
    ],
)
def test_a_path_goes_on_as_it_was_decided_on(tmp_path: Path, words: str, path: str, there: str) -> None:
    """In its normal form; what has none reaches nobody by a key, whatever that is good for."""

    async def test() -> None:
        vendor = Vendor()
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url, words)) as port:
            said = await asked(port, request(path, "Connection: close"))
            assert said.startswith(b"HTTP/1.1 200 " if there else b"HTTP/1.1 403 "), said
        assert [got.target.decode() for got in vendor.requests] == ([there] if there else [])

    run(test())


def test_several_requests_share_both_connections(tmp_path: Path) -> None:
    """Also when they come at once: they are answered in their order."""

    async def test() -> None:
        vendor = Vendor()
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for word in ("one", "two"):
                writer.write(request(body=word))
                assert (await answer(reader))[1] == word.encode()
            writer.write(request(body="three") + request(body="four"))
            assert (await answer(reader))[1] == b"three"
            assert (await answer(reader))[1] == b"four"
            await ended(writer)
        assert vendor.connections == 1
        assert len(vendor.requests) == 4

    run(test())


def test_a_vendor_that_has_closed_is_called_anew(tmp_path: Path) -> None:
    """An SDK's connection outlives the vendor's patience."""

    async def test() -> None:
        async def once(_request: h11.Request, body: bytes, _writer: Writer) -> bytes:
            return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

        vendor = Vendor(once)
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for number in range(3):
                vendor.left.clear()
                writer.write(request(body=str(number)))
                assert (await answer(reader))[1] == str(number).encode()
                await vendor.left.wait()
            await ended(writer)
        assert vendor.connections == 3

    run(test())


def test_an_event_stream_comes_as_it_is_sent(tmp_path: Path) -> None:
    """Nothing of it is held back until more comes."""

    async def test() -> None:
        heard = asyncio.Event()

        async def stream(_request: h11.Request, _body: bytes, writer: Writer) -> bytes:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for word in (b"data: 1\n\n", b"data: 2\n\n"):
                heard.clear()
                writer.write(b"%x\r\n%s\r\n" % (len(word), word))
                await writer.drain()
                await heard.wait()
            return b"0\r\n\r\n"

        vendor = Vendor(stream)
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(body="words"))
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"text/event-stream" in head
            for word in (b"data: 1\n\n", b"data: 2\n\n"):
                await reader.readuntil(word)
                heard.set()
                await asyncio.sleep(0)
            await reader.readuntil(b"0\r\n\r\n")
            await ended(writer)

    run(test())


def test_a_client_that_leaves_ends_what_the_vendor_works_on(tmp_path: Path) -> None:
    """While it thinks, before its first word: nobody pays for an answer that nobody reads."""

    async def test() -> None:
        began = asyncio.Event()

        async def think(_request: h11.Request, _body: bytes, _writer: Writer) -> None:
            began.set()

        vendor = Vendor(think)
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url)) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(body="words"))
            await began.wait()
            await ended(writer)
            await vendor.left.wait()

    run(test())


def test_an_upgraded_connection_passes_as_bytes(tmp_path: Path) -> None:
    """Both ways, until one side ends."""

    async def test() -> None:
        async def switch(got: h11.Request, _body: bytes, writer: Writer) -> None:
            assert dict(got.headers)[b"upgrade"] == b"websocket"
            assert dict(got.headers)[b"connection"].lower() == b"upgrade"
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nfirst")

        vendor = Vendor(switch)
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request("/v1/ws", "Connection: Upgrade", "Upgrade: websocket", method="GET"))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101 ")
            assert b"websocket" in head
            assert await reader.readexactly(5) == b"first"
            writer.write(b"more")
            await ended(writer)
            await vendor.left.wait()
        assert dict(vendor.requests[0].headers)[b"authorization"] == f"Bearer {REAL}".encode()

    run(test())


@pytest.mark.parametrize("known", [True, False])
def test_a_vendor_is_trusted_by_the_machines_authorities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Of anybody else it gets no byte of a request."""

    async def test() -> None:
        ca, place = trustme.CA(), tmp_path / "ca.pem"
        (ca if known else trustme.CA()).cert_pem.write_to_path(place)
        monkeypatch.setenv("SSL_CERT_FILE", str(place))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert("127.0.0.1").configure_cert(tls)
        vendor = Vendor()
        async with serving(vendor, tls) as url, proxy(tmp_path, allow=NOTHING, held=held(url)) as port:
            said = await asked(port, request("/v1/x", "Connection: close", body="w" * 100_000))
            assert said.split(b" ")[1] == (b"200" if known else b"502")
            assert known or b"SSL_CERT_FILE" in said  # what to do
        assert [dict(got.headers)[b"authorization"] for got in vendor.requests] == [f"Bearer {REAL}".encode()] * known

    run(test())


@pytest.mark.parametrize(
    "hosts", [("10.1.2.3", "fd00::7"), ("10.1.2.3", "mirror.example.com"), ("mirror.example.com",)]
)
def test_the_authority_certifies_its_hosts_by_name_and_by_address(hosts: tuple[str, ...]) -> None:
    """And nothing else is taken for one of them."""
    authority = Authority(hosts)
    trusting = ssl.create_default_context(cadata=authority.certificate.decode())
    for host in (*hosts, "10.1.2.4", "other.example.com"):
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting.wrap_bio(to_client, to_server, server_hostname=host)
        server = authority.context.wrap_bio(to_server, to_client, server_side=True)
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        with suppress(ssl.SSLWantReadError):
            server.do_handshake()
        if host in hosts:
            client.do_handshake()
        else:
            with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
                client.do_handshake()


def test_a_certificate_for_another_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the answer says what is wrong."""

    async def test() -> None:
        ca, place = trustme.CA(), tmp_path / "ca.pem"
        ca.cert_pem.write_to_path(place)
        monkeypatch.setenv("SSL_CERT_FILE", str(place))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert("example.com").configure_cert(tls)
        vendor = Vendor()
        async with serving(vendor, tls) as url, proxy(tmp_path, allow=NOTHING, held=held(url)) as port:
            said = await asked(port, request("/v1/x", "Connection: close", body="words"))
            assert said.startswith(b"HTTP/1.1 502 ")
            assert b"cannot be spoken to by TLS: IP address mismatch" in said
            assert b"SSL_CERT_FILE" not in said
        assert not vendor.requests

    run(test())


def test_a_large_body_goes_up_in_pieces(tmp_path: Path) -> None:
    """Chunked, after the vendor has said that it wants it."""

    async def test() -> None:
        vendor = Vendor()
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = request("/v1/x", "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
            writer.write(head)
            block = b"x" * 70_000
            for _ in range(20):
                writer.write(b"%x\r\n%s\r\n" % (len(block), block))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            assert (await answer(reader))[1] == block * 20
            await ended(writer)

    run(test())


def test_a_vendor_that_refuses_a_body_is_heard(tmp_path: Path) -> None:
    """While the client still sends."""

    async def test() -> None:
        async def refuse(reader: Reader, writer: Writer) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno\n")
            await writer.drain()
            await asyncio.sleep(0.2)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            over.set()

        over = asyncio.Event()

        async with (
            server(refuse) as to,
            proxy(tmp_path, allow=NOTHING, held=held(f"http://127.0.0.1:{to}")) as port,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request("/v1/x", body="").replace(b"Content-Length: 0", b"Content-Length: 100000000"))
            writer.write(b"x" * 100_000)
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 413 ")
            await ended(writer)
            await over.wait()

    run(test())


@pytest.mark.parametrize("protocol", ["h2c", "TLS/1.2", "HTTP/2.0", "websocket, h2c", "connect-udp"])
def test_no_other_protocol_takes_over_a_connection(tmp_path: Path, protocol: str) -> None:
    """Its requests could not be judged. The request itself is made, without the wish."""

    async def test() -> None:
        vendor = Vendor()
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url)) as port:
            wish = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {protocol}", "HTTP2-Settings: AAMAAABk")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request("/v1/x", *wish))
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
            await ended(writer)
        assert not {b"upgrade", b"connection", b"http2-settings"} & {name for name, _ in vendor.requests[0].headers}

    run(test())


@pytest.mark.parametrize("said", [b"zz\r\n", b"2\r\nokXX0\r\n", b"-1\r\n"])
def test_a_malformed_body_is_told(tmp_path: Path, said: bytes) -> None:
    """And the vendor's connection does not stay open."""

    async def test() -> None:
        async def wait(reader: Reader, writer: Writer) -> None:
            await reader.read()
            over.set()
            writer.close()

        over = asyncio.Event()
        async with (
            server(wait) as to,
            proxy(tmp_path, allow=NOTHING, held=held(f"http://127.0.0.1:{to}")) as port,
        ):
            head = request("/v1/x", "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
            assert (await asked(port, head + said)).startswith(b"HTTP/1.1 400 ")

    run(test())


@pytest.mark.parametrize(
    "said",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX",
        b"",
        b"x" * 200_000,
    ],
)
def test_a_vendor_that_speaks_no_http_is_told(tmp_path: Path, said: bytes) -> None:
    """As any other that cannot be reached."""

    async def test() -> None:
        async def answer_so(_request: h11.Request, _body: bytes, _writer: Writer) -> bytes:
            return said

        vendor = Vendor(answer_so)
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url)) as port:
            assert (await asked(port, request("/v1/x", "Connection: close"))).startswith(b"HTTP/1.1 502 ")

    run(test())


def test_a_body_in_tiny_pieces_holds_nobody_up(tmp_path: Path) -> None:
    """Another client is answered long before it has come to its end."""

    async def test() -> None:
        vendor = Vendor()
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url)) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            head = request("/v1/x", "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")

            async def send() -> None:
                writer.write(head)
                for _ in range(200):
                    writer.write(b"1\r\nx\r\n" * 2_000)
                    await writer.drain()

            sending = asyncio.create_task(send())
            for _ in range(5):
                assert (await asked(port, request("/v2", "Connection: close"))).startswith(b"HTTP/1.1 403 ")
            assert not vendor.requests, "the pieces came to their end first"
            sending.cancel()
            await ended(writer)

    run(test())


def test_a_client_of_old_hears_a_chunked_answer(tmp_path: Path) -> None:
    """HTTP/1.0 knows no chunks: the connection's end is the answer's."""

    async def test() -> None:
        async def stream(_request: h11.Request, _body: bytes, _writer: Writer) -> bytes:
            return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nwords\r\n0\r\n\r\n"

        vendor = Vendor(stream)
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url)) as port:
            said = await asked(port, request(method="GET").replace(b"HTTP/1.1", b"HTTP/1.0"))
            assert b"chunked" not in said
            assert said.endswith(b"\r\n\r\nwords")

    run(test())


def test_without_a_phantom_the_sessions_rules_count(tmp_path: Path) -> None:
    """A login of the agent's own goes the same way, where a tunnel to the same host would be allowed."""

    async def test() -> None:
        vendor = Vendor()
        async with serving(vendor) as url, proxy(tmp_path, held=held(url)) as port:
            said = await asked(port, request("/v2/x", "Connection: close", token="login", body="words"))
            assert said.startswith(b"HTTP/1.1 200 ")
        assert dict(vendor.requests[0].headers)[b"authorization"] == b"Bearer login"

    run(test())


def test_two_keys_of_one_api_and_none_of_another(tmp_path: Path) -> None:
    """Some agents show two; phantoms of two APIs in one request are for neither."""

    async def test() -> None:
        vendor, second = Vendor(), Vendor()
        async with serving(vendor) as url, serving(second) as elsewhere:
            keys = (
                (parse_key(f"ONE={url}"), "p-one", "r-one"),
                (parse_key(f"TWO={url},header=x-api-key"), "p-two", "r-two"),
                (parse_key(f"THREE={elsewhere},header=x-other"), "p-three", "r-three"),
            )
            async with proxy(tmp_path, allow=NOTHING, held=keys) as port:
                both = request("/x", "X-Api-Key: p-two", "Connection: close", token="p-one")
                assert (await asked(port, both)).startswith(b"HTTP/1.1 200 ")
                mixed = request("/x", "X-Other: p-three", "Connection: close", token="p-one")
                assert (await asked(port, mixed)).startswith(b"HTTP/1.1 403 ")
                third = request("/x", "X-Other: p-three", "Connection: close", token="foreign")
                assert (await asked(port, third)).startswith(b"HTTP/1.1 200 ")
        got = dict(vendor.requests[0].headers)
        assert (got[b"authorization"], got[b"x-api-key"]) == (b"Bearer r-one", b"r-two")
        assert b"x-other" not in got
        assert len(vendor.requests) == 1
        got = dict(second.requests[0].headers)
        assert got[b"x-other"] == b"r-three"
        assert b"authorization" not in got

    run(test())


def test_the_proxy_is_a_proxy_all_the_same(tmp_path: Path) -> None:
    """For clients that name a whole URL, with the session's token; a phantom is none."""

    async def test() -> None:
        vendor = Vendor()
        async with serving(vendor) as url, proxy(tmp_path, held=held(url)) as port:
            whole = f"GET {url}/v2/x HTTP/1.1\r\nHost: 127.0.0.1:{vendor.port}\r\n".encode()
            assert (await asked(port, whole + AUTH + b"\r\n")).startswith(b"HTTP/1.1 200 ")
            assert (await asked(port, whole + b"\r\n")).startswith(b"HTTP/1.1 407 ")

    run(test())


def test_a_vendor_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    """After the time in which any relay must have moved."""

    async def test() -> None:
        async def think(_request: h11.Request, _body: bytes, _writer: Writer) -> None:
            return None

        vendor = Vendor(think)
        bounds = Bounds(idle_seconds=0.3)
        async with serving(vendor) as url, proxy(tmp_path, bounds, allow=NOTHING, held=held(url)) as port:
            said = await asked(port, request(body="words"))
            assert said.startswith(b"HTTP/1.1 502 ")
            assert b"gave no answer" in said
            await vendor.left.wait()

    run(test())


def test_a_dead_vendor_is_told(tmp_path: Path) -> None:
    """With what the kernel says."""

    async def test() -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{sock.getsockname()[1]}"
            async with proxy(tmp_path, allow=NOTHING, held=held(url)) as port:
                said = await asked(port, request("/v1/x", "Connection: close"))
                assert said.startswith(b"HTTP/1.1 502 ")
                assert b"Connection refused" in said

    run(test())


def test_the_jails_url_has_the_vendors_path() -> None:
    """So what a client puts behind it needs no translation."""
    assert local("https://api.example.com/v1/") == "http://127.0.0.1:${proxy_port}/v1"
