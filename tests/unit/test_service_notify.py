"""What a service says to its manager and takes from it, against a socket that stands in for the manager's."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from launcher.service import systemd
from policy.errors import Refusal


@pytest.fixture(params=["path", "abstract"])
def told(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The manager's end; NOTIFY_SOCKET names it, once as a path and once as an abstract address."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        if request.param == "path":
            address = str(tmp_path / "notify")
            manager.bind(address)
        else:
            address = f"@paddock-test-{os.getpid()}-{id(tmp_path)}"
            manager.bind("\0" + address[1:])
        manager.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.setattr(systemd, "_manager", None)
        yield manager


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No manager has started this process."""
    for name in systemd.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(systemd, "_manager", None)


def test_ready_says_who_and_what(told: socket.socket) -> None:
    """READY=1, the main process and one line of status arrive in one datagram."""
    assert systemd.ready("3 sessions")
    assert told.recv(4096).decode().split("\n") == ["READY=1", f"MAINPID={os.getpid()}", "STATUS=3 sessions"]


def test_every_message_has_its_standard_words(told: socket.socket) -> None:
    """Status, reload, stop, ping and a request for time are spelt as sd_notify(3) has them."""
    assert systemd.status("busy\nSTOPPING=1")
    assert told.recv(4096) == b"STATUS=busy STOPPING=1"
    assert systemd.reloading()
    first, second = told.recv(4096).decode().split("\n")
    assert first == "RELOADING=1"
    assert second.startswith("MONOTONIC_USEC=")
    assert int(second.partition("=")[2]) > 0
    assert systemd.stopping()
    assert told.recv(4096) == b"STOPPING=1"
    assert systemd.ping()
    assert told.recv(4096) == b"WATCHDOG=1"


def test_no_child_sees_the_managers_variables(told: socket.socket) -> None:
    """What a child could use to speak for the service is gone from the environment after the first word."""
    systemd.ready("")
    child = subprocess.run([sys.executable, "-c", "import os; print(*os.environ)"], capture_output=True, text=True)
    assert not set(child.stdout.split()) & set(systemd.VARIABLES)
    assert systemd.ping()


@pytest.mark.usefixtures("alone")
def test_without_a_manager_nothing_happens() -> None:
    """Started by hand, the service talks to nobody and has no sockets and no watchdog."""
    assert not systemd.ready("x")
    assert not systemd.ping()
    assert systemd.watchdog_seconds() is None
    assert systemd.listen_sockets() == []


def test_a_manager_that_went_away_is_logged_and_no_reason_to_end(
    told: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    """While systemd re-executes itself its socket may be missing."""
    told.close()
    assert not systemd.ping()
    assert "cannot notify the service manager of WATCHDOG=1" in caplog.text


def test_the_watchdog_is_for_the_process_it_names() -> None:
    """WATCHDOG_USEC counts when WATCHDOG_PID is this process or absent, else it is a parent's."""
    assert systemd.take({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, 7).watchdog == 3_000_000
    assert systemd.take({"WATCHDOG_USEC": "3000000"}, 7).watchdog == 3_000_000
    assert systemd.take({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, 7).watchdog == 0


def test_sockets_are_for_the_process_they_name() -> None:
    """LISTEN_FDS counts only together with this process's own LISTEN_PID."""
    own = {"LISTEN_FDS": "2", "LISTEN_PID": "7", "LISTEN_FDNAMES": "a:b"}
    taken = systemd.take(own, 7)
    assert (taken.sockets, taken.names) == (2, ("a", "b"))
    assert own == {}
    assert systemd.take({"LISTEN_FDS": "2", "LISTEN_PID": "8"}, 7).sockets == 0
    assert systemd.take({"LISTEN_FDS": "2"}, 7).sockets == 0


@pytest.mark.parametrize(
    "environment",
    [
        {"NOTIFY_SOCKET": "vsock:2:1234"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "-1"},
        {"LISTEN_FDS": "65", "LISTEN_PID": "7"},
        {"LISTEN_FDS": "\u0663", "LISTEN_PID": "7"},
        {"LISTEN_FDS": "2", "LISTEN_PID": "7", "LISTEN_FDNAMES": "one"},
    ],
    ids=lambda environment: " ".join(f"{name}={value}" for name, value in environment.items()),
)
def test_nonsense_is_refused(environment: dict[str, str]) -> None:
    """Variables that cannot come from systemd, or that ask for what is not served, end the start with one error."""
    with pytest.raises(Refusal) as refused:
        systemd.take(environment, 7)
    assert refused.value.reference == "service-environment"


def test_a_listening_socket_is_taken_over(tmp_path: Path) -> None:
    """A passed socket serves, does not block, and no child inherits it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "api"))
        listener.listen()
        fd = os.dup(listener.fileno())
    os.set_inheritable(fd, True)
    (taken,) = systemd.listening(range(fd, fd + 1))
    with taken, socket.socket(socket.AF_UNIX) as client:
        assert not os.get_inheritable(fd)
        with pytest.raises(BlockingIOError):
            taken.accept()
        client.connect(str(tmp_path / "api"))
        taken.accept()[0].close()


@pytest.mark.parametrize("kind", ["file", "closed", "tcp", "datagram", "silent"])
def test_what_is_no_listening_unix_socket_is_refused(kind: str, tmp_path: Path) -> None:
    """A unit that was edited to pass something else does not make us serve it."""
    with ExitStack() as stack:
        if kind == "file":
            fd = stack.enter_context((tmp_path / "f").open("w")).fileno()
        elif kind == "closed":
            fd = os.dup(2)
            os.close(fd)
        else:
            family = socket.AF_INET if kind == "tcp" else socket.AF_UNIX
            passed = socket.socket(family, socket.SOCK_DGRAM if kind == "datagram" else socket.SOCK_STREAM)
            if kind == "tcp":
                passed.bind(("127.0.0.1", 0))
                passed.listen()
            fd = passed.detach()
        with pytest.raises(Refusal) as refused:
            systemd.listening(range(fd, fd + 1))
        assert refused.value.reference == "service-socket"
