"""Ticket runs: a worktree for each ticket, an agent in each, some at the same time, then one merge of all their work.

A run is `created`, `preparing` (worktrees), `running` (agents), `merging`, and then `ended` or `failed`. Each step of
each ticket is written down when it happens, so a run goes on from where it was: by itself when the service starts, and
when somebody resumes one that failed. Agents that ended well are not started again, those whose session lives are
awaited; what was merged stays merged, and a merge that was under way is finished from its journal first.
"""

import asyncio
import hashlib
import json
import logging
import os
import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import Any

from launcher.service import ticket_engine as engines
from launcher.service.database import Database
from launcher.service.jobs import Jobs
from launcher.service.schema import FINAL, Reason, SessionRequest
from launcher.service.supervisor import Supervisor
from launcher.service.ticket_engine import Engine
from launcher.service.ticket_records import ORCHESTRATOR, TicketRecords, refuse_name_of_orchestrator
from launcher.service.ticket_schema import (
    Agent,
    EngineName,
    Merger,
    OnConflict,
    Orchestrator,
    Ticket,
    TicketRequest,
    TicketResume,
    TicketRun,
    TicketState,
    TicketStep,
    aggregation,
    check_for_nodes,
    of_ticket,
)
from launcher.service.ticket_sessions import (
    FileTools,
    Questions,
    TicketSessions,
    ended_well,
    interrupted,
    went_well,
    without_worktree,
)
from launcher.service.ticket_words import orchestrator_of, rejection
from launcher.session import places
from policy.errors import Refusal

log = logging.getLogger("paddock.service")


