"""Hosts by their names, for clients that know of no proxy: many of them, and connections of every shape."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from policy import promises
from tests.support.features import need, need_backend
from tests.support.identity import AS_A_USER
from tests.support.install import base_python
from tests.support.internet import MANY, RESOLVER, SECOND, SERVER
from tests.support.paddock import Paddock, below, content
from tests.support.programs.scene import SWITCHES
from tests.support.proxied import World


@pytest.fixture(params=[promises.NAMESPACES, promises.BUBBLEWRAP])
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend whose jails have names of their own."""
    need("landlock")
    return need_backend(request.param)


def words(paddock: Paddock, backend: str, program: str, rules: Sequence[str], *more: str) -> list[str]:
    """A launch of a Python programme under these rules, with no proxy in its environment."""
    options = ["--git=readonly", *SWITCHES[backend][1], *(f"--allow-domain={rule}" for rule in rules)]
    checked = "import os\nassert not [name for name in os.environ if name.lower().endswith('_proxy')]\n" + program
    return [*paddock.words("run", *options, "--", base_python(), "-I", "-S", "-c", checked), *more]


def ran(world: World, paddock: Paddock, backend: str, program: str, rules: Sequence[str]) -> Any:  # noqa: ANN401
    """What such a programme prints, as JSON."""
    ended = world.run(paddock.who, words(paddock, backend, program, rules), cwd=paddock.worktree)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


COUNT = 300

HUNDREDS = f"""
import concurrent.futures, json, socket
def opened(host, port):
    return socket.create_connection((host, port), timeout=60)
def ask(number):
    host = f"n{{number}}{MANY}"
    with opened(host, 8000) as sock:
        sock.sendall(f"GET /n{{number}} HTTP/1.1\\r\\nHost: {{host}}\\r\\nConnection: close\\r\\n\\r\\n".encode())
        return sock.getpeername()[0], sock.makefile("rb").read().startswith(b"HTTP/1.1 200 ")
with opened("good.example", 22) as idle:
    greeting = idle.recv(100)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, range({COUNT})))
    idle.sendall(b"still here")
    echo = idle.recv(100)
addresses = len({{address for address, _ in found}})
print(json.dumps([addresses, sum(fine for _, fine in found), greeting.decode(), echo.decode()]))
"""


@AS_A_USER
def test_hundreds_of_names_on_one_port_lead_each_to_its_own_server(
    world: World, paddock: Paddock, backend: str
) -> None:
    """By one wildcard; and a connection in which nothing moves meanwhile is there afterwards."""
    before = len(world.seen())
    addresses, fine, greeting, echo = ran(world, paddock, backend, HUNDREDS, (f"*{MANY}:8000", "good.example:22"))
    assert (addresses, fine) == (COUNT, COUNT)
    assert greeting.startswith("220 ")
    assert echo == "still here"
    asked = {entry["what"]: entry["address"] for entry in world.seen(before) if entry["kind"] == "request"}
    assert asked == {f"GET /n{number}": SECOND if number % 2 else SERVER for number in range(COUNT)}


SHAPES = """
import hashlib, json, select, socket, threading
def opened(port):
    sock = socket.create_connection(("good.example", port), timeout=60)
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, buffer, 65536)
    return sock
def all_of(sock):
    blocks = []
    while block := sock.recv(65536):
        blocks.append(block)
    return b"".join(blocks)
data = hashlib.shake_128(b"x").digest(64 << 20)  # more than six socket buffers hold, with the client's own small ones
found = {}

with opened(22) as sock:  # which reads nothing until nothing more can be sent
    sock.setblocking(False)
    sent = 0
    while select.select([], [sock], [], 1.0)[1]:
        sent += sock.send(data[sent : sent + 65536])
    found["held up"] = sent < len(data)
    sock.setblocking(True)
    def rest():
        sock.sendall(data[sent:])
        sock.shutdown(socket.SHUT_WR)
    thread = threading.Thread(target=rest)
    thread.start()
    greeting, end, echo = all_of(sock).partition(b"\\r\\n")
    thread.join()
    found["both ways"] = echo == data

with opened(22) as sock:
    sock.sendall(b"last words")
    sock.shutdown(socket.SHUT_WR)
    found["the client ended first"] = all_of(sock).partition(b"\\r\\n")[2].decode()

with opened(9) as sock:
    found["the server ended first"] = all_of(sock).decode()
    sock.sendall(data[: 1 << 20])
print(json.dumps(found))
"""


