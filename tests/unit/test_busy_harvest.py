"""A ticket's harvest that meets another one: the upkeep's, or a session that is just ending."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.service import ticket_sessions
from launcher.service.schema import Reason, SessionState
from launcher.service.ticket_sessions import TicketSessions


class Jobs:
    """Answers harvests: so often that somebody else is at it."""

    def __init__(self, busy: int) -> None:
        self.busy = busy

    async def run(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """As `launcher.service.jobs.Jobs.run`."""
        assert (name, arguments) == ("harvest", {"worktree": "/w"})
        self.busy -= 1
        return {"worktree": "/w", "state": "busy" if self.busy >= 0 else "harvested"}


@pytest.mark.parametrize(("busy", "state"), [(0, "harvested"), (3, "harvested"), (1_000, "busy")])
def test_a_harvest_that_somebody_else_is_at_is_waited_for(
    busy: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that took "busy" for an end merged without the agent's commits, and called them a conflict."""
    monkeypatch.setattr(ticket_sessions, "_BUSY_PAUSE", 0.0)
    sessions = TicketSessions.__new__(TicketSessions)
    sessions._jobs = Jobs(busy)  # type: ignore[assignment]  # all that is asked of it
    assert asyncio.run(sessions.harvest("/w")) == {"worktree": "/w", "state": state}


@pytest.mark.parametrize(
    ("found", "state"),
    [
        ({"state": "harvested"}, SessionState.ENDED),
        ({"state": "busy"}, SessionState.UNHARVESTED),
        ({"error": True, "errorType": "harvest-failed"}, SessionState.UNHARVESTED),
    ],
)
def test_what_could_not_be_harvested_after_all_is_not_taken_for_done(found: dict[str, Any], state: str) -> None:
    """A session's own harvest had met another one, and the disk was full: a resumed run has to harvest it first."""
    outcome = SimpleNamespace(reason=Reason.EXITED, status=0, harvest={"state": "busy"})
    about: dict[str, Any] = {"state": SessionState.ENDED, "outcome": outcome, "created": 0.0}
    session = SimpleNamespace(**about, model_copy=lambda update: SimpleNamespace(**about | update))
    sessions = cast(Any, TicketSessions.__new__(TicketSessions))
    sessions._supervisor = SimpleNamespace(session=lambda _: session)

    async def harvest(_: str) -> dict[str, Any]:
        return found

    sessions.harvest = harvest
    sessions.entry = lambda _name, of, *_rest, **_more: of.state
    ticket, request = SimpleNamespace(ticket="t", timeout=None), SimpleNamespace(timeout=None, repository="/r")
    assert asyncio.run(sessions.ended("n", ticket, {"worktree": "/w"}, request, lambda: False)) == state
