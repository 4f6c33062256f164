"""Connections where the guard makes them: to sockets in the grants as without a jail, to no others."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import guarded
from tests.support.features import need
from tests.support.guarded import Guarded
from tests.support.identity import Who
from tests.support.install import Installed


@pytest.fixture
def jail(user: Who, installed: Installed, public_dir: Path) -> Guarded:
    """A jail of the backend landlock+guard, of an ordinary user: root's guard has no capability either."""
    need("landlock")
    return guarded.at(user, installed, public_dir)


@pytest.fixture
def server(jail: Guarded) -> Iterator[socket.socket]:
    """Something that listens outside, at ``outside/s``, for everybody."""
    with socket.socket(socket.AF_UNIX) as listening:
        _bind(listening, jail.outside / "s")
        jail.who.give(jail.outside)
        listening.listen()
        listening.setblocking(False)
        yield listening


def _bind(listening: socket.socket, path: Path) -> None:
    # A path of a socket is short by law; the directory's descriptor makes it so.
    above = os.open(path.parent, os.O_PATH)
    listening.bind(f"/proc/self/fd/{above}/{path.name}")
    os.close(above)
    path.chmod(0o777)


def reached(listening: socket.socket) -> bool:
    """Whether somebody has connected."""
    try:
        listening.accept()[0].close()
    except BlockingIOError:
        return False
    return True


WAYS = """
target = sys.argv[1]
name, above = os.path.basename(target), os.path.dirname(target)
os.symlink(target, "to-it")
os.symlink("to-it", "to-the-link")
os.symlink(above, "to-its-directory")
os.symlink(f"/proc/self/root{target}", "by-the-root")
there = os.open(above, os.O_PATH)
itself = os.open(target, os.O_PATH)
deep = os.path.relpath(target)
ways = [target, deep, "./" + deep, "to-it", "to-the-link", f"to-its-directory/{name}", "by-the-root",
        f"/proc/self/root{target}", f"/proc/self/cwd/{deep}", f"/proc/self/fd/{itself}", f"/dev/fd/{itself}",
        f"/proc/thread-self/fd/{there}/{name}", f"/proc/self/fd/{there}/./{name}"]
result = {}
def connect(kind, way):
    with socket.socket(socket.AF_UNIX, kind) as sock:
        return said(sock.connect, way)
for way in ways:
    if len(way) < 108:
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            result[f"{way} {kind}"] = connect(kind, way)
deepest = ""
for _ in range(3):
    os.mkdir("d" * 100)
    os.chdir("d" * 100)
os.chdir(above) if above.startswith(sys.argv[2]) else None
os.fchdir(there)
result["from there"] = connect(socket.SOCK_STREAM, name)
"""


def test_no_way_leads_to_a_socket_outside(jail: Guarded, server: socket.socket) -> None:
    """A socket file outside the grants is EACCES by every path, and nobody connects to it."""
    answers = jail.tried(WAYS, jail.outside / "s", jail.repo.one)
    assert len(answers) > 12
    assert set(answers.values()) == {"EACCES"}
    assert not reached(server)


def test_a_socket_that_may_only_be_read_is_outside(jail: Guarded, server: socket.socket) -> None:
    """--ro does not let a socket file be connected to."""
    assert set(jail.tried(WAYS, jail.outside / "s", "/", options=("--ro", jail.outside)).values()) == {"EACCES"}
    assert not reached(server)


def test_a_granted_socket_is_reached(jail: Guarded, server: socket.socket) -> None:
    """--rw of exactly one socket file lets it be connected to, by every way."""
    answers = jail.tried(WAYS, jail.outside / "s", "/", options=("--rw", jail.outside / "s"))
    for way, answer in answers.items():
        assert answer == ("EPROTOTYPE" if way.endswith(" 5") else "ok"), way
    assert reached(server)


