"""Who may use the control socket."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.service import packets
from launcher.service.packets import Peer
from policy.errors import Refusal

OWN = os.getpid()


def refused(peer: Peer, owner: int, launchers: set[int]) -> str:
    with pytest.raises(Refusal) as caught:
        packets.check(peer, owner, lambda: launchers)
    assert caught.value.reference == "peer-refused"
    return caught.value.context


def test_the_owner_and_root_may_and_nobody_else() -> None:
    """By the user id that the kernel vouches for."""
    for uid in (1000, 0):
        packets.check(Peer(OWN, uid, 1), 1000, set)
    assert "this is user 1001" in refused(Peer(OWN, 1001, 1), 1000, set())


def test_what_cannot_be_seen_is_refused() -> None:
    """A process of another PID namespace has the number 0 here; one that has ended leads nowhere."""
    assert "PID namespace" in refused(Peer(0, 1000, 0), 1000, set())
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    packets.check(Peer(OWN, 1000, 1), 1000, lambda: {int(ended.stdout)})


def test_a_jail_of_any_session_is_known_by_its_pid_namespace() -> None:
    """One that the service did not start, too; with or without what newer kernels tell of a peer."""
    assert "PID namespace of its own" in refused(Peer(OWN, 1000, 2), 1000, set())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert packets.of(ours) == Peer(OWN, os.geteuid(), 1)
    words = ["unshare", "--user", "--map-current-user", "--pid", "--fork", "--mount-proc", "sleep", "60"]
    with subprocess.Popen(words) as outer:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        while not (inner := children.read_text().split()):
            time.sleep(0.01)
        pidfd = os.pidfd_open(int(inner[0]))
        assert packets.depth_of(pidfd) == packets._depth(f"/proc/{inner[0]}/status") == 2
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        outer.wait()
        assert packets.depth_of(pidfd) == 0
        os.close(pidfd)


def test_what_lives_below_a_launcher_is_refused() -> None:
    """At any depth; the launcher itself, too."""
    assert "belongs to a session" in refused(Peer(OWN, 1000, 1), 1000, {OWN})
    assert "belongs to a session" in refused(Peer(OWN, 1000, 1), 1000, {os.getppid()})
    packets.check(Peer(OWN, 1000, 1), 1000, lambda: {2**22 + 1})
