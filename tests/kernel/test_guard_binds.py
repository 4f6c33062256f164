"""Addresses that the guard gives to sockets: as without a jail inside of the grants, and none outside of it."""

import os
import socket
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


TAKE_NAMES = """
name = sys.argv[1].encode()
kept = []
def take(address):
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        kept.append(socket.socket(socket.AF_UNIX, kind))
        said(syscall, "bind", kept[-1].fileno(), ctypes.create_string_buffer(address, len(address)), len(address))
        said(kept[-1].listen)
take(b"\\1\\0\\0" + name)
take((b"\\1\\0\\0" + name).ljust(110, b"\\0"))
take((b"\\1\\0\\0" + name).ljust(110, b"x"))
# What was looked at is something else by the time that it counts.
flipping = ctypes.create_string_buffer(b"\\1\\0race\\0", 3 + len(name))
ctypes.memmove(ctypes.byref(flipping, 3), name, len(name))
ended = False
def flip():
    while not ended:
        flipping[2] = b"\\0"
        flipping[2] = b"r"
thread = threading.Thread(target=flip)
thread.start()
for _ in range(400):
    kept.append(socket.socket(socket.AF_UNIX))
    said(syscall, "bind", kept[-1].fileno(), flipping, 3 + len(name))
    if said(kept[-1].listen) == "ok" and kept[-1].getsockname()[:1] != b"\\0":
        os.unlink(kept[-1].getsockname())
    if len(kept) > 300:
        kept[6:] = []
ended = True
thread.join()
print("up", flush=True)
input()
"""


@pytest.mark.parametrize("net", ["none", "proxy", "open"])
def test_no_abstract_name_of_the_machine_can_be_taken(jail: Guarded, net: str) -> None:
    """However it is spelled, and whoever changes it meanwhile: outside it is free, and nobody answers by it."""
    name = f"paddock-{os.urandom(8).hex()}"
    with jail.start(jail.python(TAKE_NAMES, name), "--net", net) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"up\n"
        names = [line.split()[-1] for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()]
        assert not [taken for taken in names if taken.startswith(f"@{name}")]
        with socket.socket(socket.AF_UNIX) as mine:
            mine.bind("\0" + name)
        running.communicate(b"\n", timeout=60)
        assert running.returncode == 0


EVERY_BIND = """
os.chdir(sys.argv[1])
os.umask(0o022)
os.mkdir("dir")
open("file", "w").close()
os.symlink("file", "link")
os.symlink("nothing", "dangling")
os.symlink("dir", "into")
os.symlink("loop", "loop")
calls, kept = [], []
def bind(address, length=None, fd=None, family=socket.AF_UNIX, kind=socket.SOCK_STREAM):
    kept.append(socket.socket(family, kind))
    buffer = None if address is None else ctypes.create_string_buffer(address, len(address))
    fd = kept[-1].fileno() if fd is None else fd
    answer = said(syscall, "bind", fd, buffer, len(address) if length is None else length)
    calls.append([repr(address)[:60], length, answer])
def unix(path):
    return b"\\1\\0" + path
for path in (b"s", b"s", b"./t", b"dir/s", b"into/t", b"dir/", b"new/", b"dir", b".", b"..", b"/", b"file", b"file/x",
             b"link", b"dangling", b"missing/x", b"loop/x", b"x" * 107, b"x" * 108, b"y" * 100 + b"/z",
             b"\\xff\\n-", b"u\\0garbage", b"/absent/x", b"dir/../v"):
    bind(unix(path))
for length in (-1, 0, 1, 3, 109, 110, 111, 128, 129, 1 << 20):
    bind(unix(b"length").ljust(126, b"\\0"), length)
for mask in (0o077, 0o000, 0o117):
    os.umask(mask)
    bind(unix(b"mask%o" % mask))
    calls.append(os.stat(b"mask%o" % mask).st_mode)
bind(None, 110)
for fd in (-1, 999, os.open("file", os.O_RDONLY), os.open("file", os.O_PATH), os.pipe()[0], kept[0].fileno()):
    bind(unix(b"other"), fd=fd)
for family in (0, 2, 10, 16, 17, 999):
    bind(family.to_bytes(2, "little") + bytes(30))
bind(unix(b"packets"), kind=socket.SOCK_SEQPACKET)
bind(b"\\x10\\0" + bytes(10), family=socket.AF_NETLINK, kind=socket.SOCK_RAW)
there = os.open("dir", os.O_PATH)
bind(unix(b"/proc/self/fd/%d/w" % there))
os.chdir("dir")
bind(unix(b"beneath"))
os.chdir("..")
calls.append(sorted(os.path.join(root, name) for root, _, names in os.walk(".") for name in names))
names = [os.fsencode(sock.getsockname()) for sock in kept if sock.family == socket.AF_UNIX]
calls.append([repr(name) for name in names if b"/fd/" not in name])
result = calls
"""


