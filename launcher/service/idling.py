"""Agents that editors attach to, and that nobody has attached to for long: they are ended, their work is harvested.

An agent that works, or waits for a person's answer, is not idle, however long nobody looks on.
"""

import logging

from launcher.service.acp.agent import AgentSide
from launcher.service.models import Reason
from launcher.service.running import Live
from launcher.service.supervisor import Supervisor

log = logging.getLogger("paddock.service")


def end_idle(supervisor: Supervisor, now: float) -> None:
    """Ends agents that have been idle for `agent_idle_seconds`. To be called again and again.

    Args:
        supervisor: of sessions.
        now: seconds of a clock that never goes back.
    """
    patience = supervisor.settings.agent_idle_seconds
    for live in list(supervisor.live.values()):
        if not patience or not _idle(live):
            live.idle_since = None
        elif live.idle_since is None:
            live.idle_since = now
        elif now - live.idle_since >= patience:
            log.info("session %s: no editor for %g s", live.name, patience)
            supervisor.stop(live.name, why=Reason.IDLE)


def _idle(live: Live) -> bool:
    if live.request.bridge is None or live.attempt is None or live.stopped is not None:
        return False
    side = live.streams.writer
    return not isinstance(side, AgentSide) or not (side.hub.clients or side.hub.busy)
