"""Ticket runs: a worktree for each ticket, an agent in each, some at the same time, then one merge of all their work.

A run is `created`, `preparing` (worktrees), `running` (agents), `merging`, and then `ended`, `failed`, or `lost` with a
killed service. Agents of a lost run are lost sessions: their commits are harvested, their worktrees stay, and a merge
that was under way is finished from its journal. Nothing of that is done twice behind anybody's back: run it again.
"""

import asyncio
import json
import logging
import os
import sqlite3
import time
from typing import Any

from launcher.service import ticket_ends
from launcher.service.database import Database
from launcher.service.jobs import Jobs
from launcher.service.models import Reason, Session, SessionRequest
from launcher.service.states import FINAL, SessionState
from launcher.service.supervisor import Supervisor
from launcher.service.ticket_models import OVER, Ticket, TicketRequest, TicketRun, TicketState, of_ticket
from policy.errors import Refusal

log = logging.getLogger("paddock.service")

_WAIT = 3_600.0


class TicketRuns:
    """All ticket runs of one service."""

    def __init__(self, database: Database, supervisor: Supervisor, jobs: Jobs) -> None:
        """Args: the record; who runs sessions; who works with git."""
        self._database = database
        self._supervisor = supervisor
        self._jobs = jobs
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._over: dict[str, asyncio.Event] = {}

    def recover(self) -> list[str]:
        """Marks runs of an earlier life as lost; returns git directories in which a merge was under way."""
        unfinished = self._database.rows(
            f"SELECT * FROM ticket_run WHERE state NOT IN ({', '.join('?' * len(OVER))})", *OVER
        )
        with self._database.transaction() as connection:
            for row in unfinished:
                connection.execute("UPDATE ticket_run SET result = ? WHERE name = ?", (self._remains(row), row["name"]))
            connection.execute(
                f"UPDATE ticket_run SET state = ?, ended = ? WHERE state NOT IN ({', '.join('?' * len(OVER))})",
                (TicketState.LOST, time.time(), *OVER),
            )
        return [row["common_dir"] for row in self._database.rows("SELECT common_dir FROM repository WHERE merging")]

    def _remains(self, row: sqlite3.Row) -> str:
        """What is known of a run that was cut off: its agents, as far as they were started."""
        request, agents = json.loads(row["request"]), []
        for number, ticket in enumerate(request["tickets"], 1):
            session = self._session(_session_name(row["name"], number))
            if session is not None:  # else its turn had not come
                agents.append(self._told(ticket["ticket"], session, request["repository"]))
        lost = Refusal("ticket-run-lost", "the service was killed while the run was under way",
                       context="what its agents had committed is on their branches; worktrees stay")  # fmt: skip
        return json.dumps({"trunk": request["repository"], "agents": agents, "refusal": lost.as_dict()})

    def create(self, request: TicketRequest, client_uid: int) -> TicketRun:
        """Accepts a run and begins it.

        Raises:
            Refusal: service-stopping, ticket-run-exists, ticket-double, quota-ticket-runs, quota-tickets, and usage,
                for a ticket's options.
        """
        settings = self._supervisor.settings
        if self._supervisor.closing is not None:
            raise Refusal("service-stopping", "the service is stopping", hint="try again when it runs again")
        if len(self._tasks) >= settings.most_ticket_runs:
            raise Refusal("quota-ticket-runs", f"there are as many ticket runs as may be: {settings.most_ticket_runs}")
        if len(request.tickets) > settings.most_tickets:
            raise Refusal("quota-tickets", f"a ticket run has {settings.most_tickets} tickets at most")
        names = [ticket.ticket for ticket in request.tickets]
        if doubles := sorted({name for name in names if names.count(name) > 1}):
            raise Refusal("ticket-double", f"more than one ticket is called {doubles[0]}")
        self._parsed(request)
        name = request.name or f"run-{os.urandom(4).hex()}"
        kept = request.model_dump(mode="json", exclude={"environment"})
        try:
            with self._database.transaction() as connection:
                connection.execute(
                    "INSERT INTO ticket_run (name, state, request, client_uid, created) VALUES (?, ?, ?, ?, ?)",
                    (name, TicketState.CREATED, json.dumps(kept), client_uid, time.time()),
                )
        except Refusal as refusal:
            if not self._database.rows("SELECT 1 FROM ticket_run WHERE name = ?", name):
                raise
            raise Refusal("ticket-run-exists", f"there is a ticket run {name} already") from refusal
        self._over[name] = asyncio.Event()
        self._tasks[name] = asyncio.get_running_loop().create_task(self._life(name, request, client_uid))
        return self.run(name)

    def _parsed(self, request: TicketRequest) -> list[dict[str, Any]]:
        """The options of each ticket, by name.

        Raises:
            Refusal: usage, with the ticket's name.
        """
        found: list[dict[str, Any]] = []
        for ticket in request.tickets:
            wanted = {"command": ticket.command, "options": ticket.options, "directory": request.repository}
            try:
                options: dict[str, Any] = dict(self._supervisor.options_of(SessionRequest.model_validate(wanted)))
                for name in ("--worktree", "--submodule"):
                    if name in options:
                        raise Refusal("usage", f"{name} is not the ticket's to say",
                                      hint="a ticket works in the worktree that is made for it")  # fmt: skip
            except Refusal as refusal:
                raise of_ticket(ticket.ticket, refusal) from None
            found.append(options)
        return found

    def run(self, name: str) -> TicketRun:
        """One run.

        Raises:
            Refusal: ticket-run-unknown.
        """
        rows = self._database.rows("SELECT * FROM ticket_run WHERE name = ?", name)
        if not rows:
            raise Refusal("ticket-run-unknown", f"the service knows no ticket run {name}")
        return _run_of(rows[0])

    def listed(self, limit: int) -> list[TicketRun]:
        """Runs, the newest first."""
        rows = self._database.rows("SELECT * FROM ticket_run ORDER BY created DESC LIMIT ?", limit)
        return [_run_of(row) for row in rows]

    async def wait(self, name: str, seconds: float) -> TicketRun:
        """A run, once it is over or `seconds` have passed."""
        over = self._over.get(name)
        if over is not None:
            try:
                await asyncio.wait_for(over.wait(), seconds)
            except TimeoutError:
                return self.run(name)
        return self.run(name)

    def stop(self, name: str) -> TicketRun:
        """Begins to end a run: its agents are stopped, nothing is merged. A merge under way is not interrupted."""
        found = self.run(name)
        task = self._tasks.get(name)
        if task is not None and found.state is not TicketState.MERGING:
            task.cancel()
        return found

    async def close(self) -> None:
        """Ends all runs; their sessions are the supervisor's to stop."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _life(self, name: str, request: TicketRequest, client_uid: int) -> None:
        result: dict[str, Any] = {}
        prepared: dict[str, Any] | None = None
        state = TicketState.FAILED
        try:
            self._move(name, TicketState.PREPARING)
            tickets = [
                {"ticket": each.ticket, "details": each.details, "command": each.command, "options": options}
                for each, options in zip(request.tickets, self._parsed(request), strict=True)
            ]
            prepared = await self._jobs.run(
                "tickets.prepare",
                {"database": self._database.path, "run": name, "trunk": request.repository, "goal": request.goal,
                 "tickets": tickets, "path": (request.environment or os.environ).get("PATH", "")},
            )  # fmt: skip
            self._move(name, TicketState.RUNNING)
            agents = await self._agents(name, request, prepared["agents"], client_uid)
            result = {"trunk": prepared["trunk"], "agents": agents}
            well = all(agent["state"] == SessionState.ENDED and agent["reason"] == Reason.EXITED for agent in agents)
            if request.merge:
                self._move(name, TicketState.MERGING)
                merged = await self._merge(prepared, agents, all_of_them=request.merge_failed)
                result |= merged
                well = well and merged["clean"]
            arrived = _arrived(result) if request.merge and request.remove else None
            result |= await self._end(prepared, arrived)
            state = TicketState.ENDED if well else TicketState.FAILED
        except Refusal as refusal:
            result["refusal"] = refusal.as_dict()
        except asyncio.CancelledError:
            merging = "agents" in result
            result |= await self._stopped(name, request, prepared)
            who = "the service was stopped" if self._supervisor.closing is not None else "somebody asked for it"
            hint = (
                "its merge is finished from its journal" if merging else "nothing was merged; commits are on branches"
            )
            stopped = Refusal("ticket-run-stopped", "the run was stopped before its end", context=who, hint=hint)
            result["refusal"] = stopped.as_dict()
        except Exception as error:
            log.exception("ticket run %s", name)
            result["refusal"] = Refusal("internal-error", "the run could not go on", context=repr(error)).as_dict()
        finally:
            try:
                self._move(name, state, result)
            finally:
                self._tasks.pop(name, None)
                self._over.pop(name).set()

    async def _agents(
        self, run: str, request: TicketRequest, places: list[dict[str, Any]], client_uid: int
    ) -> list[dict[str, Any]]:
        """Runs an agent in each worktree, `request.parallel` at the same time; what became of each."""
        turns = asyncio.Semaphore(request.parallel)

        async def one(number: int, ticket: Ticket, place: dict[str, Any]) -> dict[str, Any]:
            async with turns:
                return await self._agent(_session_name(run, number), ticket, place, request, client_uid, run)

        pairs = list(zip(request.tickets, places, strict=True))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number, *pair)) for number, pair in enumerate(pairs, 1)]
        return [task.result() for task in tasks]

    async def _agent(
        self, name: str, ticket: Ticket, place: dict[str, Any], request: TicketRequest, client_uid: int, run: str
    ) -> dict[str, Any]:
        wanted = SessionRequest.model_validate(
            {
                "name": name,
                "command": ticket.command,
                "options": [*ticket.options, *place["options"]],
                "directory": place["worktree"],
                "environment": request.environment,
                "labels": {"ticket": ticket.ticket, "ticket-run": run, "session-id": place["session_id"][:1_024]},
            }
        )
        try:
            self._supervisor.create(wanted, client_uid)
            try:
                session = await self._supervisor.wait(name, FINAL, _WAIT)
                while session.state not in FINAL:
                    session = await self._supervisor.wait(name, FINAL, _WAIT)
            except asyncio.CancelledError:
                self._supervisor.stop(name, why=self._supervisor.closing or Reason.STOPPED)
                raise
        except Refusal as refusal:
            return self._without_session(ticket.ticket, name, place, request.repository, refusal)
        outcome = session.outcome
        assert outcome is not None
        harvest = None
        if outcome.reason is Reason.LOST:  # its launcher was killed, and has harvested nothing
            try:
                harvest = await self._jobs.run("harvest", {"worktree": place["worktree"], "strict": False}) or None
            except Refusal as refusal:
                harvest = dict(refusal.as_dict())
        return self._told(ticket.ticket, session, request.repository, harvest)

    def _session(self, name: str) -> Session | None:
        try:
            return self._supervisor.session(name)
        except Refusal:
            return None

    def _told(self, ticket: str, session: Session, trunk: str, harvest: dict[str, Any] | None = None,
              unfinished: Reason = Reason.LOST) -> dict[str, Any]:  # fmt: skip
        return ticket_ends.agent(
            ticket, session, name=session.name, session_id=session.labels.get("session-id", ""),
            worktree=session.directory, log=self._supervisor.log_of(session.name), trunk=trunk, harvest=harvest,
            unfinished=unfinished,
        )  # fmt: skip

    def _without_session(
        self, ticket: str, name: str, place: dict[str, Any], trunk: str, refusal: Refusal | None
    ) -> dict[str, Any]:
        return ticket_ends.agent(
            ticket, None, name=name, session_id=place["session_id"], worktree=place["worktree"], log="", trunk=trunk,
            refusal=None if refusal is None else refusal.as_dict(),
        )  # fmt: skip

    async def _stopped(self, run: str, request: TicketRequest, prepared: dict[str, Any] | None) -> dict[str, Any]:
        """What is known of a run that was stopped, once its agents have ended; a second stop does not wait for them."""
        if prepared is None:
            return {}
        names = [_session_name(run, number) for number in range(1, len(request.tickets) + 1)]
        try:
            for name in names:
                while (live := self._supervisor.live.get(name)) is not None:
                    await live.over.wait()
        except asyncio.CancelledError:
            log.info("ticket run %s is told before its agents have ended", run)
        agents = []
        for name, ticket, place in zip(names, request.tickets, prepared["agents"], strict=True):
            session = self._session(name)
            agents.append(
                self._told(ticket.ticket, session, request.repository, unfinished=Reason.STOPPED)
                if session is not None
                else self._without_session(ticket.ticket, name, place, request.repository, None)
            )
        found = {"trunk": prepared["trunk"], "agents": agents}
        if self._supervisor.closing is None:
            try:
                found |= await self._end(prepared, None)
            except (Refusal, asyncio.CancelledError) as error:
                log.warning("what the agents of ticket run %s have left was not looked at: %s", run, error)
        return found

    async def _end(self, prepared: dict[str, Any], removable: list[str] | None) -> dict[str, Any]:
        """Removes worktrees, None of them in some cases, and looks at the others; see `ticket_work.end`."""
        places = {place["session_id"]: place["worktree_id"] for place in prepared["agents"]}
        arguments = {"trunk": prepared["trunk"], "worktrees": places, "removable": removable or []}
        found = await self._jobs.run("tickets.end", arguments)
        return found if removable is not None else {"uncommitted": found["uncommitted"]}

    async def _merge(
        self, prepared: dict[str, Any], agents: list[dict[str, Any]], *, all_of_them: bool
    ) -> dict[str, Any]:
        """Both phases of the merge, noted before and after, so that one that was interrupted is found again."""
        outputs = {
            agent["session_id"]: f"{agent['reason']}, status {agent['status']}"
            for agent in agents
            if all_of_them or (agent["state"], agent["reason"]) == (SessionState.ENDED, Reason.EXITED)
        }
        arguments = {"database": self._database.path, "dispatch": prepared["dispatch"], "nodes": prepared["nodes"],
                     "outputs": outputs}  # fmt: skip
        return await self.merging(prepared["common_dir"], "tickets.merge", arguments)

    async def merging(self, common_dir: str, job: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Runs a job that merges. Once begun it is not cancelled: it ends, or its journal is resumed.

        Raises:
            Refusal: the job's.
        """
        self._note(common_dir, merging=True)
        task = asyncio.get_running_loop().create_task(self._jobs.run(job, arguments))
        task.add_done_callback(lambda done: self._merged(common_dir, done))
        return await asyncio.shield(task)

    def _merged(self, common_dir: str, task: "asyncio.Task[dict[str, Any]]") -> None:
        """A merge has answered. One that ended without an answer stays noted, and is resumed at the next start."""
        error = None if task.cancelled() else task.exception()
        if not task.cancelled() and not (isinstance(error, Refusal) and error.reference == "job-lost"):
            self._note(common_dir, merging=False)

    async def resume(self, common_dir: str) -> None:
        """Finishes a merge that was interrupted with an earlier life of the service."""
        try:
            found = await self._jobs.run("merge.resume", {"common_dir": common_dir})
        except Refusal as refusal:
            log.error("the merge in %s waits: %s (%s)", common_dir, refusal.message, refusal.hint)
            return
        self._note(common_dir, merging=False)
        if found.get("run_id"):
            log.info("the merge %s in %s was finished: %s", found["run_id"], common_dir, found["state"])

    def _note(self, common_dir: str, *, merging: bool) -> None:
        with self._database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO repository VALUES (?, ?)", (common_dir, int(merging)))

    def _move(self, name: str, state: TicketState, result: dict[str, Any] | None = None) -> None:
        ended = time.time() if state in OVER else None
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE ticket_run SET state = ?, ended = ?, result = ? WHERE name = ?",
                (state, ended, None if result is None else json.dumps(result), name),
            )
        log.info("ticket run %s is %s", name, state)


def _arrived(result: dict[str, Any]) -> list[str]:
    """Session ids of the agents whose work is in the trunk."""
    return [status["agent_result_id"] for status in (result["aggregation"] or {}).get("merged", ())]


def _session_name(run: str, number: int) -> str:
    return f"{run[:50]}.{number}"


def _run_of(row: sqlite3.Row) -> TicketRun:
    request = json.loads(row["request"])
    return TicketRun(
        name=row["name"],
        state=TicketState(row["state"]),
        created=row["created"],
        ended=row["ended"],
        tickets=[each["ticket"] for each in request["tickets"]],
        result=None if row["result"] is None else json.loads(row["result"]),
    )