def test_inside_every_bind_answers_as_without_a_jail(jail: Guarded) -> None:
    """Names of every kind, with the caller's directory and umask: the results, the files, and the names that sockets
    say they have."""
    for name in ("plain", "held"):
        (jail.inside / name).mkdir()
    jail.who.give(jail.inside)
    expected = jail.plainly(EVERY_BIND, jail.inside / "plain", cwd=jail.inside)
    found = jail.tried(EVERY_BIND, jail.inside / "held")
    assert len(expected) > 50
    differences = [f"{one}, guarded {two}" for one, two in zip(expected, found, strict=True) if one != two]
    assert not differences, "\n".join(differences)


BIND_OUTSIDE = """
outside, inside = sys.argv[1:]
os.chdir(inside)
os.symlink(outside, "out")
os.mkdir("swapped")
there = os.open(outside, os.O_PATH)
def bind(path):
    with socket.socket(socket.AF_UNIX) as sock:
        return said(sock.bind, path)
result = [bind(path) for path in (outside + "/s", "out/s", os.path.relpath(outside) + "/s", f"/proc/self/fd/{there}/s",
                                  f"/proc/{os.getpid()}/fd/{there}/s", f"/dev/fd/{there}/s",
                                  f"/proc/self/root{outside}/s")]
ended = False
def exchange():
    while not ended:
        libc.syscall(ctypes.c_long(316 if os.uname().machine == "x86_64" else 276), -100, b"swapped", -100, b"out", 2)
thread = threading.Thread(target=exchange)
thread.start()
raced = []
for number in range(1500):
    raced.append(bind(f"swapped/s{number}"))
ended = True
thread.join()
result.append(sorted(set(raced)))
"""


def test_no_socket_is_made_outside(jail: Guarded) -> None:
    """By no path, nor where a directory of the path is exchanged for a link while the guard looks."""
    (jail.inside / "here").mkdir()
    jail.who.give(jail.inside)
    options = ("--ro", jail.outside)
    *answers, raced = jail.tried(BIND_OUTSIDE, jail.outside, jail.inside / "here", options=options)
    assert set(answers) == {"EACCES"}
    assert set(raced) <= {"ok", "EACCES", "ENOENT"}
    assert raced
    assert [path.name for path in jail.outside.iterdir()] == ["report.json"]


def test_everyday_servers_bind_what_they_like(jail: Guarded) -> None:
    """multiprocessing's managers, which listen at abstract names, and a socket that asks for any name."""
    code = """
import multiprocessing, tempfile
manager = multiprocessing.Manager()
shared = manager.dict(a=1)
def work():
    shared["b"] = 2
process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join()
named = socket.socket(socket.AF_UNIX)
named.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
named.bind("")
own = socket.socket(socket.AF_UNIX)
own.bind("\\0mine".ljust(108, "x"))
own.listen()
with socket.socket(socket.AF_UNIX) as again:
    by_name = said(again.connect, "\\0mine".ljust(108, "x"))
with socket.socket(socket.AF_UNIX) as again:
    by_address = said(again.connect, own.getsockname())
with socket.socket(socket.AF_UNIX) as again:
    taken = said(again.bind, "\\0mine".ljust(108, "x"))
result = [dict(shared), len(named.getsockname()), by_name, by_address, taken]
"""
    assert jail.tried(code) == [{"a": 1, "b": 2}, 6, "ok", "ok", "EADDRINUSE"]
