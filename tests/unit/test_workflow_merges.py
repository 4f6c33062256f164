"""Both merge phases, as the decorators see them: who is merged into whom, and what is put on the message."""

from collections.abc import Sequence

import pytest

from launcher.vcs.merge.descriptors import AgentMergeStatus, MergeAggregation, MergeDirection
from launcher.workflow.chain import DecoratorFailed
from launcher.workflow.graph import NodeStatus
from launcher.workflow.requests import (
    REQUEST_TYPES,
    AgentRequest,
    AgentResult,
    ArtifactKey,
    DiscoveryAgentRequest,
    DiscoveryAgentRequests,
    DiscoveryAgentResult,
    DiscoveryAgentResults,
    DispatchRequest,
    MergerInterruptRequest,
    MergerRequest,
    OrchestratorRequest,
    PlanningAgentRequest,
    PlanningAgentRequests,
    PlanningAgentResult,
    PlanningAgentResults,
    ResultsRequest,
    TicketAgentRequest,
    TicketAgentRequests,
    TicketAgentResult,
    TicketAgentResults,
)
from policy.sandbox_context import WorktreeSandboxContext
from tests.support.workflow import ROOT, World, worktree

DISPATCH = ROOT.child("dispatch")
Family = tuple[type[DispatchRequest], type[AgentRequest], type[AgentResult], type[ResultsRequest]]
TICKETS: Family = (TicketAgentRequests, TicketAgentRequest, TicketAgentResult, TicketAgentResults)
FAMILIES: list[Family] = [
    TICKETS,
    (PlanningAgentRequests, PlanningAgentRequest, PlanningAgentResult, PlanningAgentResults),
    (DiscoveryAgentRequests, DiscoveryAgentRequest, DiscoveryAgentResult, DiscoveryAgentResults),
]


class Dispatched:
    """A dispatch that was sent out, and the results of its agents.

    Args:
        world: the workflow.
        family: which kind of dispatch.
        names: its agents.
        conflicting: names of agents whose work conflicts with the trunk.
    """

    def __init__(
        self, world: World, family: Family = TICKETS, names: str = "abcd", conflicting: Sequence[str] = ()
    ) -> None:
        requests, request, self.result, self.results = family
        first = world.flow.request(OrchestratorRequest(context_id=ROOT))
        children = [request(context_id=DISPATCH.child(name)) for name in names]
        self.world = world
        self.sent = world.flow.request(requests.model_validate({"context_id": DISPATCH, "requests": children}), first)
        self.places = {child.session_id: child.worktree_context for child in self.sent.children}
        for child in self.sent.children:
            world.flow.request(child, self.sent)
        world.merges.conflicts = frozenset(
            place.worktree_id
            for session, place in self.places.items()
            if place is not None and session[-1] in conflicting
        )

    def answers(self) -> list[AgentResult]:
        return [self.world.flow.result(self.result(context_id=child.context_id), child) for child in self.sent.children]

    def collected(self, answers: Sequence[AgentResult] | None = None) -> MergeAggregation | None:
        children = self.answers() if answers is None else answers
        whole = self.results.model_validate({"context_id": DISPATCH, "results": children})
        return self.world.flow.results(whole, self.sent).merge_aggregation

    def statuses(self) -> list[NodeStatus]:
        nodes = [self.world.graph.get(session) for session in self.places]
        return [node.status for node in nodes if node is not None]


@pytest.fixture
def world() -> World:
    return World()


def ids(statuses: Sequence[AgentMergeStatus]) -> str:
    return "".join(status.agent_result_id[-1] for status in statuses)


@pytest.mark.spec("MF-009", "MF-010", "MF-012", "MF-013", "SM-MF-001", "CONTRACT-9")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_trunk_is_merged_into_every_agents_worktree(world: World, family: Family) -> None:
    """Every result of the three families has a descriptor in the right direction, and its agent's worktree."""
    dispatch = Dispatched(world, family, conflicting="b")
    answers = dispatch.answers()
    assert world.merges.asked == [("main", place.worktree_id) for place in dispatch.places.values() if place]
    outcomes = [answer.merge_descriptor for answer in answers]
    assert [outcome and outcome.successful for outcome in outcomes] == [True, False, True, True]
    assert {outcome and outcome.merge_direction for outcome in outcomes} == {MergeDirection.TRUNK_TO_CHILD}
    assert outcomes[1] is not None
    assert outcomes[1].conflict_files == ("src/file",)
    assert [answer.worktree_context for answer in answers] == list(dispatch.places.values())
    assert dispatch.statuses() == [
        NodeStatus.COMPLETED,
        NodeStatus.CONFLICTED,
        NodeStatus.COMPLETED,
        NodeStatus.COMPLETED,
    ]


