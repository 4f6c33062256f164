"""Request contexts in this process's memory (FR-004a)."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime

from launcher.workflow.request_context import ContextState, RequestContext, Updater
from launcher.workflow.requests import ArtifactKey
from policy.errors import Refusal
from policy.sandbox_context import WorktreeSandboxContext

REMEMBERED_EXPIRED = 65_536
"""How many expired sessions are still told apart from unknown ones."""


class _Entry:
    """A context and when it was last used (monotonic seconds); replaced whole by updates, `used` in place."""

    __slots__ = ("context", "used")

    def __init__(self, context: RequestContext, used: float) -> None:
        self.context = context
        self.used = used


class InMemoryRequestContextRepository:
    """A `RequestContextRepository`.

    Reading takes no lock: an entry is never changed but for the time of its last use. Updates compute outside the
    lock and swap under it, so that a slow updater delays nobody and may itself use the repository.

    Args:
        max_idle_seconds: contexts that nobody has used for so long expire; None keeps them until `clear`.
        clock: monotonic seconds.
        now: the time of day, for the contexts' own time stamps.
    """

    def __init__(
        self,
        max_idle_seconds: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """See the class."""
        self._max_idle = max_idle_seconds
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()
        self._entries: dict[ArtifactKey, _Entry] = {}
        self._expired: OrderedDict[ArtifactKey, None] = OrderedDict()
        self._swept = clock()

    def __len__(self) -> int:
        """How many contexts are alive."""
        return len(self._entries)

    def get_or_create(self, key: ArtifactKey) -> RequestContext:
        """The session's context, an empty one when it had none (an expired one begins anew)."""
        found = self.get(key)
        if found is not None:
            return found
        self._sweep()
        with self._lock:
            return self._made(key).context

    def get(self, key: ArtifactKey | str) -> RequestContext | None:
        """The session's context; None when it is unknown or expired."""
        entry = self._live(key)
        return None if entry is None else entry.context

    def update(self, key: ArtifactKey, updater: Updater) -> RequestContext:
        """Replaces the context by what `updater` makes of it, atomically.

        Raises:
            Refusal: `context-key-changed`. What `updater` raises is passed on; both leave the context as it was.
        """
        self._sweep()
        return self._replace(key, updater, ContextState.ENRICHED)

    def clear(self, key: ArtifactKey | str) -> RequestContext | None:
        """The session is complete: its context expires. Returns its last form, or None when there was none."""
        name = ArtifactKey.of(key)
        if name is None:
            return None
        with self._lock:
            return self._expire(name)

    def evict_idle(self, older_than_seconds: float) -> tuple[RequestContext, ...]:
        """Lets all contexts expire that nobody has used for so long, and returns them.

        What is asked for again while it is being evicted survives or not; it is never half gone.
        """
        limit = self._clock() - older_than_seconds
        with self._lock:
            old = [key for key, entry in self._entries.items() if entry.used <= limit]
            return tuple(context for key in old if (context := self._expire(key)) is not None)

    def get_worktree_context(self, session_id: ArtifactKey | str) -> WorktreeSandboxContext | None:
        """The boundaries of a session for a tool or bridge that is about to act; marks the context consumed."""
        entry = self._live(session_id)
        if entry is None:
            return None
        context = entry.context
        if context.state is not ContextState.CONSUMED:
            context = self._consumed(context.artifact_key) or context
        return context.worktree_context

    def state(self, key: ArtifactKey | str) -> ContextState | None:
        """Where in its life the session's context is; None when it was never seen, or forgotten since."""
        name = ArtifactKey.of(key)
        if name is None:
            return None
        entry = self._entries.get(name)
        if entry is not None:
            return entry.context.state
        return ContextState.EXPIRED if name in self._expired else None

    def _live(self, key: ArtifactKey | str) -> _Entry | None:
        name = ArtifactKey.of(key)
        entry = None if name is None else self._entries.get(name)
        if entry is not None:
            entry.used = self._clock()
        return entry

    def _made(self, key: ArtifactKey) -> _Entry:
        """The entry, made when absent. The lock is held."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(RequestContext.empty(key, self._now()), self._clock())
            self._expired.pop(key, None)
        return entry

    def _replace(self, key: ArtifactKey, updater: Updater, state: ContextState) -> RequestContext:
        while True:
            with self._lock:
                before = self._made(key)
            after = updater(before.context)
            if after.artifact_key != key:
                raise Refusal(
                    "context-key-changed",
                    f"the context of session {key} cannot become that of {after.artifact_key}",
                    context="an update changed the key under which the context is kept",
                )
            stamp = max(self._now(), before.context.last_updated_at)
            advanced = max(state, before.context.state, key=lambda each: each.rank)
            entry = _Entry(after.evolve(last_updated_at=stamp, state=advanced), self._clock())
            with self._lock:
                if self._entries.get(key) is before:
                    self._entries[key] = entry
                    return entry.context

    def _consumed(self, key: ArtifactKey) -> RequestContext | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            marked = entry.context.evolve(state=ContextState.CONSUMED)
            self._entries[key] = _Entry(marked, self._clock())
            return marked

    def _expire(self, key: ArtifactKey) -> RequestContext | None:
        """Takes the entry away and remembers that it was there. The lock is held."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._expired[key] = None
        while len(self._expired) > REMEMBERED_EXPIRED:
            self._expired.popitem(last=False)
        return entry.context.evolve(state=ContextState.EXPIRED)

    def _sweep(self) -> None:
        """Evicts what is too old, at most eight times per idle period: a sweep looks at every context."""
        if self._max_idle is None:
            return
        moment = self._clock()
        if moment - self._swept >= self._max_idle / 8:
            self._swept = moment
            self.evict_idle(self._max_idle)
