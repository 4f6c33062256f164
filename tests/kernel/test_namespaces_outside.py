"""Processes, sockets, terminals and the kernel beyond the jail, attacked from inside.

Only the namespaces are in force here, and no capability; Landlock and seccomp would hold some of it as well.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.jail import Jail


@contextmanager
def listening(address: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> Iterator[None]:
    """A socket of the host's that everybody may connect to."""
    with closing(socket.socket(socket.AF_UNIX, kind)) as server:
        server.bind(address)
        if not address.startswith("\0"):
            Path(address).chmod(0o777)
        if kind == socket.SOCK_STREAM:
            server.listen()
        yield


# Other processes, sockets, terminals


def test_processes_outside_are_not_there(jail: Jail) -> None:
    """They have no number, so they can be neither seen nor signalled; the jail's own can."""
    code = """
pids = sorted(int(n) for n in os.listdir("/proc") if n.isdigit())
child = os.fork()
if not child:
    import signal
    signal.pause()
result = [pids, attempt(os.kill, int(words[0]), 0), attempt(os.kill, child, 9), os.waitpid(child, 0)[1]]
"""
    pids, outside, child, status = jail.attack(code, str(os.getpid()))
    assert pids == [1, 2]
    assert outside == "ESRCH"
    assert (child, status) == ("ok", 9)


def test_the_init_shows_nothing_of_the_launcher(jail: Jail) -> None:
    """Process 1 is a copy of the launcher with its environment; it cannot be read or traced."""
    code = """
libc = ctypes.CDLL(None, use_errno=True)
def attach(pid):
    if libc.ptrace(16, pid, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
result = [attempt(open, "/proc/1/environ"), attempt(open, "/proc/1/mem", "rb"), attempt(open, "/proc/1/fd/0"),
          attempt(os.readlink, "/proc/1/root"), attempt(attach, 1), attempt(open, "/proc/self/environ")]
"""
    *refused, own = jail.attack(code)
    assert set(refused) <= {"EACCES", "EPERM"}
    assert own == "ok"


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_sockets_outside_cannot_be_reached(jail: Jail, kind: socket.SocketKind) -> None:
    """Neither by path nor by abstract name; a socket in the worktree can, it was granted."""
    code = """
def connect(address):
    with socket.socket(socket.AF_UNIX, int(words[0])) as client:
        client.connect(address)
def send(address):
    with socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0] as client:
        client.sendto(b"x", address)
paths = [words[1], "\\0" + words[2], words[3], "/proc/1/root" + words[1]]
os.symlink(words[1], "link")
result = [attempt(connect, p) for p in [*paths, "link"]] + [attempt(send, paths[0]), attempt(send, paths[1])]
"""
    name = f"paddock-test-{os.getpid()}"
    outside, inside = jail.outside / "socket", jail.worktree / "socket"
    with listening(str(outside), kind), listening("\0" + name, kind), listening(str(inside), kind):
        path, abstract, own, root, link, sent, sent_abstract = jail.attack(
            code, str(int(kind)), outside, name, inside
        )  # fmt: skip
    assert (path, abstract, link) == ("ENOENT", "ECONNREFUSED", "ENOENT")
    assert root in ("EACCES", "ENOENT")
    assert own == "ok"
    assert sent in ("ENOENT", "EISCONN")
    assert sent_abstract in ("ECONNREFUSED", "EISCONN")


def test_other_terminals_cannot_be_opened(jail: Jail) -> None:
    """The host's ptys have no name inside, not even by number; new ones can be made."""
    master, slave = os.openpty()
    try:
        os.chmod(os.ttyname(slave), 0o666)
        code = """
import pty
before = os.listdir("/dev/pts")
refused = [attempt(os.open, words[0], os.O_RDWR | os.O_NOCTTY)]
master, slave = pty.openpty()
os.write(slave, b"hello")
result = [before, refused, os.read(master, 5).decode(), os.ttyname(slave)]
"""
        before, refused, said, name = jail.attack(code, os.ttyname(slave))
    finally:
        os.close(master)
        os.close(slave)
    assert before == ["ptmx"]
    assert refused == ["ENOENT"]
    assert (said, name) == ("hello", "/dev/pts/0")


# Network


def test_the_network_is_a_loopback_of_its_own(jail: Jail) -> None:
    """A server inside can be reached, over IPv6 too; the host's cannot, and there is no way out."""
    code = """
def serve(family, address):
    with socket.socket(family) as server, socket.socket(family) as client:
        server.bind((address, 0))
        server.listen()
        client.connect(server.getsockname())
def connect(address, port):
    with socket.socket() as client:
        client.settimeout(10)
        client.connect((address, port))
result = [attempt(serve, socket.AF_INET, "127.0.0.1"), attempt(connect, "127.0.0.1", int(words[0])),
          attempt(connect, "192.0.2.1", 80), socket.if_nameindex()]
"""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = str(server.getsockname()[1])
        own, host, away, interfaces = jail.attack(code, port)
        assert jail.attack(code, port, net="open")[:2] == ["ok", "ok"]
    assert (own, host, away) == ("ok", "ECONNREFUSED", "ENETUNREACH")
    assert [name for _, name in interfaces] == ["lo"]


# The kernel's settings, as root


def test_the_kernels_settings_cannot_be_changed(jail: Jail) -> None:
    """For root these are files of its own; all of /proc is read-only, its metadata too."""
    candidates = ("sys/kernel/core_pattern", "sys/vm/overcommit_memory", "irq/default_smp_affinity", "sysrq-trigger")
    paths = [path for name in candidates if os.path.exists(path := f"/proc/{name}")]
    code = """
result = [[attempt(os.open, p, os.O_WRONLY) for p in words], [attempt(os.chmod, p, 0o666) for p in words],
          open("/proc/sys/kernel/core_pattern").read() != ""]
"""
    written, changed, read = jail.attack(code, *paths)
    assert written == ["EROFS"] * len(paths)
    assert changed == ["EROFS"] * len(paths)
    assert read is True


def test_nothing_can_be_mounted(jail: Jail) -> None:
    """Without capabilities neither the old nor the new calls do anything."""
    code = """
libc = ctypes.CDLL(None, use_errno=True)
def call(function, *arguments):
    if function(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "call")
here = words[0].encode()
result = [
    attempt(call, libc.mount, b"none", here, b"tmpfs", 0, None),
    attempt(call, libc.mount, b"/usr", here, None, 4096, None),
    attempt(call, libc.mount, None, b"/usr", None, 32 | 4096, None),
    attempt(call, libc.umount2, b"/usr", 2),
    attempt(call, libc.syscall, 428, -100, here, 1),
    attempt(call, libc.syscall, 430, b"tmpfs", 0),
    attempt(call, libc.syscall, 442, -100, b"/usr", 0, bytes(32), 32),
    attempt(call, libc.sethostname, b"x", 1),
    attempt(os.chroot, words[0]),
]
"""
    assert jail.attack(code, jail.worktree) == ["EPERM"] * 9


def test_no_capability_is_left(jail: Jail) -> None:
    """Root is nobody special inside, and keeps its number."""
    code = "result = [[l.split()[1] for l in open('/proc/self/status') if l.startswith('CapEff')][0], os.getuid()]"
    assert jail.attack(code) == ["0" * 16, jail.who.uid]
