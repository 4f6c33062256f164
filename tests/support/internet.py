"""A programme for tests: a machine and an Internet of its own, in two network namespaces with a cable between them.

The *machine* is where Paddock is started: its loopback, its own public address, its resolv.conf. The *Internet* has
public, private and metadata addresses, with servers behind all of them: a resolver, HTTP, TLS for every name, a server
that speaks first. Everything that arrives at either is written down in `seen.jsonl`.

Started as `internet.py machine DIRECTORY` in new network and mount namespaces, with every capability in them; the
directory holds `www` (files to serve), `server.pem` (key and certificates). Says ``ready``, ends with its input.
"""

import collections
import functools
import http.server
import json
import os
import shutil
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

RESOLVER = "11.1.0.53"
SERVER, SECOND, SERVER6 = "11.1.0.10", "11.1.0.11", "2600:77::10"
MACHINE, MACHINE6 = "11.2.0.1", "2600:88::1"
"""The machine's own public addresses: a name that leads there leads to its own services."""

CLOSED = {
    "private": "10.9.9.9",
    "private-c": "192.168.77.1",
    "metadata": "169.254.169.254",
    "metadata-shared": "100.100.100.200",
    "platform": "168.63.129.16",
    "private6": "fd00:ec2::254",
}
"""Addresses of the Internet's side that no name may lead to; servers listen there all the same."""