class TicketRuns:
    """All ticket runs of one service."""

    def __init__(self, database: Database, supervisor: Supervisor, jobs: Jobs) -> None:
        """Args: the record; who runs sessions; who works with git."""
        self._database = database
        self._supervisor = supervisor
        self._jobs = jobs
        self._reviews = Jobs(_MOST_REVIEWS)
        runtime = places.places(os.environ).runtime
        self.records = TicketRecords(database, supervisor.events.publish, f"{runtime}/ticket-runs")
        self._files = FileTools(database.path, f"{runtime}/ticket-files", self.records.has_moved)
        self._sessions = TicketSessions(supervisor, jobs, self._files, self.records)
        self.questions = Questions(self.records, self._sessions, supervisor, jobs, database.path)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopped: set[str] = set()
        self._merging: Counter[str] = Counter()
        self._finishing = asyncio.Lock()

    def recover(self) -> list[str]:
        """Continues the runs of an earlier service; returns the git directories in which a merge was under way."""
        for row in self.records.unfinished():
            log.info("ticket run %s continues: it was %s", row["name"], row["state"])
            self._begin(row["name"], row["client_uid"], again=False)
        return self.records.merging()

    # Asking for runs

    def create(self, request: TicketRequest, client_uid: int, key: str | None = None) -> tuple[TicketRun, bool]:
        """Accepts a run and begins it, once for the same key; returns it, and whether it is new."""
        kept = request.model_dump(mode="json", exclude={"environment"})
        digest = hashlib.sha256(json.dumps(kept).encode(errors="surrogatepass")).hexdigest()
        kept["environment"] = None if request.environment is None else sorted(request.environment)  # never its values
        if key is not None and (known := self.records.of_key(key, client_uid, digest)) is not None:
            return self.records.run(known), False
        settings = self._supervisor.settings
        self._refuse_when_full()
        making = 0 if request.orchestrator is None else request.orchestrator.most_tickets
        if len(request.tickets) + making > settings.most_tickets:
            raise Refusal("quota-tickets", f"a ticket run may have at most {settings.most_tickets} tickets")
        names = [ticket.ticket for ticket in request.tickets]
        if doubles := sorted({name for name in names if names.count(name) > 1}):
            raise Refusal("ticket-double", f"more than one ticket is called {doubles[0]}")
        for each in names if request.orchestrator is not None else ():
            refuse_name_of_orchestrator(each)
        self._parsed(request)
        self._others(request)
        name = request.name or f"run-{os.urandom(4).hex()}"
        self.records.insert(name, kept, client_uid, key, digest)
        self.records.keep_environment(name, request.environment)
        self._begin(name, client_uid, again=False)
        return self.records.run(name), True

    def resume(self, name: str, wanted: TicketResume, client_uid: int) -> TicketRun:
        """Continues a run that did not end well; a run that is under way, or ended well, does not change."""
        found = self.records.run(name)
        if name in self._tasks or found.state is TicketState.ENDED:
            return found
        self._refuse_when_full()
        if wanted.on_conflict is not None:
            request = json.loads(self.records.row(name)["request"]) | {"on_conflict": wanted.on_conflict}
            with self._database.transaction() as connection:
                connection.execute("UPDATE ticket_run SET request = ? WHERE name = ?", (json.dumps(request), name))
        if wanted.environment is not None:
            self.records.keep_environment(name, wanted.environment)
        self.records.move(name, TicketState.CREATED)
        self._begin(name, client_uid, again=True)
        return self.records.run(name)

    def _refuse_when_full(self) -> None:
        most = self._supervisor.settings.most_ticket_runs
        if self._supervisor.closing is not None:
            raise Refusal("service-stopping", "the service is stopping", hint="try again once it is running again")
        if len(self._tasks) >= most:
            raise Refusal("quota-ticket-runs", f"limit of {most} ticket runs reached")

    def _parsed(self, request: TicketRequest) -> list[dict[str, Any]]:
        return [self._options(request, ticket.ticket, ticket) for ticket in request.tickets]

    def _options(self, request: TicketRequest, name: str, of: Ticket | Agent | Orchestrator | Merger) -> dict[str, Any]:
        wanted = {"command": of.command, "options": of.options, "directory": request.repository}
        try:
            options: dict[str, Any] = dict(self._supervisor.options_of(SessionRequest.model_validate(wanted)))
            for option in ("--worktree", "--submodule"):
                if option in options:
                    raise Refusal("usage", f"a ticket cannot set {option}",
                                  hint="a ticket always works in the worktree made for it")  # fmt: skip
            if isinstance(of, Ticket) and request.engine is not EngineName.LOCAL:
                check_for_nodes(options)
        except Refusal as refusal:
            raise of_ticket(name, refusal) from None
        return options

    def _others(self, request: TicketRequest) -> list[dict[str, Any]]:
        """What is started besides the tickets' own agents, which is checked as they are before anything is made."""
        named = (
            ("orchestrator", request.orchestrator),
            ("agent", request.agent),
            ("context-manager", request.context_manager),
            ("review", request.review),
            ("merger", request.merger),
        )
        return [
            {"ticket": name, "command": of.command, "options": self._options(request, name, of), "remote": False}
            for name, of in named
            if of is not None
        ]

    # Ending runs

    def stop(self, name: str) -> TicketRun:
        """Begins to end a run: its agents are stopped, nothing is merged. A merge under way is not interrupted."""
        found = self.records.run(name)
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
        await self._reviews.close()
        await self._files.close()

    # Living

    def _begin(self, name: str, client_uid: int, *, again: bool) -> None:
        self.records.begun(name)
        self.questions.begun(name)
        self._tasks[name] = asyncio.get_running_loop().create_task(self._life(name, client_uid, again=again))

    async def _life(self, name: str, client_uid: int, *, again: bool) -> None:
        """A run from where it is to its end. `again`: agents that failed are started once more."""
        result: dict[str, Any] = {}
        own: dict[str, Any] | None = None
        prepared: dict[str, Any] | None = None
        state: TicketState | None = TicketState.FAILED
        try:
            request = self.records.request(name)
            await self._finish_merges()
            self.records.move(name, TicketState.PREPARING)
            if request.file_tools or request.orchestrator is not None or request.context_manager is not None:
                await self._files.start()
            if request.orchestrator is not None:
                own = await self._orchestrate(name, request, request.orchestrator, client_uid, again=again)
                result = {"trunk": own["trunk"], "orchestrator": own["agent"], "agents": []}
                if not went_well(own["agent"]):
                    return
                # From here on its worktree is what tickets begin with, and where they are merged.
                request = self.records.request(name).model_copy(update={"repository": own["worktree"]})
                self.records.move(name, TicketState.PREPARING)
            prepared = await self._prepare(name, request)
            self.records.move(name, TicketState.RUNNING)
            agents = await self._agents(name, request, prepared, client_uid, again=again)
            result |= {"trunk": prepared["trunk"], "agents": agents}
            if request.merge:
                result |= await self._merge_all(name, request, prepared, agents, client_uid)
                if own is not None:
                    result |= await self._land(name, request, prepared, own, result, client_uid)
            well = all(went_well(agent) for agent in agents) and result.get("clean", True)
            result |= await self._end(name, prepared, own if well else None, remove=request.merge and request.remove)
            state = TicketState.ENDED if well else TicketState.FAILED
        except Refusal as refusal:
            result["refusal"] = refusal.as_dict()
        except asyncio.CancelledError:
            if name not in self._stopped:
                state = None  # the service ends, and goes on with it in its next life
            else:
                result |= await self._what_became(name, request, prepared)
                stopped = Refusal(
                    "ticket-run-stopped", "the run was stopped before it ended", context="someone requested it",
                    hint=f"nothing was merged; commits are on branches; paddock tickets resume {name} continues it",
                )  # fmt: skip
                result["refusal"] = stopped.as_dict()
        except Exception as error:
            log.exception("ticket run %s", name)
            result["refusal"] = Refusal("internal-error", "the run failed unexpectedly", context=repr(error)).as_dict()
        finally:
            self.questions.over(name, stop=state is not None)
            try:
                if state is not None:
                    self.records.move(name, state, result)
            finally:
                self._stopped.discard(name)
                self._tasks.pop(name, None)
                if state is not None:
                    engines.end(name)
                    self.records.keep_environment(name, None)
                    self._database.later(lambda: self._expire(name))
                self.records.over(name)

    def _expire(self, name: str) -> None:
        """Ends the contexts of a run that is over; not of one that goes on by now: this may have waited for a disk."""
        if name not in self._tasks:
            self.records.contexts_of.expire_run(name)

    async def _finish_merges(self) -> None:
        """Finishes the merges that an earlier service began, before anything else is merged."""
        for common_dir in self.records.merging():
            await self.finish_merge(common_dir)

    async def _orchestrate(
        self, run: str, request: TicketRequest, of: Orchestrator, client_uid: int, *, again: bool
    ) -> dict[str, Any]:
        """Follows the orchestrator, which makes tickets, to its end: its place, with the ``agent`` that it was."""
        row = self._orchestrator(run)

        def step(found: dict[str, Any]) -> None:
            if "discarded" in found:
                self.records.step(run, ORCHESTRATOR, TicketStep.WAITING, worktree="", worktree_id="")
            elif row["worktree_id"] != found["worktree_id"]:
                columns = {"worktree": found["worktree"], "worktree_id": found["worktree_id"]}
                self.records.step(run, ORCHESTRATOR, TicketStep.PREPARED, **columns, session="", agent=None)

        arguments = {
            "database": self._database.path, "run": run, "trunk": request.repository, "goal": request.goal,
            "commands": self._others(request), "worktree_id": row["worktree_id"], "path": _path(request),
            "claimed": self.records.claimed(run), "since": self.records.row(run)["created"],
        }  # fmt: skip
        place = await self._jobs.run("tickets.orchestrate", arguments, step=step)
        row = self._orchestrator(run)
        before: dict[str, Any] | None = None if row["agent"] is None else json.loads(row["agent"])
        if before is None or (again and not went_well(before)):
            self.records.move(run, TicketState.RUNNING)
            command = [word.replace("{prompt}", place["prompt"]) for word in of.command]
            ticket = Ticket(ticket="orchestrator", command=command, options=of.options, timeout=of.timeout)
            offering = request.model_copy(update={"file_tools": True})
            before = await self._agent(run, row, ticket, place, offering, client_uid, again=again)
            step_now = TicketStep.ENDED if went_well(before) else TicketStep.FAILED
            self.records.step(run, ORCHESTRATOR, step_now, agent=json.dumps(before))
        return place | {"agent": before}

    def _orchestrator(self, run: str) -> sqlite3.Row:
        row = self.records.orchestrator(run)
        assert row is not None  # it was written down with the run
        return row

    async def _prepare(self, name: str, request: TicketRequest) -> dict[str, Any]:
        rows = {row["number"]: row for row in self.records.tickets(name)}
        tickets = [
            {"number": number, "ticket": each.ticket, "details": each.details, "command": each.command,
             "options": options, "worktree_id": rows[number]["worktree_id"],
             "remote": request.engine is not EngineName.LOCAL}
            for number, (each, options) in enumerate(zip(request.tickets, self._parsed(request), strict=True), 1)
            if rows[number]["state"] != TicketStep.MERGED
        ]  # fmt: skip

        def step(found: dict[str, Any]) -> None:
            if "discarded" in found:
                for row in self.records.tickets(name):
                    if row["worktree_id"] in found["discarded"]:
                        self.records.step(name, row["number"], TicketStep.WAITING, worktree="", worktree_id="")
            elif rows[found["number"]]["worktree_id"] != found["worktree_id"]:
                columns = {"worktree": found["worktree"], "worktree_id": found["worktree_id"]}
                self.records.step(name, found["number"], TicketStep.PREPARED, **columns, session="", agent=None)

        return await self._jobs.run(
            "tickets.prepare",
            {"database": self._database.path, "run": name, "trunk": request.repository, "goal": request.goal,
             "tickets": tickets, "path": _path(request), "since": self.records.row(name)["created"],
             "others": self._others(request), "claimed": self.records.claimed(name)},
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
                    found = await self._agent(run, row, ticket, place, request, client_uid, again=again, engine=engine)
                    if request.review is not None and (request.merge_failed or went_well(found)):
                        found["review"] = await self._review(run, request, request.review, prepared, place, client_uid)
                except Refusal as refusal:  # one that fails keeps no other from going on
                    about = (ticket.ticket, row["session"], place, request.repository)
                    found = self._sessions.without_session(*about, refusal)
            step = TicketStep.ENDED if went_well(found) else TicketStep.FAILED
            self.records.step(run, row["number"], step, agent=json.dumps(found))
            return found

        rows = self.records.tickets(run)
        engine = None if request.engine is EngineName.LOCAL else Engine(run, request)
        if engine is not None:
            await engine.ready()  # before anything waits for it: what is wrong with a cluster is every ticket's trouble
        ahead = rows[:_MOST_PLANS] if engine is None else ()
        plans = {row["number"]: asyncio.Event() for row in ahead if row["agent"] is None}
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(row, ticket)) for row, ticket in zip(rows, request.tickets, strict=True)]
            group.create_task(self._plans(request, places_by_number, plans))
        return [task.result() for task in tasks]

    async def _review(
        self, run: str, request: TicketRequest, review: Agent, prepared: dict[str, Any], place: dict[str, Any],
        client_uid: int, before: dict[str, Any] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Has the commit reviewed that a worktree is at, in a fresh one; what became of that, with the ``commit``.

        Args:
            place: ``number`` and ``session_id`` of who works there: a ticket's agent, or the orchestrator.
            before: a review that it has passed, which holds as long as the worktree is at the same commit.
        """
        number = place["number"]
        details = request.goal if number == ORCHESTRATOR else request.tickets[number - 1].details
        while (left := self._sessions.session(name := self._next_name(run, number, "v"))) is not None:
            # Of an earlier life of the service: its worktree went with that, so it has not seen all of the work.
            self._supervisor.stop(left.name)
            await self._supervisor.wait(left.name, FINAL, _LOOK)
        arguments = {"database": self._database.path, "run": run, "number": number, "dispatch": prepared["dispatch"],
                     "nodes": prepared["nodes"], "session_id": place["session_id"],
                     "trunk": self.records.request(run).repository,
                     "passed": "" if before is None else before.get("commit", ""),
                     "given": self._options(request, "review", review)}  # fmt: skip
        ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        job = asyncio.ensure_future(self._reviews.run("tickets.review", arguments, step=ready.set_result))
        try:
            await asyncio.wait((job, ready), return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                await job
                assert before is not None
                return before
            there = ready.result()
            self.records.step(run, number, TicketStep.REVIEWING)
            ticket = review.ticket(there["ticket"], details)
            found = self._sessions.started(run, name, ticket, there, request, client_uid) or (
                await self._sessions.ended(name, ticket, there, request, lambda: True)
            )
            if job.done():
                await job
                raise Refusal("job-lost", "the worktree of the review was removed before its end")
        except Refusal as refusal:  # what cannot be reviewed is not merged
            there = {"session_id": place["session_id"], "worktree": ""}
            found = self._sessions.without_session("review", name, there, request.repository, refusal)
        finally:
            job.cancel()
            await asyncio.gather(job, return_exceptions=True)
        return without_worktree(found) | {"commit": there.get("commit", "")}

    async def _review_again(
        self, run: str, request: TicketRequest, review: Agent, prepared: dict[str, Any], agents: list[dict[str, Any]],
        client_uid: int,
    ) -> None:  # fmt: skip
        """Has everything reviewed that is to be merged and has moved since, or was not: what a merger has made, say."""
        turns = asyncio.Semaphore(request.parallel)
        arrived = {row["number"] for row in self.records.tickets(run) if row["merged"] is not None}
        waiting = {place["session_id"]: place for place in prepared["agents"] if place["number"] not in arrived}

        async def one(agent: dict[str, Any], place: dict[str, Any]) -> None:
            before = agent.get("review")
            async with turns:
                found = await self._review(run, request, review, prepared, place, client_uid, before)
            if found is not before:
                agent["review"] = found
                step = TicketStep.ENDED if went_well(agent) else TicketStep.FAILED
                self.records.step(run, place["number"], step, agent=json.dumps(agent))

        async with asyncio.TaskGroup() as group:
            for agent in agents:
                if agent["session_id"] in waiting and _may_merge(request, agent):
                    group.create_task(one(agent, waiting[agent["session_id"]]))

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
            log.warning("plans for the agents are not made in advance: %s", error)
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
        engine: Engine | None = None,
    ) -> dict[str, Any]:
        name, attempt = row["session"], row["attempt"]
        session = self._sessions.session(name) if name else None
        failed = again and row["agent"] is not None and session is not None and not ended_well(session)
        lost = session is not None and interrupted(session) and (again or attempt < _MOST_ATTEMPTS)
        begin = session is None or (session.state in FINAL and (failed or lost))
        while True:
            if begin:
                if session is not None:
                    await self._sessions.harvest(place["worktree"])
                if engine is not None:
                    await engine.ready()
                attempt += 1
                name = f"{run[:50]}.{row['number']}" + (f".{attempt}" if attempt > 1 else "")
                self.records.step(run, row["number"], TicketStep.RUNNING, session=name, attempt=attempt, agent=None)
                about = (run, name, ticket, place, request, client_uid, engine)
                if (refused := self._sessions.started(*about)) is not None:
                    return refused
            found = await self._sessions.ended(name, ticket, place, request, lambda: run in self._stopped)
            if engine is None or found["reason"] != Reason.LOST or attempt >= _MOST_ATTEMPTS:
                return found
            session, begin = self._sessions.session(name), True  # its node was lost, or who talks to the cluster

    async def _what_became(self, run: str, request: TicketRequest, prepared: dict[str, Any] | None) -> dict[str, Any]:
        """What is known of a run that was stopped, once its agents have ended; a second stop does not wait for them."""
        own = self.records.orchestrator(run)
        rows = [] if prepared is None else self.records.tickets(run)
        try:
            for row in [*rows, *([] if own is None else [own])]:
                while (live := self._supervisor.live.get(row["session"])) is not None:
                    await live.over.wait()
        except asyncio.CancelledError:
            log.info("ticket run %s is reported before its agents have ended", run)

        def became(row: sqlite3.Row, place: dict[str, Any]) -> dict[str, Any]:
            session = self._sessions.session(row["session"]) if row["session"] else None
            if row["agent"] is not None:
                told: dict[str, Any] = json.loads(row["agent"])
                return told
            if session is None:
                name = f"{run[:50]}.{row['number']}"
                return self._sessions.without_session(row["ticket"], name, place, request.repository, None)
            told = self._sessions.entry(row["ticket"], session, request.repository, unfinished=Reason.STOPPED)
            step = TicketStep.ENDED if went_well(told) else TicketStep.FAILED
            self.records.step(run, row["number"], step, agent=json.dumps(told))
            return told

        found: dict[str, Any] = {}
        if own is not None:
            place = {"session_id": orchestrator_of(run), "worktree": own["worktree"]}
            found = {"trunk": request.repository, "orchestrator": became(own, place), "agents": []}
        if prepared is None:
            return found
        places_by_number = {place["number"]: place for place in prepared["agents"]}
        agents = [became(row, places_by_number[row["number"]]) for row in rows]
        found |= {"trunk": prepared["trunk"], "agents": agents}
        try:
            found |= await self._end(run, prepared, None, remove=False)
        except (Refusal, asyncio.CancelledError) as error:
            log.warning("what the agents of ticket run %s left was not checked: %s", run, error)
        return found

    async def _end(
        self, run: str, prepared: dict[str, Any], own: dict[str, Any] | None, *, remove: bool
    ) -> dict[str, Any]:
        """Removes worktrees whose work is in the trunk, and looks at the others; see `ticket_work.end`.

        Args:
            own: the orchestrator's place, where all work has left it.
        """
        places_by_id = {
            json.loads(row["merged"])["agent_result_id"]: row["worktree"]
            for row in self.records.tickets(run)
            if row["merged"]
        }
        worktrees = {place["session_id"]: place["worktree_id"] for place in prepared["agents"]}
        removable = [name for name in places_by_id if name in worktrees] if remove else []
        if own is not None:
            worktrees[own["session_id"]] = own["worktree_id"]
            removable += [own["session_id"]] if remove else []
        trunk = prepared["trunk"] if own is None else own["trunk"]
        found = await self._jobs.run("tickets.end", {"trunk": trunk, "worktrees": worktrees, "removable": removable})
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
            if request.review is not None:
                await self._review_again(run, request, request.review, prepared, agents, client_uid)
            self.records.move(run, TicketState.MERGING)
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
            self.records.step(run, place["number"], TicketStep.RESOLVING)
            self.records.move(run, TicketState.RUNNING)
            mergers.append(await self._resolve(run, request, request.merger, place, client_uid))

    async def _land(
        self, run: str, request: TicketRequest, prepared: dict[str, Any], own: dict[str, Any], found: dict[str, Any],
        client_uid: int,
    ) -> dict[str, Any]:  # fmt: skip
        """Merges what the tickets have come to into the trunk of the run, unless one of them waits for a person.

        Where the run has a review, it sees all of that first: the orchestrator may have committed, too.
        """
        if found["conflicts"] and request.on_conflict is not OnConflict.SKIP:
            return {}
        mergers: list[dict[str, Any]] = []
        arguments = {"database": self._database.path, "run": run}
        reviewed: dict[str, Any] | None = None
        while True:
            if request.review is not None:
                self.records.move(run, TicketState.RUNNING)
                reviewed = await self._review(run, request, request.review, prepared, own, client_uid)
                own["agent"]["review"] = reviewed  # not in the record: what has rejected it does not start it anew
                self.records.step(run, ORCHESTRATOR, TicketStep.ENDED)
                if not went_well(reviewed):
                    return {"clean": False} | ({"mergers": [*found.get("mergers", ()), *mergers]} if mergers else {})
                self.records.move(run, TicketState.MERGING)
            landing = {**arguments, "trunk": own["trunk"], "worktree_id": own["worktree_id"]}
            landing["who"] = _identity_of(request)
            landing["reviewed"] = None if reviewed is None else reviewed["commit"]
            status = (await self.merging(own["common_dir"], "tickets.land", landing))["status"]
            descriptor = status["merge_descriptor"]
            if descriptor["successful"]:
                self.records.step(run, ORCHESTRATOR, TicketStep.MERGED, merged=json.dumps(status))
                break
            self.records.step(run, ORCHESTRATOR, TicketStep.CONFLICTED)
            if request.merger is None or mergers or not descriptor["merge_commands"]:
                break
            asking = {"number": ORCHESTRATOR, "dispatch": prepared["dispatch"], "nodes": prepared["nodes"]}
            place = await self._jobs.run("tickets.resolve", {**arguments, **asking, "status": status, "ask": False})
            self.records.step(run, ORCHESTRATOR, TicketStep.RESOLVING)
            self.records.move(run, TicketState.RUNNING)
            mergers.append(await self._resolve(run, request, request.merger, place, client_uid))
            self.records.move(run, TicketState.MERGING)
        told = {
            "landed": {"trunk": own["trunk"], "status": status},
            "clean": found["clean"] and descriptor["successful"],
        }
        return told | ({"mergers": [*found.get("mergers", ()), *mergers]} if mergers else {})

    async def _resolve(
        self, run: str, request: TicketRequest, merger: Merger, place: dict[str, Any], client_uid: int
    ) -> dict[str, Any]:
        """Follows a merger to its end, the live one or a new one, after a session that begins the merge for it.

        Both work in the ticket's worktree, so nothing of the merge happens outside of a jail.
        """
        name = self._next_name(run, place["number"], "m")
        begin = ["sh", "-c", f"{place['commands']}; exit 0"]  # that git cannot is what the merger is there for
        for each, command in ((name + "b", begin), (name, merger.command)):
            ticket = Ticket(ticket=place["ticket"], command=command, options=merger.options, timeout=merger.timeout)
            found = await self._other(run, each, ticket, place, request, client_uid)
            if not went_well(found):
                break
        return found

    def _next_name(self, run: str, number: int, what: str) -> str:
        """The name of the live session of a ticket's merger ("m") or review ("v"), or of the next one."""
        attempt = 1
        while True:
            name = f"{run[:50]}.{number}.{what}{attempt}"
            # A merge that could not be begun for a merger leaves only that session.
            begun = self._sessions.session(name) is None and self._sessions.is_over(f"{name}b")
            if not (begun or self._sessions.is_over(name)):
                return name
            attempt += 1

    async def _other(
        self, run: str, name: str, ticket: Ticket, place: dict[str, Any], request: TicketRequest, client_uid: int
    ) -> dict[str, Any]:
        if self._sessions.session(name) is None:
            refused = self._sessions.started(run, name, ticket, place, request, client_uid)
            if refused is not None:
                return refused
        return await self._sessions.ended(name, ticket, place, request, lambda: run in self._stopped)

    async def _merge(
        self, run: str, request: TicketRequest, prepared: dict[str, Any], agents: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Both phases of the merge, of everybody whose work is not in the trunk yet."""
        arrived = [row for row in self.records.tickets(run) if row["merged"] is not None]
        merged, earlier = {row["number"] for row in arrived}, [json.loads(row["merged"]) for row in arrived]
        numbers = {each["session_id"]: each["number"] for each in prepared["agents"] if each["number"] not in merged}
        outputs = {
            agent["session_id"]: f"{agent['reason']}, status {agent['status']}"
            for agent in agents
            if agent["session_id"] in numbers and _may_merge(request, agent)
        }
        reviews = {agent["session_id"]: agent["review"] for agent in agents
                   if request.review is not None and agent["session_id"] in outputs}  # fmt: skip

        def step(found: dict[str, Any]) -> None:
            for status in found["merged"]:
                self.records.step(run, numbers[status["agent_result_id"]], TicketStep.MERGED, merged=json.dumps(status))

        found: dict[str, Any] = {"conflicted": [], "pending": [], "results": [], "nodes": prepared["nodes"]}
        if outputs:
            arguments = {"database": self._database.path, "dispatch": prepared["dispatch"], "nodes": prepared["nodes"],
                         "outputs": outputs, "earlier": earlier,
                         "reviewed": None if request.review is None else
                         {name: review["commit"] for name, review in reviews.items()},
                         "who": _identity_of(request), "skip": request.on_conflict is OnConflict.SKIP}  # fmt: skip
            found = await self.merging(prepared["common_dir"], "tickets.merge", arguments, step)
            for name, commit in found["reviewed"].items():
                reviews[name]["commit"] = commit
        for status in found["conflicted"]:
            self.records.step(run, numbers[status["agent_result_id"]], TicketStep.CONFLICTED)
        statuses = [json.loads(row["merged"]) for row in self.records.tickets(run) if row["merged"] is not None]
        told = aggregation(statuses, found["conflicted"], found["pending"])
        return {**told, "results": found["results"], "nodes": found["nodes"]}

    async def merging(
        self, common_dir: str, job: str, arguments: dict[str, Any],
        step: Callable[[dict[str, Any]], None] = lambda step: None,
    ) -> dict[str, Any]:  # fmt: skip
        """Runs a job that merges, noted before and after, so that one that was interrupted is found again.

        Once begun it is not cancelled: it ends, or its journal is resumed.
        """
        self._merging[common_dir] += 1
        self.records.note(common_dir, merging=True)
        task = asyncio.get_running_loop().create_task(self._jobs.run(job, arguments, step=step))
        task.add_done_callback(lambda done: self._merged(common_dir, done))
        return await asyncio.shield(task)

    def _merged(self, common_dir: str, task: "asyncio.Task[dict[str, Any]]") -> None:
        """A merge has answered. One that ended without an answer stays noted, and is resumed at the next start."""
        self._merging -= Counter([common_dir])
        error = None if task.cancelled() else task.exception()
        if not task.cancelled() and not (isinstance(error, Refusal) and error.reference == "job-lost"):
            self.records.note(common_dir, merging=False)

    async def finish_merge(self, common_dir: str) -> None:
        """Finishes an interrupted merge, unless that was done meanwhile."""
        async with self._finishing:
            if common_dir not in self.records.merging() or self._merging[common_dir]:
                return
            try:
                found = await self._jobs.run("merge.resume", {"common_dir": common_dir})
            except Refusal as refusal:
                log.error("the merge in %s is delayed: %s (%s)", common_dir, refusal.message, refusal.hint)
                return
            self.records.note(common_dir, merging=False)
        if found.get("run_id"):
            log.info("the merge %s in %s was finished: %s", found["run_id"], common_dir, found["state"])


def _may_merge(request: TicketRequest, agent: dict[str, Any]) -> bool:
    """Whether an agent's work is to be merged, unless a review to come rejects it."""
    return rejection(agent) is None and (request.merge_failed or went_well(agent))


_LOOK = 60.0
"""Seconds of one look at a session that is to end."""

_MOST_REVIEWS = 64
"""Reviews at the same time, of all runs: each has a process that keeps its worktree."""

_MOST_ATTEMPTS = 5
"""How often an agent is started, where nobody asks for it, after it was lost with the service."""

_MOST_PLANS = 100
"""Plans of one run that are made ahead: the cache keeps some 250 of everybody's."""


IDENTITY = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "EMAIL")
"""Variables by which a caller says who commits; CI knows no other way."""


def _identity_of(request: TicketRequest) -> dict[str, str]:
    return {name: value for name, value in (request.environment or {}).items() if name in IDENTITY}


def _path(request: TicketRequest) -> str:
    return (request.environment or os.environ).get("PATH", "")
