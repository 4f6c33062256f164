"""Running decorators: order, stability, errors with a name, messages that stay what they were."""

from dataclasses import dataclass, field

import pytest

from launcher.workflow.chain import (
    DecoratorContext,
    DecoratorFailed,
    Request,
    Result,
    Results,
    decorate_request,
    decorate_result,
    decorate_results_request,
)
from launcher.workflow.requests import ArtifactKey, Message, TicketAgentRequest, TicketAgentResult, TicketAgentResults
from policy.errors import Refusal
from tests.support.workflow import World

KEY = ArtifactKey("run/one")
CONTEXT = DecoratorContext()


@dataclass
class Mark:
    """Appends its name to what the message says."""

    name: str
    order: int
    seen: list[DecoratorContext] = field(default_factory=list)

    def decorate(self, request: Request, context: DecoratorContext) -> Request:
        self.seen.append(context)
        return request.evolve(goal=request.goal + self.name)


@dataclass
class MarkResult:
    """The same for results of agents."""

    name: str
    order: int

    def decorate(self, result: Result, context: DecoratorContext) -> Result:
        return result.evolve(output=result.output + self.name)


@dataclass
class MarkResults:
    """The same for results of dispatches."""

    name: str
    order: int
    seen: list[DecoratorContext] = field(default_factory=list)

    def decorate(self, results: Results, context: DecoratorContext) -> Results:
        self.seen.append(context)
        return results.evolve(goal=results.goal + self.name)


@dataclass
class Broken:
    """Fails with an error of its own."""

    error: Exception
    name: str = "broken"
    order: int = 0

    def decorate(self, request: Request, context: DecoratorContext) -> Request:
        raise self.error


@pytest.mark.spec("FR-001", "CONTRACT-1")
def test_decorators_run_by_order_and_equals_as_given() -> None:
    """Ascending order, stable."""
    marks = [Mark("d", 5), Mark("b", 0), Mark("a", -6000), Mark("c", 0)]
    assert decorate_request(TicketAgentRequest(context_id=KEY), marks, CONTEXT).goal == "abcd"
    assert decorate_request(TicketAgentRequest(context_id=KEY), marks[::-1], CONTEXT).goal == "acbd"
    results = [MarkResult("b", 1), MarkResult("a", 0)]
    assert decorate_result(TicketAgentResult(context_id=KEY), results, CONTEXT).output == "ab"


@pytest.mark.spec("CONTRACT-1", "CONTRACT-8", "CONTRACT-9", "CONTRACT-10")
def test_the_places_of_the_specified_decorators() -> None:
    """Context repository, then worktree, then tools; merges at 1000, and node states behind them."""
    flow = World().flow
    assert [(each.name, each.order) for each in flow.request_decorators] == [
        ("request-context", -6000),
        ("worktree-context", -5000),
        ("attach-worktrees", -4900),
        ("tool-context", -4000),
        ("node-state", 1100),
    ]
    assert [each.order for each in flow.result_decorators] == [-6000, 1000, 1100]
    assert [(each.name, each.order) for each in flow.results_decorators] == [
        ("worktree-merge-results", 1000),
        ("node-state", 1100),
    ]


@pytest.mark.parametrize(
    "error", [Refusal("no-room", "there is no room", context="disk full", hint="df"), KeyError("x")]
)
def test_an_error_names_the_decorator_and_leaves_the_request(error: Exception) -> None:
    """Later decorators do not run; the caller's request is what it was; the cause is kept."""
    request = TicketAgentRequest(context_id=KEY, goal="it")
    after = Mark("after", 1)
    with pytest.raises(DecoratorFailed) as failed:
        decorate_request(request, [Mark("before", -1), Broken(error), after], CONTEXT)
    assert failed.value.decorator == "broken"
    assert failed.value.__cause__ is error
    assert "decorator broken failed on TicketAgentRequest run/one" in str(failed.value)
    if isinstance(error, Refusal):
        assert "disk full" in str(failed.value)
        assert failed.value.hint == "df"
    assert request.goal == "it"
    assert after.seen == []


def test_a_decorator_cannot_swap_the_message_for_another_kind() -> None:
    """What comes out is of the type that went in."""

    class Swaps:
        name = "swaps"
        order = 0

        def decorate(self, request: Message, context: DecoratorContext) -> Message:
            return TicketAgentResult(context_id=KEY)

    with pytest.raises(DecoratorFailed, match="swaps"):
        decorate_request(TicketAgentRequest(context_id=KEY), [Swaps()], CONTEXT)  # type: ignore[list-item]


@pytest.mark.spec("CONTRACT-12", "MF-015")
def test_results_of_a_dispatch_go_through_their_own_chain() -> None:
    """Sorted; each decorator is told the step and the last request; an error names the decorator."""
    last = TicketAgentRequest(context_id=KEY)
    marks = [MarkResults("b", 1000), MarkResults("a", 0)]
    results = TicketAgentResults(context_id=KEY)
    done = decorate_results_request(
        results, marks, last_request=last, agent_name="dispatch", action="collect", method="run"
    )
    assert done.goal == "ab"
    assert results.goal == ""
    told = marks[0].seen[0]
    assert told.last_request == last
    assert (told.operation.agent_name, told.operation.action, told.operation.method) == ("dispatch", "collect", "run")


@pytest.mark.spec("CONTRACT-12")
def test_without_decorators_results_stay_what_they_are() -> None:
    """An empty chain returns the very object."""
    results = TicketAgentResults(context_id=KEY)
    assert decorate_results_request(results, []) is results


def test_nothing_stays_nothing() -> None:
    """What is not there is answered as it is, whatever the chain (contracts sections 9, 10 and 12)."""
    assert decorate_request(None, [Mark("a", 0)], CONTEXT) is None
    assert decorate_result(None, [MarkResult("a", 0)], CONTEXT) is None
    assert decorate_results_request(None, [MarkResults("a", 0)]) is None
    flow = World().flow
    assert (flow.request(None), flow.result(None), flow.results(None)) == (None, None, None)
