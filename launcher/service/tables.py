"""Sessions in the database: rows, moves from state to state, idempotency keys."""

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from launcher.service.database import UNUSABLE, Database
from launcher.service.schema import FINAL, Outcome, Session, SessionRequest, SessionState, Transition, check
from launcher.workflow.request_context import ContextState, RequestContext, Updater
from launcher.workflow.requests import ArtifactKey
from policy.errors import Refusal
from policy.sandbox_context import WorktreeSandboxContext

_FINAL = ", ".join(f"'{state}'" for state in sorted(FINAL))
_COLUMNS = frozenset({
    "started", "ended", "process", "cgroup", "worktree", "worktree_id", "backend", "network", "spawn_seconds",
    "outcome", "moves",
})  # fmt: skip


class SessionStore:
    """The remembered sessions, live and ended."""

    def __init__(self, database: Database) -> None:
        """Args: open."""
        self.database = database

    def create(self, request: SessionRequest, client_uid: int, key: str | None = None, digest: str = "") -> None:
        """Remembers a new session, and the idempotency key of its request: both or neither."""
        assert request.name is not None
        try:
            with self.database.transaction() as connection:
                connection.execute(
                    "INSERT INTO session (name, state, attempt, request, client_uid, created)"
                    " VALUES (?, ?, 0, ?, ?, ?)",
                    (request.name, SessionState.CREATED, recorded(request), client_uid, time.time()),
                )
                if key is not None:
                    connection.execute(
                        "INSERT INTO idempotency (key, client_uid, digest, session, created) VALUES (?, ?, ?, ?, ?)",
                        (key, client_uid, digest, request.name, time.time()),
                    )
        except Refusal as refusal:
            if refusal.reference != UNUSABLE or self.row(request.name) is None:
                raise
            raise exists(request.name) from refusal

    def move(
        self,
        name: str,
        after: SessionState,
        why: str,
        *,
        attempt: int | None = None,
        when: float | None = None,
        checked: bool = True,
        **columns: Any,  # noqa: ANN401  # as the columns are
    ) -> None:
        """Moves a session on, and sets columns of its row.

        `checked` refuses a move that the table of transitions does not have; it is off where moves in between were
        missed.
        """
        assert columns.keys() <= _COLUMNS
        with self.database.transaction() as connection:
            row = self.required(name)
            before = SessionState(row["state"])
            if checked:
                check(name, before, after)
            number = row["attempt"] if attempt is None else attempt
            values = {"state": after, "attempt": number, **columns}
            assignments = ", ".join(f"{column} = ?" for column in values)
            connection.execute(f"UPDATE session SET {assignments} WHERE name = ?", (*values.values(), name))
            connection.execute(
                "INSERT INTO transition VALUES (?, ?, ?, ?, ?, ?)",
                (name, time.time() if when is None else when, before, after, number, why),
            )

    def note(self, name: str, **columns: Any) -> None:  # noqa: ANN401  # as the columns are
        """Sets columns of a session's row."""
        assert columns.keys() <= _COLUMNS
        assignments = ", ".join(f"{column} = ?" for column in columns)
        with self.database.transaction() as connection:
            connection.execute(f"UPDATE session SET {assignments} WHERE name = ?", (*columns.values(), name))

    def row(self, name: str) -> sqlite3.Row | None:
        """One session's row."""
        found = self.database.rows("SELECT * FROM session WHERE name = ?", name)
        return found[0] if found else None

    def required(self, name: str) -> sqlite3.Row:
        """The session, which must exist (else session-unknown)."""
        row = self.row(name)
        if row is None:
            raise Refusal(
                "session-unknown",
                f"the service has no session {name}",
                hint="paddock ps --all lists its sessions",
            )
        return row

    def listed(
        self, *, states: tuple[SessionState, ...] = (), live: bool = False, limit: int = 1_000, after: float = 0.0
    ) -> list[sqlite3.Row]:
        """Sessions, the newest first; of any state when `states` is empty."""
        where = ["created > ?"]
        values: list[object] = [after]
        if states:
            where.append(f"state IN ({', '.join('?' * len(states))})")
            values += states
        if live:
            where.append(f"state NOT IN ({_FINAL})")
        query = f"SELECT * FROM session WHERE {' AND '.join(where)} ORDER BY created DESC, name LIMIT ?"
        return self.database.rows(query, *values, limit)

    def transitions(self, name: str) -> list[Transition]:
        """The life of a session."""
        rows = self.database.rows(
            "SELECT time, before, after, attempt, why FROM transition WHERE session = ? ORDER BY rowid", name
        )
        return [Transition.model_validate(dict(row)) for row in rows]

    def counts(self) -> dict[SessionState, int]:
        """How many sessions there are of each state."""
        rows = self.database.rows("SELECT state, count(*) AS number FROM session GROUP BY state")
        return dict.fromkeys(SessionState, 0) | {SessionState(row["state"]): row["number"] for row in rows}

    def forget(self, name: str, *, live: bool = False) -> None:
        """Forgets a session that is over or, with `live`, one that could not be started."""
        with self.database.transaction() as connection:
            self._check_over(name, live=live)
            connection.execute("DELETE FROM session WHERE name = ?", (name,))
            if live:  # its request was not carried out, and may come again
                connection.execute("DELETE FROM idempotency WHERE session = ? AND forgotten IS NULL", (name,))
                return
            connection.execute(
                "UPDATE idempotency SET forgotten = ? WHERE session = ? AND forgotten IS NULL", (time.time(), name)
            )

    def forget_moves(self, keep: int) -> None:
        """Forgets the oldest moves of each session, but for so many: one that fails again and again makes many."""
        with self.database.transaction() as connection:
            connection.execute(
                "DELETE FROM transition WHERE rowid IN (SELECT row FROM (SELECT rowid AS row, row_number() OVER"
                " (PARTITION BY session ORDER BY rowid DESC) AS place FROM transition) WHERE place > ?)",
                (keep,),
            )

    def restore(self, name: str, request: str, client_uid: int, created: float) -> None:
        """Remembers a session again whose row was lost, with the database it was in."""
        with self.database.transaction() as connection:
            connection.execute(
                "INSERT INTO session (name, state, attempt, request, client_uid, created) VALUES (?, ?, 0, ?, ?, ?)",
                (name, SessionState.CREATED, request, client_uid, created),
            )

    def _check_over(self, name: str, *, live: bool) -> None:
        row = self.required(name)
        if SessionState(row["state"]) not in FINAL and not live:
            raise Refusal("session-live", f"session {name} is {row['state']}", hint=f"paddock stop {name}")

    def outdated(self, keep: int, before: float) -> list[str]:
        """Names of sessions to be forgotten: over, and beyond the newest `keep`, or ended before `before`."""
        rows = self.database.rows(
            f"SELECT name, ended FROM session WHERE state IN ({_FINAL}) ORDER BY ended DESC, created DESC"
        )
        return [row["name"] for number, row in enumerate(rows) if number >= keep or (row["ended"] or 0.0) < before]

    def remembered(self, key: str, client_uid: int, digest: str) -> str | None:
        """The session that was made for an idempotency key; None when the key is new.

        A key that came with another request is refused, and so is one whose session was forgotten: another session
        may have its name by now.
        """
        rows = self.database.rows(
            "SELECT digest, session, forgotten FROM idempotency WHERE key = ? AND client_uid = ?", key, client_uid
        )
        if not rows:
            return None
        if rows[0]["digest"] != digest:
            raise Refusal(
                "idempotency-mismatch",
                f"the idempotency key {key} was used with another request before",
                hint="use a new key for each request that is not a retry",
            )
        name = str(rows[0]["session"])
        if rows[0]["forgotten"] is not None or self.row(name) is None:
            raise Refusal(
                "session-forgotten",
                f"the session {name}, which was made for the idempotency key {key}, has been forgotten",
                context="a request is carried out only once for its key",
                hint="use a new key to carry it out again",
            )
        return name

    def forget_keys(self, before: float) -> None:
        """Forgets idempotency keys that are older."""
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM idempotency WHERE created < ?", (before,))


