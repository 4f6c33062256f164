"""Ticket runs: a worktree for each ticket, an agent in each, some at the same time, then one merge of all their work.

A run is `created`, `preparing` (worktrees), `running` (agents), `merging`, and then `ended` or `failed`. Each step of
each ticket is written down when it happens, so a run goes on from where it was: by itself when the service starts, and
when somebody resumes one that failed. Agents that ended well are not started again, those whose session lives are
awaited; what was merged stays merged, and a merge that was under way is finished from its journal first.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

from launcher.service import ticket_work
from launcher.service.database import Database
from launcher.service.jobs import Jobs
from launcher.service.schema import (
    FINAL,
    OVER,
    EventKind,
    Merger,
    OnConflict,
    Prompt,
    Reason,
    SessionRequest,
    Ticket,
    TicketRequest,
    TicketResume,
    TicketRun,
    TicketState,
    TicketStatus,
    TicketStep,
    of_ticket,
)
from launcher.service.supervisor import Supervisor
from launcher.service.tables import StoredRequestContexts
from launcher.service.ticket_sessions import (
    FileTools,
    TicketSessions,
    ended_well,
    interrupted,
    went_well,
    without_environment,
)
from launcher.session import places
from launcher.workflow.flow import default_prompts
from launcher.workflow.request_context import PromptContext
from launcher.workflow.requests import ArtifactKey
from policy.errors import Refusal

log = logging.getLogger("paddock.service")


class TicketRuns:
    """All ticket runs of one service."""

    def __init__(self, database: Database, supervisor: Supervisor, jobs: Jobs) -> None:
        """Args: the record; who runs sessions; who works with git."""
        self._database = database
        self._supervisor = supervisor
        self._jobs = jobs
        runtime = places.places(os.environ).runtime
        self._files = FileTools(database.path, f"{runtime}/ticket-files")
        self._sessions = TicketSessions(supervisor, jobs, self._files)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopped: set[str] = set()
        self._moved: dict[str, asyncio.Event] = {}
        self._seen: dict[str, int] = {}
        self._merging: Counter[str] = Counter()
        self._finishing = asyncio.Lock()
        self._unwritten: dict[str, TicketRun] = {}
        self._contexts = StoredRequestContexts(database)
        self._environments = f"{runtime}/ticket-runs"

    def recover(self) -> list[str]:
        """Continues the runs of an earlier service; returns the git directories in which a merge was under way."""
        rows = self._database.rows(f"SELECT * FROM ticket_run WHERE state NOT IN ({_marks(OVER)})", *OVER)
        for row in rows:
            log.info("ticket run %s goes on: it was %s", row["name"], row["state"])
            names = [each["ticket"] for each in json.loads(row["request"])["tickets"]]
            with self._database.transaction() as connection:  # of an earlier version, which had no rows of tickets
                connection.executemany(_WAITING, _waiting(row["name"], names, row["created"]))
            self._begin(row["name"], row["client_uid"], again=False)
        if os.path.isdir(self._environments):
            for name in set(os.listdir(self._environments)) - {row["name"] for row in rows}:
                self._keep_environment(name, None)
        return [row["common_dir"] for row in self._database.rows("SELECT common_dir FROM repository WHERE merging")]

    # Asking for runs

    def create(self, request: TicketRequest, client_uid: int, key: str | None = None) -> tuple[TicketRun, bool]:
        """Accepts a run and begins it, once for the same key; returns it, and whether it is new."""
        kept = request.model_dump(mode="json", exclude={"environment"})
        digest = hashlib.sha256(json.dumps(kept).encode(errors="surrogatepass")).hexdigest()
        kept["environment"] = None if request.environment is None else sorted(request.environment)  # never its values
        if key is not None and (known := self._of_key(key, client_uid, digest)) is not None:
            return self.run(known), False
        settings = self._supervisor.settings
        self._refuse_when_full()
        if len(request.tickets) > settings.most_tickets:
            raise Refusal("quota-tickets", f"a ticket run has {settings.most_tickets} tickets at most")
        names = [ticket.ticket for ticket in request.tickets]
        if doubles := sorted({name for name in names if names.count(name) > 1}):
            raise Refusal("ticket-double", f"more than one ticket is called {doubles[0]}")
        self._parsed(request)
        self._merger(request)
        name = request.name or f"run-{os.urandom(4).hex()}"
        now = time.time()
        try:
            with self._database.transaction() as connection:
                connection.execute(
                    "INSERT INTO ticket_run (name, state, request, client_uid, created, key, digest)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (name, TicketState.CREATED, json.dumps(kept), client_uid, now, key, digest),
                )
                connection.executemany(_WAITING, _waiting(name, names, now))
        except Refusal as refusal:
            if not self._database.rows("SELECT 1 FROM ticket_run WHERE name = ?", name):
                raise
            raise Refusal("ticket-run-exists", f"there is a ticket run {name} already",
                          hint=f"paddock tickets show {name}; paddock tickets resume {name} goes on with it") \
                from refusal  # fmt: skip
        self._keep_environment(name, request.environment)
        self._begin(name, client_uid, again=False)
        return self.run(name), True

    def resume(self, name: str, wanted: TicketResume, client_uid: int) -> TicketRun:
        """Continues a run that did not end well; a run that is under way, or ended well, does not change."""
        found = self.run(name)
        if name in self._tasks or found.state is TicketState.ENDED:
            return found
        self._refuse_when_full()
        if wanted.on_conflict is not None:
            request = json.loads(self._row(name)["request"]) | {"on_conflict": wanted.on_conflict}
            with self._database.transaction() as connection:
                connection.execute("UPDATE ticket_run SET request = ? WHERE name = ?", (json.dumps(request), name))
        if wanted.environment is not None:
            self._keep_environment(name, wanted.environment)
        self._unwritten.pop(name, None)
        self._move(name, TicketState.CREATED)
        self._begin(name, client_uid, again=True)
        return self.run(name)

    def _refuse_when_full(self) -> None:
        most = self._supervisor.settings.most_ticket_runs
        if self._supervisor.closing is not None:
            raise Refusal("service-stopping", "the service is stopping", hint="try again when it runs again")
        if len(self._tasks) >= most:
            raise Refusal("quota-ticket-runs", f"there are as many ticket runs as may be: {most}")

    def _of_key(self, key: str, client_uid: int, digest: str) -> str | None:
        """The run that was made for an idempotency key."""
        rows = self._database.rows("SELECT * FROM ticket_run WHERE key = ? AND client_uid = ?", key, client_uid)
        if rows and rows[0]["digest"] != digest:
            raise Refusal("idempotency-mismatch", f"the idempotency key {key} came with other tickets before",
                          hint=f"use a new key; paddock tickets show {rows[0]['name']} shows that run")  # fmt: skip
        return rows[0]["name"] if rows else None

    def _parsed(self, request: TicketRequest) -> list[dict[str, Any]]:
        """The options of each ticket, by name."""
        return [self._options(request, ticket.ticket, ticket) for ticket in request.tickets]

    def _options(self, request: TicketRequest, name: str, of: Ticket | Merger) -> dict[str, Any]:
        """The options of a ticket's agent or of the merger, by name."""
        wanted = {"command": of.command, "options": of.options, "directory": request.repository}
        try:
            options: dict[str, Any] = dict(self._supervisor.options_of(SessionRequest.model_validate(wanted)))
            for option in ("--worktree", "--submodule"):
                if option in options:
                    raise Refusal("usage", f"{option} is not the ticket's to say",
                                  hint="a ticket works in the worktree that is made for it")  # fmt: skip
        except Refusal as refusal:
            raise of_ticket(name, refusal) from None
        return options

    def _merger(self, request: TicketRequest) -> dict[str, Any] | None:
        """The merger, as a ticket is checked before anything is made; None without one."""
        of = request.merger
        if of is None:
            return None
        return {"ticket": "merger", "command": of.command, "options": self._options(request, "merger", of)}

    # Looking at runs

    def run(self, name: str) -> TicketRun:
        """One run."""
        return self._unwritten.get(name) or self._of(self._row(name))

    def _of(self, row: sqlite3.Row) -> TicketRun:
        return _run_of(row, self._tickets(row["name"]), self._seen.get(row["name"], 0))

    def contexts(self, name: str) -> list[dict[str, Any]]:
        """What is known of each session of a run: its requests, results and boundaries, also after its end."""
        self._row(name)
        return self._contexts.of_run(name)

    def prompts(self, name: str) -> list[Prompt]:
        """The contributed parts of the prompts of a run, in the order of the sessions that get them."""
        texts = default_prompts()
        found = []
        for each in self.contexts(name):
            if each["prompt_context"] is not None:
                asked = PromptContext.model_validate(each["prompt_context"])
                text = texts.assemble(asked)
                found.append(Prompt(session_id=each["artifact_key"], agent_type=asked.agent_type, text=text))
        return found

    def listed(self, limit: int) -> list[TicketRun]:
        """Runs, the newest first."""
        rows = self._database.rows("SELECT * FROM ticket_run ORDER BY created DESC LIMIT ?", limit)
        return [self._of(row) for row in rows]

    def states(self, table: Literal["ticket_run", "ticket"]) -> dict[str, int]:
        """How many runs or tickets there are of each state; none when the database cannot be read."""
        with contextlib.suppress(Refusal):
            rows = self._database.rows(f"SELECT state, count(*) AS number FROM {table} GROUP BY state")
            return {row["state"]: row["number"] for row in rows}
        return {}

    async def wait(self, name: str, seconds: float, seen: int | None = None) -> TicketRun:
        """A run, once it is over or `seconds` have passed; with `seen`, also once a ticket has moved since."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.run(name)
            moved = self._moved.get(name)
            left = deadline - time.monotonic()
            if moved is None or left <= 0 or (seen is not None and found.seen != seen):
                return found
            try:
                await asyncio.wait_for(moved.wait(), left)
            except TimeoutError:
                continue

    def _row(self, name: str) -> sqlite3.Row:
        rows = self._database.rows("SELECT * FROM ticket_run WHERE name = ?", name)
        if not rows:
            raise Refusal("ticket-run-unknown", f"the service knows no ticket run {name}")
        return rows[0]

    def _tickets(self, name: str) -> list[sqlite3.Row]:
        return self._database.rows("SELECT * FROM ticket WHERE run = ? ORDER BY number", name)

    # Ending runs

    def stop(self, name: str) -> TicketRun:
        """Begins to end a run: its agents are stopped, nothing is merged. A merge under way is not interrupted."""
        found = self.run(name)
        task = self._tasks.get(name)
        if task is not None and found.state is not TicketState.MERGING:
            self._stopped.add(name)
            task.cancel()
        return found

    async def close(self) -> None:
        """Leaves all runs to the service's next life; their sessions are the supervisor's."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._files.close()

    def forget(self, keep: int, before: float, contexts: int) -> None:
        """Forgets runs that are over, and contexts of agents: the oldest, but for contexts of runs under way."""
        over = f"state IN ({_marks(OVER)})"
        live = f"SELECT name FROM ticket_run WHERE NOT {over}"
        with self._database.transaction() as connection:
            connection.execute(
                f"DELETE FROM ticket_run WHERE {over} AND (ended < ? OR name IN (SELECT name FROM ticket_run WHERE"
                f" {over} ORDER BY ended DESC LIMIT -1 OFFSET ?))",
                (*OVER, before, *OVER, keep),
            )
            connection.execute(
                "DELETE FROM context WHERE (used < ? OR key IN (SELECT key FROM context ORDER BY used DESC"
                f" LIMIT -1 OFFSET ?)) AND substr(key, 1, instr(key || '/', '/') - 1) NOT IN ({live})",
                (before, contexts, *OVER),
            )

    def counts(self) -> dict[str, int]:
        """How many runs and contexts are remembered."""
        (found,) = self._database.rows(
            "SELECT (SELECT count(*) FROM ticket_run) AS ticket_runs, (SELECT count(*) FROM context) AS contexts"
        )
        return dict(found)

    # Living

    def _begin(self, name: str, client_uid: int, *, again: bool) -> None:
        self._moved[name] = asyncio.Event()
        self._seen[name] = int(time.time() * 1_000)  # later than whatever an earlier life has told
        self._tasks[name] = asyncio.get_running_loop().create_task(self._life(name, client_uid, again=again))

    async def _life(self, name: str, client_uid: int, *, again: bool) -> None:
        """A run from where it is to its end. `again`: agents that failed are started once more."""
        result: dict[str, Any] = {}
        prepared: dict[str, Any] | None = None
        state: TicketState | None = TicketState.FAILED
        try:
            request = self._request(name)
            await self._finish_merges()
            self._move(name, TicketState.PREPARING)
            prepared = await self._prepare(name, request)
            if request.file_tools:
                await self._files.start()
            self._move(name, TicketState.RUNNING)
            agents = await self._agents(name, request, prepared, client_uid, again=again)
            result = {"trunk": prepared["trunk"], "agents": agents}
            well = all(went_well(agent) for agent in agents)
            if request.merge:
                self._move(name, TicketState.MERGING)
                result |= await self._merge_all(name, request, prepared, agents, client_uid)
                well = well and result["clean"]
            result |= await self._end(name, prepared, remove=request.merge and request.remove)
            state = TicketState.ENDED if well else TicketState.FAILED
        except Refusal as refusal:
            result["refusal"] = refusal.as_dict()
        except asyncio.CancelledError:
            if name not in self._stopped:
                state = None  # the service ends, and goes on with it in its next life
            else:
                result |= await self._what_became(name, request, prepared)
                stopped = Refusal(
                    "ticket-run-stopped", "the run was stopped before its end", context="somebody asked for it",
                    hint=f"nothing was merged; commits are on branches; paddock tickets resume {name} goes on with it",
                )  # fmt: skip
                result["refusal"] = stopped.as_dict()
        except Exception as error:
            log.exception("ticket run %s", name)
            result["refusal"] = Refusal("internal-error", "the run could not go on", context=repr(error)).as_dict()
        finally:
            try:
                if state is not None:
                    self._move(name, state, result)
            finally:
                if state is not None:
                    self._keep_environment(name, None)
                    self._database.later(lambda: self._contexts.expire_run(name))
                self._stopped.discard(name)
                self._tasks.pop(name, None)
                self._seen.pop(name, None)
                self._moved.pop(name).set()

    async def _finish_merges(self) -> None:
        """Finishes the merges that an earlier service began, before anything else is merged."""
        for row in self._database.rows("SELECT common_dir FROM repository WHERE merging"):
            await self.finish_merge(row["common_dir"])

    def _request(self, name: str) -> TicketRequest:
        """What was asked for, with the environment where that is at hand."""
        kept = json.loads(self._row(name)["request"])
        names = kept.pop("environment", None)
        return TicketRequest.model_validate(kept | {"environment": self._environment(name) if names else None})

    async def _prepare(self, name: str, request: TicketRequest) -> dict[str, Any]:
        """The worktrees of all tickets whose work is not in the trunk yet."""
        rows = {row["number"]: row for row in self._tickets(name)}
        tickets = [
            {"number": number, "ticket": each.ticket, "details": each.details, "command": each.command,
             "options": options, "worktree_id": rows[number]["worktree_id"]}
            for number, (each, options) in enumerate(zip(request.tickets, self._parsed(request), strict=True), 1)
            if rows[number]["state"] != TicketStep.MERGED
        ]  # fmt: skip
        others = self._database.rows("SELECT worktree_id FROM ticket WHERE run != ? AND worktree_id != ''", name)

        def step(found: dict[str, Any]) -> None:
            if "discarded" in found:
                for row in self._tickets(name):
                    if row["worktree_id"] in found["discarded"]:
                        self._ticket(name, row["number"], TicketStep.WAITING, worktree="", worktree_id="")
            elif rows[found["number"]]["worktree_id"] != found["worktree_id"]:
                columns = {"worktree": found["worktree"], "worktree_id": found["worktree_id"]}
                self._ticket(name, found["number"], TicketStep.PREPARED, **columns, session="", agent=None)

        environment = request.environment or os.environ
        return await self._jobs.run(
            "tickets.prepare",
            {"database": self._database.path, "run": name, "trunk": request.repository, "goal": request.goal,
             "tickets": tickets, "path": environment.get("PATH", ""), "since": self._row(name)["created"],
             "merger": self._merger(request), "claimed": [row["worktree_id"] for row in others]},
            step=step,
        )  # fmt: skip

    async def _agents(
        self, run: str, request: TicketRequest, prepared: dict[str, Any], client_uid: int, *, again: bool
    ) -> list[dict[str, Any]]:
        """Runs an agent in each worktree, `request.parallel` at the same time; what became of each."""
        turns = asyncio.Semaphore(request.parallel)
        places_by_number = {place["number"]: place for place in prepared["agents"]}

        async def one(row: sqlite3.Row, ticket: Ticket) -> dict[str, Any]:
            before: dict[str, Any] | None = None if row["agent"] is None else json.loads(row["agent"])
            if row["state"] == TicketStep.MERGED or (before is not None and (went_well(before) or not again)):
                assert before is not None
                return before
            async with turns:
                place = places_by_number[row["number"]]
                if (planned := plans.get(row["number"])) is not None:
                    await planned.wait()
                try:
                    found = await self._agent(run, row, ticket, place, request, client_uid, again=again)
                except Refusal as refusal:  # one that fails keeps no other from going on
                    about = (ticket.ticket, row["session"], place, request.repository)
                    found = self._sessions.without_session(*about, refusal)
            step = TicketStep.ENDED if went_well(found) else TicketStep.FAILED
            self._ticket(run, row["number"], step, agent=json.dumps(found))
            return found

        rows = self._tickets(run)
        plans = {row["number"]: asyncio.Event() for row in rows[:_MOST_PLANS] if row["agent"] is None}
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(row, ticket)) for row, ticket in zip(rows, request.tickets, strict=True)]
            group.create_task(self._plans(request, places_by_number, plans))
        return [task.result() for task in tasks]

    async def _plans(
        self, request: TicketRequest, places_by_number: dict[int, dict[str, Any]], plans: dict[int, asyncio.Event]
    ) -> None:
        """Has Plans made ahead, in the order in which agents start; sets the event of each."""
        launches = []
        for number in plans:
            if (place := places_by_number.get(number)) is not None:
                wanted = self._sessions.wanted(request, request.tickets[number - 1], place)
                launches.append({"number": number, "directory": place["worktree"], "command": wanted.command,
                                 "options": self._supervisor.options_of(wanted)})  # fmt: skip
        try:
            if len(launches) > 1:
                arguments = {"launches": launches, "environment": request.environment}
                await self._jobs.run("tickets.plan", arguments, step=lambda found: plans[found["number"]].set())
        except (OSError, Refusal) as error:
            log.warning("plans for the agents are not made ahead: %s", error)
        finally:
            for each in plans.values():
                each.set()

    async def _agent(
        self,
        run: str,
        row: sqlite3.Row,
        ticket: Ticket,
        place: dict[str, Any],
        request: TicketRequest,
        client_uid: int,
        *,
        again: bool,
    ) -> dict[str, Any]:
        """Follows one agent to its end: the live one, one that ended meanwhile, else a new one."""
        name = row["session"]
        session = self._sessions.session(name) if name else None
        failed = again and row["agent"] is not None and session is not None and not ended_well(session)
        lost = session is not None and interrupted(session) and (again or row["attempt"] < _MOST_ATTEMPTS)
        if session is None or (session.state in FINAL and (failed or lost)):
            if session is not None:
                await self._sessions.harvest(place["worktree"])
            attempt = row["attempt"] + 1
            name = f"{run[:50]}.{row['number']}" + (f".{attempt}" if attempt > 1 else "")
            self._ticket(run, row["number"], TicketStep.RUNNING, session=name, attempt=attempt, agent=None)
            if (refused := self._started(run, name, ticket, place, request, client_uid)) is not None:
                return refused
        return await self._sessions.ended(name, ticket, place, request, lambda: run in self._stopped)

    def _started(
        self, run: str, name: str, ticket: Ticket, place: dict[str, Any], request: TicketRequest, client_uid: int
    ) -> dict[str, Any] | None:
        """Asks for a session of a run; what became of it where it is refused, else None."""
        try:
            if request.environment is None and json.loads(self._row(run)["request"]).get("environment") is not None:
                raise without_environment(run)
            key = ArtifactKey(place["session_id"])
            self._contexts.update(key, lambda before: before.with_metadata(session=name))
            labels = {"ticket": ticket.ticket, "ticket-run": run, "session-id": place["session_id"][:1_024]}
            self._supervisor.create(self._sessions.wanted(request, ticket, place, name, labels), client_uid)
        except Refusal as refusal:
            return self._sessions.without_session(ticket.ticket, name, place, request.repository, refusal)
        return None

    async def _what_became(self, run: str, request: TicketRequest, prepared: dict[str, Any] | None) -> dict[str, Any]:
        """What is known of a run that was stopped, once its agents have ended; a second stop does not wait for them."""
        if prepared is None:
            return {}
        rows = self._tickets(run)
        try:
            for row in rows:
                while (live := self._supervisor.live.get(row["session"])) is not None:
                    await live.over.wait()
        except asyncio.CancelledError:
            log.info("ticket run %s is told before its agents have ended", run)
        places_by_number = {place["number"]: place for place in prepared["agents"]}
        agents = []
        for row in rows:
            session = self._sessions.session(row["session"]) if row["session"] else None
            if row["agent"] is not None:
                found = json.loads(row["agent"])
            elif session is not None:
                found = self._sessions.entry(row["ticket"], session, request.repository, unfinished=Reason.STOPPED)
                step = TicketStep.ENDED if went_well(found) else TicketStep.FAILED
                self._ticket(run, row["number"], step, agent=json.dumps(found))
            else:
                name = f"{run[:50]}.{row['number']}"
                place = places_by_number[row["number"]]
                found = self._sessions.without_session(row["ticket"], name, place, request.repository, None)
            agents.append(found)
        found = {"trunk": prepared["trunk"], "agents": agents}
        try:
            found |= await self._end(run, prepared, remove=False)
        except (Refusal, asyncio.CancelledError) as error:
            log.warning("what the agents of ticket run %s have left was not looked at: %s", run, error)
        return found

    async def _end(self, run: str, prepared: dict[str, Any], *, remove: bool) -> dict[str, Any]:
        """Removes worktrees whose work is in the trunk, and looks at the others; see `ticket_work.end`."""
        places_by_id = {
            json.loads(row["merged"])["agent_result_id"]: row["worktree"] for row in self._tickets(run) if row["merged"]
        }
        worktrees = {place["session_id"]: place["worktree_id"] for place in prepared["agents"]}
        removable = [name for name in places_by_id if name in worktrees] if remove else []
        arguments = {"trunk": prepared["trunk"], "worktrees": worktrees, "removable": removable}
        found = await self._jobs.run("tickets.end", arguments)
        # Who was merged before the run was resumed is not prepared again, and may have lost its worktree then.
        earlier = {
            name: "" for name, place in places_by_id.items() if name not in worktrees and not os.path.lexists(place)
        }
        removed = {"removed": {**earlier, **found["removed"]}} if remove or earlier else {}
        return {"uncommitted": found["uncommitted"], **removed}

    # Merging

    async def _merge_all(
        self, run: str, request: TicketRequest, prepared: dict[str, Any], agents: list[dict[str, Any]], client_uid: int
    ) -> dict[str, Any]:
        """Merges; where the run has a merger, it resolves conflicts, one after the other, and all is merged again."""
        mergers: list[dict[str, Any]] = []
        tried: set[str] = set()
        numbers = {place["session_id"]: place["number"] for place in prepared["agents"]}

        async def sent(status: dict[str, Any], *, ask: bool) -> dict[str, Any]:
            arguments = {"database": self._database.path, "run": run, "number": numbers[status["agent_result_id"]],
                         "dispatch": prepared["dispatch"], "nodes": nodes, "status": status, "ask": ask}  # fmt: skip
            return await self._jobs.run("tickets.resolve", arguments)

        while True:
            found = await self._merge(run, request, prepared, agents)
            nodes = found.pop("nodes")
            can = [each for each in found["conflicts"] if each["merge_descriptor"]["merge_commands"]]
            status = next((each for each in can if each["agent_result_id"] not in tried), None)
            if request.merger is None or status is None:
                for each in found["conflicts"]:
                    await sent(each, ask=True)
                return found | ({"mergers": mergers} if mergers else {})
            tried.add(status["agent_result_id"])
            place = await sent(status, ask=False)
            self._ticket(run, place["number"], TicketStep.RESOLVING)
            self._move(run, TicketState.RUNNING)
            mergers.append(await self._resolve(run, request, request.merger, place, client_uid))
            self._move(run, TicketState.MERGING)

    async def _resolve(
        self, run: str, request: TicketRequest, merger: Merger, place: dict[str, Any], client_uid: int
    ) -> dict[str, Any]:
        """Follows a merger to its end, the live one or a new one, after a session that begins the merge for it.

        Both work in the ticket's worktree, so nothing of the merge happens outside of a jail.
        """
        number, attempt = place["number"], 1
        while self._sessions.is_over(_merger_name(run, number, attempt)):
            attempt += 1
        begin = ["sh", "-c", f"{place['commands']}; exit 0"]  # that git cannot is what the merger is there for
        for name, command in (
            (_merger_name(run, number, attempt, "b"), begin),
            (_merger_name(run, number, attempt), merger.command),
        ):
            ticket = Ticket(ticket=place["ticket"], command=command, options=merger.options, timeout=merger.timeout)
            found = await self._of_merger(run, name, ticket, place, request, client_uid)
            if not went_well(found):
                break
        return found

    async def _of_merger(
        self, run: str, name: str, ticket: Ticket, place: dict[str, Any], request: TicketRequest, client_uid: int
    ) -> dict[str, Any]:
        """Follows one session of a merger; starts it where it was not started yet."""
        if self._sessions.session(name) is None:
            refused = self._started(run, name, ticket, place, request, client_uid)
            if refused is not None:
                return refused
        return await self._sessions.ended(name, ticket, place, request, lambda: run in self._stopped)

    async def _merge(
        self, run: str, request: TicketRequest, prepared: dict[str, Any], agents: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Both phases of the merge, of everybody whose work is not in the trunk yet."""
        merged = {row["number"] for row in self._tickets(run) if row["merged"] is not None}
        numbers = {each["session_id"]: each["number"] for each in prepared["agents"] if each["number"] not in merged}
        outputs = {
            agent["session_id"]: f"{agent['reason']}, status {agent['status']}"
            for agent in agents
            if agent["session_id"] in numbers and (request.merge_failed or went_well(agent))
        }

        def step(found: dict[str, Any]) -> None:
            for status in found["merged"]:
                self._ticket(run, numbers[status["agent_result_id"]], TicketStep.MERGED, merged=json.dumps(status))

        found: dict[str, Any] = {"conflicted": [], "pending": [], "results": [], "nodes": prepared["nodes"]}
        if outputs:
            arguments = {"database": self._database.path, "dispatch": prepared["dispatch"], "nodes": prepared["nodes"],
                         "outputs": outputs, "skip": request.on_conflict is OnConflict.SKIP}  # fmt: skip
            found = await self.merging(prepared["common_dir"], "tickets.merge", arguments, step)
        for status in found["conflicted"]:
            self._ticket(run, numbers[status["agent_result_id"]], TicketStep.CONFLICTED)
        statuses = [json.loads(row["merged"]) for row in self._tickets(run) if row["merged"] is not None]
        told = ticket_work.aggregation(statuses, found["conflicted"], found["pending"])
        return {**told, "results": found["results"], "nodes": found["nodes"]}

    async def merging(
        self, common_dir: str, job: str, arguments: dict[str, Any],
        step: Callable[[dict[str, Any]], None] = lambda step: None,
    ) -> dict[str, Any]:  # fmt: skip
        """Runs a job that merges, noted before and after, so that one that was interrupted is found again.

        Once begun it is not cancelled: it ends, or its journal is resumed.
        """
        self._merging[common_dir] += 1
        self._note(common_dir, merging=True)
        task = asyncio.get_running_loop().create_task(self._jobs.run(job, arguments, step=step))
        task.add_done_callback(lambda done: self._merged(common_dir, done))
        return await asyncio.shield(task)

    def _merged(self, common_dir: str, task: "asyncio.Task[dict[str, Any]]") -> None:
        """A merge has answered. One that ended without an answer stays noted, and is resumed at the next start."""
        self._merging -= Counter([common_dir])
        error = None if task.cancelled() else task.exception()
        if not task.cancelled() and not (isinstance(error, Refusal) and error.reference == "job-lost"):
            self._note(common_dir, merging=False)

    async def finish_merge(self, common_dir: str) -> None:
        """Finishes an interrupted merge, unless that was done meanwhile."""
        async with self._finishing:
            noted = self._database.rows("SELECT 1 FROM repository WHERE common_dir = ? AND merging", common_dir)
            if not noted or self._merging[common_dir]:
                return
            try:
                found = await self._jobs.run("merge.resume", {"common_dir": common_dir})
            except Refusal as refusal:
                log.error("the merge in %s waits: %s (%s)", common_dir, refusal.message, refusal.hint)
                return
            self._note(common_dir, merging=False)
        if found.get("run_id"):
            log.info("the merge %s in %s was finished: %s", found["run_id"], common_dir, found["state"])

    # Writing down

    def _note(self, common_dir: str, *, merging: bool) -> None:
        with self._database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO repository VALUES (?, ?)", (common_dir, int(merging)))

    def _ticket(self, run: str, number: int, state: TicketStep, **columns: Any) -> None:  # noqa: ANN401  # as they are
        """Moves one ticket on. The run continues when that cannot be written; after a crash it is repeated."""
        values = {"state": state, "changed": time.time(), **columns}
        assignments = ", ".join(f"{column} = ?" for column in values)
        try:
            with self._database.transaction() as connection:
                connection.execute(
                    f"UPDATE ticket SET {assignments} WHERE run = ? AND number = ?", (*values.values(), run, number)
                )
        except Refusal as refusal:
            log.error(
                "ticket %d of run %s is %s, which cannot be written down: %s", number, run, state, refusal.message
            )
        self._has_moved(run)
        self._supervisor.events.publish(EventKind.TICKET, {"run": run, "number": number, "state": state})

    def _move(self, name: str, state: TicketState, result: dict[str, Any] | None = None) -> None:
        ended = time.time() if state in OVER else None
        try:
            with self._database.transaction() as connection:
                connection.execute(
                    "UPDATE ticket_run SET state = ?, ended = ?, result = ? WHERE name = ?",
                    (state, ended, None if result is None else json.dumps(result), name),
                )
        except Refusal as refusal:
            # The disk is full, say. The next life of the service goes on with it, and so does who resumes it.
            log.error("ticket run %s is %s, which cannot be written down: %s", name, state, refusal.message)
            if ended is not None:
                found = self._of(self._row(name))
                self._unwritten[name] = found.model_copy(update={"state": state, "ended": ended, "result": result})
        fields = {"ticket_run": name, "state": str(state)}
        log.log(logging.WARNING if state is TicketState.FAILED else logging.INFO, "ticket run %s is %s", name, state,
                extra={"fields": fields})  # fmt: skip
        self._has_moved(name)
        self._supervisor.events.publish(EventKind.TICKET, {"run": name, "state": state})

    def _has_moved(self, name: str) -> None:
        moved = self._moved.get(name)
        if moved is not None:
            self._moved[name] = asyncio.Event()
            self._seen[name] += 1
            moved.set()

    # Environments, which hold keys: in the runtime directory, for as long as the run needs them

    def _keep_environment(self, name: str, environment: dict[str, str] | None) -> None:
        path = f"{self._environments}/{name}"
        if environment is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        os.makedirs(self._environments, 0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump(environment, file)

    def _environment(self, name: str) -> dict[str, str] | None:
        try:
            with open(f"{self._environments}/{name}", encoding="utf-8", errors="surrogateescape") as file:
                found: dict[str, str] = json.load(file)
        except (OSError, ValueError):
            return None
        return found


_MOST_ATTEMPTS = 5
"""How often an agent is started, where nobody asks for it, after it was lost with the service."""

_MOST_PLANS = 100
"""Plans of one run that are made ahead: the cache keeps some 250 of everybody's."""

_WAITING = "INSERT OR IGNORE INTO ticket (run, number, ticket, state, changed) VALUES (?, ?, ?, ?, ?)"


def _waiting(run: str, names: list[str], now: float) -> list[tuple[str, int, str, str, float]]:
    return [(run, number, name, TicketStep.WAITING, now) for number, name in enumerate(names, 1)]


def _marks(values: tuple[TicketState, ...]) -> str:
    return ", ".join("?" * len(values))


def _merger_name(run: str, number: int, attempt: int, what: str = "m") -> str:
    """The name of a merger's session, or of the one that begins the merge for it ("b")."""
    return f"{run[:50]}.{number}.{what}{attempt}"


def _run_of(row: sqlite3.Row, tickets: list[sqlite3.Row], seen: int) -> TicketRun:
    return TicketRun(
        name=row["name"],
        state=TicketState(row["state"]),
        created=row["created"],
        ended=row["ended"],
        tickets=[each["ticket"] for each in json.loads(row["request"])["tickets"]],
        steps=[
            TicketStatus(
                ticket=each["ticket"], state=TicketStep(each["state"]), changed=each["changed"],
                attempt=each["attempt"], session=each["session"], worktree=each["worktree"],
            )
            for each in tickets
        ],
        seen=seen,
        result=None if row["result"] is None else json.loads(row["result"]),
    )  # fmt: skip
