"""Nothing outlives a jail, whichever process of ours is killed, and whenever."""

import os
import random
import select
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from tests.support.identity import AS_A_USER
from tests.support.jail import Jail

ROUNDS = 12
PATIENCE = 20.0

# Leaves a daemon that double-forked into a session of its own with a clean environment and no streams, one that only
# ignores hangups, one that keeps forking, and a stopped one; says so, and waits to be killed.
DAEMONS = """
trap '' HUP TERM INT
mark=$1
daemon() { setsid sh -c "(exec env -i sh -c 'while :; do sleep 1000; done' $mark <&- >&- 2>&- &)"; }
daemon
nohup sh -c 'while :; do sleep 1000; done' $mark >/dev/null 2>&1 &
sh -c 'while :; do (exec sh -c : '$mark' &); done' $mark &
sh -c 'kill -STOP $$' $mark &
echo ready
wait
"""


class Running:
    """A jail full of daemons; `gone` waits until none of its processes is left."""

    def __init__(self, jail: Jail, *, namespaces: bool) -> None:
        self.mark = uuid.uuid4().hex
        self.errors = jail.outside / "errors"
        words = jail.words(["bash", "-c", DAEMONS, "bash", self.mark], namespaces=namespaces)
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                jail.who.command(words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=jail.worktree,
                env=jail.who.environment(),
            )

    def ready(self) -> None:
        """Waits until all daemons have been started."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def below(self) -> int:
        """Process id of the process between launcher and command."""
        (pid,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(pid)

    def left(self) -> list[str]:
        """Command lines of processes that hold the mark."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                try:
                    words = (entry / "cmdline").read_bytes().decode(errors="replace")
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if self.mark in words:
                    found.append(f"{entry.name} {words}")
        return found

    def gone(self) -> bool:
        """Whether everything ends within `PATIENCE`: all holders of the output first, then whatever bears the mark."""
        assert self.process.stdout is not None
        self.process.wait(PATIENCE)
        with self.process.stdout as stdout:
            while select.select([stdout], [], [], PATIENCE)[0]:
                if not os.read(stdout.fileno(), 65536):
                    break
            else:
                return False
        # Daemons that closed all streams have nothing left to wait for; the kernel is a matter of milliseconds.
        deadline = time.monotonic() + PATIENCE
        while self.left():
            if time.monotonic() > deadline:
                return False
            os.sched_yield()
        return True


@AS_A_USER
def test_daemons_are_there_while_the_jail_lives(jail: Jail, namespaces: bool) -> None:
    """The search does find the daemons, so its silence means something; SIGTERM to the launcher ends none of them."""
    running = Running(jail, namespaces=namespaces)
    running.ready()
    running.process.terminate()
    left = running.left()
    assert len([words for words in left if "sleep 1000" in words]) >= 2
    running.process.kill()
    assert running.gone(), running.left()


@AS_A_USER
def test_nothing_outlives_a_killed_init(jail: Jail, namespaces: bool) -> None:
    """SIGKILL of the process below the launcher: the launcher reports a death by signal 9 and leaves nothing."""
    running = Running(jail, namespaces=namespaces)
    running.ready()
    os.kill(running.below(), signal.SIGKILL)
    assert running.gone(), running.left()
    assert running.process.returncode == 128 + signal.SIGKILL


@AS_A_USER
def test_a_stopped_launcher_can_be_killed(jail: Jail, namespaces: bool) -> None:
    """What is stopped ends too."""
    running = Running(jail, namespaces=namespaces)
    running.ready()
    os.kill(running.process.pid, signal.SIGSTOP)
    os.kill(running.below(), signal.SIGSTOP)
    running.process.kill()
    if not namespaces:
        # A stopped process watches nobody; a PID namespace needs no watching. Its continuation finishes the job.
        os.kill(int(_only_parent(running.mark)), signal.SIGCONT)
    assert running.gone(), running.left()


def _only_parent(mark: str) -> str:
    """Process id of the parent of the command that bears the mark."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[:2] == [b"bash", b"-c"] and mark.encode() in words and b"daemon" in words[2]:
                    return (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except (FileNotFoundError, ProcessLookupError):
                continue
    raise AssertionError("the command is gone")


@AS_A_USER
@pytest.mark.parametrize("victim", ["launcher", "init"])
def test_the_moment_of_the_kill_does_not_matter(jail: Jail, namespaces: bool, victim: str) -> None:
    """SIGKILL at random moments from the launcher's first instruction to long after the command's start."""
    chance = random.Random(f"{victim} {namespaces} {jail.who.name}")
    running, begun = Running(jail, namespaces=namespaces), time.monotonic()
    running.ready()
    longest = 1.5 * (time.monotonic() - begun)  # on a busy machine the start takes seconds
    running.process.kill()
    assert running.gone(), running.left()
    hit = 0
    for _ in range(ROUNDS):
        running = Running(jail, namespaces=namespaces)
        time.sleep(chance.uniform(0.0, longest))  # the moment is what is tested
        try:
            os.kill(running.process.pid if victim == "launcher" else running.below(), signal.SIGKILL)
            hit += 1
        except (ValueError, FileNotFoundError, ProcessLookupError):
            running.process.kill()  # there was no process below it yet
            longest *= 1.5  # others have the processors now
        assert running.gone(), running.left()
    assert hit > 1, running.errors.read_text()
