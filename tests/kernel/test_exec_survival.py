"""Whoever is killed, and whenever: no process of a further command is left."""

import os
import random
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import IDENTITIES
from tests.support import paddock as paddocks
from tests.support.identity import AS_A_USER
from tests.support.paddock import EXEC_PATIENCE as PATIENCE
from tests.support.paddock import Paddock, Session

ROUNDS = 8

# Deaf to hangups, with a daemon that is in another session and has let its parent die.
STUBBORN = "trap '' HUP TERM INT; setsid sh -c '(sleep 1000 &)'; echo ready; while :; do sleep 1000; done"


@pytest.fixture
def session(paddock: Paddock, backend: dict[str, str]) -> Iterator[Session]:
    """A session that lives as long as the test."""
    with Session(paddock, backend) as live:
        yield live


def started(session: Session) -> "subprocess.Popen[bytes]":
    """A further command that is hard to end, running."""
    process = session.start("sh", "-c", STUBBORN)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def closed(process: "subprocess.Popen[bytes]") -> bool:
    """Whether everybody who held the command's output has ended, within `PATIENCE`."""
    assert process.stdout is not None
    while select.select([process.stdout], [], [], PATIENCE)[0]:
        if not os.read(process.stdout.fileno(), 65536):
            process.communicate()
            return True
    return False


@pytest.mark.parametrize("name_of_who", IDENTITIES[-1:])
def test_a_killed_client_takes_its_command_along(shared_session: Session) -> None:
    """SIGKILL of the client ends the command with its daemons, and nothing else."""
    process = started(shared_session)
    process.kill()
    assert closed(process)
    assert shared_session.run("true").returncode == 0


LEFT = "sh -c 'echo $$ >pid; exec sleep 1000' >/dev/null 2>&1 & while ! test -s pid; do :; done"


@AS_A_USER
def test_the_end_of_the_first_command_ends_all(session: Session) -> None:
    """A server that a command leaves in the background goes on as long as the session; then all end, the clients with
    137, and say why.
    """
    assert session.run("sh", "-c", LEFT).returncode == 0
    assert session.run("sh", "-c", "grep '^Name:.sleep' /proc/$(cat pid)/status").returncode == 0
    if session.env:
        # Without a PID namespace: still guarded, so that it can change what it may.
        assert session.run("chmod", "600", "file").returncode == 0
    processes = [started(session) for _ in range(3)]
    assert session.end() == 0
    for process in processes:
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 137
        assert paddocks.said(errors.decode()).reference == "session-ended"


@AS_A_USER
@pytest.mark.parametrize("victim", ["launcher", "init"])
def test_a_killed_jail_takes_all_commands_along(session: Session, victim: str) -> None:
    """SIGKILL of one of the session's own processes."""
    processes = [started(session) for _ in range(3)]
    launcher = session.process.pid
    *_, below = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()  # behind what carries streams
    os.kill(launcher if victim == "launcher" else int(below), signal.SIGKILL)
    for process in processes:
        assert closed(process)
        assert process.returncode == 137
    session.end()
    assert session.paddock.run("--", "true").returncode == 0  # takes the remains away


@pytest.mark.parametrize("name_of_who", IDENTITIES[-1:])
def test_clients_killed_at_any_moment_leave_nothing(shared_session: Session) -> None:
    """At random moments of the start, the run and the end."""
    chance = random.Random(4)
    for _ in range(ROUNDS):
        process = shared_session.start("sh", "-c", "setsid sh -c '(sleep 1000 &)'; sleep 1000")
        time.sleep(chance.random() * 0.08)
        process.kill()
        assert closed(process)
    assert shared_session.run("true").returncode == 0


@AS_A_USER
def test_sessions_killed_at_any_moment_leave_nothing(paddock: Paddock, backend: dict[str, str]) -> None:
    """SIGKILL of the launcher while commands start: every client comes back."""
    chance = random.Random(5)
    for _ in range(ROUNDS // 2):
        with Session(paddock, backend) as session:
            processes = [session.start("sh", "-c", STUBBORN) for _ in range(3)]
            time.sleep(chance.random() * 0.1)
            session.process.kill()
            for process in processes:
                assert closed(process)
                assert process.returncode in (125, 137)
    assert paddock.run("--", "true").returncode == 0


@AS_A_USER
def test_commands_of_a_killed_session_end_with_it_and_not_before(paddock: Paddock, backend: dict[str, str]) -> None:
    """No reader sees its input end, and no writer its output break: they would end with a status of their own."""
    for _ in range(ROUNDS):
        with Session(paddock, backend) as session:
            processes = [session.start("sh", "-c", f"echo ready; {script}") for script in ("cat", *["yes"] * 2)]
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
            session.process.kill()
            for process in processes:
                assert closed(process)
                assert process.returncode == 137
    assert paddock.run("--", "true").returncode == 0
