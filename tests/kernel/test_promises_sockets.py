"""Promises about sockets: AF_UNIX sockets of others, and every way to the network."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from policy import promises
from tests.conftest import IDENTITIES
from tests.support.identity import AS_A_USER
from tests.support.install import base_python
from tests.support.programs import harness, network, sockets
from tests.support.programs.harness import ATTACK, TWIN, Given
from tests.support.programs.scene import Scene

TCP_FASTOPEN = 23


def test_promise_unix_sockets(scene: Scene) -> None:
    """Sockets outside, with a path or an abstract name, cannot be reached; those of the worktree can."""
    outside = scene.place / "sockets"
    outside.mkdir()
    abstract = f"paddock-{os.urandom(8).hex()}"
    with ExitStack() as stack:
        with_path, without = sockets.bound(str(outside)), sockets.bound("", abstract=abstract)
        for sock in (*with_path, *without):
            stack.enter_context(sock)
        for path in outside.iterdir():
            path.chmod(0o777)
        scene.own(outside)
        places: Given = {ATTACK: {"outside": str(outside)}, TWIN: {"inside": "own"}, "own": "own", "abstract": abstract}
        names = sorted(path.name for path in outside.iterdir())
        if scene.backend == promises.GUARD:
            places["leave"] = ["a_pair_of_datagram_sockets", *(f"{name}@inside" for name in sockets.DATAGRAMS)]
        answers = scene.tried("sockets", places)
        seen = {f"arrived at {kind}" for kind in sockets.arrived(with_path)}
        seen |= {f"arrived at abstract {kind}" for kind in sockets.arrived(without)}
        if sorted(path.name for path in outside.iterdir()) != names:
            seen.add("names")
    closed = {*sockets.ABSTRACT, *(f"arrived at abstract {kind}" for kind in ("stream", "datagram", "packets"))}
    scene.judge("unix-sockets", answers, seen=seen, closed_anyway=closed)


def test_the_attacks_on_sockets_do_work_without_a_jail(tmp_path: Path) -> None:
    """Each way to a socket arrives when nothing is in between, so the silence of the other tests means something."""
    outside, area = tmp_path / "outside", tmp_path / "area"
    outside.mkdir()
    area.mkdir()
    given: Given = {"area": str(area), "own": "own"}
    with ExitStack() as stack:
        bound = sockets.bound(str(outside))
        for sock in bound:
            stack.enter_context(sock)
        for attempt in sockets.PROGRAMME.all_of(given | {ATTACK: {"outside": str(outside)}, "placed_only": True}):
            answer = harness.tried(attempt, given)
            assert answer["state"] == "done", answer
            assert sockets.arrived(bound), answer


@contextmanager
def listening(host: str) -> Iterator[tuple[dict[str, int], dict[str, socket.socket]]]:
    """Servers of every kind on the addresses of `host`; their ports, and themselves."""
    wanted = {
        network.TCP: (socket.AF_INET, socket.SOCK_STREAM, 0, host),
        network.TCP6: (socket.AF_INET6, socket.SOCK_STREAM, 0, "::1"),
        network.MPTCP: (socket.AF_INET, socket.SOCK_STREAM, network.IPPROTO_MPTCP, host),
        network.UDP: (socket.AF_INET, socket.SOCK_DGRAM, 0, "0.0.0.0"),  # broadcasts too
        network.UDP6: (socket.AF_INET6, socket.SOCK_DGRAM, 0, "::1"),
    }
    with ExitStack() as stack:
        servers = {}
        for name, (family, kind, protocol, address) in wanted.items():
            server = stack.enter_context(socket.socket(family, kind, protocol))
            server.bind((address, 0))
            if kind == socket.SOCK_STREAM:
                if not protocol:
                    server.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN, 16)
                server.listen(64)
            server.setblocking(False)
            servers[name] = server
        yield {name: server.getsockname()[1] for name, server in servers.items()}, servers


def received(servers: dict[str, socket.socket]) -> set[str]:
    """What came to the servers: names of acts that sent their word, and ``a connection`` where none was sent."""
    found: set[str] = set()
    for server in servers.values():
        while True:
            try:
                if server.type == socket.SOCK_DGRAM:
                    text = server.recv(1000)
                else:
                    connection = server.accept()[0]
                    with connection:
                        connection.settimeout(5)
                        text = connection.recv(1000)
            except BlockingIOError:
                break
            found.add(text.decode().strip().removeprefix("reached by ") or "a connection")
    return found


def own_address() -> str:
    """An address of this machine that is not the loopback's, else the loopback's."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: only a route is looked up
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@pytest.mark.parametrize(
    ("who", "mode"), [*((who, "none") for who in IDENTITIES), (IDENTITIES[-1], "open")], indirect=["who"]
)
def test_promise_network(scene: Scene, mode: str) -> None:
    """With --net none nothing arrives outside by any protocol; with --net open the same attempts do."""
    address = own_address()
    with listening("127.0.0.1") as (ports, servers):
        facts = {"ports": ports, "address": address, "watched": mode == "none"}
        label = ATTACK if mode == "none" else TWIN
        places = {label: {"loopback": "127.0.0.1"}}
        leave = ["ping_another_host", "resolve_a_name"] if mode == "open" else []
        programme = "network,network:LOOPBACK" if mode == "none" and promises.has_mounts(scene.backend) else "network"
        answers = scene.tried(programme, facts | places | {"leave": leave}, "--net", mode)
        came = received(servers)
    if mode == "open":
        assert came == set(network.NETWORKED), answers.named(TWIN, "done")
        scene.judge("network", answers)
    else:
        scene.judge("network", answers, seen=came)


@AS_A_USER
@pytest.mark.parametrize("mode", ["none", "open"])
def test_promise_network_against_listeners(scene: Scene, mode: str) -> None:
    """Who listens in the jail, without bind too, is reached from outside with --net open only."""
    program = """
import socket, sys
try:
    server = socket.socket()
    server.listen()
except OSError as error:
    print("denied", error.errno, flush=True)
else:
    print("port", server.getsockname()[1], flush=True)
sys.stdin.readline()
"""
    process = scene.start(
        [base_python(), "-I", "-S", "-c", program], "--net", mode, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        said = process.stdout.readline().split()
        outside = socket.socket()
        with outside:
            outside.settimeout(5)
            reached = said[0] == b"port" and outside.connect_ex(("127.0.0.1", int(said[1]))) == 0
        process.communicate(b"\n")
    assert process.returncode == 0
    assert reached == (mode == "open"), (said, sys.version)
