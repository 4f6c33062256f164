"""What a service does about sessions of an earlier life: their launchers, and numbers that are somebody else's now."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.service import recovery
from launcher.service.database import Database
from launcher.service.groups import Groups
from launcher.service.models import SessionRequest
from launcher.service.pool import start_time
from launcher.service.states import SessionState
from launcher.service.store import SessionStore
from launcher.session.places import Places


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that waits."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as made:
        yield made
        made.kill()


def recovered(tmp_path: Path, pid: int, started: int, created: float) -> tuple[SessionStore, recovery.Found]:
    """A store in which a session with this launcher was live, after recovery."""
    store = SessionStore(Database(str(tmp_path / "service.db")))
    options = ["--strict-handoff"] if pid % 2 else []
    content = {"name": "a", "command": ["true"], "directory": "/", "options": options}
    store.create(SessionRequest.model_validate(content), 0)
    store.move("a", SessionState.STARTING, "x", attempt=1, process=pid, process_started=started, worktree="/w")
    store.database.connection.execute("UPDATE session SET created = ?", (created,))
    places = Places("/h", str(tmp_path / "c"), str(tmp_path / "s"), str(tmp_path / "x"))
    found = recovery.recover(store, Groups("test", own=""), places)
    return store, found


def test_a_launcher_that_lives_on_is_ended(tmp_path: Path, process: "subprocess.Popen[bytes]") -> None:
    """Whatever the reason: it is the one that was written down, by its start. The session is lost, and says so."""
    store, found = recovered(tmp_path, process.pid, start_time(process.pid), time.time())
    assert process.wait(30) == -9
    row = store.required("a")
    assert (row["state"], row["process"], found.lost) == ("lost", None, ["a"])
    assert found.worktrees == {"/w": bool(process.pid % 2)}
    assert store.transitions("a")[-1].after == "lost"
    assert recovery.recover(store, Groups("test", own=""), Places("/h", "/c", str(tmp_path / "s"), "/x")).lost == []


def test_another_process_of_its_number_is_left_alone(tmp_path: Path, process: "subprocess.Popen[bytes]") -> None:
    """One that was started later; and one of before the machine's start, whatever its numbers."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    recovered(tmp_path / "one", process.pid, start_time(process.pid) - 1, time.time())
    recovered(tmp_path / "two", process.pid, start_time(process.pid), 1_000.0)
    assert process.poll() is None
