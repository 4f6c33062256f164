"""Where request contexts are kept, as the rest of the workflow sees it (contracts section 2)."""

from collections.abc import Callable
from typing import Protocol

from launcher.workflow.contexts.request_context import ContextState, RequestContext
from launcher.workflow.keys import ArtifactKey
from policy.worktree import WorktreeSandboxContext

Updater = Callable[[RequestContext], RequestContext]


class RequestContextRepository(Protocol):
    """Contexts by session. Safe to share between threads.

    Sessions are named by key or by the key's text. A text that is no key names nothing: it comes from a header.
    """

    def get_or_create(self, key: ArtifactKey) -> RequestContext:
        """The session's context, an empty one when it had none (an expired one begins anew)."""
        ...

    def get(self, key: ArtifactKey | str) -> RequestContext | None:
        """The session's context; None when it is unknown or expired. Counts as use, but not as consumption."""
        ...

    def update(self, key: ArtifactKey, updater: Updater) -> RequestContext:
        """Replaces the context by what `updater` makes of it, atomically, and returns the new one.

        Args:
            key: the session; made when it is unknown.
            updater: a function without side effects; it may be called more than once. It may not change the key.
        """
        ...

    def clear(self, key: ArtifactKey | str) -> RequestContext | None:
        """The session is complete: its context expires. Returns its last form, or None when there was none."""
        ...

    def get_worktree_context(self, session_id: ArtifactKey | str) -> WorktreeSandboxContext | None:
        """The boundaries of a session for a tool or bridge that is about to act; marks the context consumed."""
        ...

    def state(self, key: ArtifactKey | str) -> ContextState | None:
        """Where in its life the session's context is; None when it was never seen, or forgotten since."""
        ...
