"""Running decorators one after another."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from launcher.workflow.request_context import OperationContext
from launcher.workflow.requests import AgentRequest, AgentResult, AnyRequest, Frozen, Message, ResultsRequest
from policy.errors import Refusal

# What a decorator is, and what it is told (contracts sections 1, 9 and 10).


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
        """Its place: lower numbers come first; among equals, the order in which they were given. 0 by default."""
        return 0


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


MaybeRequest = TypeVar("MaybeRequest", bound=AgentRequest | None)
MaybeResult = TypeVar("MaybeResult", bound=AgentResult | None)
MaybeResults = TypeVar("MaybeResults", bound=ResultsRequest | None)
_Message = TypeVar("_Message", bound=Message | None)
_Ordered = TypeVar("_Ordered", bound=Ordered)


class DecoratorFailed(Refusal):
    """One decorator of a chain failed; the message that was to be decorated is as it was."""

    def __init__(self, decorator: str, message: Message, cause: Exception) -> None:
        """Names the decorator, the message and the cause (which is also `__cause__`)."""
        why = f"{cause.message}\n{cause.context}".rstrip() if isinstance(cause, Refusal) else repr(cause)
        super().__init__(
            "decorator-failed",
            f"decorator {decorator} failed on {type(message).__name__} {message.artifact_key}",
            context=why,
            hint=cause.hint if isinstance(cause, Refusal) else "",
        )
        self.decorator = decorator


def in_order(decorators: Sequence[_Ordered]) -> list[_Ordered]:
    """`decorators` by ascending order; among equals, as given."""
    return sorted(decorators, key=lambda decorator: getattr(decorator, "order", 0))


def decorate_request(
    request: MaybeRequest, decorators: Sequence[RequestDecorator], context: DecoratorContext
) -> MaybeRequest:
    """`request` after all decorators. Messages are immutable: after an error the caller's is as it was.

    None stays None, here and below (contracts sections 9, 10 and 12).
    """
    return _through(request, decorators, context)


def decorate_result(
    result: MaybeResult, decorators: Sequence[ResultDecorator], context: DecoratorContext
) -> MaybeResult:
    """`result` after all decorators; see `decorate_request`."""
    return _through(result, decorators, context)


def decorate_results_request(
    results: MaybeResults,
    decorators: Sequence[ResultsRequestDecorator],
    *,
    last_request: AgentRequest | None = None,
    agent_name: str | None = None,
    action: str | None = None,
    method: str | None = None,
) -> MaybeResults:
    """The results of a dispatch after all decorators: collected before, handed to the routing model afterwards.

    Args:
        results: what the agents have brought.
        decorators: none at all leave the results as they are.
        last_request: the dispatch that was answered; its worktree is the trunk.
        agent_name: the agent that collected them.
        action: the step of the workflow.
        method: the function that carries it out.

    Source: contracts section 12.
    """
    operation = OperationContext(agent_name=agent_name, action=action, method=method)
    context = DecoratorContext.model_validate({"last_request": last_request, "operation": operation})
    return _through(results, decorators, context)


def _through(message: _Message, decorators: Sequence[Any], context: DecoratorContext) -> _Message:
    for decorator in in_order(decorators) if message is not None else ():
        assert message is not None
        try:
            after = decorator.decorate(message, context)
            if type(after) is not type(message):
                raise TypeError(f"it returned {type(after).__name__} for {type(message).__name__}")
        except Exception as error:
            raise DecoratorFailed(decorator.name, message, error) from error
        message = after
    return message
