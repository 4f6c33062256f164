"""The sessions of a ticket run: what each is started with, and what became of it."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from launcher.service import ticket_work
from launcher.service.jobs import Jobs
from launcher.service.schema import FINAL, Reason, Session, SessionRequest, SessionState, Ticket, TicketRequest
from launcher.service.supervisor import Supervisor
from policy.errors import Refusal

_WAIT = 3_600.0
_BUSY_LOOKS, _BUSY_PAUSE = 20, 0.5
"""How often, and after how many seconds, a harvest is tried again that somebody else is at."""
_INTERRUPTED = (Reason.LOST, Reason.SERVICE_STOPPED)
"""Why a session ended that its agent did not end: the service starts it again by itself."""


class TicketSessions:
    """Sessions in the worktrees of tickets."""

    def __init__(self, supervisor: Supervisor, jobs: Jobs) -> None:
        """Args: who runs sessions; who harvests."""
        self._supervisor = supervisor
        self._jobs = jobs

    @staticmethod
    def wanted(
        request: TicketRequest,
        ticket: Ticket,
        place: dict[str, Any],
        name: str | None = None,
        labels: dict[str, str] | None = None,
    ) -> SessionRequest:
        """The session of a ticket's agent, or of the merger."""
        return SessionRequest.model_validate(
            {
                "name": name,
                "command": ticket.command,
                "options": [*ticket.options, *place["options"]],
                "directory": place["worktree"],
                "environment": request.environment,
                "labels": labels or {},
            }
        )

    async def ended(
        self,
        name: str,
        ticket: Ticket,
        place: dict[str, Any],
        request: TicketRequest,
        stopped: Callable[[], bool],
    ) -> dict[str, Any]:
        """What became of an agent, once its session is over; one that takes too long is stopped."""
        timeout = ticket.timeout or request.timeout
        late = False
        try:
            while (session := self._supervisor.session(name)).state not in FINAL:
                seconds = _WAIT if timeout is None else session.created + timeout - time.time()
                if not late and seconds <= 0:
                    late = True
                    self._supervisor.stop(name)
                await self._supervisor.wait(name, FINAL, _WAIT if late else max(0.0, min(seconds, _WAIT)))
        except asyncio.CancelledError:
            if stopped():  # else it goes on without this service, or the service ends it
                self._supervisor.stop(name, why=Reason.STOPPED)
            raise
        except Refusal as refusal:
            return self.without_session(ticket.ticket, name, place, request.repository, refusal)
        outcome = session.outcome
        harvest = None
        busy = outcome is not None and (outcome.harvest or {}).get("state") == "busy"
        if busy or session.state in (SessionState.LOST, SessionState.UNHARVESTED):  # its commits may wait
            harvest = await self.harvest(place["worktree"])
            if ended_well(session) and "errorType" not in (harvest or {}):
                session = session.model_copy(update={"state": SessionState.ENDED})
        late = late and outcome is not None and outcome.reason is Reason.STOPPED
        return self.entry(ticket.ticket, session, request.repository, harvest, timeout=timeout if late else None)

    async def harvest(self, worktree: str) -> dict[str, Any] | None:
        """The harvest of a worktree; one that somebody else is at, the upkeep for example, is waited for a while."""
        result: dict[str, Any] | None = None
        for _ in range(_BUSY_LOOKS):
            try:
                result = await self._jobs.run("harvest", {"worktree": worktree, "strict": False}) or None
            except Refusal as refusal:
                return dict(refusal.as_dict())
            if result is None or result.get("state") != "busy":
                break
            await asyncio.sleep(_BUSY_PAUSE)
        return result

    def is_over(self, name: str) -> bool:
        """Whether there is such a session, and it is over."""
        found = self.session(name)
        return found is not None and found.state in FINAL

    def session(self, name: str) -> Session | None:
        """A session; None when it is unknown."""
        try:
            return self._supervisor.session(name)
        except Refusal:
            return None

    def entry(self, ticket: str, session: Session, trunk: str, harvest: dict[str, Any] | None = None, *,
              unfinished: Reason = Reason.LOST, timeout: float | None = None) -> dict[str, Any]:  # fmt: skip
        """What became of a ticket, from its session."""
        return ticket_work.agent(
            ticket, session, name=session.name, session_id=session.labels.get("session-id", ""),
            worktree=session.directory, log=self._supervisor.log_of(session.name), trunk=trunk, harvest=harvest,
            unfinished=unfinished, timeout=timeout,
        )  # fmt: skip

    def without_session(
        self, ticket: str, name: str, place: dict[str, Any], trunk: str, refusal: Refusal | None
    ) -> dict[str, Any]:
        """What became of a ticket whose session was not started."""
        return ticket_work.agent(
            ticket, None, name=name, session_id=place["session_id"], worktree=place["worktree"], log="", trunk=trunk,
            refusal=None if refusal is None else refusal.as_dict(),
        )  # fmt: skip


def went_well(agent: dict[str, Any]) -> bool:
    """Whether an agent ended well."""
    return (agent["state"], agent["reason"]) == (SessionState.ENDED, Reason.EXITED)


def ended_well(session: Session) -> bool:
    """Whether its command did, whatever became of its commits."""
    return session.outcome is not None and (session.outcome.reason, session.outcome.status) == (Reason.EXITED, 0)


def interrupted(session: Session) -> bool:
    """Whether a session ended with the service, and not by itself or by anybody's word."""
    return session.outcome is None or session.outcome.reason in _INTERRUPTED


def without_environment(run: str) -> Refusal:
    """The Refusal for a run whose environment was forgotten."""
    return Refusal(
        "ticket-run-environment",
        "the environment that its launcher needs is not here any more",
        context="values of variables are never written to a disk; they are forgotten when a run or the machine ends",
        hint=f"paddock tickets resume {run} brings that of the shell it is called in",
    )
