"""The proxy process: confined, tied to its session, missed when it is gone; and what else a session may reach."""

import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from launcher.egress import proxy
from policy import promises
from tests.conftest import IDENTITIES
from tests.support import forked
from tests.support.features import need_backend
from tests.support.identity import AS_A_USER, Who
from tests.support.install import base_python
from tests.support.paddock import Paddock, below, content
from tests.support.programs.scene import SWITCHES

PATIENCE = 30.0

ROOT_ONCE = pytest.mark.parametrize(
    ("backend", "who"),
    [*((each, IDENTITIES[-1]) for each in promises.BACKENDS), *((promises.GUARD, each) for each in IDENTITIES[:-1])],
    indirect=True,
)
"""An ordinary user on each backend, and root, whose rights to files and capabilities are more, on one."""


@pytest.fixture(params=promises.BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend in turn."""
    return need_backend(request.param)


@contextmanager
def session(
    paddock: Paddock, backend: str, *options: str, line: str = "echo ready; exec cat"
) -> "Iterator[subprocess.Popen[bytes]]":
    """A session with a proxy, whose command waits for the end of its standard input."""
    env, choice = SWITCHES[backend]
    own = ("--git", "readonly", "--net", "proxy", "--proxy-env", "yes")
    words = paddock.words("run", *own, *choice, *options, "--", "sh", "-c", line)
    with paddock.who.start(words, cwd=paddock.worktree, env=env) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            if process.poll() is None:
                process.communicate(b"", timeout=PATIENCE)


def proxy_of(launcher: int) -> int:
    """Process id of the proxy, once it serves."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for pid in below(launcher):
            if field(pid, "Name") == proxy.NAME and field(pid, "NoNewPrivs") == "1":
                return pid
        time.sleep(0.02)
    raise AssertionError("there is no proxy")


def field(pid: int, name: str) -> str:
    """A field of /proc/PID/status."""
    for line in content(pid, "status").decode().splitlines():
        if line.startswith(f"{name}:"):
            return line.split()[1]
    return ""


def ended(pid: int) -> None:
    """Waits until a process has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], PATIENCE)[0], f"{pid} lives"
    finally:
        os.close(fd)


@ROOT_ONCE
def test_the_proxy_has_no_privilege_and_no_terminal(paddock: Paddock, backend: str) -> None:
    """No capability, no way to a new one, no stream, no place in the caller's session: an agent's."""
    with session(paddock, backend, "--provider", "goose") as process:
        pid = proxy_of(process.pid)
        deadline = time.monotonic() + PATIENCE
        while int(field(pid, "CapPrm"), 16) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert [int(field(pid, name), 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")] == [0] * 4
        if paddock.who.uid == 0:
            assert int(field(pid, "CapBnd"), 16) == 0
        assert os.getsid(pid) == pid
        assert {os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)} == {"/dev/null"}
        assert os.readlink(f"/proc/{pid}/cwd") == "/"


def test_a_confined_process_resolves_and_reads_nothing(who: Who, public_dir: Path) -> None:
    """What the proxy does before it serves: names are resolved, connections made, files of the user's closed to it."""
    (public_dir / "file").write_text("content")
    who.give(public_dir / "file")

    def act() -> dict[str, str]:
        proxy.confine()
        found = {}
        for name, attempt in {
            "resolve": lambda: socket.getaddrinfo("localhost", 80),
            "connect": lambda: socket.create_connection(listener.getsockname()).close(),
            "read": lambda: (public_dir / "file").read_text(),
            "list": lambda: os.listdir("/etc"),
            "shadow": lambda: Path("/etc/shadow").read_bytes(),
            "write": lambda: (public_dir / "new").write_text(""),
            "execute": lambda: os.posix_spawn("/bin/true", ["true"], {}),
            "signal": lambda: os.kill(os.getppid(), 0),
        }.items():
            try:
                attempt()  # type: ignore[no-untyped-call]  # lambdas
                found[name] = "done"
            except OSError as error:
                found[name] = type(error).__name__
        return found

    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = forked.run(act, who)
    assert {name for name, what in found.items() if what == "done"} == {"resolve", "connect"}, found
    assert set(found.values()) == {"done", "PermissionError"}, found


@AS_A_USER
def test_the_proxy_ends_with_a_launcher_that_is_killed(paddock: Paddock, backend: str) -> None:
    """By SIGKILL, which nobody can answer; and with an ordinary end."""
    with session(paddock, backend) as process:
        pid = proxy_of(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        ended(pid)
        process.wait(PATIENCE)
    with session(paddock, backend) as process:
        pid = proxy_of(process.pid)
        process.communicate(b"", timeout=PATIENCE)
        assert process.returncode == 0
        ended(pid)
    assert paddock.run("true").returncode == 0  # clears away what the killed one left


@AS_A_USER
def test_a_lost_proxy_leaves_the_jail_without_a_network(paddock: Paddock, backend: str) -> None:
    """It fails closed, and the user is told at the end."""
    line = "echo ready; read word; curl -sS --noproxy '' http://127.0.0.1:1/ 2>&1; exec cat"
    with session(paddock, backend, "--allow-domain=127.0.0.1:1", line=line) as process:
        os.kill(proxy_of(process.pid), signal.SIGKILL)
        out, err = process.communicate(b"go\n", timeout=PATIENCE)
    assert b"curl: (7)" in out or b"curl: (56)" in out, out
    assert b"paddock: the network proxy ended before the command" in err
    assert process.returncode == 0


def test_an_upstream_proxy_of_another_kind_is_refused(file_paddock: Paddock) -> None:
    """Before anything starts, and without its credentials."""
    error = file_paddock.refused("run", "--net", "proxy", "--", "true", env={"https_proxy": "socks5://me:hush@x"})
    assert error.reference == "upstream-proxy"
    assert "hush" not in error.text


REACH = """
import socket, sys
for word in sys.argv[1:]:
    kind, address = (socket.AF_UNIX, word) if "/" in word else (socket.AF_INET, ("127.0.0.1", int(word)))
    try:
        with socket.socket(kind) as sock:
            sock.settimeout(20)
            sock.connect(address)
            print(sock.recv(100).decode())
    except OSError as error:
        print(type(error).__name__)
"""


@ROOT_ONCE
def test_a_port_and_a_socket_file_of_the_machine_can_be_granted(paddock: Paddock, backend: str) -> None:
    """At its own address, without any proxy, and by its path; another port and another file stay closed. The user is
    told that no rule of the jail holds for what answers at the file.
    """
    env, choice = SWITCHES[backend]
    directory = paddock.place / "outside"
    directory.mkdir()
    files = [directory / name for name in ("docker.sock", "other.sock")]
    with ExitStack() as stack:
        ports = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        sockets = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in files]
        for server, path in zip(sockets, files, strict=True):
            server.bind(str(path))
            server.listen()
        paddock.who.give(directory)

        def greet(server: socket.socket, words: bytes) -> None:
            with server.accept()[0] as connection:
                connection.sendall(words)

        greeters = [threading.Thread(target=greet, args=(server, words)) for server, words in
                    ((ports[0], b"hello from the machine"), (sockets[0], b"hello from the socket"))]  # fmt: skip
        for thread in greeters:
            thread.start()
        numbers = [str(server.getsockname()[1]) for server in ports]
        program = [str(base_python()), "-I", "-S", "-c", REACH, *numbers, *map(str, files)]
        granted = ("--reach", numbers[0], "--rw", str(files[0]))
        ended = paddock.run("--git", "readonly", *choice, *granted, "--", *program, env=env)
        for thread in greeters:
            thread.join(PATIENCE)
        assert not select.select([ports[1], sockets[1]], [], [], 0)[0]
    port, other, file, closed = ended.stdout.splitlines()
    assert (port, file) == ("hello from the machine", "hello from the socket"), ended
    assert other in ("ConnectionRefusedError", "PermissionError"), ended
    assert closed in ("FileNotFoundError", "PermissionError"), ended
    assert "acts outside of the jail" in ended.stderr
    assert "root on this machine" in ended.stderr


def test_a_known_provider_has_its_own_hosts_and_others_none(file_paddock: Paddock) -> None:
    """Left to itself the network is the proxy for a provider, closed for a plain command."""
    told = file_paddock.call("explain", "--plan", "--provider", "claude-code", "--", "true").stdout.splitlines()
    assert "network   proxy" in told
    assert "allowed   api.anthropic.com  [provider claude-code]" in told
    assert "network   none" in file_paddock.call("explain", "--plan", "--", "true").stdout.splitlines()
    words = ("explain", "--plan", "--allow-domain", "@python", "--net", "auto", "--", "true")
    told = file_paddock.call(*words).stdout.splitlines()
    assert "network   proxy" in told
    assert sum(line.endswith("[--allow-domain @python]") for line in told) == 2


def test_the_token_is_in_no_file(user_paddock: Paddock) -> None:
    """Neither in the cached plan nor in the log, in the report, or in what explain shows."""
    words = (
        "run",
        "--net",
        "proxy",
        "--proxy-env",
        "yes",
        "--report",
        "report.json",
        "--",
        "sh",
        "-c",
        "echo $HTTP_PROXY",
    )
    ended = user_paddock.call(*words)
    token = ended.stdout.partition("@")[0].rpartition(":")[2]
    assert len(token) == 32
    again = user_paddock.call(*words).stdout
    assert token not in again
    found = [
        path
        for top in (user_paddock.who.home, user_paddock.worktree)
        for path in top.rglob("*")
        if path.is_file() and token.encode() in path.read_bytes()
    ]
    assert found == []
    explained = user_paddock.call("explain", "--plan", "--net", "proxy", "--proxy-env", "yes", "--", "true").stdout
    assert "${proxy}" in explained
    assert "proxy" not in user_paddock.call("run", "--net", "proxy", "--", "env").stdout  # reached by name: no need
