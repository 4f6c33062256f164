"""The sessions of a ticket run: what each is started with, and what became of it."""

import asyncio
import json
import os
import time
from collections.abc import Callable
from typing import Any

from launcher.bridges.files.router import SignedTokens
from launcher.safefs import walk
from launcher.service import ticket_results
from launcher.service.jobs import Jobs
from launcher.service.schema import FINAL, Reason, Session, SessionRequest, SessionState
from launcher.service.supervisor import Supervisor
from launcher.service.ticket_records import TicketRecords
from launcher.service.ticket_schema import Ticket, TicketRequest
from launcher.workflow.requests import ArtifactKey
from policy.errors import Refusal

_WAIT = 3_600.0
_BUSY_LOOKS, _BUSY_PAUSE = 20, 0.5
"""How often, and after how many seconds, a harvest is tried again that somebody else is at."""
_INTERRUPTED = (Reason.LOST, Reason.SERVICE_STOPPED)
"""Why a session ended that its agent did not end: the service starts it again by itself."""


class TicketSessions:
    """Sessions in the worktrees of tickets."""

    def __init__(self, supervisor: Supervisor, jobs: Jobs, files: "FileTools", records: TicketRecords) -> None:
        """Args: who runs sessions; who harvests; the file tools of agents that may use them; what is written down."""
        self._records = records
        self._supervisor = supervisor
        self._jobs = jobs
        self._files = files

    def wanted(
        self,
        request: TicketRequest,
        ticket: Ticket,
        place: dict[str, Any],
        name: str | None = None,
        labels: dict[str, str] | None = None,
    ) -> SessionRequest:
        """The session of a ticket's agent, or of the merger."""
        options, environment = [*ticket.options, *place["options"]], request.environment
        if request.file_tools or request.context_manager is not None:
            words, variables = self._files.offer(place["session_id"])
            options, environment = options + words, {**(environment or os.environ), **variables}
        return SessionRequest.model_validate(
            {
                "name": name,
                "command": ticket.command,
                "options": options,
                "directory": place["worktree"],
                "environment": environment,
                "labels": labels or {},
            }
        )

    def started(
        self, run: str, name: str, ticket: Ticket, place: dict[str, Any], request: TicketRequest, client_uid: int
    ) -> dict[str, Any] | None:
        """Asks for a session of a run; what became of it where it is refused, else None."""
        try:
            if (
                request.environment is None
                and json.loads(self._records.row(run)["request"]).get("environment") is not None
            ):
                raise without_environment(run)
            key = ArtifactKey(place["session_id"])
            self._records.contexts_of.update(key, lambda before: before.with_metadata(session=name))
            labels = {"ticket": ticket.ticket, "ticket-run": run, "session-id": place["session_id"][:1_024]}
            self._supervisor.create(self.wanted(request, ticket, place, name, labels), client_uid)
        except Refusal as refusal:
            return self.without_session(ticket.ticket, name, place, request.repository, refusal)
        return None

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
            if harvest is not None and ("errorType" in harvest or harvest.get("state") == "busy"):
                session = session.model_copy(update={"state": SessionState.UNHARVESTED})  # so a resumed run tries again
            elif ended_well(session):
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
        return ticket_results.agent(
            ticket, session, name=session.name, session_id=session.labels.get("session-id", ""),
            worktree=session.directory, log=self._supervisor.log_of(session.name), trunk=trunk, harvest=harvest,
            unfinished=unfinished, timeout=timeout,
        )  # fmt: skip

    def without_session(
        self, ticket: str, name: str, place: dict[str, Any], trunk: str, refusal: Refusal | None
    ) -> dict[str, Any]:
        """What became of a ticket whose session was not started."""
        return ticket_results.agent(
            ticket, None, name=name, session_id=place["session_id"], worktree=place["worktree"], log="", trunk=trunk,
            refusal=None if refusal is None else refusal.as_dict(),
        )  # fmt: skip


class FileTools:
    """The server of the file tools, started when a run first needs it; see `launcher.service.ticket_files`.

    Args:
        place: a file of the runtime directory: port and secret, so that agents find the server of the service's next
            life, too.
        moved: told the run to which an orchestrator has added tickets.
    """

    def __init__(self, database: str, place: str, moved: Callable[[str], None]) -> None:
        self._database = database
        self._place = place
        self._moved = moved
        self._jobs = Jobs()  # its own, whose turn is over when the service's is
        self._secret, self._about = "", dict[str, Any]()
        self._task: asyncio.Task[dict[str, Any]] | None = None

    async def start(self) -> None:
        """Starts it, unless it runs, and waits until it answers.

        Raises:
            Refusal: it does not start.
        """
        if self._task is not None and not self._task.done():
            return
        known = self._known()
        self._secret = known.get("secret") or os.urandom(32).hex()
        ready = asyncio.Event()

        def step(about: dict[str, Any]) -> None:
            if "run" in about:
                self._moved(about["run"])
                return
            self._about = about
            ready.set()

        arguments = {"database": self._database, "port": known.get("port", 0), "secret": self._secret}
        task = asyncio.get_running_loop().create_task(self._jobs.run("tickets.files", arguments, step=step))
        self._task = task
        waiting = asyncio.get_running_loop().create_task(ready.wait())
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not ready.is_set():
            waiting.cancel()
            task.result()
            raise Refusal("job-lost", "the file tools server has exited")
        self._keep({"secret": self._secret, "port": self._about["port"]})

    def offer(self, session_id: str) -> tuple[list[str], dict[str, str]]:
        """What a launch needs so that its command can use the tools: options of `paddock run`, and variables."""
        token = SignedTokens(bytes.fromhex(self._secret)).issue(session_id)
        variables = {"PADDOCK_FILES_URL": self._about["url"], "PADDOCK_FILES_SESSION": session_id,
                     "PADDOCK_FILES_TOKEN": token}  # fmt: skip
        words = ["--reach", str(self._about["port"])]
        words += [word for path in self._about["readable"] for word in ("--ro", path)]
        return [*words, *(word for name in variables for word in ("--env", name))], variables

    async def close(self) -> None:
        """Ends it."""
        await self._jobs.close()

    def _known(self) -> dict[str, Any]:
        try:
            with open(self._place, encoding="ascii") as file:
                found: dict[str, Any] = json.load(file)
        except (OSError, ValueError):
            return {}
        return found

    def _keep(self, about: dict[str, Any]) -> None:
        os.makedirs(os.path.dirname(self._place), 0o700, exist_ok=True)
        walk.replace(self._place, json.dumps(about).encode("ascii"))


def went_well(agent: dict[str, Any]) -> bool:
    """Whether an agent ended well, and what reviewed its work did not reject it."""
    well = (agent["state"], agent["reason"]) == (SessionState.ENDED, Reason.EXITED)
    return well and ("review" not in agent or went_well(agent["review"]))


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
        "the environment that its launcher needs is no longer available",
        context="variables' values are never written to disk; they are forgotten when the run or the machine ends",
        hint=f"paddock tickets resume {run} takes that of the shell it is called from",
    )
