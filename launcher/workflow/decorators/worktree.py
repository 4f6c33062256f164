"""Every request carries the worktree of its receiver (FR-001 to FR-004, contracts sections 1, 7 and 8)."""

import logging

from launcher.workflow.contexts.request_context import RequestContextRepository
from launcher.workflow.decorators.chain import DecoratorContext, Request
from launcher.workflow.graph.repository import GraphRepository
from launcher.workflow.requests.catalog import (
    AgentRequest,
    DispatchRequest,
    OrchestratorRequest,
    OwnWorktreeRequest,
    ResultsRequest,
    WorkOfAnAgentRequest,
)
from launcher.workflow.values import ArtifactKey
from launcher.workflow.worktrees import WorktreeService, trusted, worktree_of_key
from policy.sandbox_context import WorktreeSandboxContext

log = logging.getLogger(__name__)


class WorktreeContextRequestDecorator:
    """Sets the worktree of each request and writes it down under its session.

    The orchestrator's comes from its node, all others inherit it, and those that work in a tree of their own (or
    review and merge somebody's work) get that one. What a request claims by itself counts only where the worktree
    service confirms it: requests are written by models, and boundaries are not theirs to choose.

    Before a worktree exists a request goes on without one: nothing is confined to it yet, and file tools refuse to
    work for its session. A worktree that is gone stops the request.

    Args:
        contexts: where the result is written down.
        graph: nodes with worktrees.
        worktrees: who confirms them.
    """

    name = "worktree-context"
    order = -5000

    def __init__(self, contexts: RequestContextRepository, graph: GraphRepository, worktrees: WorktreeService) -> None:
        """See the class."""
        self._contexts = contexts
        self._graph = graph
        self._worktrees = worktrees

    def decorate(self, request: Request, context: DecoratorContext) -> Request:
        """`request` with its worktree.

        Raises:
            Refusal: `worktree-gone`.
        """
        worktree = self._resolve(request, context.last_request)
        claimed = request.worktree_context
        if claimed is not None and (worktree is None or worktree.worktree_id != claimed.worktree_id):
            log.warning("%s claimed worktree %s, which is not its own", request.artifact_key, claimed.worktree_id)
        decorated = request.with_worktree_context(worktree)
        if worktree is not None:  # a boundary that was known before is never taken away
            self._contexts.update(
                request.context_id,
                lambda before: before.evolve(worktree_context=worktree, current_request=decorated),
            )
        return decorated

    def _resolve(self, request: AgentRequest, last: AgentRequest | None) -> WorktreeSandboxContext | None:
        if isinstance(request, OrchestratorRequest):
            return worktree_of_key(self._graph, self._worktrees, request.context_id)
        inherited = None if last is None else last.worktree_context
        if inherited is None:  # the parent was asked before its worktree existed
            inherited = worktree_of_key(self._graph, self._worktrees, request.context_id)
        own: WorktreeSandboxContext | None = None
        if isinstance(request, OwnWorktreeRequest):
            own = self._own(request, last, inherited)
        elif isinstance(request, WorkOfAnAgentRequest):
            own = self._of_the_agent(request, last)
        elif inherited is None:
            own = trusted(self._worktrees, request.worktree_context)
        return own or inherited

    def _own(
        self, request: OwnWorktreeRequest, last: AgentRequest | None, inherited: WorktreeSandboxContext | None
    ) -> WorktreeSandboxContext | None:
        """The tree that was attached for this agent: as written down, as confirmed, or as its dispatch has it."""
        attached = self._known(request.context_id)
        if attached is not None and (inherited is None or attached.worktree_id != inherited.worktree_id):
            return attached
        claims = [request.worktree_context]
        if isinstance(last, DispatchRequest):
            claims += [child.worktree_context for child in last.children if child.context_id == request.context_id]
        for claimed in claims:
            confirmed = trusted(self._worktrees, claimed)
            if confirmed is not None and (inherited is None or confirmed.parent_worktree_id == inherited.worktree_id):
                return confirmed
        return None

    def _of_the_agent(self, request: WorkOfAnAgentRequest, last: AgentRequest | None) -> WorktreeSandboxContext | None:
        """The tree of the agent whose work could not be merged, else of the agent that is named."""
        statuses = [request.conflicted]
        if isinstance(last, ResultsRequest) and last.merge_aggregation is not None:
            statuses.append(last.merge_aggregation.conflicted)
        for status in statuses:
            confirmed = trusted(self._worktrees, status.worktree_context) if status is not None else None
            if confirmed is not None:
                return confirmed
        return None if request.ticket_agent is None else self._known(request.ticket_agent)

    def _known(self, key: ArtifactKey) -> WorktreeSandboxContext | None:
        stored = self._contexts.get(key)
        return None if stored is None else stored.worktree_context
