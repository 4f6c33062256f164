"""Who may use the control socket."""

import os
import subprocess
import sys

import pytest

from launcher.service import peers
from launcher.service.peers import Peer
from policy.errors import Refusal

OWN = os.getpid()


def refused(peer: Peer, owner: int, launchers: set[int]) -> str:
    with pytest.raises(Refusal) as caught:
        peers.check(peer, owner, lambda: launchers)
    assert caught.value.reference == "peer-refused"
    return caught.value.context


def test_the_owner_and_root_may_and_nobody_else() -> None:
    """By the user id that the kernel vouches for."""
    for uid in (1000, 0):
        peers.check(Peer(OWN, uid, 1000), 1000, set)
    assert "this is user 1001" in refused(Peer(OWN, 1001, 1000), 1000, set())


def test_what_cannot_be_seen_is_refused() -> None:
    """A process of another PID namespace has the number 0 here; one that has ended leads nowhere."""
    assert "PID namespace" in refused(Peer(0, 1000, 1000), 1000, set())
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    peers.check(Peer(OWN, 1000, 1000), 1000, lambda: {int(ended.stdout)})


def test_what_lives_below_a_launcher_is_refused() -> None:
    """At any depth; the launcher itself, too."""
    assert "belongs to a session" in refused(Peer(OWN, 1000, 1000), 1000, {OWN})
    assert "belongs to a session" in refused(Peer(OWN, 1000, 1000), 1000, {os.getppid()})
    peers.check(Peer(OWN, 1000, 1000), 1000, lambda: {2**22 + 1})
