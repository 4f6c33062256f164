"""The sessions of a ticket run: what each is started with, and what became of it."""

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field

from launcher.bridges.files.router import SignedTokens
from launcher.safefs import walk
from launcher.service.jobs import Jobs
from launcher.service.packets import REMOTE
from launcher.service.schema import FINAL, Frozen, Outcome, Reason, Session, SessionRequest, SessionState
from launcher.service.supervisor import Supervisor
from launcher.service.ticket_engine import Engine
from launcher.service.ticket_records import TicketRecords
from launcher.service.ticket_schema import Ticket, TicketRequest
from launcher.workflow.requests import ArtifactKey
from policy.errors import Refusal
from policy.pasted import quoted

# What became of one ticket of a run: why its command ended, where worktree and log are, what may come next.


def _entry(
    ticket: str,
    session: Session | None,
    *,
    name: str,
    session_id: str,
    worktree: str,
    log: str,
    trunk: str,
    harvest: Mapping[str, Any] | None = None,
    refusal: Mapping[str, Any] | None = None,
    unfinished: Reason = Reason.LOST,
    timeout: float | None = None,
) -> dict[str, Any]:
    """One entry of a run's result.

    Args:
        name: what that session is, or would have been called.
        worktree: made for it; "" when none was.
        trunk: the worktree that the run began with.
        harvest: what became of its commits, where that is not the session's to say.
        refusal: why there was no session, or none that started.
        unfinished: the reason for a session that has no outcome yet.
        timeout: seconds after which it was stopped, because it took longer.
    """
    outcome = session.outcome if session is not None else None
    refusal = refusal if outcome is None else outcome.refusal
    if session is None:
        state, reason = (SessionState.FAILED, Reason.REFUSED) if refusal else (SessionState.CREATED, Reason.STOPPED)
    else:
        state, reason = session.state, unfinished if outcome is None else outcome.reason
    found: dict[str, Any] = {
        "ticket": ticket, "session": name, "session_id": session_id, "worktree": worktree, "state": state,
        "reason": reason, "status": outcome.status if outcome is not None else None,
        "harvest": harvest if harvest is not None or outcome is None else outcome.harvest,
        "refusal": refusal, "why": "", "log": "" if session is None else log, "next": [],
    }  # fmt: skip
    well = state == SessionState.ENDED and reason is Reason.EXITED
    if timeout is not None:
        found |= {"state": SessionState.FAILED, "reason": "timeout"}
    if not well:
        found["why"] = _why(reason, outcome, begun=session is not None)
        if timeout is not None:
            found["why"] = f"it took longer than {timeout:g} s"
        found["next"] = [{"command": command, "about": about} for command, about in _next(found, trunk)]
    return found


def _why(reason: Reason, outcome: Outcome | None, *, begun: bool) -> str:
    """Why a command failed; "" where its status or the refusal says so."""
    if reason is Reason.STOPPED:
        return "it was stopped on request" if begun else "the run was stopped before it started"
    if reason is Reason.SERVICE_STOPPED:
        return "the service was stopped"
    if reason is Reason.LOST:
        return "its launcher was killed"
    if reason is Reason.LIMIT:
        limit = outcome.limit if outcome is not None else None
        return f"it passed its limit of {limit}; its options can raise it: --limit {limit}=..."
    if reason is Reason.SIGNALLED and outcome is not None:
        return f"{outcome.signal} ended its command"
    return ""


def _next(found: Mapping[str, Any], trunk: str) -> list[tuple[str, str]]:
    """Commands that may come next, each with what it is good for."""
    steps = []
    harvest = found["harvest"] or {}
    worktree = quoted(found["worktree"])  # not the ticket: an earlier run's worktree may go by that name
    there = f"cd {quoted(trunk)} && paddock"
    if found["log"]:
        steps.append((f"paddock logs {found['session']}", "its output"))
    if harvest.get("errorType"):
        steps.append((f"paddock worktree harvest {worktree}", "harvest its commits"))
    elif harvest.get("state") == "harvested":
        steps.append((f"{there} merge {worktree}", "merge what it committed"))
    if found["worktree"]:
        if harvest or not found["refusal"]:  # else it was refused before its start
            steps.append((f"cd {worktree} && git status", "what it left"))
        steps.append((f"{there} worktree remove {worktree}", "remove it, unless something would be lost"))
    return steps


