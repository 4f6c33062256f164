"""Ports of the jail that are published on this machine's loopback."""

import socket

import pytest

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
    """It is reached on this machine's loopback, more often than there are sockets for it; when it ends, no more."""
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
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock:
                sock.sendall(b"%d" % number)
                assert sock.recv(100) == b"hello from the jail, %d" % number
        taken = paddock.refused("run", "--git=readonly", "--publish", str(port), "--", "true")
        process.communicate(b"", timeout=PATIENCE)
    assert taken.reference == "publish-taken"
    assert f"port {port} of this machine cannot be published: Address already in use" in taken.text
    assert f"--publish PORT:{port}" in taken.text
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def test_a_published_port_is_open_to_this_machine_only(file_paddock: Paddock) -> None:
    """Another address than the loopback's is no port to publish."""
    wrong = ("0.0.0.0:8080", "10.0.0.1:8080:80", "8080:", "http", "[::]:80", "8080:70000")
    errors = file_paddock.refused_each(*(["run", "--publish", each, "--", "true"] for each in wrong))
    assert [error.reference for error in errors] == ["usage"] * len(wrong)


def test_without_namespaces_nothing_is_published(file_paddock: Paddock) -> None:
    """It is refused, in words."""
    error = file_paddock.refused("run", "--publish", "8080", "--", "true", env={"PADDOCK_NO_USERNS": "1"})
    assert error.reference == "publish-needs-namespaces"
