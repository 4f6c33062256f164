"""The proxy process: confined, tied to its session, missed when it is gone; and what else a session may reach."""

import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.egress import proxy
from policy import promises
from tests.support import forked
from tests.support.features import need_backend
from tests.support.identity import Who
from tests.support.install import base_python
from tests.support.paddock import Paddock, below, content
from tests.support.programs.scene import SWITCHES

PATIENCE = 30.0


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


def test_a_lost_proxy_leaves_the_jail_without_a_network(paddock: Paddock, backend: str) -> None:
    """It fails closed, and the user is told at the end."""
    line = "echo ready; read word; curl -sS --noproxy '' http://127.0.0.1:1/ 2>&1; exec cat"
    with session(paddock, backend, "--allow-domain=127.0.0.1:1", line=line) as process:
        os.kill(proxy_of(process.pid), signal.SIGKILL)
        out, err = process.communicate(b"go\n", timeout=PATIENCE)
    assert b"curl: (7)" in out or b"curl: (56)" in out, out
    assert b"paddock: the network proxy ended before the command" in err
    assert process.returncode == 0


def test_an_upstream_proxy_of_another_kind_is_refused(user_paddock: Paddock) -> None:
    """Before anything starts, and without its credentials."""
    error = user_paddock.refused("run", "--net", "proxy", "--", "true", env={"https_proxy": "socks5://me:hush@x"})
    assert error.reference == "upstream-proxy"
    assert "hush" not in error.text


CONNECT = """
import socket, sys
for port in map(int, sys.argv[1:]):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
            print(sock.recv(100).decode())
    except OSError as error:
        print(type(error).__name__)
"""


def test_a_port_of_the_machine_can_be_granted(paddock: Paddock, backend: str) -> None:
    """At its own address, without any proxy; another port stays closed."""
    env, choice = SWITCHES[backend]
    with socket.create_server(("127.0.0.1", 0)) as granted, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [str(server.getsockname()[1]) for server in (granted, other)]

        def greet() -> None:
            with granted.accept()[0] as connection:
                connection.sendall(b"hello from the machine")

        thread = threading.Thread(target=greet)
        thread.start()
        program = [str(base_python()), "-I", "-S", "-c", CONNECT, *ports]
        ended = paddock.run("--git", "readonly", *choice, "--reach", ports[0], "--", *program, env=env)
        thread.join(PATIENCE)
        assert not select.select([other], [], [], 0)[0]
    first, second = ended.stdout.splitlines()
    assert first == "hello from the machine", ended
    assert second in ("ConnectionRefusedError", "PermissionError")


def test_a_known_provider_has_its_own_hosts_and_others_none(user_paddock: Paddock) -> None:
    """Left to itself the network is the proxy for a provider, closed for a plain command."""
    told = user_paddock.call("explain", "--plan", "--provider", "claude-code", "--", "true").stdout.splitlines()
    assert "network   proxy" in told
    assert "allowed   api.anthropic.com  [provider claude-code]" in told
    assert "network   none" in user_paddock.call("explain", "--plan", "--", "true").stdout.splitlines()
    words = ("explain", "--plan", "--allow-domain", "@python", "--net", "auto", "--", "true")
    told = user_paddock.call(*words).stdout.splitlines()
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


def test_a_socket_file_can_be_granted_with_a_warning(paddock: Paddock, backend: str) -> None:
    """By its path; the user is told that no rule of the jail holds for what answers there."""
    env, choice = SWITCHES[backend]
    directory = paddock.place / "outside"
    directory.mkdir()
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(100).decode())"
    )
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(directory / "docker.sock"))
        server.listen()
        paddock.who.give(directory)

        def greet() -> None:
            with server.accept()[0] as connection:
                connection.sendall(b"hello from the socket")

        thread = threading.Thread(target=greet)
        thread.start()
        words = [str(base_python()), "-I", "-S", "-c", program, str(directory / "docker.sock")]
        denied = paddock.run("--git=readonly", *choice, "--", *words, env=env)
        ended = paddock.run("--git=readonly", *choice, "--rw", str(directory / "docker.sock"), "--", *words, env=env)
        thread.join(PATIENCE)
    assert denied.returncode != 0
    assert ended.stdout == "hello from the socket\n", ended
    assert "acts outside of the jail" in ended.stderr
    assert "root on this machine" in ended.stderr
