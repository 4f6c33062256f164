"""Request contexts in the service's database: a `launcher.workflow.contexts.request_context.RequestContextRepository`.

So they outlive a job and the service. Safe between threads and processes: an update reads, computes outside of any
lock, and writes only if nobody was in between (a version number), or begins anew.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from launcher.service.database import Database
from launcher.service.models import SessionRequest
from launcher.session import planning
from launcher.vcs import checkout
from launcher.vcs.disk import Present
from launcher.workflow.contexts.request_context import ContextState, RequestContext, RequestContextRepository, Updater
from launcher.workflow.values import ArtifactKey
from policy.errors import Refusal
from policy.sandbox_context import WorktreeSandboxContext


class StoredRequestContexts:
    """The repository.

    Args:
        database: open; this object's own connection, where several processes use the file.
        now: the time of day.
    """

    def __init__(self, database: Database, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """See the class."""
        self._database = database
        self._now = now

    def get_or_create(self, key: ArtifactKey) -> RequestContext:
        """The session's context, an empty one when it had none (an expired one begins anew)."""
        return self._read_or_made(key)[0]

    def get(self, key: ArtifactKey | str) -> RequestContext | None:
        """The session's context; None when it is unknown or expired."""
        name = ArtifactKey.of(key)
        found = None if name is None else self._read(name)
        return None if found is None else found[0]

    def update(self, key: ArtifactKey, updater: Updater) -> RequestContext:
        """Replaces the context by what `updater` makes of it, atomically.

        Raises:
            Refusal: `context-key-changed`. What `updater` raises is passed on; both leave the context as it was.
        """
        return self._replace(key, updater, ContextState.ENRICHED)

    def clear(self, key: ArtifactKey | str) -> RequestContext | None:
        """The session is complete: its context expires. Returns its last form, or None when there was none."""
        name = ArtifactKey.of(key)
        if name is None:
            return None
        with self._database.transaction() as connection:
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

    def state(self, key: ArtifactKey | str) -> ContextState | None:
        """Where in its life the session's context is; None when it was never seen, or forgotten since."""
        name = ArtifactKey.of(key)
        if name is None:
            return None
        rows = self._database.rows("SELECT content, expired FROM context WHERE key = ?", name.value)
        if not rows:
            return None
        return ContextState.EXPIRED if rows[0]["expired"] else _decoded(rows[0]["content"]).state

    def _read(self, key: ArtifactKey) -> tuple[RequestContext, int] | None:
        rows = self._database.rows("SELECT content, version FROM context WHERE key = ? AND NOT expired", key.value)
        return (_decoded(rows[0]["content"]), rows[0]["version"]) if rows else None

    def _read_or_made(self, key: ArtifactKey) -> tuple[RequestContext, int]:
        while True:
            found = self._read(key)
            if found is not None:
                return found
            content = RequestContext.empty(key, self._now()).model_dump_json()
            with self._database.transaction() as connection:
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
                    context="an update changed the key under which the context is kept",
                )
            advanced = max(least, before.state, key=lambda each: each.rank)
            written = after.evolve(last_updated_at=max(self._now(), before.last_updated_at), state=advanced)
            with self._database.transaction() as connection:
                changed = connection.execute(
                    "UPDATE context SET content = ?, version = version + 1, used = ?"
                    " WHERE key = ? AND version = ? AND NOT expired",
                    (written.model_dump_json(), time.time(), key.value, version),
                ).rowcount
            if changed:
                return written


def _decoded(content: str) -> RequestContext:
    return RequestContext.model_validate_json(content)


# Sessions in the request-context repository: who names one, by the text of its key, is told the boundaries it has.
#
# The key of a session is ``session/NAME``. Its context is initialized when the session is accepted, enriched with
# its worktree when its command runs, and expires with it. Sessions of ticket runs have the context of their
# request, too, under the id that their label ``session-id`` names.


log = logging.getLogger("paddock.service")


def key_of(name: str) -> ArtifactKey:
    """The key of a session's context. A session's name is always one plain segment of a key."""
    return ArtifactKey(f"session/{name}")


class Registration:
    """Keeps the contexts of sessions. What goes wrong here is logged: the jail holds a session, not its context.

    Args:
        contexts: the repository.
        later: makes a write as soon as the repository takes it, in turn (`Database.later`).
    """

    def __init__(self, contexts: RequestContextRepository, later: Callable[[Callable[[], object]], None]) -> None:
        """See the class."""
        self._contexts = contexts
        self._later = later

    def of(self, name: str) -> RequestContext | None:
        """The context of a session; None when it is over, or unknown."""
        return self._contexts.get(key_of(name))

    def accepted(self, request: SessionRequest) -> None:
        """A session was accepted.

        Args:
            request: with its name.
        """
        labels = {"session": request.name or "", **({"bridge": request.bridge} if request.bridge else {})}
        key = key_of(request.name or "")
        self._later(lambda: self._contexts.update(key, lambda before: before.with_metadata(**labels)))

    async def placed(self, name: str, worktree: str, options: Mapping[str, str | list[str] | bool]) -> None:
        """A session's command runs.

        Args:
            name: the session.
            worktree: root of its worktree.
            options: of `paddock run`, by name.
        """
        try:
            context = await asyncio.to_thread(_boundaries, worktree, options)
        except (Refusal, OSError, ValueError) as error:  # the worktree has been removed meanwhile, say
            log.warning("session %s is registered without its worktree: %s", name, error)
            return
        self._later(lambda: self._contexts.update(key_of(name), lambda before: before.evolve(worktree_context=context)))

    def ended(self, name: str) -> None:
        """A session is over: nothing may act for it any more."""
        self._later(lambda: self._contexts.clear(key_of(name)))


def _boundaries(worktree: str, options: Mapping[str, str | list[str] | bool]) -> WorktreeSandboxContext:
    wanted = options.get("--submodule")
    found = checkout.find(worktree, Present(), exact=True)
    return planning.context_of(found, wanted if isinstance(wanted, list) else [], "--freeze-root" in options)
