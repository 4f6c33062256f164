"""Who is at the other end of a connection to the proxy: the right process, or nobody, and never for long."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from launcher.egress import log
from launcher.egress.log import NOBODY, Witness, owner
from tests.support import forked

CLIENT = """
import socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("connected", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def connected() -> "Iterator[tuple[subprocess.Popen[bytes], socket.socket]]":
    """A child process that has connected to this one, and the connection here."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        words = [sys.executable, "-I", "-S", "-c", CLIENT, str(listener.getsockname()[1])]
        # As a jail's: whoever has a capability more than the helper may not be looked at (ptrace(2)).
        less = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", "--"] if os.geteuid() == 0 else []
        child = subprocess.Popen([*less, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"connected\n"
        with listener.accept()[0] as accepted:
            yield child, accepted
        child.communicate(timeout=60)


def test_the_process_that_holds_a_connection_is_found(
    connected: "tuple[subprocess.Popen[bytes], socket.socket]",
) -> None:
    """With its name and programme; not for other ports, not below processes that are left out."""
    child, sock = connected
    ours, theirs = sock.getsockname()[1], sock.getpeername()[1]
    found = owner(os.getpid(), theirs, ours)
    assert (found.pid, found.exe) == (child.pid, os.path.realpath(sys.executable))
    assert found.comm.startswith("python")
    assert owner(os.getpid(), ours, theirs) == NOBODY  # this process itself is nobody's descendant here
    assert owner(os.getpid(), theirs, ours, frozenset((child.pid,))) == NOBODY
    assert owner(child.pid, theirs, ours) == NOBODY


def test_a_helper_answers_until_it_takes_too_long_or_has_ended(
    connected: "tuple[subprocess.Popen[bytes], socket.socket]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked from a process that may not look itself; nothing is raised for a client that has gone."""
    child, sock = connected

    def ask() -> list[int]:
        helper = Witness(os.getppid())
        found = [helper.of(sock).pid, helper.of(sock).pid]
        monkeypatch.setattr(helper, "_saved", -1.0)
        monkeypatch.setattr(log, "_SHARE", 0.0)
        found.append(helper.of(sock).pid)  # the time for such questions has been spent
        monkeypatch.setattr(helper, "_saved", 1.0)
        with socket.socket() as gone:
            found.append(helper.of(gone).pid)
        os.kill(helper._pid, 9)
        found.append(helper.of(sock).pid)
        helper.close()
        return found

    assert forked.run(ask) == [child.pid, child.pid, 0, 0, 0]
