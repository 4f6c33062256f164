"""What the proxy costs: `python -m tests.bench egress`.

The same client, in turn: without any proxy on the loopback, through tinyproxy where that is installed, and in a jail
through Paddock's, which the client knows of or not ("by name"). Latency is that of a whole request with its
connection. Then the memory of idle tunnels.
"""

import json
import shutil
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from launcher.egress.proxy import NAME
from tests.bench import harness
from tests.bench.harness import Result
from tests.support import install
from tests.support.paddock import Paddock, below, content

REQUESTS, TUNNELS = 300, 1000

# Prints one JSON object. A proxy is what HTTP_PROXY says; without one all is direct.
CLIENT = """
import json, os, socket, sys, time
from base64 import b64encode
port, megabytes, requests, tunnels = map(int, sys.argv[1:5])
url = os.environ.get("HTTP_PROXY", "").removeprefix("http://")
credentials, _, where = url.rpartition("@")
proxy = (where.partition(":")[0], int(where.partition(":")[2])) if url else None
auth = f"Proxy-Authorization: Basic {b64encode(credentials.encode()).decode()}\\r\\n" if credentials else ""
there = f"127.0.0.1:{port}"
def opened():
    return socket.create_connection(proxy or ("127.0.0.1", port))
def tunnel():
    sock = opened()
    if proxy:
        sock.sendall(f"CONNECT {there} HTTP/1.1\\r\\nHost: {there}\\r\\n{auth}\\r\\n".encode())
        assert b" 200 " in sock.recv(4096)
    return sock
def ask(sock, path, plain):
    target = f"http://{there}{path}" if plain and proxy else path
    head = f"GET {target} HTTP/1.1\\r\\nHost: {there}\\r\\n{auth if plain else ''}Connection: close\\r\\n\\r\\n"
    sock.sendall(head.encode())
    size = 0
    view = memoryview(bytearray(1 << 20))
    while count := sock.recv_into(view):
        size += count
    sock.close()
    return size
def latency(plain):
    taken = []
    for _ in range(requests):
        start = time.perf_counter()
        ask(opened() if plain else tunnel(), "/1", plain)
        taken.append(time.perf_counter() - start)
    return sorted(taken)[len(taken) // 2]
def throughput(plain):
    start = time.perf_counter()
    size = ask(opened() if plain else tunnel(), f"/{megabytes << 20}", plain)
    assert size > megabytes << 20, size
    return time.perf_counter() - start
found = {"request": latency(True), "request in a tunnel": latency(False)}
found["download"], found["download in a tunnel"] = throughput(True), throughput(False)
print(json.dumps(found), flush=True)
held = [tunnel() for _ in range(tunnels)]
if tunnels:
    print(len(held), flush=True)
    sys.stdin.readline()
"""


class Handler(socketserver.BaseRequestHandler):
    """Answers ``GET /N`` with N bytes."""

    block = bytes(1 << 20)

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:  # a part that is not read would take back the end of the answer (tcp(7))
            more = self.request.recv(65536)
            if not more:
                return
            head += more
        left = int(head.split()[1].rpartition(b"/")[2])
        self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % left)
        while left:
            part = min(left, len(self.block))
            self.request.sendall(self.block[:part] if part < len(self.block) else self.block)
            left -= part


class Server(socketserver.ThreadingTCPServer):
    """The destination."""

    daemon_threads = True
    request_queue_size = 1024


def measured(words: list[str], cwd: Path, env: Mapping[str, str]) -> dict[str, float]:
    """What the client says, run by `words`."""
    ended = subprocess.run(
        words, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise RuntimeError(ended.stderr)
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def tinyproxy(directory: Path) -> tuple["subprocess.Popen[bytes]", str] | None:
    """tinyproxy on a free port, allowing everything: its process and its URL; None where it is not installed."""
    program = shutil.which("tinyproxy")
    if program is None:
        return None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = directory / "tinyproxy.conf"
    file.write_text(f"Port {port}\nListen 127.0.0.1\nTimeout 600\nMaxClients 2000\nLogLevel Error\n")
    process = subprocess.Popen([program, "-d", "-c", file], stdout=subprocess.DEVNULL)
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return process, f"http://127.0.0.1:{port}"
        except ConnectionRefusedError:
            time.sleep(0.05)


def idle(paddock: Paddock, options: list[str], client: list[str], port: int) -> list[Result]:
    """What many idle tunnels take."""
    words = paddock.words("run", *options, "--", *client, str(port), "1", "3", str(TUNNELS))
    with paddock.who.start(words, cwd=paddock.worktree) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (proxy,) = [pid for pid in below(process.pid) if content(pid, "comm").strip() == NAME.encode()]
        before = harness.memory([proxy])
        process.stdout.readline()
        taken = {"the proxy without any": [before], f"memory with {TUNNELS:,} tunnels": [harness.memory([proxy])]}
        process.communicate(b"\n")
        return harness.against(taken, unit="MiB")


def rows(quick: bool = False) -> list[Result]:
    """Every road beside the direct one."""
    megabytes = 64 if quick else 256
    with harness.scene() as paddock:
        who = paddock.who
        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        client = [str(install.base_python()), "-I", "-S", "-c", CLIENT]
        words = [*client, str(port), str(megabytes), str(REQUESTS), "0"]
        by_name = ["--git=readonly", f"--allow-domain=127.0.0.1:{port}"]
        options = [*by_name, "--proxy-env=yes"]
        roads = {"direct": (who.command(words), who.environment())}
        if other := tinyproxy(paddock.place):
            roads["tinyproxy"] = (who.command(words), who.environment({"HTTP_PROXY": other[1]}))
        for road, each in (("paddock", options), ("paddock, by name", by_name)):
            roads[road] = (who.command(paddock.words("run", *each, "--", *words)), who.environment())
        try:
            rounds = [
                {road: measured(argv, paddock.worktree, env) for road, (argv, env) in roads.items()}
                for _ in range(2 if quick else 4)
            ]
        finally:
            if other is not None:
                other[0].terminate()
                other[0].wait()
        found = []
        for what in rounds[0]["direct"]:
            size = f" of {megabytes} MiB" if "download" in what else ""
            taken = {road: [each[road][what] for each in rounds] for road in roads}
            found += harness.against(taken, prefix=f"{what}{size}, ")
        found += idle(paddock, options, client, port)
        server.shutdown()
        return found


if __name__ == "__main__":
    harness.main(rows)
