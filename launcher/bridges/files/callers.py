"""From what a request says of itself to the boundaries it is held to (story 5, contracts section 6).

Two modes. In `strict` a call without a known session is an error. In `compatible` it is what it was before there was a
sandbox (the specification's backward-compatibility table): without a session, with an unknown one, or with one that has
no worktree, files are used without boundaries. A session that has ended, whose worktree is gone, or whose token is
wrong is never let out, in either mode.
"""

import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable
from enum import StrEnum

from launcher.bridges.files.tool_calls import ErrorType, ToolFailed
from launcher.workflow.graph import GraphRepository
from launcher.workflow.request_context import RequestContextRepository
from launcher.workflow.worktrees import WorktreeService, worktree_of_session
from policy.errors import Refusal, printable
from policy.sandbox_context import WorktreeSandboxContext
from policy.violation import escaped

LEGACY = ""
"""Stands for all callers without a session, in the mode `compatible`."""


class Mode(StrEnum):
    """What becomes of a call whose session leads to no worktree."""

    STRICT = "strict"
    COMPATIBLE = "compatible"


class Tokens:
    """One secret for each session, compared in constant time. Safe to share between threads.

    Only digests are kept, so nothing that reads this process's memory later finds a token.
    """

    def __init__(self) -> None:
        """Starts without any."""
        self._lock = threading.Lock()
        self._digests: dict[str, bytes] = {}

    def issue(self, session_id: str) -> str:
        """A new token for a session, in place of an earlier one; `LEGACY` for callers without a session."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._digests[session_id] = _digest(token)
        return token

    def revoke(self, session_id: str) -> None:
        """The session has no token any more."""
        with self._lock:
            self._digests.pop(session_id, None)

    def knows(self, session_id: str) -> bool:
        """Whether a token was issued for the session."""
        return session_id in self._digests

    def matches(self, session_id: str, token: str | None) -> bool:
        """Whether `token` is the session's. Takes as long for a session that has none."""
        expected = self._digests.get(session_id)
        same = hmac.compare_digest(expected or bytes(32), _digest(token or ""))
        return same and expected is not None


class Sessions:
    """Finds a session's boundaries.

    Args:
        find: boundaries by session id, None where there are none; a Refusal says why there can be none.
        ended: whether a session has been and is no more.
        mode: see `Mode`.
        tokens: checked against when given: for callers that anybody could be.
    """

    def __init__(
        self,
        find: Callable[[str], WorktreeSandboxContext | None],
        *,
        ended: Callable[[str], bool] = lambda session_id: False,
        mode: Mode = Mode.STRICT,
        tokens: Tokens | None = None,
    ) -> None:
        self.mode = mode
        self.tokens = tokens
        self._find = find
        self._ended = ended

    @classmethod
    def of_workflow(
        cls,
        contexts: RequestContextRepository,
        graph: GraphRepository,
        worktrees: WorktreeService,
        *,
        mode: Mode = Mode.STRICT,
        tokens: Tokens | None = None,
    ) -> "Sessions":
        """Those whose contexts the decorators have written down (FR-017)."""
        return cls(
            lambda session_id: worktree_of_session(session_id, contexts, graph, worktrees),
            ended=lambda session_id: contexts.state(session_id) == "expired",
            mode=mode,
            tokens=tokens,
        )

    def boundaries(self, session_id: str | None, token: str | None) -> WorktreeSandboxContext | None:
        """The session's boundaries; None for a call that is served without any.

        Args:
            session_id: from the header, or fixed at start; None without one.
            token: from the header. Not looked at when there are no tokens.

        Raises:
            ToolFailed: `WORKTREE_UNRESOLVED`.
        """
        name = (session_id or "").strip()
        if not self._proven(name, token):
            raise _unresolved(name, "it is unknown, or its token is missing or wrong")
        if name:
            try:
                found = self._find(name)
            except Refusal as refusal:
                raise _unresolved(name, refusal.message) from None
            if found is not None and str(found.worktree_path) not in ("", "."):
                return found
            if self._ended(name):
                raise _unresolved(name, "it has ended")
        if self.mode is Mode.COMPATIBLE:
            return None
        raise _unresolved(name, "no worktree is known for it")

    def _proven(self, name: str, token: str | None) -> bool:
        if self.tokens is None:
            return True
        if self.mode is Mode.COMPATIBLE and not self.tokens.knows(name):
            return self.tokens.matches(LEGACY, token)
        return self.tokens.matches(name, token)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _unresolved(name: str, why: str) -> ToolFailed:
    if not name:
        return ToolFailed(
            ErrorType.WORKTREE_UNRESOLVED, "the worktree could not be resolved: the request names no session"
        )
    shown = printable(escaped(name[:200]))
    return ToolFailed(ErrorType.WORKTREE_UNRESOLVED, f"the worktree of session {shown} could not be resolved: {why}")
