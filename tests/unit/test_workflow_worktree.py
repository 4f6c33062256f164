"""Every request gets the worktree of its receiver, whatever it claims itself."""

from pathlib import Path

import pytest

from launcher.vcs.merge.descriptors import AgentMergeStatus, MergeAggregation, MergeDirection
from launcher.workflow.chain import DecoratorFailed
from launcher.workflow.graph import Node
from launcher.workflow.request_context import ContextState, OperationContext
from launcher.workflow.requests import (
    REQUEST_TYPES,
    AgentRequest,
    AgentType,
    ArtifactKey,
    DiscoveryOrchestratorRequest,
    MergerInterruptRequest,
    MergerRequest,
    OrchestratorRequest,
    OwnWorktreeRequest,
    ResultsRequest,
    ReviewRequest,
    TicketAgentRequest,
    TicketAgentResult,
    TicketAgentResults,
    TicketOrchestratorRequest,
    WorkOfAnAgentRequest,
)
from launcher.workflow.worktrees import granted_part, trusted
from policy.errors import Refusal
from tests.support.workflow import ROOT, TOOLS, World, descriptor, worktree


@pytest.fixture
def world() -> World:
    return World()


def parent(world: World) -> OrchestratorRequest:
    return world.flow.request(OrchestratorRequest(context_id=ROOT))


@pytest.mark.spec("US1.1", "FR-002", "MF-002", "CONTRACT-7")
def test_the_orchestrators_worktree_is_that_of_its_node(world: World) -> None:
    """It is looked up by context id, with and without submodules, whatever the request or its parent says."""
    assert parent(world).worktree_context == world.main
    bare = world.worktrees.add(worktree("bare"))
    world.graph.save(Node(node_id="other", agent_type=AgentType.ORCHESTRATOR, worktree_id="bare"))
    liar = OrchestratorRequest(context_id=ArtifactKey("other"), worktree_context=world.main)
    assert world.flow.request(liar, parent(world)).worktree_context == bare


@pytest.mark.spec("US1.2", "US1.3", "FR-003", "FR-004", "MF-001", "MF-003", "SC-001", "SC-008", "CONTRACT-7")
@pytest.mark.parametrize("kind", [kind for kind in REQUEST_TYPES if kind is not OrchestratorRequest])
def test_every_other_request_inherits_from_its_parent(world: World, kind: type[AgentRequest]) -> None:
    """Main worktree and submodules pass from request to request and are written down under each session."""
    first = parent(world)
    second = world.flow.request(kind(context_id=ROOT.child("two")), first)
    third = world.flow.request(kind(context_id=ROOT.child("two/three")), second)
    for request in (second, third):
        assert request.worktree_context == world.main
        assert [module.submodule_name for module in world.main.submodule_worktrees] == ["lib", "doc"]
        stored = world.contexts.get(request.context_id)
        assert stored is not None
        assert stored.worktree_context == world.main
        assert stored.current_request == request
    assert type(third) is kind


@pytest.mark.spec("FR-003")
@pytest.mark.parametrize(
    "kind", [kind for kind in REQUEST_TYPES if not issubclass(kind, OwnWorktreeRequest | WorkOfAnAgentRequest)]
)
def test_a_request_cannot_choose_its_boundaries(world: World, kind: type[AgentRequest]) -> None:
    """Neither an invented nor another agent's worktree replaces the inherited one."""
    known = world.worktrees.add(worktree("somebody", parent="elsewhere"))
    for claimed in (worktree("invented"), known):
        request = kind(context_id=ROOT.child("x"), worktree_context=claimed)
        last = parent(world)
        assert world.flow.request(request, last).worktree_context == world.main


