"""What the proxy costs: `python -m tests.bench.bench_egress [MEGABYTES]` in the repository.

The same client, in the same minute: without any proxy on the loopback, through tinyproxy where that is installed, and
in a jail through Paddock's, which the client knows of or not ("by name"). Latency is that of a whole request with its
connection; every figure is said as a ratio to the direct one. Then the memory of a thousand idle tunnels, and what a
launch pays for having a proxy.
"""

import json
import os
import shutil
import socket
import socketserver
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from launcher.egress.proxy import NAME
from tests.bench import harness
from tests.support import identity, install
from tests.support import paddock as paddocks
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
    return sorted(taken)[len(taken) // 2] * 1e6
def throughput(plain):
    start = time.perf_counter()
    size = ask(opened() if plain else tunnel(), f"/{megabytes << 20}", plain)
    assert size > megabytes << 20, size
    return megabytes / (time.perf_counter() - start)
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


def pss(pid: int) -> int:
    """Proportional set size, in KiB (proc(5), smaps_rollup)."""
    lines = content(pid, "smaps_rollup").decode().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def idle(paddock: Paddock, options: list[str], client: list[str], port: int) -> None:
    """Prints what a thousand idle tunnels take."""
    process = subprocess.Popen(
        paddock.words("run", *options, "--", *client, str(port), "1", "3", str(TUNNELS)),
        cwd=paddock.worktree,
        env=paddock.who.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    (proxy,) = [pid for pid in below(process.pid) if content(pid, "comm").strip() == NAME.encode()]
    before = pss(proxy)
    process.stdout.readline()
    after = pss(proxy)
    process.communicate(b"\n")
    each = (after - before) / TUNNELS
    print(f"{TUNNELS} idle tunnels: {before / 1024:.1f} -> {after / 1024:.1f} MiB, {each:.1f} KiB each")


def main() -> None:
    """Prints a table of medians and ratios."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    with tempfile.TemporaryDirectory(dir=install.public_root()) as name:
        directory = Path(name)
        directory.chmod(0o755)
        who = identity.root(directory / "home") if os.geteuid() == 0 else identity.user(directory / "home")
        (directory / "place").mkdir()
        paddock = paddocks.make(who, install.install(), directory / "place")
        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        client = [str(install.base_python()), "-I", "-S", "-c", CLIENT]
        words = [*client, str(port), str(megabytes), str(REQUESTS), "0"]
        by_name = ["--git=readonly", f"--allow-domain=127.0.0.1:{port}"]
        options = [*by_name, "--proxy-env=yes"]
        roads = {"direct": (words, who.environment())}
        other = tinyproxy(directory)
        if other is None:
            print("tinyproxy is not installed: nothing to compare with")
        else:
            roads["tinyproxy"] = (words, who.environment({"HTTP_PROXY": other[1]}))
        roads["paddock"] = (paddock.words("run", *options, "--", *words), who.environment())
        roads["by name"] = (paddock.words("run", *by_name, "--", *words), who.environment())
        try:
            rounds = [
                {road: measured(argv, paddock.worktree, env) for road, (argv, env) in roads.items()} for _ in range(3)
            ]
        finally:
            if other is not None:
                other[0].terminate()
                other[0].wait()
        for what in rounds[0]["direct"]:
            direct = statistics.median(turn["direct"][what] for turn in rounds)
            unit = "MiB/s" if "download" in what else "us"
            for road in roads:
                median = statistics.median(turn[road][what] for turn in rounds)
                ratio = direct / median if "download" in what else median / direct
                print(f"{what:22}{road:12}{median:10.0f} {unit:6}{ratio:6.2f} times direct")
        idle(paddock, options, client, port)
        server.shutdown()
        launches = [
            harness.Contestant(f"true, {network}", paddock.words("run", "--git=readonly", network, "--", "true"),
                               paddock.worktree, who.environment())
            for network in ("--net=none", "--allow-domain=example.com:443")
        ]  # fmt: skip
        print(harness.table(harness.compare(launches, rounds=40)))


if __name__ == "__main__":
    main()