@pytest.mark.spec("CONTRACT-9")
def test_the_trunk_is_that_of_the_dispatch(world: World) -> None:
    """Whether the last request is the dispatch, the agent's own request, or nobody's: the trunk is the same."""
    dispatch = Dispatched(world, names="a")
    (child,) = dispatch.sent.children
    for last in (dispatch.sent, child, None):
        world.merges.asked.clear()
        world.flow.result(TicketAgentResult(context_id=child.context_id), last)
        assert [trunk for trunk, _ in world.merges.asked] == ["main"]


@pytest.mark.spec("EC-MF-006")
def test_without_a_worktree_a_result_stays_what_it_is(world: World) -> None:
    """Nothing is merged and nothing is said about merging."""
    result = TicketAgentResult(context_id=ArtifactKey("stranger"))
    assert world.flow.result(result) == result
    lonely = world.worktrees.add(worktree("lonely"))
    claimed = result.with_worktree_context(lonely)  # it has a worktree, and nobody has sent it out
    assert world.flow.result(claimed).merge_descriptor is None
    assert world.merges.asked == []


def test_a_result_cannot_name_a_worktree_that_is_not_its_agents(world: World) -> None:
    """What was written down for the session counts; an invented worktree does not."""
    dispatch = Dispatched(world, names="ab")
    one, two = dispatch.places.values()
    stolen = TicketAgentResult(context_id=DISPATCH.child("a"), worktree_context=two)
    assert world.flow.result(stolen, dispatch.sent).worktree_context == one
    stranger = TicketAgentResult(context_id=ArtifactKey("stranger"), worktree_context=worktree("invented"))
    assert world.flow.result(stranger, dispatch.sent).merge_descriptor is None


@pytest.mark.spec("EDGE-3")
def test_an_agent_that_works_in_the_trunk_has_nothing_to_merge(world: World) -> None:
    """A shared worktree is allowed: both phases succeed without merging anything."""
    first = world.flow.request(OrchestratorRequest(context_id=ROOT))
    key = DISPATCH.child("shared")
    request = world.flow.request(DiscoveryAgentRequest(context_id=key), first)
    assert request.worktree_context == world.main
    result = world.flow.result(DiscoveryAgentResult(context_id=key), first)
    assert result.merge_descriptor is not None
    assert result.merge_descriptor.no_op
    whole = DiscoveryAgentResults(context_id=DISPATCH, results=(result,))
    aggregation = world.flow.results(whole, first).merge_aggregation
    assert aggregation is not None
    assert aggregation.all_successful
    assert world.merges.asked == []


@pytest.mark.spec("EDGE-3")
@pytest.mark.parametrize(
    ("conflicting", "merged", "pending", "asked"),
    [("", "abcd", "", ["a", "b", "d"]), ("b", "a", "cd", ["a", "b"]), ("a", "", "bcd", ["a"])],
)
def test_two_agents_in_one_worktree_are_merged_once(
    world: World, conflicting: str, merged: str, pending: str, asked: list[str]
) -> None:
    """c shares a's worktree: it is told to have brought nothing new, or waits behind a conflict like everybody."""
    dispatch = Dispatched(world, conflicting=conflicting)
    place = dispatch.places["run/dispatch/a"]
    world.contexts.update(DISPATCH.child("c"), lambda context: context.evolve(worktree_context=place))
    answers = dispatch.answers()
    world.merges.asked.clear()
    aggregation = dispatch.collected(answers)
    assert aggregation is not None
    assert (ids(aggregation.merged), ids(aggregation.pending)) == (merged, pending)
    trees = {context.worktree_id: session[-1] for session, context in dispatch.places.items() if context is not None}
    assert [trees[child] for child, _ in world.merges.asked] == asked
    told = {status.agent_result_id[-1]: status.merge_descriptor for status in aggregation.merged}
    if "c" in merged:
        assert told["c"] is not None
        assert told["c"].no_op