def test_an_agent_request_cannot_choose_another_agents_worktree(world: World) -> None:
    """Its own tree must be known to the service, lie where it says, and be made from the parent's."""
    last = parent(world)
    elsewhere = world.worktrees.add(worktree("elsewhere", parent="other"))
    mine = world.worktrees.add(worktree("mine", parent="main"))
    moved = mine.model_copy(
        update={"main_worktree": mine.main_worktree.model_copy(update={"worktree_path": Path("/etc")})}
    )
    for number, claimed in enumerate((worktree("invented", parent="main"), elsewhere, moved)):
        request = TicketAgentRequest(context_id=ROOT.child(f"a{number}"), worktree_context=claimed)
        assert world.flow.request(request, last).worktree_context == world.main
    honest = TicketAgentRequest(context_id=ROOT.child("honest"), worktree_context=mine)
    assert world.flow.request(honest, last).worktree_context == mine


def test_a_claim_can_only_narrow_the_boundaries(world: World) -> None:
    """Submodules that it leaves out are closed, exceptions are added, and nothing is opened."""
    service = world.worktrees
    service.add(worktree("w", granted=("a", "b"), closed=("c",)))
    claim = worktree("w", granted=("a", "c"), closed=("b",)).model_copy(update={"denied_paths": (Path("/trees/w/x"),)})
    found = trusted(service, claim)
    assert found is not None
    assert [module.submodule_name for module in found.submodule_worktrees] == ["a"]
    assert {module.submodule_name for module in found.ungranted_submodules} == {"b", "c"}
    assert found.denied_paths == (Path("/trees/w/x"),)
    assert trusted(service, None) is None
    assert trusted(service, worktree("unknown")) is None


def test_only_what_is_granted_can_be_granted_on(world: World) -> None:
    """A part of the submodules stays open; naming one that is closed already is refused."""
    whole = worktree("w", granted=("a", "b"), closed=("c",))
    assert granted_part(whole, None) is whole
    assert granted_part(whole, ()).submodule_worktrees == ()
    assert len(granted_part(whole, ()).ungranted_submodules) == 3
    with pytest.raises(Refusal) as refused:
        granted_part(whole, ("a", "c"))
    assert refused.value.reference == "submodule-unknown"


@pytest.mark.spec("EDGE-1")
def test_a_request_before_the_worktree_goes_on_without_one(world: World) -> None:
    """Nothing is enforced yet and nothing is known; as soon as the node has a worktree, later requests find it."""
    world.graph.save(Node(node_id="early", agent_type=AgentType.ORCHESTRATOR))
    key = ArtifactKey("early")
    first = world.flow.request(OrchestratorRequest(context_id=key))
    child = world.flow.request(DiscoveryOrchestratorRequest(context_id=key.child("d")), first)
    assert first.worktree_context is None
    assert child.worktree_context is None
    assert world.contexts.get_worktree_context("early") is None
    world.graph.update("early", lambda node: node.evolve(worktree_id="main"))
    late = world.flow.request(DiscoveryOrchestratorRequest(context_id=key.child("d")), first)
    assert late.worktree_context == world.main
    assert world.contexts.get_worktree_context("early/d") == world.main


@pytest.mark.spec("EDGE-5")
def test_a_worktree_that_is_gone_stops_the_request(world: World) -> None:
    """Nobody is sent to work without boundaries; what was written down before stays, so tools stay confined."""
    parent(world)
    world.worktrees.known.clear()
    with pytest.raises(DecoratorFailed, match="worktree-context"):
        parent(world)
    assert world.contexts.get_worktree_context("run") == world.main
    world.graph.update("run", lambda node: node.evolve(worktree_id=None))
    assert parent(world).worktree_context is None
    assert world.contexts.get_worktree_context("run") == world.main


@pytest.mark.spec("EDGE-3")
def test_two_agents_may_share_a_worktree(world: World) -> None:
    """Sessions that inherit the same worktree are allowed, and each has its boundaries under its own id."""
    last = parent(world)
    for name in ("one", "two"):
        world.flow.request(DiscoveryOrchestratorRequest(context_id=ROOT.child(name)), last)
        assert world.contexts.get_worktree_context(f"run/{name}") == world.main