def without_worktree(found: dict[str, Any]) -> dict[str, Any]:
    """The entry of a session whose worktree was removed at its end: only its log is left."""
    return found | {"worktree": "", "next": found["next"][:1] if found["log"] else []}


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
        engine: Engine | None = None,
    ) -> SessionRequest:
        """The session of a ticket's agent, or of the merger; for `engine` see `started`."""
        if engine is not None:
            return self._remote(request, ticket, place, name, labels, engine)
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

    def _remote(
        self, request: TicketRequest, ticket: Ticket, place: dict[str, Any], name: str | None,
        labels: dict[str, str] | None, engine: Engine,
    ) -> SessionRequest:  # fmt: skip
        """The session that takes in the work of an agent on another machine (`launcher.engines.relay`)."""
        parsed = self._supervisor.options_of(
            SessionRequest.model_validate(
                {"command": ticket.command, "options": ticket.options, "directory": place["worktree"]}
            )
        )
        named = parsed.get("--env")
        about = {
            "socket": engine.place, "repository": request.repository, "options": ticket.options,
            "cpus": ticket.cpus, "memory": ticket.memory,
            "resources": ticket.resources, "timeout": ticket.timeout or request.timeout,
            "variables": [each for each in named if "=" not in each] if isinstance(named, list) else [],
        }  # fmt: skip
        strict = ["--strict-handoff"] if "--strict-handoff" in parsed else []
        return SessionRequest.model_validate(
            {
                "name": name,
                "command": ticket.command,
                "options": [*strict, *place["options"]],
                "directory": place["worktree"],
                "environment": {**(request.environment or os.environ), REMOTE: json.dumps(about)},
                "labels": labels or {},
                "bridge": "remote",
            }
        )

    def started(
        self, run: str, name: str, ticket: Ticket, place: dict[str, Any], request: TicketRequest, client_uid: int,
        engine: Engine | None = None,
    ) -> dict[str, Any] | None:  # fmt: skip
        """Asks for a session of a run; what became of it where it is refused, else None.

        Args:
            engine: on whose cluster the agent works; None for this machine.
        """
        try:
            if (
                request.environment is None
                and json.loads(self._records.row(run)["request"]).get("environment") is not None
            ):
                raise without_environment(run)
            key = ArtifactKey(place["session_id"])
            self._records.contexts_of.update(key, lambda before: before.with_metadata(session=name))
            labels = {"ticket": ticket.ticket, "ticket-run": run, "session-id": place["session_id"][:1_024]}
            self._supervisor.create(self.wanted(request, ticket, place, name, labels, engine), client_uid)
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
                result = await self._jobs.run("harvest", {"worktree": worktree}) or None
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
        return _entry(
            ticket, session, name=session.name, session_id=session.labels.get("session-id", ""),
            worktree=session.directory, log=self._supervisor.log_of(session.name), trunk=trunk, harvest=harvest,
            unfinished=unfinished, timeout=timeout,
        )  # fmt: skip

    def without_session(
        self, ticket: str, name: str, place: dict[str, Any], trunk: str, refusal: Refusal | None
    ) -> dict[str, Any]:
        """What became of a ticket whose session was not started."""
        return _entry(
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

        Refusals: it does not start.
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


# Questions of a run's agents to its context manager: another agent, which finds out what they need to know.

MOST_SECONDS = 300.0
"""What a context manager may take when its table says nothing."""

_MOST = 4
"""Questions of one run at the same time."""


class TicketQuestion(Frozen):
    """A question of an agent.

    Attributes:
        session_id: of the agent's context.
        question: in words.
    """

    session_id: Annotated[str, Field(min_length=1, max_length=512)]
    question: Annotated[str, Field(min_length=1, max_length=64 << 10)]


class Questions:
    """Those of all runs of one service. A session answers each, in the jail of the worktree of the agent that asks."""

    def __init__(
        self, records: TicketRecords, sessions: TicketSessions, supervisor: Supervisor, jobs: Jobs, database: str
    ) -> None:
        """Args: what is known of runs; their sessions; who runs sessions; who works with git; the service's."""
        self._records = records
        self._sessions = sessions
        self._supervisor = supervisor
        self._jobs = jobs
        self._database = database
        self._asked: dict[str, dict[str, asyncio.Task[object] | None]] = {}

    def begun(self, run: str) -> None:
        """The agents of a run may ask from now on."""
        self._asked[run] = {}

    def over(self, run: str, *, stop: bool) -> None:
        """Nobody asks any more. `stop`: whoever is at a question still is stopped."""
        for name, task in self._asked.pop(run, {}).items():
            if task is not None:
                task.cancel()
            if stop and name in self._supervisor.live:
                self._supervisor.stop(name, why=Reason.STOPPED)

    async def ask(self, run: str, asked: TicketQuestion) -> Session:
        """Starts the session that answers a question with what it writes to its standard output.

        Refusals: ticket-run-unknown, ticket-run-closed, ticket-run-busy, or why it does not start.
        """
        request = self._records.request(run)
        manager = request.context_manager
        if manager is None or run not in self._asked:
            raise Refusal("ticket-run-closed", f"ticket run {run} has nobody to answer questions",
                          hint="name one in the tickets file: the table [context_manager]")  # fmt: skip
        if len(self._asked[run]) >= _MOST:
            raise Refusal("ticket-run-busy", f"{_MOST} questions of ticket run {run} are already being answered",
                          hint="try again when one is")  # fmt: skip
        name = f"{run[:50]}.c{os.urandom(4).hex()}"
        self._asked[run][name] = None  # its place, from here on
        try:
            arguments = {"database": self._database, "run": run, "number": name.rpartition(".")[2],
                         **asked.model_dump()}  # fmt: skip
            place = await self._jobs.run("tickets.ask", arguments)
            ticket = manager.ticket(place["ticket"], asked.question)
            ticket = ticket.model_copy(update={"timeout": ticket.timeout or MOST_SECONDS})
            client_uid = self._records.row(run)["client_uid"]
            refused = self._sessions.started(run, name, ticket, place, request, client_uid)
            if refused is not None:
                raise Refusal.of(refused["refusal"])
        except BaseException:
            self._forget(run, name)
            raise
        if run not in self._asked:  # the run was over before it had begun
            self._supervisor.stop(name, why=Reason.STOPPED)
        else:
            self._asked[run][name] = self._follow(run, name, ticket, place, request)
        return self._supervisor.session(name)

    def _follow(
        self, run: str, name: str, ticket: Ticket, place: dict[str, object], request: TicketRequest
    ) -> asyncio.Task[object]:
        """Ends the session when it takes too long."""
        following = self._sessions.ended(name, ticket, place, request, lambda: False)
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(following)
        task.add_done_callback(lambda _: self._forget(run, name))
        return task

    def _forget(self, run: str, name: str) -> None:
        self._asked.get(run, {}).pop(name, None)
