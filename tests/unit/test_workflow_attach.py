"""Agents that work side by side get a worktree each."""

import pytest

from launcher.workflow.chain import DecoratorFailed
from launcher.workflow.graph import Node
from launcher.workflow.requests import (
    AgentType,
    ArtifactKey,
    DiscoveryAgentRequest,
    DiscoveryAgentRequests,
    DispatchRequest,
    OrchestratorRequest,
    OwnWorktreeRequest,
    PlanningAgentRequest,
    PlanningAgentRequests,
    TicketAgentRequest,
    TicketAgentRequests,
)
from tests.support.workflow import ROOT, World, worktree

FAMILIES = [
    (TicketAgentRequests, TicketAgentRequest),
    (DiscoveryAgentRequests, DiscoveryAgentRequest),
    (PlanningAgentRequests, PlanningAgentRequest),
]
NAMES = ("a", "b", "c")
DISPATCH = ROOT.child("dispatch")


@pytest.fixture
def world() -> World:
    return World()


def parent(world: World) -> OrchestratorRequest:
    return world.flow.request(OrchestratorRequest(context_id=ROOT))


def tickets(names: tuple[str, ...] = NAMES) -> TicketAgentRequests:
    requests = tuple(TicketAgentRequest(context_id=DISPATCH.child(name), ticket_id=f"T-{name}") for name in names)
    return TicketAgentRequests(context_id=DISPATCH, requests=requests)


def places(dispatch: DispatchRequest) -> list[str]:
    return [child.worktree_context.worktree_id for child in dispatch.children if child.worktree_context]


@pytest.mark.spec("US7.1", "US7.2", "FR-005", "FR-007", "MF-004", "SC-007")
@pytest.mark.parametrize(("dispatch", "single"), FAMILIES)
def test_every_agent_of_a_dispatch_gets_a_worktree_of_its_own(
    world: World, dispatch: type[DispatchRequest], single: type[OwnWorktreeRequest]
) -> None:
    """Distinct, made from the dispatch's, with all submodules, and known under the agent's session and node."""
    children = [single(context_id=DISPATCH.child(name)) for name in NAMES]
    sent = world.flow.request(dispatch.model_validate({"context_id": DISPATCH, "requests": children}), parent(world))
    assert sent.worktree_context == world.main
    assert len(set(places(sent))) == len(NAMES)
    for child in sent.children:
        own = child.worktree_context
        assert own is not None
        assert own.parent_worktree_id == "main"
        assert [module.submodule_name for module in own.submodule_worktrees] == ["lib", "doc"]
        assert world.contexts.get_worktree_context(child.session_id) == own
        node = world.graph.get(child.session_id)
        assert node is not None
        assert (node.worktree_id, node.parent_id, node.agent_type) == (own.worktree_id, "run", single.agent_type)


@pytest.mark.spec("FR-007", "US7.2", "CONTRACT-7")
def test_a_single_request_carries_the_worktree_that_was_attached(world: World) -> None:
    """On its way to the agent it keeps its own tree and does not fall back to its parent's."""
    sent = world.flow.request(tickets(), parent(world))
    for child in sent.children:
        assert world.flow.request(child, sent).worktree_context == child.worktree_context
        bare = child.with_worktree_context(None)
        assert world.flow.request(bare, sent).worktree_context == child.worktree_context
    world.contexts.clear(sent.children[0].context_id)  # the dispatch still says which tree it is
    again = world.flow.request(sent.children[0].with_worktree_context(None), sent)
    assert again.worktree_context == sent.children[0].worktree_context


def test_a_dispatch_may_run_again(world: World) -> None:
    """Agents that have their worktree keep it; a new one gets one; nothing is made twice."""
    first = world.flow.request(tickets(("a", "b")), parent(world))
    count = len(world.worktrees.known)
    assert places(world.flow.request(first, parent(world))) == places(first)
    second = world.flow.request(tickets(("a", "b", "c")), parent(world))
    assert places(second)[:2] == places(first)
    assert len(world.worktrees.known) == count + 1


def test_another_trunk_means_other_worktrees(world: World) -> None:
    """An agent's tree from an earlier dispatch in another worktree is not used again."""
    first = world.flow.request(tickets(), parent(world))
    world.worktrees.add(worktree("next"))
    world.graph.update("run", lambda node: node.evolve(worktree_id="next"))
    second = world.flow.request(tickets(), parent(world))
    assert not set(places(first)) & set(places(second))
    assert {world.worktrees.known[name].parent_worktree_id for name in places(second)} == {"next"}