@pytest.mark.spec("CONTRACT-7")
@pytest.mark.parametrize("kind", [ReviewRequest, MergerRequest, MergerInterruptRequest])
def test_work_about_an_agent_happens_in_its_worktree(world: World, kind: type[WorkOfAnAgentRequest]) -> None:
    """The conflicted agent's tree, named or taken from the results, else the ticket agent's, else the inherited one."""
    last = parent(world)
    one = world.worktrees.add(worktree("one", parent="main"))
    two = world.worktrees.add(worktree("two", parent="main"))
    world.contexts.update(ROOT.child("b"), lambda context: context.evolve(worktree_context=two))
    failed = AgentMergeStatus(
        agent_result_id="run/a",
        worktree_context=one,
        merge_descriptor=descriptor(MergeDirection.CHILD_TO_TRUNK, "file"),
    )
    results = TicketAgentResults(
        context_id=ROOT, worktree_context=world.main, merge_aggregation=MergeAggregation(conflicted=failed)
    )
    key = ROOT.child("m")

    def place(request: WorkOfAnAgentRequest, before: AgentRequest) -> str:
        found = world.flow.request(request, before).worktree_context
        assert found is not None
        return found.worktree_id

    assert place(kind(context_id=key, conflicted=failed, ticket_agent=ROOT.child("b")), last) == "one"
    assert place(kind(context_id=key, ticket_agent=ROOT.child("b")), results) == "one"
    assert place(kind(context_id=key, ticket_agent=ROOT.child("b")), last) == "two"
    assert place(kind(context_id=key), last) == "main"
    invented = failed.model_copy(update={"worktree_context": worktree("invented")})
    assert place(kind(context_id=key, conflicted=invented), last) == "main"


@pytest.mark.spec("FR-004b", "FR-004c", "CONTRACT-8", "FR-017")
def test_what_flows_is_written_down_under_its_session(world: World) -> None:
    """Requests, worktree, tools, step and nodes; tools find the boundaries by the session's text."""
    first = parent(world)
    key = ROOT.child("t")
    step = OperationContext(agent_name="orchestrator", action="hand-out", method="run")
    request = world.flow.request(TicketAgentRequest(context_id=key, goal="it"), first, step)
    context = world.contexts.get("run/t")
    assert context is not None
    assert context.state is ContextState.ENRICHED
    assert context.session_id == request.session_id
    assert (context.current_request, context.previous_request) == (request, first)
    assert (context.worktree_context, context.tool_context) == (world.main, TOOLS)
    assert context.operation_context == step
    assert (context.orchestrator_node_id, context.ticket_node_id) == ("run", "run/t")
    assert world.contexts.get_worktree_context("run/t") == world.main
    assert world.contexts.state("run/t") is ContextState.CONSUMED


def test_the_request_before_is_remembered(world: World) -> None:
    """Without a parent it is what the session was asked last; the same request again changes nothing."""
    key = ROOT.child("t")
    first = world.flow.request(TicketOrchestratorRequest(context_id=key, artifact_key=key.child("1")))
    second = TicketOrchestratorRequest(context_id=key, artifact_key=key.child("2"))
    for _ in range(2):
        world.flow.request(second)
        context = world.contexts.get(key)
        assert context is not None
        assert context.previous_request == first


def test_a_result_is_noted_in_a_living_session_only(world: World) -> None:
    """An ended session stays ended."""
    key = ROOT.child("t")
    last = world.flow.request(TicketAgentRequest(context_id=key), parent(world))
    result = TicketAgentResult(context_id=key, artifact_key=key.child("result"))
    world.flow.result(result, last)
    context = world.contexts.get(key)
    assert context is not None
    assert context.result is not None
    assert context.result.artifact_key.value == "run/t/result"
    world.contexts.clear(key)
    world.flow.result(result, last)
    assert world.contexts.state(key) is ContextState.EXPIRED


def test_results_of_a_dispatch_are_requests_too(world: World) -> None:
    """They flow through the request decorators like all others."""
    assert issubclass(TicketAgentResults, ResultsRequest)
    assert world.flow.request(TicketAgentResults(context_id=ROOT), parent(world)).worktree_context == world.main
