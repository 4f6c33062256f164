"""What a ticket run knows of its agents' worktrees: without it nothing is merged, and nothing is called merged."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.service import ticket_work
from launcher.service.database import Database
from launcher.service.tables import StoredRequestContexts
from launcher.service.ticket_runs import TicketRuns
from policy.errors import Refusal
from tests.support import repository
from tests.support.identity import SYSTEM_PATH
from tests.support.repository import committed, git


def test_a_run_whose_contexts_have_expired_is_not_called_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took its agents for such that have no worktree, and called them merged. Resumed, it merges everything."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.gitconfig").write_text("[user]\n\tname = Tester\n\temail = tester@example.invalid\n")
    place = repository.plain(tmp_path)
    database = str(tmp_path / "service.db")

    def prepared(worktree_id: str) -> dict[str, Any]:
        ticket = {"number": 1, "ticket": "T", "details": "", "command": ["true"], "options": {}, "remote": False}
        tickets = [ticket | {"worktree_id": worktree_id}]
        return ticket_work.prepare(
            database, "run", str(place.app), "", tickets, SYSTEM_PATH, [], [], 0.0, lambda _: None
        )

    def merged(made: dict[str, Any]) -> list[dict[str, Any]]:
        (agent,) = made["agents"]
        outputs = {agent["session_id"]: "exited, status 0"}
        done = ticket_work.merge(
            database,
            made["dispatch"],
            made["nodes"],
            outputs,
            [],
            skip=False,
            who={},
            reviewed=None,
            say=lambda _: None,
        )
        found: list[dict[str, Any]] = done["merged"]
        return found

    made = prepared("")
    (agent,) = made["agents"]
    committed(Path(agent["worktree"]), new="x")
    commit = git("rev-parse", "HEAD", at=Path(agent["worktree"]))
    before = git("rev-parse", "HEAD", at=place.app)
    StoredRequestContexts(Database(database)).expire_run("run")
    with pytest.raises(Refusal) as raised:
        merged(made)
    assert (raised.value.reference, raised.value.hint) == ("context-lost", "paddock tickets resume run")
    assert git("rev-parse", "HEAD", at=place.app) == before

    (worktree_id,) = (node["worktree_id"] for node in made["nodes"] if node["node_id"] == agent["session_id"])
    (status,) = merged(prepared(worktree_id))
    assert status["merge_descriptor"]["successful"]
    assert commit in git("rev-list", "HEAD", at=place.app).split()


def test_the_end_of_a_run_ends_no_contexts_of_one_that_goes_on() -> None:
    """The write may have waited for a disk on which there was no room, and the run was resumed meanwhile."""
    expired: list[str] = []
    runs = cast(Any, TicketRuns.__new__(TicketRuns))
    runs.records = SimpleNamespace(contexts_of=SimpleNamespace(expire_run=expired.append))
    runs._tasks = {"on": None}
    for name in ("on", "over"):
        runs._expire(name)
    assert expired == ["over"]