NAMES: dict[str, list[str]] = {
    "good.example": [SERVER],
    "www.good.example": [SERVER],
    "other.example": [SERVER],
    "second.example": [SECOND],
    "xn--bcher-kva.example": [SERVER],
    "six.example": [SERVER6],
    "both.example": ["2600:77::dead", SERVER],
    "loop.example": ["127.0.0.1"],
    "loop6.example": ["::1"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "nat.example": ["64:ff9b::7f00:1"],
    "mixed.example": ["127.0.0.1", SERVER],
    "ula.example": ["fd00:77::2"],
    "own.example": [MACHINE],
    "own6.example": [MACHINE6],
    "zero.example": ["0.0.0.0"],
    **{f"{name}.example": [address] for name, address in CLOSED.items()},
}
FLIPPING = "flip"
"""Of a name that begins like this, the first answer is a public address, every later one the loopback."""
MANY = ".many.example"
"""Every name that ends like this is there, at SERVER or, when its first label ends in an odd digit, at SECOND."""

DEAD = ".dead.example"
"""Of names that end like this, the resolver says nothing."""

HTTP_PORTS, TLS_PORT, BANNER_PORT, OTHER_PORTS = (80, 3128, 8000), 443, 22, (53, 853, 5432)
PARTING_PORT = 9
RETRY_PORT = 8443
"""TLS, too, with a curve that no client guesses: each is asked for a second hello (HelloRetryRequest)."""
BANNER = b"220 a server that speaks first\r\n"


class Book:
    """What has been seen, one line of JSON each, appended by several processes."""

    def __init__(self, directory: Path, side: str) -> None:
        self._fd = os.open(directory / "seen.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._side = side

    def note(self, kind: str, address: Any, **more: str) -> None:  # noqa: ANN401  # a socket's own name
        where = {"address": str(address[0]).removeprefix("::ffff:"), "port": address[1]}
        os.write(self._fd, json.dumps({"side": self._side, "kind": kind, **where, **more}).encode() + b"\n")


class Pages(http.server.BaseHTTPRequestHandler):
    """Serves files of `www`, else says what was asked for."""

    protocol_version = "HTTP/1.1"
    book: Book
    www: Path

    def setup(self) -> None:
        super().setup()
        self.book.note("tcp", self.connection.getsockname())

    def do_GET(self) -> None:
        self.book.note("request", self.connection.getsockname(), what=f"{self.command} {self.path}")
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else self._chunks()
        parts = urlsplit(self.path)
        file = self.www / parts.path.lstrip("/")
        if file.is_dir():
            file /= "index.html"
        query = parse_qs(parts.query)
        if parts.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", query["to"][0])
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif parts.path == "/big":
            self._big(int(query["bytes"][0]))
        elif file.is_file():
            self._answer(file.read_bytes(), "application/json" if not file.suffix else "text/html")
        else:
            said = {"host": self.headers["Host"], "what": f"{self.command} {self.path}", "body": body.decode("latin-1"),
                    "headers": self.headers.items()}  # fmt: skip
            self._answer(json.dumps(said).encode(), "application/json", 404 if "missing" in parts.path else 200)

    do_POST = do_PUT = do_HEAD = do_GET

    def _chunks(self) -> bytes:
        body = b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        return body

    def _answer(self, body: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _big(self, size: int) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        block = bytes(1 << 18)
        while size:
            size -= self.wfile.write(block[:size])

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401  # as the base class has it
        """Quiet."""


class Server(socketserver.ThreadingTCPServer):
    """Listens on every address of both families, plainly or with TLS."""

    address_family = socket.AF_INET6
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 256
    context: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        if self.context is not None:
            request = self.context.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave early are the point of some tests."""


class Banner(socketserver.BaseRequestHandler):
    """Speaks first, then says back what it hears."""

    book: Book

    def handle(self) -> None:
        self.book.note("tcp", self.request.getsockname())
        self.request.sendall(BANNER)
        while data := self.request.recv(4096):
            self.request.sendall(data)


class Parting(socketserver.BaseRequestHandler):
    """Says a word and ends its side first; then notes how much it hears until the other side ends."""

    book: Book

    def handle(self) -> None:
        self.request.sendall(b"over")
        self.request.shutdown(socket.SHUT_WR)
        heard = 0
        while data := self.request.recv(65536):
            heard += len(data)
        self.book.note("heard", self.request.getsockname(), what=str(heard))


class Ear(socketserver.BaseRequestHandler):
    """Notes who comes."""

    book: Book

    def handle(self) -> None:
        self.book.note("tcp", self.request.getsockname())


def serve(book: Book, directory: Path) -> None:
    """Starts all TCP servers of one side, and a UDP ear."""
    handlers = [
        type(kind.__name__, (kind,), {"book": book, "www": directory / "www"}) for kind in (Pages, Banner, Parting, Ear)
    ]
    pages, banner, parting, ear = handlers
    contexts = {port: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for port in (TLS_PORT, RETRY_PORT)}
    for port, context in contexts.items():
        context.load_cert_chain(directory / "server.pem")
        context.sni_callback = functools.partial(_named, book, port)
    contexts[RETRY_PORT].set_ecdh_curve("secp521r1")
    for port, handler in [
        *((port, pages) for port in (*HTTP_PORTS, *contexts)),
        (BANNER_PORT, banner),
        (PARTING_PORT, parting),
        *((port, ear) for port in OTHER_PORTS),
    ]:
        server = Server(("::", port), handler)
        server.context = contexts.get(port)
        threading.Thread(target=functools.partial(server.serve_forever, 60), daemon=True).start()


def _named(book: Book, port: int, tls: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
    """Notes which server a client hello names, each one of a handshake."""
    del tls, context
    book.note("sni", ("", port), what=name or "")


def listen_udp(book: Book, port: int, *, resolver: bool) -> None:
    """Notes datagrams; as a resolver it answers them too."""
    sock = socket.socket(socket.AF_INET if resolver else socket.AF_INET6, socket.SOCK_DGRAM)
    sock.bind((RESOLVER if resolver else "::", port))

    def run() -> None:
        asked: collections.Counter[str] = collections.Counter()
        while True:
            data, sender = sock.recvfrom(4096)
            name = question(data) if resolver else ""
            book.note("dns" if name else "udp", ("", port), what=name or data.decode("latin-1"))
            if name and not name.endswith(DEAD):
                found = NAMES.get(name, [])
                if name.endswith(MANY):
                    found = [SECOND if int(name.partition(".")[0][-1]) % 2 else SERVER]
                if name.startswith(FLIPPING):
                    asked[name] += 1
                    found = [SERVER if asked[name] <= 2 else "127.0.0.1"]  # one pair of questions: A and AAAA
                sock.sendto(answer(data, found), sender)

    threading.Thread(target=run, daemon=True).start()


def question(data: bytes) -> str:
    """The name that a DNS message asks for (RFC 1035 section 4.1.2)."""
    labels = []
    at = 12
    while data[at]:
        labels.append(data[at + 1 : at + 1 + data[at]].decode("latin-1"))
        at += 1 + data[at]
    return ".".join(labels).lower()


def answer(data: bytes, addresses: list[str]) -> bytes:
    """The answer with those of `addresses` that are of the kind that was asked for; TTL 0."""
    end = data.index(0, 12) + 5
    kind = int.from_bytes(data[end - 4 : end - 2], "big")
    family = {1: socket.AF_INET, 28: socket.AF_INET6}.get(kind)
    packed = [
        socket.inet_pton(family, text) for text in addresses if family and (":" in text) == (family == socket.AF_INET6)
    ]
    head = data[:2] + (0x8180 if addresses else 0x8183).to_bytes(2, "big") + b"\0\1" + len(packed).to_bytes(2, "big")
    records = [
        b"\xc0\x0c" + data[end - 4 : end] + bytes(4) + len(address).to_bytes(2, "big") + address for address in packed
    ]
    return head + bytes(4) + data[12:end] + b"".join(records)


def ip(*words: str) -> None:
    """ip(8), which must succeed."""
    subprocess.run(["ip", *words], check=True)


def internet(directory: Path) -> None:
    """The other end of the cable."""
    print("here", flush=True)
    sys.stdin.readline()
    ip("link", "set", "lo", "up")
    for address in (SERVER, SECOND, RESOLVER, SERVER6, *CLOSED.values()):
        ip("addr", "add", f"{address}/{128 if ':' in address else 32}", "dev", "lo")
    ip("addr", "add", "172.31.0.2/30", "dev", "cable1")
    ip("addr", "add", "fd00:77::2/64", "dev", "cable1", "nodad")
    ip("link", "set", "cable1", "up")
    ip("route", "add", f"{MACHINE}/32", "via", "172.31.0.1")
    ip("route", "add", f"{MACHINE6}/128", "via", "fd00:77::1")
    book = Book(directory, "internet")
    serve(book, directory)
    listen_udp(book, 53, resolver=True)
    listen_udp(book, 9999, resolver=False)
    print("ready", flush=True)
    sys.stdin.readline()


def machine(directory: Path) -> None:
    """This end: everything is made here."""
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    resolv = directory / "resolv.conf"
    resolv.write_text(f"nameserver {RESOLVER}\nsearch good.example\noptions timeout:5 attempts:2\n")
    resolv.chmod(0o644)
    subprocess.run(["mount", "--bind", resolv, Path("/etc/resolv.conf").resolve()], check=True)
    other = subprocess.Popen(
        ["unshare", "--net", "--", sys.executable, __file__, "internet", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdin is not None
    assert other.stdout is not None
    assert other.stdout.readline() == b"here\n"
    ip("link", "add", "cable0", "type", "veth", "peer", "name", "cable1", "netns", str(other.pid))
    ip("link", "set", "lo", "up")
    ip("addr", "add", "172.31.0.1/30", "dev", "cable0")
    ip("addr", "add", "fd00:77::1/64", "dev", "cable0", "nodad")
    ip("addr", "add", f"{MACHINE}/32", "dev", "lo")
    ip("addr", "add", f"{MACHINE6}/128", "dev", "lo")
    ip("link", "set", "cable0", "up")
    ip("route", "add", "default", "via", "172.31.0.2")
    ip("route", "add", "default", "via", "fd00:77::2")
    other.stdin.write(b"\n")
    other.stdin.flush()
    assert other.stdout.readline() == b"ready\n"
    book = Book(directory, "machine")
    serve(book, directory)
    for port in (53, 9999):
        listen_udp(book, port, resolver=False)
    _wait_for_cable(directory)
    print("ready", flush=True)
    sys.stdin.readline()
    other.stdin.close()
    other.wait()


def _wait_for_cable(directory: Path) -> None:
    """The link comes up by itself, a moment later. What tried it is seen before anything that a test sends."""
    for address in (SERVER, SERVER6):
        for _ in range(200):
            try:
                socket.create_connection((address, 53), timeout=5).close()
                break
            except OSError:
                time.sleep(0.05)
        else:
            raise TimeoutError(address)
        while f'"{address}", "port": 53' not in (directory / "seen.jsonl").read_text():
            time.sleep(0.01)


if __name__ == "__main__":
    assert shutil.which("ip"), "iproute2 is missing"
    {"machine": machine, "internet": internet}[sys.argv[1]](Path(sys.argv[2]))
