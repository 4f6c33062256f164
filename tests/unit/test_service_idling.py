"""Agents without an editor: when they are ended, and when not."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.service import idling
from launcher.service.acp.agent import AgentSide
from launcher.service.models import Reason
from launcher.service.supervisor import Supervisor


def agent(*, clients: int = 0, busy: bool = False, bridge: str | None = "acp") -> Any:  # noqa: ANN401  # a stand-in
    """A live session, as far as it is looked at."""
    side = AgentSide.__new__(AgentSide)
    side.hub = cast(Any, SimpleNamespace(clients=clients, busy=busy))
    return SimpleNamespace(
        name="agent", request=SimpleNamespace(bridge=bridge), attempt=object(), stopped=None, idle_since=None,
        streams=SimpleNamespace(writer=side),
    )  # fmt: skip


def ended(live: Any, patience: float, *moments: float) -> list[tuple[str, Reason]]:  # noqa: ANN401  # see `agent`
    """What was stopped when it was looked at, at these moments."""
    stopped: list[tuple[str, Reason]] = []
    supervisor = SimpleNamespace(
        settings=SimpleNamespace(agent_idle_seconds=patience),
        live={"agent": live},
        stop=lambda name, why: stopped.append((name, why)),
    )
    for moment in moments:
        idling.end_idle(cast(Supervisor, supervisor), moment)
    return stopped


def test_an_agent_that_nobody_attaches_to_is_ended_in_time() -> None:
    """Not before, and never where no time is set; one that no editor ever came to is one, too."""
    assert ended(agent(), 10, 100, 109) == []
    assert ended(agent(), 10, 100, 111) == [("agent", Reason.IDLE)]
    assert ended(agent(), 0, 100, 1e9) == []
    alone = agent()
    alone.streams.writer = None
    assert ended(alone, 10, 100, 111) == [("agent", Reason.IDLE)]


@pytest.mark.parametrize("change", [{"clients": 1}, {"busy": True}, {"bridge": None}])
def test_what_is_used_is_no_idle_agent(change: dict[str, Any]) -> None:
    """An editor, a prompt that is worked on, or no agent at all; afterwards the time begins anew."""
    live = agent(**change)
    assert ended(live, 10, 100, 200) == []
    live.streams.writer.hub.clients, live.streams.writer.hub.busy, live.request.bridge = 0, False, "acp"
    assert ended(live, 10, 300, 309) == []
    assert ended(live, 10, 311) == [("agent", Reason.IDLE)]
