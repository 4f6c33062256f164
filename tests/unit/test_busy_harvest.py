"""A ticket's harvest that meets another one: the upkeep's, or a session that is just ending."""

import asyncio
from typing import Any

import pytest

from launcher.service import ticket_sessions
from launcher.service.ticket_sessions import TicketSessions


class Jobs:
    """Answers harvests: so often that somebody else is at it."""

    def __init__(self, busy: int) -> None:
        self.busy = busy

    async def run(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """As `launcher.service.jobs.Jobs.run`."""
        assert (name, arguments) == ("harvest", {"worktree": "/w", "strict": False})
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