def test_a_socket_inside_is_reached_by_every_way(jail: Guarded) -> None:
    """What the jail itself serves, it reaches, also from a directory with a path too long for any address."""
    code = """
import tempfile
server = socket.socket(socket.AF_UNIX)
server.bind("s")
server.listen(64)
for index, argument in enumerate(("s",)):
    sys.argv[1] = os.path.abspath(argument)
"""
    long = """
home = os.path.dirname(target)
os.chdir(home)
for _ in range(3):
    os.chdir("d" * 100)
deep_server = socket.socket(socket.AF_UNIX)
deep_server.bind("s")
deep_server.listen()
ways = ["s", "./../" + "d" * 100 + "/s"]
result["long"] = [len(os.getcwd()) > 300, *(connect(socket.SOCK_STREAM, way) for way in ways)]
result["accepted"] = said(lambda: deep_server.accept() and None)
"""
    answers = jail.tried(code + WAYS + long, "-", "/nowhere")
    assert answers.pop("long") == [True, "ok", "ok"]
    assert answers.pop("accepted") == "ok"
    assert len(answers) > 12
    for way, answer in answers.items():
        assert answer == ("EPROTOTYPE" if way.endswith(" 5") else "ok"), way


def test_abstract_names_stay_on_their_side(jail: Guarded) -> None:
    """An abstract socket made outside is EPERM; one that the jail made is reached."""
    name = f"paddock-{os.urandom(8).hex()}"
    code = """
with socket.socket(socket.AF_UNIX) as sock:
    outer = said(sock.connect, "\\0" + sys.argv[1])
inner = socket.socket(socket.AF_UNIX)
inner.bind("\\0inside-" + sys.argv[1])
inner.listen()
with socket.socket(socket.AF_UNIX) as sock:
    mine = said(sock.connect, "\\0inside-" + sys.argv[1])
    sock.send(b"x")
    got = inner.accept()[0].recv(1).decode()
with socket.socket(socket.AF_UNIX) as sock:
    nobody = said(sock.connect, "\\0nobody-" + sys.argv[1])
result = [outer, mine, got, nobody]
"""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("\0" + name)
        listening.listen()
        listening.setblocking(False)
        assert jail.tried(code, name) == ["EPERM", "ok", "x", "ECONNREFUSED"]
        assert not reached(listening)


def test_datagrams_have_no_sockets(jail: Guarded) -> None:
    """Sockets whose every message has an address of its own do not exist; pairs of streams do."""
    code = """
result = {}
for family in ("AF_UNIX", "AF_INET", "AF_INET6"):
    for kind in ("SOCK_STREAM", "SOCK_DGRAM", "SOCK_SEQPACKET", "SOCK_RAW"):
        for flags in (0, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK):
            kinds = getattr(socket, kind) | flags
            result[f"{family} {kind} {flags}"] = [
                said(lambda: socket.socket(getattr(socket, family), kinds).close()),
                said(lambda: [s.close() for s in socket.socketpair(getattr(socket, family), kinds)] and None),
            ]
"""
    answers = jail.tried(code)
    for what, (one, pair) in answers.items():
        family, kind, _ = what.split()
        if family == "AF_UNIX":
            allowed = kind in ("SOCK_STREAM", "SOCK_SEQPACKET")
            assert [one, pair] == (["ok", "ok"] if allowed else ["EAFNOSUPPORT", "EAFNOSUPPORT"]), what
        else:
            assert one == "EACCES", what
            assert pair != "ok", what


def test_addresses_on_messages_reach_nobody(jail: Guarded, server: socket.socket) -> None:
    """sendto and sendmsg with the address of a socket outside do not connect to it."""
    code = """
result = []
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    fresh = socket.socket(socket.AF_UNIX, kind)
    for sock in (one, fresh):
        sock.settimeout(1)
        result.append(said(sock.sendto, b"x", sys.argv[1]))
        result.append(said(sock.sendmsg, [b"x"], [], 0, sys.argv[1]))
        result.append(said(sock.sendmsg, [b"x"], [], 0x20000000, sys.argv[1]))
"""
    jail.tried(code, jail.outside / "s")
    assert not reached(server)


