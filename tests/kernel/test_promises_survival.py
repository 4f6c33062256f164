"""Promises about the end: nothing that a jail started outlives it, whichever of our processes is killed."""

import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from launcher.jail import processes
from policy import promises
from tests.support.identity import AS_A_USER
from tests.support.install import base_python
from tests.support.programs.scene import Scene

PATIENCE = 30.0

# Each line of its standard output names what is alive; then it waits, or ends where argv says so. The daemons hold the
# write end of the pipe on standard output, whose end outside tells that the last of them has gone.
DAEMONS = """
import ctypes, os, signal, sys, time
def quiet():
    for number in range(1, 32):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_IGN)
def forked(act):
    if os.fork() == 0:
        try:
            act()
            while True:
                time.sleep(60)
        finally:
            os._exit(0)
def detached():
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    os.environ.clear()
    quiet()
def renamed():
    detached()
    ctypes.CDLL(None).prctl(15, b"kworker/0:0", 0, 0, 0)
def subreaper():
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    forked(detached)
def stopped():
    os.setsid()
    os.kill(os.getpid(), signal.SIGSTOP)
def undumpable():
    detached()
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
def forking():
    detached()
    for _ in range(100000):
        if os.fork():
            os._exit(0)
        time.sleep(0.002)
for act in (detached, renamed, subreaper, stopped, undumpable, forking, quiet):
    forked(act)
time.sleep(0.2)
# The interpreter notes a signal that comes right before a sleep only after it.
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.write(1, b"ready\\n")
if sys.argv[1] == "wait":
    time.sleep(600)
"""


def started(scene: Scene, mode: str) -> tuple["subprocess.Popen[bytes]", int]:
    """A jail full of daemons, and the end of the pipe which they all hold."""
    reading, writing = os.pipe()
    try:
        words: list[str | Path] = [base_python(), "-I", "-S", "-c", DAEMONS, mode]
        process = scene.start(words, stdin=subprocess.DEVNULL, stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    said = b""
    while not said.endswith(b"ready\n"):
        block = os.read(reading, 100)
        assert block, process.communicate()[1]
        said += block
    return process, reading


def all_gone(reading: int) -> bool:
    """Whether the last holder of the pipe has ended; waits for it."""
    ready, _, _ = select.select([reading], [], [], PATIENCE)
    return bool(ready) and os.read(reading, 100) == b""


def ours(pid: int) -> list[int]:
    """The launcher and its descendants that are still the launcher's programme: first ones first."""
    found, level = [], [pid]
    while level:
        found += level
        level = [child for parent in level for child in processes.children(parent)]
    return [candidate for candidate in found if b"paddock" in _words(candidate)]


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _sessions(scene: Scene) -> list[Path]:
    return [path for path in scene.who.home.glob(".local/state/paddock/sessions/*") if path.is_dir()]


def test_promise_survival_at_the_ordinary_end(scene: Scene) -> None:
    """When the command ends, its daemons end; the session leaves no directory."""
    process, reading = started(scene, "end")
    try:
        assert process.wait(PATIENCE) == 0
        assert all_gone(reading)
    finally:
        os.close(reading)
        process.communicate()
    assert _sessions(scene) == []


def test_promise_survival_of_a_killed_launcher(scene: Scene) -> None:
    """SIGKILL for the launcher, or for another process of ours, ends all that the jail had started. What the launcher
    leaves of its session goes with the next one that ends.
    """
    for victim in range(3):
        process, reading = started(scene, "wait")
        try:
            candidates = ours(process.pid)
            assert candidates[0] == process.pid
            os.kill(candidates[min(victim, len(candidates) - 1)], signal.SIGKILL)
            assert all_gone(reading), f"{candidates}: something outlived number {victim}"
            process.wait(PATIENCE)
        finally:
            os.close(reading)
            process.kill()
            process.communicate()
        if victim == 0:
            assert len(_sessions(scene)) == 1
    assert scene.run(["true"]).returncode == 0
    assert _sessions(scene) == []


@AS_A_USER
def test_promise_survival_of_a_polite_end(scene: Scene) -> None:
    """A signal for the launcher reaches the command, and with the command everything goes."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        process, reading = started(scene, "wait")
        try:
            process.send_signal(number)
            assert (number, process.wait(PATIENCE)) == (number, 128 + number)
            assert all_gone(reading), f"something outlived {number.name}"
        finally:
            os.close(reading)
            process.kill()
            process.communicate()
        assert _sessions(scene) == [], number.name


@pytest.mark.parametrize("scene", promises.BACKENDS[:1], indirect=True)
def test_a_daemon_does_outlive_its_starter_without_a_jail(scene: Scene) -> None:
    """The same programme alone leaves processes behind, so their absence in the other tests means something."""
    reading, writing = os.pipe()
    words = scene.who.command([base_python(), "-I", "-S", "-c", DAEMONS, "end"])
    process = subprocess.Popen(
        ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--pid", "--fork", "--kill-child",
         "sh", "-c", '"$@"; read -r _', "-", *words],
        stdin=subprocess.PIPE,
        stdout=writing,
    )  # fmt: skip
    os.close(writing)
    with process:
        try:
            assert os.read(reading, 100) == b"ready\n"
            ready, _, _ = select.select([reading], [], [], 1.0)
            assert not ready
        finally:
            process.kill()
        assert all_gone(reading)
    os.close(reading)
