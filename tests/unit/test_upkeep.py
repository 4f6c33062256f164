"""What the service does now and then says nothing of what happened while it looked."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

from launcher.service.schema import SessionState
from launcher.service.upkeep import Collector


class Store:
    """Sessions whose commits wait."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    def add(self, name: str) -> None:
        """One that has ended, well, in a worktree of its own."""
        outcome = json.dumps({"reason": "exited", "status": 0})
        self.rows[name] = {"name": name, "ended": float(len(self.rows)), "worktree": f"/w/{name}", "outcome": outcome}

    def listed(self, states: tuple[SessionState, ...], limit: int) -> list[dict[str, Any]]:
        """All of them."""
        assert states == (SessionState.UNHARVESTED,)
        assert limit > 1
        return list(self.rows.values())

    def move(self, name: str, state: SessionState, why: str) -> None:
        """One is not among them any more."""
        assert (state, why) == (SessionState.ENDED, "its commits were harvested")
        del self.rows[name]


def test_a_session_that_ends_during_the_look_is_not_taken_for_harvested() -> None:
    """The look is older than its commits; a ticket run took its worktree's work for merged. The next look tells."""
    store = Store()

    class Jobs:
        async def run(self, kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
            assert (kind, arguments) == ("harvest.waiting", {"later": []})
            if "late" not in store.rows:
                store.add("late")
            return {"worktrees": []}

    nothing = SimpleNamespace(moved=lambda *_: None)
    supervisor = SimpleNamespace(store=store, events=nothing)
    collector = Collector(*cast(Any, (supervisor, None, Jobs(), None)))
    store.add("early")
    asyncio.run(collector.harvest())
    assert list(store.rows) == ["late"]
    asyncio.run(collector.harvest())
    assert not store.rows
