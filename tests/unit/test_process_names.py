"""A process that has named itself like a line of /proc/PID/status, which escapes newlines alone."""

import subprocess

import pytest

from launcher.jail import processes
from launcher.jail.guard.call import Call
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