@AS_A_USER
def test_connections_of_every_shape_pass(world: World, paddock: Paddock, backend: str) -> None:
    """More than any buffer holds, in both directions at once; a slow reader; each side may end first."""
    before = len(world.seen())
    assert ran(world, paddock, backend, SHAPES, ("good.example:22", "good.example:9")) == {
        "held up": True, "both ways": True, "the client ended first": "last words", "the server ended first": "over",
    }  # fmt: skip
    heard = [entry["what"] for entry in world.seen(before) if entry["kind"] == "heard"]
    assert heard == [str(1 << 20)]


FORMS = f"""
import json, socket
def asked(labels, kind, tcp, where=("127.0.0.53", 53)):
    name = b"".join(bytes((len(label),)) + label for label in labels)
    data = bytes.fromhex("000101000001000000000000") + name + bytes((0, 0, kind, 0, 1))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM) as sock:
        sock.settimeout(20 if where[1] == 53 and where[0] == "127.0.0.53" else 1)
        try:
            sock.connect(where)
            sock.sendall((len(data).to_bytes(2, "big") if tcp else b"") + data)
            answer = sock.recv(4096)[2 if tcp else 0 :]
        except OSError as error:
            return type(error).__name__
    return [answer[3] & 15, int.from_bytes(answer[6:8], "big")] if answer else "closed"
def reached(host, port=8000):
    try:
        with socket.create_connection((host, port), timeout=20) as sock:
            sock.sendall(b"GET /form HTTP/1.1\\r\\nHost: good.example\\r\\nConnection: close\\r\\n\\r\\n")
            return [socket.gethostbyname(host), sock.recv(12).decode()]
    except OSError as error:
        return type(error).__name__
good, book = [b"good", b"example"], [b"xn--bcher-kva", b"example"]
print(json.dumps({{
    "forms": [reached(host) for host in ("good.example", "GOOD.example", "gOOd.ExamplE.", "good.example.")],
    "puny": [reached(host) for host in ("b\\u00fccher.example", "XN--BCHER-KVA.example.")],
    "raw": asked(["b\\u00fccher".encode(), b"example"], 1, False),
    "kinds": [asked(good, kind, tcp) for kind in (16, 10, 255, 33, 65) for tcp in (False, True)],
    "addresses": [asked(name, 1, tcp) for name in (good, book) for tcp in (False, True)],
    "others": [asked(good, 1, tcp, where) for tcp in (False, True)
               for where in (("{RESOLVER}", 53), ("127.0.0.54", 53), ("{RESOLVER}", 853), ("127.0.0.53", 853))],
    "elsewhere": [reached("good.example", 22), reached("second.example", 8000), reached("second.example", 22)],
}}))
"""


@AS_A_USER
def test_one_name_has_many_forms_and_one_resolver(world: World, paddock: Paddock, backend: str) -> None:
    """Case, final dots and IDN; records that are not served; servers that are not there; each port by its own rule."""
    before = len(world.seen())
    rules = ("good.example:8000", "xn--bcher-kva.example:8000", "second.example:22")
    found = ran(world, paddock, backend, FORMS, rules)
    assert len({address for address, _ in found["forms"]}) == len({address for address, _ in found["puny"]}) == 1
    assert {status for _, status in found["forms"] + found["puny"]} == {"HTTP/1.1 200"}
    assert found["raw"] == [3, 0]
    assert found["kinds"] == [[0, 0]] * 10
    assert found["addresses"] == [[0, 1]] * 4
    assert not [answer for answer in found["others"] if isinstance(answer, list)], found["others"]
    assert [status for _, status in found["elsewhere"][:2]] == ["HTTP/1.1 403"] * 2
    assert found["elsewhere"][2][1].startswith("220 ")
    seen = world.seen(before)
    assert {entry["port"] for entry in seen if entry["kind"] == "tcp"} == {8000, 22}
    assert {entry["what"] for entry in seen if entry["kind"] == "dns"} == {
        "good.example", "second.example", "xn--bcher-kva.example",
    }  # fmt: skip


