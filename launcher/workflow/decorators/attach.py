"""Agents that work side by side get a worktree each (FR-005 to FR-007, MF-004, SC-007)."""

import logging
from collections import Counter
from collections.abc import Sequence

from launcher.workflow.contexts.request_context import RequestContextRepository
from launcher.workflow.decorators.chain import DecoratorContext, Request
from launcher.workflow.graph.repository import GraphRepository, Node, find_node
from launcher.workflow.requests.catalog import AgentRequest, DispatchRequest, OwnWorktreeRequest
from launcher.workflow.worktrees import WorktreeService, granted_part, trusted
from policy.errors import Refusal
from policy.sandbox_context import WorktreeSandboxContext

log = logging.getLogger(__name__)


class AttachWorktreesDecorator:
    """Makes a worktree for every single request of a dispatch, beside the dispatch's own.

    Ticket, discovery and planning dispatches alike. An agent that has its worktree keeps it, so that a dispatch may
    run again. When one worktree cannot be made, those made for this dispatch are removed and nothing is sent out.

    Args:
        contexts: each agent's worktree is written down under its session.
        graph: each agent's node gets its worktree, and is made when there is none; a node that was made before says
            which submodules its agent is granted.
        worktrees: who makes them.
    """

    name = "attach-worktrees"
    order = -4900

    def __init__(self, contexts: RequestContextRepository, graph: GraphRepository, worktrees: WorktreeService) -> None:
        """See the class."""
        self._contexts = contexts
        self._graph = graph
        self._worktrees = worktrees

    def decorate(self, request: Request, context: DecoratorContext) -> Request:
        """`request`; a dispatch with one distinct worktree on each of its requests.

        Raises:
            Refusal: `dispatch-duplicate`, or what the worktree service says.
        """
        if not isinstance(request, DispatchRequest) or request.worktree_context is None:
            return request
        # The dispatch's own session too: its boundaries are the trunk's, and no child may take them over.
        _refuse_doubles(request, [request.session_id, *(child.session_id for child in request.children)])
        made: list[WorktreeSandboxContext] = []
        try:
            children = [self._attached(child, request.worktree_context, made) for child in request.children]
            _refuse_doubles(
                request, [child.worktree_context.worktree_id for child in children if child.worktree_context]
            )
        except BaseException:
            self._discard(made)
            raise
        dispatch = request.with_children(children)
        for child in children:
            self._write_down(child, dispatch)
        return dispatch

    def _attached(
        self, child: OwnWorktreeRequest, trunk: WorktreeSandboxContext, made: list[WorktreeSandboxContext]
    ) -> OwnWorktreeRequest:
        stored = self._contexts.get(child.context_id)
        for claimed in (None if stored is None else stored.worktree_context, child.worktree_context):
            confirmed = trusted(self._worktrees, claimed)
            if confirmed is not None and confirmed.parent_worktree_id == trunk.worktree_id:
                return child.with_worktree_context(confirmed)
        new = self._worktrees.create_child(trunk, child.worktree_label)
        made.append(new)
        node = self._graph.get(child.session_id)
        granted = None if node is None else node.granted_submodules
        return child.with_worktree_context(granted_part(_as_narrow_as(trunk, new), granted))

    def _discard(self, made: Sequence[WorktreeSandboxContext]) -> None:
        for worktree in made:
            try:
                self._worktrees.discard_child(worktree.worktree_id)
            except Refusal as refusal:  # the reason why the dispatch failed matters more; the worktree stays listed
                log.warning("worktree %s of a failed dispatch remains: %s", worktree.worktree_path, refusal.message)

    def _write_down(self, child: OwnWorktreeRequest, dispatch: AgentRequest) -> None:
        worktree = child.worktree_context
        assert worktree is not None
        self._contexts.update(
            child.context_id,
            lambda before: before.evolve(worktree_context=worktree, current_request=child, previous_request=dispatch),
        )
        key = child.context_id.value
        if self._graph.update(key, lambda node: node.evolve(worktree_id=worktree.worktree_id)) is None:
            above = find_node(self._graph, dispatch.context_id)
            self._graph.save(
                Node(
                    node_id=key,
                    agent_type=child.agent_type,
                    parent_id=None if above is None else above.node_id,
                    worktree_id=worktree.worktree_id,
                    granted_submodules=tuple(module.submodule_name for module in worktree.submodule_worktrees)
                    if worktree.ungranted_submodules
                    else None,
                )
            )


def _as_narrow_as(trunk: WorktreeSandboxContext, new: WorktreeSandboxContext) -> WorktreeSandboxContext:
    """`new` with no submodule granted that the trunk's agent was not granted."""
    closed = {module.submodule_name for module in trunk.ungranted_submodules}
    if not closed:
        return new
    return granted_part(
        new, [module.submodule_name for module in new.submodule_worktrees if module.submodule_name not in closed]
    )


def _refuse_doubles(request: AgentRequest, values: Sequence[str]) -> None:
    doubles = sorted(value for value, count in Counter(values).items() if count > 1)
    if doubles:
        raise Refusal(
            "dispatch-duplicate",
            f"{type(request).__name__} {request.artifact_key} would give two agents the same place",
            context=f"used more than once: {', '.join(doubles)}",
        )