def test_an_existing_node_keeps_what_it_is(world: World) -> None:
    """Only its worktree is new."""
    node = Node(node_id="run/dispatch/a", agent_type=AgentType.TICKET_AGENT, parent_id="run", title="mine")
    world.graph.save(node)
    sent = world.flow.request(tickets(), parent(world))
    assert world.graph.get("run/dispatch/a") == node.evolve(worktree_id=places(sent)[0])


def test_no_agent_is_granted_more_than_its_parent(world: World) -> None:
    """A submodule that is closed to the dispatch is closed in all new worktrees."""
    world.graph.update("run", lambda node: node.evolve(granted_submodules=("lib",)))
    sent = world.flow.request(tickets(), parent(world))
    for child in sent.children:
        own = child.worktree_context
        assert own is not None
        assert [module.submodule_name for module in own.submodule_worktrees] == ["lib"]
        assert [module.submodule_name for module in own.ungranted_submodules] == ["doc"]
        node = world.graph.get(child.session_id)
        assert node is not None
        assert node.granted_submodules == ("lib",)


@pytest.mark.spec("US6.1", "US6.2")
def test_a_node_says_which_submodules_its_agent_gets(world: World) -> None:
    """Two agents of one dispatch may be granted different ones; one that does not exist stops the dispatch."""
    for name, granted in (("a", ("lib",)), ("b", ("doc",))):
        world.graph.save(
            Node(node_id=f"run/dispatch/{name}", agent_type=AgentType.TICKET_AGENT, granted_submodules=granted)
        )
    for _ in range(2):  # the second time the worktrees are there already
        sent = world.flow.request(tickets(), parent(world))
        contexts = [child.worktree_context for child in sent.children if child.worktree_context is not None]
        opened = [[module.submodule_name for module in context.submodule_worktrees] for context in contexts]
        assert opened == [["lib"], ["doc"], ["lib", "doc"]]
    world.graph.update("run/dispatch/b", lambda node: node.evolve(granted_submodules=("nowhere",)))
    world.contexts.clear("run/dispatch/b")
    with pytest.raises(DecoratorFailed) as failed:
        world.flow.request(tickets(), parent(world))
    assert "nowhere" in str(failed.value)
    assert len(world.worktrees.discarded) == 1


def test_a_failure_leaves_nothing_half_made(world: World) -> None:
    """When one worktree cannot be made, those made before are removed and no session learns of any."""
    world.worktrees.fails_at = "T-c"
    with pytest.raises(DecoratorFailed, match="attach-worktrees") as failed:
        world.flow.request(tickets(), parent(world))
    assert "no room for T-c" in str(failed.value)
    assert list(world.worktrees.known) == ["main"]
    assert len(world.worktrees.discarded) == 2
    assert world.contexts.get("run/dispatch/a") is None
    assert world.graph.get("run/dispatch/a") is None


def test_what_cannot_be_removed_does_not_hide_the_failure(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The reason of the failure is reported, and the worktree that remains is named in the log."""
    world.worktrees.fails_at = "T-b"
    world.worktrees.holds_work = frozenset({"T-a-1"})
    with pytest.raises(DecoratorFailed, match="attach-worktrees") as failed:
        world.flow.request(tickets(), parent(world))
    assert "no room for T-b" in str(failed.value)
    assert "/trees/T-a-1" in caplog.text


def test_two_requests_of_one_session_are_refused(world: World) -> None:
    """Two agents with the same context id would share one set of boundaries; nothing is made."""
    with pytest.raises(DecoratorFailed) as failed:
        world.flow.request(tickets(("a", "a")), parent(world))
    assert "run/dispatch/a" in str(failed.value)
    own = TicketAgentRequests(context_id=DISPATCH, requests=(TicketAgentRequest(context_id=DISPATCH),))
    with pytest.raises(DecoratorFailed, match="attach-worktrees"):
        world.flow.request(own, parent(world))
    assert world.contexts.get_worktree_context("run/dispatch") == world.main
    assert list(world.worktrees.known) == ["main"]


def test_without_a_worktree_nothing_is_attached(world: World) -> None:
    """A workflow without worktrees works as before."""
    sent = world.flow.request(tickets(), OrchestratorRequest(context_id=ArtifactKey("elsewhere")))
    world.graph.update("run", lambda node: node.evolve(worktree_id=None))
    bare = world.flow.request(tickets(), OrchestratorRequest(context_id=ROOT))
    assert places(bare) == []
    assert len(places(sent)) == 3  # its key lies below the orchestrator's, whose node has one


def test_a_hundred_agents_get_a_hundred_worktrees(world: World) -> None:
    """Distinctness holds for large dispatches too."""
    sent = world.flow.request(tickets(tuple(f"n{number}" for number in range(100))), parent(world))
    assert len(set(places(sent))) == 100
