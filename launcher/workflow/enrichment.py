"""Everything that flows is written down under its session (contracts sections 1 and 8)."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from launcher.workflow.chain import DecoratorContext, Request, Result
from launcher.workflow.graph import GraphRepository, Node, find_node, find_orchestrator
from launcher.workflow.request_context import ContextState, RequestContext, RequestContextRepository, ToolContext
from launcher.workflow.requests import (
    AgentRequest,
    AgentResult,
    ArtifactKey,
    DispatchRequest,
    OrchestratorRequest,
    OwnWorktreeRequest,
    ResultsRequest,
    TicketAgentRequest,
    WorkOfAnAgentRequest,
)
from launcher.workflow.worktrees import WorktreeService, granted_part, trusted, worktree_of_key
from policy.errors import Refusal
from policy.sandbox_context import WorktreeSandboxContext

ORDER = -6000


class RequestContextRepositoryDecorator:
    """Stores each request, and what is known about its place, in the session's context.

    Args:
        contexts: where.
        graph: tells which orchestrator a session belongs to.
    """

    name = "request-context"
    order = ORDER

    def __init__(self, contexts: RequestContextRepository, graph: GraphRepository) -> None:
        """See the class."""
        self._contexts = contexts
        self._graph = graph

    def decorate(self, request: Request, context: DecoratorContext) -> Request:
        """`request`, as it is."""
        key = request.context_id
        orchestrator = find_orchestrator(self._graph, key)
        known: dict[str, object] = {"operation_context": context.operation}
        if orchestrator is not None:
            known["orchestrator_node_id"] = orchestrator.node_id
        if isinstance(request, TicketAgentRequest):
            known["ticket_node_id"] = key.value

        def stored(before: RequestContext) -> RequestContext:
            return before.evolve(**known, current_request=request, previous_request=_previous(before, request, context))

        self._contexts.update(key, stored)
        return request


class RequestContextResultDecorator:
    """Stores each result in the session's context; `flow.Workflow` puts the enriched one in its place afterwards."""

    name = "request-context"
    order = ORDER

    def __init__(self, contexts: RequestContextRepository) -> None:
        """Takes the repository to write to."""
        self._contexts = contexts

    def decorate(self, result: Result, context: DecoratorContext) -> Result:
        """`result`, as it is. A result of a session that is over or was never seen is not written down."""
        note_result(self._contexts, result)
        return result


def note_result(contexts: RequestContextRepository, result: AgentResult) -> None:
    """Stores a result under its session, if that is live."""
    if contexts.state(result.context_id) not in (None, ContextState.EXPIRED):
        contexts.update(result.context_id, lambda before: before.evolve(result=result))


class ToolContextDecorator:
    """Writes down which tools the agent is offered.

    Args:
        contexts: where.
        tools: what it is offered, by its request.
    """

    name = "tool-context"
    order = -4000

    def __init__(self, contexts: RequestContextRepository, tools: "ToolsFor") -> None:
        """See the class."""
        self._contexts = contexts
        self._tools = tools

    def decorate(self, request: Request, context: DecoratorContext) -> Request:
        """`request`, as it is."""
        offered = self._tools(request)
        self._contexts.update(request.context_id, lambda before: before.evolve(tool_context=offered))
        return request


class ToolsFor(Protocol):
    """Which tools the receiver of a request is offered."""

    def __call__(self, request: AgentRequest, /) -> ToolContext:
        """The tools."""
        ...


def _previous(before: RequestContext, request: AgentRequest, context: DecoratorContext) -> AgentRequest | None:
    """The request that led here; for the same one again, what was known before."""
    last = context.last_request
    if isinstance(last, DispatchRequest) and isinstance(request, OwnWorktreeRequest):
        return last.share_of(request.session_id)
    if last is not None:
        return last
    stored = before.current_request
    if stored is None or stored.artifact_key == request.artifact_key:
        return before.previous_request
    return stored


# Every request carries the worktree of its receiver (FR-001 to FR-004, contracts sections 1, 7 and 8).

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


# Agents that work side by side get a worktree each (FR-005 to FR-007, MF-004, SC-007).


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

    def _write_down(self, child: OwnWorktreeRequest, dispatch: DispatchRequest) -> None:
        worktree = child.worktree_context
        assert worktree is not None
        known = {"worktree_context": worktree, "current_request": child}
        share = dispatch.share_of(child.session_id)
        self._contexts.update(child.context_id, lambda before: before.evolve(**known, previous_request=share))
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
