"""Everything that flows is written down under its session (contracts sections 1 and 8)."""

from typing import Protocol

from launcher.workflow.contexts.request_context import (
    ContextState,
    RequestContext,
    RequestContextRepository,
    ToolContext,
)
from launcher.workflow.decorators.chain import DecoratorContext, Request, Result
from launcher.workflow.graph.repository import GraphRepository, find_orchestrator
from launcher.workflow.requests.catalog import AgentRequest, TicketAgentRequest

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
    """Notes each result, and how its merge went, in the session's context."""

    name = "request-context"
    order = ORDER

    def __init__(self, contexts: RequestContextRepository) -> None:
        """Takes the repository to write to."""
        self._contexts = contexts

    def decorate(self, result: Result, context: DecoratorContext) -> Result:
        """`result`, as it is. A result of a session that is over or was never seen is not written down."""
        if self._contexts.state(result.context_id) not in (None, ContextState.EXPIRED):
            self._contexts.update(
                result.context_id,
                lambda before: before.with_metadata(last_result=result.artifact_key.value),
            )
        return result


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
    if context.last_request is not None:
        return context.last_request
    stored = before.current_request
    if stored is None or stored.artifact_key == request.artifact_key:
        return before.previous_request
    return stored