def exists(name: str) -> Refusal:
    """The Refusal for a name that is taken."""
    return Refusal(
        "session-exists",
        f"session {name} already exists in the service",
        hint=f"choose another name, or forget that one when it has ended: paddock stop --forget {name}",
    )


def session_of(row: sqlite3.Row) -> Session:
    """What clients see of a row."""
    request = json.loads(row["request"])
    return Session(
        name=row["name"],
        state=SessionState(row["state"]),
        attempt=row["attempt"],
        command=request["command"],
        options=request["options"],
        directory=request["directory"],
        stdin=request["stdin"],
        bridge=request["bridge"],
        labels=request["labels"],
        client_uid=row["client_uid"],
        created=row["created"],
        started=row["started"],
        ended=row["ended"],
        worktree=row["worktree"],
        worktree_id=row["worktree_id"],
        backend=row["backend"],
        network=row["network"],
        pid=row["process"],
        spawn_seconds=row["spawn_seconds"],
        outcome=None if row["outcome"] is None else Outcome.model_validate_json(row["outcome"]),
    )


def recorded(request: SessionRequest) -> str:
    """A request as the database stores it: names of variables, never their values."""
    content = request.model_dump(mode="json")
    content["environment"] = None if request.environment is None else sorted(request.environment)
    content["options"] = without_values(request.options)
    return json.dumps(content)


def without_values(options: list[str]) -> list[str]:
    """Options of `paddock run` without the values that ``--env NAME=VALUE`` gives."""
    found: list[str] = []
    for word in options:
        if found and found[-1] == "--env":
            word = word.partition("=")[0]
        elif word.startswith("--env="):
            word = "--env=" + word.removeprefix("--env=").partition("=")[0]
        found.append(word)
    return found


# Request contexts in the service's database: a `launcher.workflow.request_context.RequestContextRepository`.
#
# So they outlive a job and the service. Safe between threads and processes: an update reads, computes outside of any
# lock, and writes only if nobody was in between (a version number), or begins anew.