@pytest.mark.spec("EC-MF-004")
def test_a_deleted_trunk_is_a_failed_merge_and_no_crash(world: World) -> None:
    """The descriptor says what is missing, and the agent's node is in conflict."""
    dispatch = Dispatched(world, names="a")
    del world.worktrees.known["main"]
    key = DISPATCH.child("a")
    world.contexts.clear(key)
    place = dispatch.places[key.value]
    result = world.flow.result(TicketAgentResult(context_id=key, worktree_context=place))
    assert result.merge_descriptor is not None
    assert not result.merge_descriptor.successful
    assert "main no longer exists" in (result.merge_descriptor.error_message or "")
    assert dispatch.statuses() == [NodeStatus.CONFLICTED]


@pytest.mark.spec("MF-016", "MF-017", "MF-019", "MF-021", "SM-MF-002", "SM-MF-004", "CONTRACT-10")
@pytest.mark.parametrize("family", FAMILIES)
def test_all_agents_are_merged_into_the_trunk_in_order(world: World, family: Family) -> None:
    """Each child once, in the order of the results; the aggregation is on the message for the routing model."""
    dispatch = Dispatched(world, family)
    answers = dispatch.answers()
    world.merges.asked.clear()
    aggregation = dispatch.collected(answers)
    assert aggregation is not None
    assert world.merges.asked == [(place.worktree_id, "main") for place in dispatch.places.values() if place]
    assert (ids(aggregation.merged), aggregation.pending, aggregation.conflicted) == ("abcd", (), None)
    assert aggregation.all_successful
    assert dispatch.statuses() == [NodeStatus.MERGED] * 4


@pytest.mark.spec("MF-020", "MF-019", "SM-MF-004", "CONTRACT-10")
@pytest.mark.parametrize("first", "abcd")
def test_merging_stops_at_the_first_conflict(world: World, first: str) -> None:
    """Those before are merged, those behind are pending, and nobody is lost; nodes say the same."""
    dispatch = Dispatched(world, conflicting=(first, "d"))
    aggregation = dispatch.collected()
    assert aggregation is not None
    assert aggregation.conflicted is not None
    before, _, behind = "abcd".partition(first)
    assert (ids(aggregation.merged), ids(aggregation.pending)) == (before, behind)
    assert aggregation.conflicted.agent_result_id == f"run/dispatch/{first}"
    assert aggregation.total_count == 4
    assert dispatch.statuses() == [
        *[NodeStatus.MERGED] * len(before),
        NodeStatus.CONFLICTED,
        *[NodeStatus.WAITING_MERGE] * len(behind),
    ]


@pytest.mark.spec("EC-MF-007")
def test_a_conflict_of_phase_one_does_not_stop_phase_two(world: World) -> None:
    """The agent is tried again, and both descriptors stand side by side."""
    dispatch = Dispatched(world, conflicting="b")
    answers = dispatch.answers()
    world.merges.conflicts = frozenset()  # the agent has resolved it in the meantime
    aggregation = dispatch.collected(answers)
    assert aggregation is not None
    assert aggregation.all_successful
    second = aggregation.merged[1]
    assert second.merge_descriptor is not None
    assert second.merge_descriptor.successful
    assert second.child_merge_descriptor is not None
    assert not second.child_merge_descriptor.successful
    assert dispatch.statuses() == [NodeStatus.MERGED] * 4


@pytest.mark.spec("EC-MF-006")
def test_an_agent_without_a_worktree_counts_as_merged(world: World) -> None:
    """It is in the aggregation, and the merge service is not asked about it."""
    dispatch = Dispatched(world, names="ab")
    answers = [*dispatch.answers(), TicketAgentResult(context_id=DISPATCH.child("x"))]
    aggregation = dispatch.collected(answers)
    assert aggregation is not None
    assert ids(aggregation.merged) == "abx"


@pytest.mark.spec("EC-MF-006")
def test_a_dispatch_without_a_worktree_stays_what_it_is(world: World) -> None:
    """No trunk, no aggregation."""
    whole = TicketAgentResults(
        context_id=ArtifactKey("stranger"), results=(TicketAgentResult(context_id=ArtifactKey("x")),)
    )
    assert world.flow.results(whole) == whole


