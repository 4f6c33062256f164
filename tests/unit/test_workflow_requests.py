"""Messages of the workflow: what all have, what some have, and that none ever changes."""

import pytest
from pydantic import TypeAdapter, ValidationError

from launcher.vcs.merge.descriptors import MergeAggregation, MergeDirection
from launcher.workflow.requests import (
    CONTRACT_TYPES,
    REQUEST_TYPES,
    RESULT_TYPES,
    RESULTS_TYPES,
    AgentRequest,
    AgentResult,
    AgentType,
    AnyRequest,
    ArtifactKey,
    DiscoveryAgentResult,
    DiscoveryAgentResults,
    PlanningAgentResult,
    PlanningAgentResults,
    ResultsRequest,
    TicketAgentRequest,
    TicketAgentRequests,
    TicketAgentResult,
    TicketAgentResults,
)
from tests.support.workflow import descriptor, worktree

KEY = ArtifactKey("run/ticket-1")
ANY_REQUEST: TypeAdapter[AgentRequest] = TypeAdapter(AnyRequest)


@pytest.mark.spec("FR-004", "CONTRACT-7")
def test_the_contract_names_eighteen_request_types() -> None:
    """All request types of contracts section 7 exist, each once."""
    assert len(CONTRACT_TYPES) == len({kind.__name__ for kind in CONTRACT_TYPES}) == 18


@pytest.mark.spec("FR-004", "CONTRACT-7")
@pytest.mark.parametrize("kind", REQUEST_TYPES)
def test_every_request_has_keys_and_room_for_a_worktree(kind: type[AgentRequest]) -> None:
    """Context id, artifact key and worktree context are part of every request type, and survive JSON."""
    request = kind(context_id=KEY, goal="do it").with_worktree_context(worktree("one", granted=("lib",)))
    assert (request.session_id, request.artifact_key) == ("run/ticket-1", KEY)
    assert request.worktree_context is not None
    assert request.worktree_context.worktree_id == "one"
    assert isinstance(request.agent_type, AgentType)
    back = ANY_REQUEST.validate_json(request.model_dump_json())
    assert type(back) is kind
    assert back == request


@pytest.mark.parametrize("kind", [*REQUEST_TYPES, *RESULT_TYPES])
def test_a_message_never_changes(kind: type[AgentRequest] | type[AgentResult]) -> None:
    """An update makes a new message; the old one stays, cannot be assigned to, and knows no other fields."""
    before = kind(context_id=KEY)
    after = before.with_worktree_context(worktree("one"))
    assert before.worktree_context is None
    assert after is not before
    assert after.with_worktree_context(after.worktree_context) is after
    with pytest.raises(ValidationError, match="frozen"):
        before.worktree_context = worktree("one")
    with pytest.raises(ValidationError, match="Extra inputs"):
        before.evolve(worktree="one")
    with pytest.raises(ValidationError, match="context_id"):
        kind.model_validate({})


def test_an_artifact_key_may_differ_from_the_context_id() -> None:
    """Two messages of one session have names of their own when they are given some."""
    request = TicketAgentRequest(context_id=KEY, artifact_key=KEY.child("attempt-2"))
    assert request.artifact_key.parent == request.context_id


@pytest.mark.spec("MF-014", "CONTRACT-11")
@pytest.mark.parametrize(
    ("results", "result"),
    [
        (TicketAgentResults, TicketAgentResult),
        (PlanningAgentResults, PlanningAgentResult),
        (DiscoveryAgentResults, DiscoveryAgentResult),
    ],
)
def test_results_of_a_dispatch_have_children_a_worktree_and_an_aggregation(
    results: type[ResultsRequest], result: type[AgentResult]
) -> None:
    """The three results families answer to one interface."""
    children = [result(context_id=KEY.child(name)) for name in "ab"]
    whole = results.model_validate({"context_id": KEY, "results": children})
    assert list(whole.child_results()) == children
    assert list(results.model_validate({"context_id": KEY}).child_results()) == []
    assert whole.merge_aggregation is None
    merged = whole.with_merge_aggregation(MergeAggregation())
    assert merged.merge_aggregation == MergeAggregation()
    assert type(merged) is results
    assert whole.merge_aggregation is None
    assert results in RESULTS_TYPES


@pytest.mark.spec("CONTRACT-9")
@pytest.mark.parametrize("kind", RESULT_TYPES)
def test_the_result_of_an_agent_has_room_for_a_merge_descriptor(kind: type[AgentResult]) -> None:
    """Ticket, planning and discovery results carry phase 1's outcome, through JSON too."""
    outcome = descriptor(MergeDirection.TRUNK_TO_CHILD, "a file")
    result = kind(context_id=KEY).with_merge_descriptor(outcome)
    assert result.merge_descriptor == outcome
    assert kind.model_validate_json(result.model_dump_json()) == result


def test_a_dispatch_takes_requests_of_its_own_family_only() -> None:
    """The single requests can be replaced, by requests of the same type."""
    one = TicketAgentRequest(context_id=KEY, ticket_id="T-1")
    dispatch = TicketAgentRequests(context_id=KEY, requests=(one,))
    replaced = dispatch.with_children([one.with_worktree_context(worktree("one"))])
    assert [child.worktree_context is not None for child in replaced.children] == [True]
    with pytest.raises(ValidationError):
        dispatch.evolve(requests=(TicketAgentResult(context_id=KEY),))


def test_a_worktree_is_named_after_the_ticket() -> None:
    """Without a ticket id it is named after the end of the context id."""
    assert TicketAgentRequest(context_id=KEY, ticket_id="T-1").worktree_label == "T-1"
    assert TicketAgentRequest(context_id=KEY).worktree_label == "ticket-1"


@pytest.mark.parametrize("text", ["", "/", "a/", "/a", "a//b", "..", "a/../b", "a b", "a\nb", "a\0", "ä", "x" * 513])
def test_an_artifact_key_is_plain(text: str) -> None:
    """A key means nothing to HTTP headers, shells and file systems."""
    with pytest.raises(ValidationError):
        ArtifactKey(text)


def test_artifact_keys_are_values() -> None:
    """Equal texts are equal keys; new keys are all different; a child knows its parent."""
    assert ArtifactKey("a/b") == ArtifactKey("a").child("b")
    assert len({ArtifactKey("a"), ArtifactKey("a"), ArtifactKey("b")}) == 2
    assert ArtifactKey("a/b").parent == ArtifactKey("a")
    assert ArtifactKey("a").parent is None
    assert ArtifactKey.new("run") != ArtifactKey.new("run")
    assert str(ArtifactKey("a")) == ArtifactKey("a").value == "a"