class StoredRequestContexts:
    """The repository.

    Args:
        database: open; this object's own connection, where several processes use the file.
    """

    def __init__(self, database: Database, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._database = database
        self._now = now
        self._lock = threading.RLock()  # a connection has one transaction at a time, whichever thread began it

    def get_or_create(self, key: ArtifactKey) -> RequestContext:
        """The session's context, an empty one when it had none (an expired one begins anew)."""
        return self._read_or_made(key)[0]

    def get(self, key: ArtifactKey | str) -> RequestContext | None:
        """The session's context; None when it is unknown or expired."""
        name = ArtifactKey.of(key)
        found = None if name is None else self._read(name)
        return None if found is None else found[0]

    def update(self, key: ArtifactKey, updater: Updater) -> RequestContext:
        """Replaces the context by what `updater` makes of it, atomically; it stays as it was when that raises."""
        return self._replace(key, updater, ContextState.ENRICHED)

    def clear(self, key: ArtifactKey | str) -> RequestContext | None:
        """The session is complete: its context expires. Returns its last form, or None when there was none."""
        name = ArtifactKey.of(key)
        if name is None:
            return None
        with self._transaction() as connection:
            found = self._read(name)
            if found is None:
                return None
            connection.execute("UPDATE context SET expired = 1 WHERE key = ?", (name.value,))
        return found[0].evolve(state=ContextState.EXPIRED)

    def get_worktree_context(self, session_id: ArtifactKey | str) -> WorktreeSandboxContext | None:
        """The boundaries of a session for a tool or bridge that is about to act; marks the context consumed."""
        found = self.get(session_id)
        if found is None:
            return None
        if found.state is not ContextState.CONSUMED:
            found = self._replace(found.artifact_key, lambda before: before, ContextState.CONSUMED)
        return found.worktree_context

    def of_run(self, run: str) -> list[dict[str, Any]]:
        """The contexts of a ticket run as JSON has them, by their keys; the state of those that are over says so."""
        rows = self._rows(f"SELECT content, expired FROM context WHERE {_OF_RUN} ORDER BY key", run, run, run)
        found = [(json.loads(row["content"]), row["expired"]) for row in rows]
        return [content | ({"state": ContextState.EXPIRED.value} if expired else {}) for content, expired in found]

    def expire_run(self, run: str) -> None:
        """A ticket run is over: none of its contexts has boundaries any more."""
        with self._transaction() as connection:
            connection.execute(f"UPDATE context SET expired = 1 WHERE {_OF_RUN}", (run, run, run))

    def state(self, key: ArtifactKey | str) -> ContextState | None:
        """Where in its life the session's context is; None when it was never seen, or forgotten since."""
        name = ArtifactKey.of(key)
        if name is None:
            return None
        rows = self._rows("SELECT content, expired FROM context WHERE key = ?", name.value)
        if not rows:
            return None
        return ContextState.EXPIRED if rows[0]["expired"] else _decoded(rows[0]["content"]).state

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._database.transaction() as connection:
            yield connection

    def _rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        with self._lock:
            return self._database.rows(query, *values)

    def _read(self, key: ArtifactKey) -> tuple[RequestContext, int] | None:
        rows = self._rows("SELECT content, version FROM context WHERE key = ? AND NOT expired", key.value)
        return (_decoded(rows[0]["content"]), rows[0]["version"]) if rows else None

    def _read_or_made(self, key: ArtifactKey) -> tuple[RequestContext, int]:
        while True:
            found = self._read(key)
            if found is not None:
                return found
            content = RequestContext.empty(key, self._now()).model_dump_json()
            with self._transaction() as connection:
                connection.execute(
                    "INSERT INTO context (key, content, version, used) VALUES (?, ?, 1, ?) ON CONFLICT (key) DO UPDATE"
                    " SET content = excluded.content, version = version + 1, expired = 0 WHERE expired",
                    (key.value, content, time.time()),
                )

    def _replace(self, key: ArtifactKey, updater: Updater, least: ContextState) -> RequestContext:
        while True:
            before, version = self._read_or_made(key)
            after = updater(before)
            if after.artifact_key != key:
                raise Refusal(
                    "context-key-changed",
                    f"the context of session {key} cannot become that of {after.artifact_key}",
                    context="an update changed the key under which the context is stored",
                )
            advanced = max(least, before.state, key=lambda each: each.rank)
            written = after.evolve(last_updated_at=max(self._now(), before.last_updated_at), state=advanced)
            with self._transaction() as connection:
                changed = connection.execute(
                    "UPDATE context SET content = ?, version = version + 1, used = ?"
                    " WHERE key = ? AND version = ? AND NOT expired",
                    (written.model_dump_json(), time.time(), key.value, version),
                ).rowcount
            if changed:
                return written


_OF_RUN = "(key = ? OR substr(key, 1, length(?) + 1) = ? || '/')"
"""The run's own key, and those below it."""


def _decoded(content: str) -> RequestContext:
    return RequestContext.model_validate_json(content)
