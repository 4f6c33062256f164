"""What is written down of ticket runs: the runs, where each ticket is, and the environments that they need."""

import asyncio
import contextlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from typing import Any, Literal

from launcher.service.database import Database
from launcher.service.schema import EventKind
from launcher.service.tables import StoredRequestContexts
from launcher.service.ticket_schema import (
    OVER,
    Agent,
    Prompt,
    TicketRequest,
    TicketRun,
    TicketState,
    TicketStatus,
    TicketStep,
)
from launcher.workflow.flow import default_prompts
from launcher.workflow.request_context import PromptContext
from policy.errors import Refusal

log = logging.getLogger("paddock.service")


class TicketRecords:
    """The record of all ticket runs of one service, and those who wait for something to be written there."""

    def __init__(
        self, database: Database, publish: Callable[[EventKind, dict[str, Any]], object], environments: str
    ) -> None:
        """Args: where it is; told each step; a directory of the runtime directory."""
        self.contexts_of = StoredRequestContexts(database)
        self._database = database
        self._publish = publish
        self._moved: dict[str, asyncio.Event] = {}
        self._seen: dict[str, int] = {}
        self._unwritten: dict[str, TicketRun] = {}
        self._environments = environments

    def insert(self, name: str, kept: dict[str, Any], client_uid: int, key: str | None, digest: str) -> None:
        """Writes down a new run with all its tickets, of which none has begun.

        Refusals: ticket-run-exists, or as `Database.transaction`.
        """
        now = time.time()
        names = [each["ticket"] for each in kept["tickets"]]
        try:
            with self._database.transaction() as connection:
                connection.execute(
                    "INSERT INTO ticket_run (name, state, request, client_uid, created, key, digest)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (name, TicketState.CREATED, json.dumps(kept), client_uid, now, key, digest),
                )
                connection.executemany(_WAITING, _waiting(name, names, now))
                if kept["orchestrator"] is not None:
                    connection.execute(_WAITING, (name, ORCHESTRATOR, NAME, TicketStep.WAITING, now))
        except Refusal as refusal:
            if not self._database.rows("SELECT 1 FROM ticket_run WHERE name = ?", name):
                raise
            raise Refusal("ticket-run-exists", f"ticket run {name} already exists",
                          hint=f"paddock tickets show {name}; paddock tickets resume {name} continues it") \
                from refusal  # fmt: skip

    def unfinished(self) -> list[sqlite3.Row]:
        """The runs of an earlier service that go on; environments of all others are forgotten."""
        rows = self._database.rows(f"SELECT * FROM ticket_run WHERE state NOT IN ({_marks(OVER)})", *OVER)
        if os.path.isdir(self._environments):
            for name in set(os.listdir(self._environments)) - {row["name"] for row in rows}:
                self.keep_environment(name, None)
        return rows

    def begun(self, name: str) -> None:
        """A run is under way in this life of the service: somebody may wait for it."""
        self._unwritten.pop(name, None)
        self._moved[name] = asyncio.Event()
        self._seen[name] = int(time.time() * 1_000)  # later than whatever an earlier life has told

    def over(self, name: str) -> None:
        """Nothing moves in a run any more."""
        self._seen.pop(name, None)
        self._moved.pop(name).set()

    # Looking at runs

    def run(self, name: str) -> TicketRun:
        """One run."""
        return self._unwritten.get(name) or self._of(self.row(name))

    def _of(self, row: sqlite3.Row) -> TicketRun:
        name = row["name"]
        return _run_of(row, self.orchestrator(name), self.tickets(name), self._seen.get(name, 0))

    def of_key(self, key: str, client_uid: int, digest: str) -> str | None:
        """The run that was made for an idempotency key."""
        rows = self._database.rows("SELECT * FROM ticket_run WHERE key = ? AND client_uid = ?", key, client_uid)
        if rows and rows[0]["digest"] != digest:
            raise Refusal("idempotency-mismatch", f"the idempotency key {key} was used with other tickets before",
                          hint=f"use a new key; paddock tickets show {rows[0]['name']} shows that run")  # fmt: skip
        return rows[0]["name"] if rows else None

    def request(self, name: str) -> TicketRequest:
        """What was asked for, with the environment where that is at hand."""
        kept = json.loads(self.row(name)["request"])
        names = kept.pop("environment", None)
        kept.pop("made", None)
        return TicketRequest.model_validate(kept | {"environment": self.environment(name) if names else None})

    def lacks_environment(self, name: str) -> bool:
        """Whether a run had an environment of who asked for it, that is no longer at hand: it goes with the run."""
        return bool(json.loads(self.row(name)["request"]).get("environment")) and self.environment(name) is None

    def contexts(self, name: str) -> list[dict[str, Any]]:
        """What is known of each session of a run: its requests, results and boundaries, also after its end."""
        self.row(name)
        return self.contexts_of.of_run(name)

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

    def row(self, name: str) -> sqlite3.Row:
        """The row of a run (ticket-run-unknown)."""
        rows = self._database.rows("SELECT * FROM ticket_run WHERE name = ?", name)
        if not rows:
            raise Refusal("ticket-run-unknown", f"the service has no ticket run {name}")
        return rows[0]

    def tickets(self, name: str) -> list[sqlite3.Row]:
        """The rows of a run's tickets, in their order."""
        return self._database.rows(
            "SELECT * FROM ticket WHERE run = ? AND number != ? ORDER BY number", name, ORCHESTRATOR
        )

    def orchestrator(self, name: str) -> sqlite3.Row | None:
        """The row of a run's orchestrator, which is kept as a ticket's; None without one."""
        found = self._database.rows("SELECT * FROM ticket WHERE run = ? AND number = ?", name, ORCHESTRATOR)
        return found[0] if found else None

    def claimed(self, name: str) -> list[str]:
        """Ids of worktrees that belong to other runs, or to the orchestrator of this one."""
        found = self._database.rows(
            "SELECT worktree_id FROM ticket WHERE (run != ? OR number = ?) AND worktree_id != ''", name, ORCHESTRATOR
        )
        return [row["worktree_id"] for row in found]

    def merging(self) -> list[str]:
        """The git directories in which a merge is under way, or was when the service was killed."""
        return [row["common_dir"] for row in self._database.rows("SELECT common_dir FROM repository WHERE merging")]

    # Writing down

    def note(self, common_dir: str, *, merging: bool) -> None:
        """Writes down that a merge begins in a repository, or has ended."""
        with self._database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO repository VALUES (?, ?)", (common_dir, int(merging)))

    def step(self, run: str, number: int, state: TicketStep, **columns: Any) -> None:  # noqa: ANN401  # as they are
        """Moves one ticket on. The run continues when that cannot be written; after a crash it is repeated."""
        values = {"state": state, "changed": time.time(), **columns}
        assignments = ", ".join(f"{column} = ?" for column in values)
        try:
            with self._database.transaction() as connection:
                connection.execute(
                    f"UPDATE ticket SET {assignments} WHERE run = ? AND number = ?", (*values.values(), run, number)
                )
        except Refusal as refusal:
            log.error("ticket %d of run %s is %s, which cannot be recorded: %s", number, run, state, refusal.message)
        self.has_moved(run)
        self._publish(EventKind.TICKET, {"run": run, "number": number, "state": state})

    def move(self, name: str, state: TicketState, result: dict[str, Any] | None = None) -> None:
        """Moves a run on, as `step` moves a ticket."""
        ended = time.time() if state in OVER else None
        try:
            with self._database.transaction() as connection:
                connection.execute(
                    "UPDATE ticket_run SET state = ?, ended = ?, result = ? WHERE name = ?",
                    (state, ended, None if result is None else json.dumps(result), name),
                )
        except Refusal as refusal:
            # The disk is full, say. The next life of the service goes on with it, and so does who resumes it.
            log.error("ticket run %s is %s, which cannot be recorded: %s", name, state, refusal.message)
            if ended is not None:
                found = self._of(self.row(name))
                self._unwritten[name] = found.model_copy(update={"state": state, "ended": ended, "result": result})
        fields = {"ticket_run": name, "state": str(state)}
        log.log(logging.WARNING if state is TicketState.FAILED else logging.INFO, "ticket run %s is %s", name, state,
                extra={"fields": fields})  # fmt: skip
        self.has_moved(name)
        self._publish(EventKind.TICKET, {"run": name, "state": state})

    def has_moved(self, name: str) -> None:
        """Wakes those who wait for something to happen in a run."""
        moved = self._moved.get(name)
        if moved is not None:
            self._moved[name] = asyncio.Event()
            self._seen[name] += 1
            moved.set()

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

    # Environments, which hold keys: in the runtime directory, for as long as the run needs them

    def keep_environment(self, name: str, environment: dict[str, str] | None) -> None:
        """Keeps a run's environment; None to forget it."""
        path = f"{self._environments}/{name}"
        if environment is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        os.makedirs(self._environments, 0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump(environment, file)

    def environment(self, name: str) -> dict[str, str] | None:
        """A run's environment, where it is at hand."""
        try:
            with open(f"{self._environments}/{name}", encoding="utf-8", errors="surrogateescape") as file:
                found: dict[str, str] = json.load(file)
        except (OSError, ValueError):
            return None
        return found


ORCHESTRATOR = 0
"""The number of the row of a run's orchestrator; tickets count from 1."""
NAME = "orchestrator"
"""What stands in that row for the name of a ticket."""


def add_tickets(database: Database, run: str, made: list[tuple[str, str]]) -> list[str]:
    """Adds the tickets that the orchestrator of a run has made, all or none, behind those that there are.

    One that is there already, word for word, is not added again: the orchestrator may have been started anew.

    Args:
        made: names and details.

    Returns:
        The names of those that are new.

    Refusals: a name is taken, there are too many, no orchestrator is at work.
    """
    with database.transaction() as connection:
        rows = connection.execute("SELECT request FROM ticket_run WHERE name = ?", (run,)).fetchall()
        at_work = connection.execute(
            "SELECT 1 FROM ticket WHERE run = ? AND number = ? AND state = ?", (run, ORCHESTRATOR, TicketStep.RUNNING)
        )
        kept = json.loads(rows[0]["request"]) if rows else {}
        if at_work.fetchone() is None or not kept.get("orchestrator") or not kept.get("agent"):
            raise Refusal("ticket-run-closed", f"no orchestrator of ticket run {run} is running")
        agent = Agent.model_validate(kept["agent"])
        known = {each["ticket"]: each["details"] for each in kept["tickets"]}
        new: list[dict[str, Any]] = []
        for name, details in made:
            refuse_name_of_orchestrator(name)
            if known.setdefault(name, details) != details:
                raise Refusal("ticket-double", f"ticket {name} already exists, with other details")
            if name not in [each["ticket"] for each in (*kept["tickets"], *new)]:
                new.append(agent.ticket(name, details).model_dump(mode="json"))
        most = kept["orchestrator"]["most_tickets"]
        count = kept.get("made", 0) + len(new)
        if count > most:
            raise Refusal("quota-tickets", f"an orchestrator may make at most {most} tickets here, not {count}")
        kept["made"] = count
        first = len(kept["tickets"]) + 1
        kept["tickets"] += new
        connection.execute("UPDATE ticket_run SET request = ? WHERE name = ?", (json.dumps(kept), run))
        now = time.time()
        connection.executemany(
            _WAITING, [(run, first + at, each["ticket"], TicketStep.WAITING, now) for at, each in enumerate(new)]
        )
    return [each["ticket"] for each in new]


def refuse_name_of_orchestrator(name: str) -> None:
    """Refuses a ticket of a run with an orchestrator that is called as that is: who reads of one would take it for
    the other.

    Refusals: ticket-double.
    """
    if name.lower() == NAME:
        raise Refusal(
            "ticket-double", f"ticket {name} has the name of the run's orchestrator", hint="name it otherwise"
        )


_WAITING = "INSERT OR IGNORE INTO ticket (run, number, ticket, state, changed) VALUES (?, ?, ?, ?, ?)"


def _waiting(run: str, names: list[str], now: float) -> list[tuple[str, int, str, str, float]]:
    return [(run, number, name, TicketStep.WAITING, now) for number, name in enumerate(names, 1)]


def _marks(values: tuple[TicketState, ...]) -> str:
    return ", ".join("?" * len(values))


def _run_of(row: sqlite3.Row, orchestrator: sqlite3.Row | None, tickets: list[sqlite3.Row], seen: int) -> TicketRun:
    return TicketRun(
        name=row["name"],
        state=TicketState(row["state"]),
        created=row["created"],
        ended=row["ended"],
        orchestrator=None if orchestrator is None else _status_of(orchestrator),
        tickets=[each["ticket"] for each in json.loads(row["request"])["tickets"]],
        steps=[_status_of(each) for each in tickets],
        seen=seen,
        result=None if row["result"] is None else json.loads(row["result"]),
    )


def _status_of(row: sqlite3.Row) -> TicketStatus:
    return TicketStatus(
        ticket=row["ticket"], state=TicketStep(row["state"]), changed=row["changed"], attempt=row["attempt"],
        session=row["session"], worktree=row["worktree"],
    )  # fmt: skip