def test_the_trunk_is_known_without_a_last_request(world: World) -> None:
    """What was written down for the dispatch counts, then what the worktree service confirms."""
    dispatch = Dispatched(world, names="a")
    whole = TicketAgentResults.model_validate({"context_id": DISPATCH, "results": dispatch.answers()})
    assert world.flow.results(whole).merge_aggregation is not None
    world.contexts.clear(DISPATCH)
    assert world.flow.results(whole.with_worktree_context(worktree("invented"))).merge_aggregation is None
    assert world.flow.results(whole.with_worktree_context(world.main)).merge_aggregation is not None


def test_two_results_of_one_agent_are_refused_before_anything_is_merged(world: World) -> None:
    """An agent stands in one place only."""
    dispatch = Dispatched(world, names="a")
    (answer,) = dispatch.answers()
    world.merges.asked.clear()
    with pytest.raises(DecoratorFailed, match="worktree-merge-results") as failed:
        dispatch.collected([answer, answer])
    assert "run/dispatch/a" in str(failed.value)
    assert world.merges.asked == []


@pytest.mark.spec("SM-MF-004")
def test_a_merge_service_that_forgets_an_agent_is_noticed(world: World) -> None:
    """Merged, conflicted and pending together are the results, in their order."""

    class Forgets(type(world.merges)):  # type: ignore[misc]  # the class of a fixture
        def merge_children_to_trunk(
            self, children: Sequence[AgentMergeStatus], trunk: WorktreeSandboxContext
        ) -> MergeAggregation:
            whole: MergeAggregation = super().merge_children_to_trunk(children[1:], trunk)
            return whole

    dispatch = Dispatched(world)
    answers = dispatch.answers()
    world.merges = Forgets()
    with pytest.raises(DecoratorFailed, match="worktree-merge-results"):
        dispatch.collected(answers)


@pytest.mark.spec("MF-022")
def test_decorators_decide_nothing_about_a_conflict(world: World) -> None:
    """The dispatch waits for the routing model; its request to merge, or to ask a person, moves the agent's node."""
    dispatch = Dispatched(world, conflicting="b")
    aggregation = dispatch.collected()
    assert aggregation is not None
    assert aggregation.conflicted is not None
    agent = aggregation.conflicted.agent_result_id
    stored = [world.contexts.get(session) for session in (*dispatch.places, DISPATCH.value)]
    requests = {type(context.current_request) for context in stored if context is not None}
    assert requests == {TicketAgentRequest, TicketAgentResults}  # nobody was sent out to merge anything

    def status() -> NodeStatus:
        node = world.graph.get(agent)
        assert node is not None
        return node.status

    assert status() is NodeStatus.CONFLICTED
    merger = MergerRequest(context_id=ROOT.child("merger"), conflicted=aggregation.conflicted)
    sent = world.flow.request(merger, dispatch.sent)
    assert sent.worktree_context == aggregation.conflicted.worktree_context
    assert status() is NodeStatus.MERGING
    ask = MergerInterruptRequest(context_id=ROOT.child("ask"), ticket_agent=ArtifactKey(agent), reason="both edit it")
    world.flow.request(ask, dispatch.sent)
    assert status() is NodeStatus.WAITING_INPUT
    assert {MergerRequest, MergerInterruptRequest} <= set(REQUEST_TYPES)


def test_the_dispatchs_own_node_waits_or_is_complete(world: World) -> None:
    """All merged: complete; else it waits for a decision."""
    for conflicting, expected in (("", NodeStatus.COMPLETED), ("c", NodeStatus.WAITING_DECISION)):
        fresh = World()
        node = fresh.graph.get("run")
        assert node is not None
        fresh.graph.save(node.evolve(node_id=DISPATCH.value, parent_id="run", worktree_id=None))
        Dispatched(fresh, conflicting=conflicting).collected()
        after = fresh.graph.get(DISPATCH.value)
        assert after is not None
        assert after.status is expected


def test_a_canceled_node_does_not_lose_the_merge(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """What is merged is merged: the message keeps its outcome, the node stays canceled, the log tells."""
    dispatch = Dispatched(world, names="a")
    world.graph.update("run/dispatch/a", lambda node: node.moved_to(NodeStatus.CANCELED))
    aggregation = dispatch.collected()
    assert aggregation is not None
    assert aggregation.all_successful
    assert dispatch.statuses() == [NodeStatus.CANCELED]
    assert "stays canceled" in caplog.text
