"""What processes can make of what the kernel says about them: names like lines of /proc/PID/status, which escapes
newlines alone, and ancestors that end while they are looked for.
"""

import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from launcher.jail import processes
from launcher.jail.guard.call import Call
from launcher.service import packets
from policy.errors import Refusal
from tests.support.features import need
from tests.support.install import base_python

_NAMED = "import ctypes, os, sys; ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0); print('ready', flush=True); input()"


def named(name: bytes, *before: str) -> "subprocess.Popen[str]":
    """Such a process, which ends with its input."""
    words = [*before, str(base_python()), "-I", "-S", "-c", _NAMED.format(name=name)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("name", [b"python3", b"\rNSpid:\t1"])
def test_who_is_in_a_pid_namespace_cannot_say_otherwise(name: bytes) -> None:
    """By its name least of all."""
    need("userns")
    with named(name, "unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child") as process:
        (inside,) = processes.children(process.pid)
        assert processes.jailed(inside)
        process.communicate("\n")


@pytest.mark.parametrize("name", [b"python3", b"\rTgid:\t1"])
def test_the_guard_asks_the_kernel_who_calls(name: bytes) -> None:
    """And no name."""
    with named(name) as process:
        call = Call.__new__(Call)
        call.tid = process.pid
        assert call.tgid() == process.pid
        process.communicate("\n")


def jailed(pid: int) -> bool:
    """Whether the control socket is closed to a process, whatever else it is."""
    try:
        packets.check(packets.Peer(pid, os.geteuid(), 1), os.geteuid(), set)
    except Refusal:
        return True
    return False


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("asked", [processes.jailed, jailed])
def test_who_cannot_be_followed_to_the_top_may_be_in_a_jail(
    monkeypatch: pytest.MonkeyPatch, asked: Callable[[int], bool], early: bool
) -> None:
    """An ancestor that ends between two looks says nothing of who was above it: a guard, perhaps."""
    really, words = processes.name_and_parent, ["sh", "-c", "sleep 60 & echo $!; wait"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as above:
        assert above.stdout is not None
        below = int(above.stdout.readline())

        def looked_at(pid: int) -> tuple[bytes, int]:
            found = really(pid)
            if pid == below and early:  # the name of the one above is known by now, and it is gone
                above.kill()
                above.wait()
            return found

        monkeypatch.setattr(processes, "name_and_parent", looked_at)
        monkeypatch.setattr(packets, "name_and_parent", looked_at)
        monkeypatch.setattr(packets, "jailed", lambda pid: False)
        try:
            assert asked(below) == early
        finally:
            os.kill(below, signal.SIGKILL)
            above.kill()