LOOPBACK = """
import json, socket
def reached(host, port, path):
    try:
        with socket.create_connection((host, port), timeout=20) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n".encode())
            return sock.recv(12).decode()
    except OSError as error:
        return type(error).__name__
print(json.dumps([reached("127.0.0.1", 8000, "/x"), reached("127.0.0.2", 8000, "/x"), reached("127.0.0.1", 80, "/open"),
                  reached("127.0.0.1", 80, "/closed"), reached("localhost", 3128, "/x")]))
"""


@AS_A_USER
def test_an_address_of_the_loopback_is_reached_by_its_own_rule(world: World, paddock: Paddock, backend: str) -> None:
    """As any other address that a rule names, with a path or without; its neighbours are not."""
    before = len(world.seen())
    rules = ("127.0.0.1:8000", "127.0.0.1:80/open", "localhost.example:3128")
    found = ran(world, paddock, backend, LOOPBACK, rules)
    assert found[0] == found[2] == "HTTP/1.1 200", found
    assert found[3] == "HTTP/1.1 403", found
    assert not [answer for answer in (found[1], found[4]) if "rror" not in answer], found
    assert [entry["what"] for entry in world.seen(before) if entry["kind"] == "request"] == ["GET /x", "GET /open"]


HOLDING = """
import socket, sys
print(socket.gethostbyname(sys.argv[1]), flush=True)
sys.stdin.read()
"""

TAKING = """
import json, socket, sys
def tried(address):
    try:
        with socket.create_connection((address, 8000), timeout=20) as sock:
            sock.sendall(b"GET /taken HTTP/1.1\\r\\nHost: good.example\\r\\n\\r\\n")
            return sock.recv(12).decode()
    except OSError as error:
        return type(error).__name__
print(json.dumps([tried(sys.argv[1]), tried("second.example"), tried(sys.argv[1])]))
"""


@AS_A_USER
def test_another_sessions_addresses_lead_nowhere(world: World, paddock: Paddock, backend: str) -> None:
    """An address means what it was given for in the own session, or nothing: never the other one's host."""
    before = len(world.seen())
    other = words(paddock, backend, HOLDING, ("good.example:8000",), "good.example")
    with world.start(paddock.who, other, cwd=paddock.worktree) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        own = words(paddock, backend, TAKING, ("second.example:8000",), address)
        ended = world.run(paddock.who, own, cwd=paddock.worktree)
        process.communicate("")
    unknown, named, same = json.loads(ended.stdout)
    assert (unknown, named) == ("ConnectionResetError", "HTTP/1.1 200")
    assert same == "HTTP/1.1 200"  # both sessions begin with the same address: here it is second.example's
    requests = [entry["address"] for entry in world.seen(before) if entry["kind"] == "request"]
    assert requests == [SECOND, SECOND]
    assert f"{address} belongs to no name" in paddock.call("denials").stdout


FLOODED = """
import socket, sys
print(socket.gethostbyname("good.example"), flush=True)
sys.stdin.readline()
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    sock.settimeout(20)
    sock.connect(("127.0.0.53", 53))
    for number in range(int(sys.argv[1])):
        label = f"n{number}".encode()
        name = bytes((len(label),)) + label + b"\\4evil\\7example\\0"
        sock.send(b"\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0" + name + b"\\0\\1\\0\\1")
        assert sock.recv(512)[3] & 15 == 3
print(socket.gethostbyname("good.example"), flush=True)
sys.stdin.readline()
"""

REFUSED = 12_000


@AS_A_USER
def test_lookups_without_end_cost_bounded_memory_and_are_counted(world: World, paddock: Paddock) -> None:
    """A thousand refused names are named, the others counted; what is allowed is answered meanwhile."""
    argv = words(paddock, promises.NAMESPACES, FLOODED, ("good.example",), str(REFUSED))
    with world.start(paddock.who, argv, cwd=paddock.worktree) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        first = process.stdout.readline()
        (proxy,) = [pid for pid in below(process.pid) if content(pid, "comm") == b"paddock-proxy\n"]
        before = resident(proxy)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == first
        after = resident(proxy)
        process.communicate("\n")
    print(f"{before >> 10} -> {after >> 10} KiB")
    assert after < 1.04 * before
    assert paddock.call("denials", "--json").stdout.count("evil.example") < 5_000
    assert f"lost: {REFUSED - 1000} denials" in paddock.call("denials").stdout


def resident(pid: int) -> int:
    """Bytes of a process's memory that are there."""
    (line,) = [line for line in content(pid, "status").splitlines() if line.startswith(b"VmRSS:")]
    return int(line.split()[1]) << 10
