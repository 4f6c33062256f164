"""Whose work a result is: the agent's worktree, and the trunk that it was made from."""

from launcher.workflow.contexts.repository import RequestContextRepository
from launcher.workflow.requests.base import AgentRequest, AgentResult
from launcher.workflow.worktrees import WorktreeService, trusted
from policy.worktree import WorktreeSandboxContext


class ResultWorktrees:
    """Finds worktrees for both merge phases.

    Args:
        contexts: what was written down about each agent's session; believed before what a result claims.
        worktrees: confirms claims, and knows parents.
    """

    def __init__(self, contexts: RequestContextRepository, worktrees: WorktreeService) -> None:
        """See the class."""
        self._contexts = contexts
        self._worktrees = worktrees

    def of_result(self, result: AgentResult) -> WorktreeSandboxContext | None:
        """Where the agent that brought `result` has worked; None when it has no worktree."""
        stored = self._contexts.get(result.context_id)
        if stored is not None and stored.worktree_context is not None:
            return stored.worktree_context
        return trusted(self._worktrees, result.worktree_context)

    def trunk_of(
        self, result: AgentResult, child: WorktreeSandboxContext, last: AgentRequest | None
    ) -> WorktreeSandboxContext | None:
        """The trunk for phase 1: of the dispatch `last`, or of the one before when `last` is the agent's own request.

        None when nothing is known of a trunk, or when it no longer exists.
        """
        if last is not None and last.context_id != result.context_id:
            return last.worktree_context
        stored = self._contexts.get(result.context_id)
        before = None if stored is None else stored.previous_request
        if before is not None and before.context_id != result.context_id:
            return before.worktree_context
        return None if child.parent_worktree_id is None else self._worktrees.worktree_context(child.parent_worktree_id)

    def trunk_of_dispatch(self, dispatch: AgentRequest, last: AgentRequest | None) -> WorktreeSandboxContext | None:
        """The trunk for phase 2: of the dispatch that was answered, else as written down, else as confirmed."""
        if last is not None and last.worktree_context is not None:
            return last.worktree_context
        stored = self._contexts.get(dispatch.context_id)
        if stored is not None and stored.worktree_context is not None:
            return stored.worktree_context
        return trusted(self._worktrees, dispatch.worktree_context)
