"""State that an earlier release wrote is opened by this one; the package's own test goes on with a user's directory."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from launcher.service.database import Database
from launcher.service.schema import SessionState
from launcher.service.tables import SessionStore, session_of
from launcher.service.ticket_records import TicketRecords
from launcher.service.ticket_schema import TicketState, TicketStep
from launcher.vcs.worktrees.store import WorktreeRepository

RELEASES = sorted((Path(__file__).parents[1] / "support/releases").glob("*.sql"))


@pytest.fixture(params=RELEASES, ids=lambda path: str(path.stem))
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A state directory of each release."""
    _, *parts = re.split(r"(?m)^-- (\S+\.db)$", request.param.read_text())
    for name, script in zip(parts[::2], parts[1::2], strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with closing(sqlite3.connect(tmp_path / name)) as database:
            database.executescript(script)
    return tmp_path


def test_the_record_of_sessions_and_ticket_runs_is_read(state: Path) -> None:
    """Each column as it is used today."""
    database = Database(str(state / "service/service.db"))
    try:
        sessions = SessionStore(database)
        first = session_of(sessions.required("first"))
        assert (first.state, first.worktree) == (SessionState.ENDED, "/home/me/project-tabs")
        assert [move.after for move in sessions.transitions("first")] == ["starting", "running", "ended"]
        records = TicketRecords(database, lambda kind, data: None, "")
        run = records.run("r1")
        assert (run.state, run.tickets, run.steps[0].state) == (TicketState.ENDED, ["T-1"], TicketStep.MERGED)
        assert records.request("r1").tickets[0].command == ["true"]
        assert [each["artifact_key"] for each in records.contexts("r1")] == ["r1"]
    finally:
        database.close()


def test_the_record_of_worktrees_is_read(state: Path) -> None:
    """With what it begins from."""
    (worktree,) = WorktreeRepository(str(state)).all()
    assert (worktree.ticket, worktree.main.branch) == ("tabs", "agent/tabs")
