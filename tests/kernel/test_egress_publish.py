"""Ports of the jail that are published on this machine's loopback."""

import socket

import pytest

from launcher.loopback import LOOPBACKS
from policy import promises
from tests.support.features import need_backend
from tests.support.identity import AS_A_USER
from tests.support.install import base_python
from tests.support.paddock import Paddock
from tests.support.programs.scene import SWITCHES

PATIENCE = 60.0

SERVE = """
import socket, sys, threading
with socket.create_server(("127.0.0.1", 3000)) as server:
    print("ready", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown(2))).start()
    try:
        while True:
            with server.accept()[0] as connection:
                connection.sendall(b"hello from the jail, " + connection.recv(100))
    except OSError:
        pass
"""


@AS_A_USER
@pytest.mark.parametrize("backend", [promises.NAMESPACES, promises.BUBBLEWRAP])
def test_a_port_of_the_jail_can_be_published(paddock: Paddock, backend: str) -> None:
    """It is reached on this machine's loopback, more often than there are sockets for it; when it ends, no more.

    Nobody else can have the other address that a browser tries for `localhost`, nor is that taken from who has it.
    """
    need_backend(backend)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env, choice = SWITCHES[backend]
    options = ("--git=readonly", *choice, f"--publish={port}:3000")
    words = paddock.words("run", *options, "--", base_python(), "-I", "-S", "-c", SERVE)
    with paddock.who.start(words, cwd=paddock.worktree, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        for number in range(100):
            with socket.create_connection((LOOPBACKS[number % 2], port), timeout=PATIENCE) as sock:
                sock.sendall(b"%d" % number)
                assert sock.recv(100) == b"hello from the jail, %d" % number
        for means in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            with socket.socket(socket.AF_INET6) as theirs:
                theirs.setsockopt(socket.SOL_SOCKET, means, 1)
                with pytest.raises(OSError, match="in use"):
                    theirs.bind(("::1", port))
        taken = paddock.refused("run", "--git=readonly", "--publish", str(port), "--", "true")
        process.communicate(b"", timeout=PATIENCE)
    assert taken.reference == "publish-taken"
    assert f"port {port} of this machine cannot be published: Address already in use" in taken.text
    assert f"--publish PORT:{port}" in taken.text
    for address in LOOPBACKS:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, port), timeout=PATIENCE)
    with socket.create_server(("::1", port), family=socket.AF_INET6):
        taken = paddock.refused("run", "--git=readonly", *choice, f"--publish={port}:3000", "--", "true", env=env)
        assert (taken.reference, "at ::1" in taken.text) == ("publish-taken", True)
        alone = ("--publish", f"127.0.0.2:{port}:3000", "--", "true")  # where no browser looks
        assert paddock.run("--git=readonly", *choice, *alone, env=env).returncode == 0


@AS_A_USER
def test_both_addresses_of_a_port_can_be_published(paddock: Paddock) -> None:
    """Each to a port of its own; what one entry names is not the other one's."""
    need_backend(promises.NAMESPACES)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ("--git=readonly", f"--publish=127.0.0.1:{port}:3000", f"--publish=[::1]:{port}:3001")
    words = paddock.words("run", *options, "--", base_python(), "-I", "-S", "-c", SERVE)
    with paddock.who.start(words, cwd=paddock.worktree) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock:
            sock.sendall(b"0")
            assert sock.recv(100) == b"hello from the jail, 0"
        with socket.create_connection(("::1", port), timeout=PATIENCE) as sock:
            assert sock.recv(100) == b""  # nothing listens at 3001
        process.communicate(b"", timeout=PATIENCE)


def test_a_published_port_is_open_to_this_machine_only(file_paddock: Paddock) -> None:
    """Another address than the loopback's is no port to publish."""
    wrong = ("0.0.0.0:8080", "10.0.0.1:8080:80", "8080:", "http", "[::]:80", "8080:70000")
    errors = file_paddock.refused_each(*(["run", "--publish", each, "--", "true"] for each in wrong))
    assert [error.reference for error in errors] == ["usage"] * len(wrong)


def test_without_namespaces_nothing_is_published(file_paddock: Paddock) -> None:
    """It is refused, in words."""
    error = file_paddock.refused("run", "--publish", "8080", "--", "true", env={"PADDOCK_NO_USERNS": "1"})
    assert error.reference == "publish-needs-namespaces"
