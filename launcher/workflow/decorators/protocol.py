"""What a decorator is, and what it is told (contracts sections 1, 9 and 10)."""

from typing import Protocol, TypeVar

from launcher.workflow.contexts.request_context import OperationContext
from launcher.workflow.requests.base import AgentRequest, AgentResult, ResultsRequest
from launcher.workflow.requests.catalog import AnyRequest
from launcher.workflow.values import Frozen

Request = TypeVar("Request", bound=AgentRequest)
Result = TypeVar("Result", bound=AgentResult)
Results = TypeVar("Results", bound=ResultsRequest)


class DecoratorContext(Frozen):
    """Where in the workflow a message is.

    Attributes:
        last_request: the request that led to this message; its worktree is the parent's.
        operation: the step that it belongs to.
    """

    last_request: AnyRequest | None = None
    operation: OperationContext = OperationContext()


class Ordered(Protocol):
    """Anything with a place in a chain."""

    @property
    def name(self) -> str:
        """What error messages call it."""
        ...

    @property
    def order(self) -> int:
        """Its place: lower numbers come first; among equals, the order in which they were given."""
        ...


class RequestDecorator(Ordered, Protocol):
    """Enriches requests of every type, or returns them as they are."""

    def decorate(self, request: Request, context: DecoratorContext) -> Request:
        """`request`, enriched."""
        ...


class ResultDecorator(Ordered, Protocol):
    """Enriches the result of a dispatched agent, or returns it as it is."""

    def decorate(self, result: Result, context: DecoratorContext) -> Result:
        """`result`, enriched."""
        ...


class ResultsRequestDecorator(Ordered, Protocol):
    """Enriches the results of a whole dispatch, or returns them as they are."""

    def decorate(self, results: Results, context: DecoratorContext) -> Results:
        """`results`, enriched."""
        ...