EVERY_CONNECT = """
os.chdir(sys.argv[1])
server = socket.socket(socket.AF_UNIX)
server.bind("s")
server.listen(20)
packets = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
packets.bind("p")
packets.listen(64)
unheard = socket.socket(socket.AF_UNIX)
unheard.bind("unheard")
open("file", "w").close()
os.symlink("s", "link")
os.symlink("loop", "loop")
os.mkdir("dir")
calls = []
def connect(fd, address, length=None):
    buffer = None if address is None else ctypes.create_string_buffer(address, len(address))
    answer = said(syscall, "connect", fd, buffer, len(address) if length is None else length)
    calls.append([repr(address)[:60], length, answer])
def unix(path):
    return (1).to_bytes(2, "little") + path
def fresh(kind=socket.SOCK_STREAM, flags=0):
    sock = socket.socket(socket.AF_UNIX, kind | flags)
    kept.append(sock)
    return sock.fileno()
kept = []
for path in (b"file", b"dir", b"unheard", b"missing", b"missing/x", b"file/x", b"loop", b"x" * 108, b"x" * 200, b"s/",
             b"p", b"\\xff\\xfe", b"s" + b"\\0" * 50 + b"garbage"):
    connect(fresh(flags=socket.SOCK_NONBLOCK), unix(path))
    connect(fresh(socket.SOCK_SEQPACKET), unix(path))
for length in (-1, 0, 1, 2, 3, 110, 111, 128, 129, 1 << 20):
    connect(fresh(flags=socket.SOCK_NONBLOCK), unix(b"missing".ljust(126, b"\\0")), length)
connect(fresh(), None, 110)
for fd in (-1, 999, os.open("file", os.O_RDONLY), os.open("file", os.O_PATH), os.pipe()[0]):
    connect(fd, unix(b"s"))
for family in (0, 2, 10, 16, 17, 40, 999):
    connect(fresh(), family.to_bytes(2, "little") + bytes(30)) if family not in (2, 10, 17, 40, 999) else None
routes = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
connect(routes.fileno(), (16).to_bytes(2, "little") + bytes(10))
connect(routes.fileno(), (0).to_bytes(2, "little") + bytes(10))
twice = fresh()
connect(twice, unix(b"link"))
connect(twice, unix(b"s"))
connect(server.fileno(), unix(b"s"))
one, other = socket.socketpair()
connect(one.fileno(), unix(b"s"))
while calls[-1][2] != "EAGAIN":  # until the queue of the server is full
    connect(fresh(flags=socket.SOCK_NONBLOCK), unix(b"s"))
timed = fresh()
kept[-1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, array.array("l", [0, 20000]).tobytes())
connect(timed, unix(b"s"))
result = calls
"""


def test_inside_every_connect_answers_as_without_a_jail(jail: Guarded) -> None:
    """Addresses of every length and kind, to sockets in every state, have the kernel's own result."""
    for name in ("plain", "held"):
        (jail.inside / name).mkdir()
    jail.who.give(jail.inside)
    expected = jail.plainly(EVERY_CONNECT, jail.inside / "plain", cwd=jail.inside)
    found = jail.tried(EVERY_CONNECT, jail.inside / "held")
    assert len(expected) > 40
    differences = [f"{one}, guarded {two}" for one, two in zip(expected, found, strict=True) if one != two]
    assert not differences, "\n".join(differences)


def test_an_open_network_is_open(jail: Guarded) -> None:
    """With --net open the guard connects to any address over TCP and UDP, blocking or not, and to no socket outside."""
    code = """
result = []
for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")):
    with socket.socket(family) as sock:
        result.append(said(sock.connect, (host, int(sys.argv[1]))))
        sock.send(b"x")
with socket.socket() as sock:
    sock.setblocking(False)
    result.append(said(sock.connect, ("127.0.0.1", int(sys.argv[1]))))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    result.append(said(sock.connect, ("127.0.0.1", 9)))
    result.append(said(sock.connect, ("127.0.0.1", 0)))
with socket.socket() as sock:
    result.append(said(sock.connect, ("127.0.0.1", 1)))
with socket.socket(socket.AF_UNIX) as sock:
    result.append(said(sock.connect, sys.argv[2]))
with socket.socket() as sock:  # the family of the address is not the socket's
    result.append(said(syscall, "connect", sock.fileno(), b"\\1\\0" + sys.argv[2].encode() + b"\\0", 100))
"""
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        _bind(unix, jail.outside / "s")
        unix.listen()
        answers = jail.tried(code, str(tcp.getsockname()[1]), jail.outside / "s", options=("--net", "open"))
        assert answers == ["ok", "ok", "EINPROGRESS", "ok", "ok", "ECONNREFUSED", "EACCES", "EACCES"]
