"""Nodes, their statuses, and finding the one that matters."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from launcher.workflow.graph import (
    TRANSITIONS,
    InMemoryGraphRepository,
    Node,
    NodeStatus,
    find_node,
    find_node_with_worktree,
    find_orchestrator,
)
from launcher.workflow.requests import DISPATCH_TYPES, AgentType, ArtifactKey
from launcher.workflow.worktrees import worktree_of_key, worktree_of_node, worktree_of_session
from policy.errors import Refusal
from tests.support.workflow import World, worktree


@pytest.fixture
def graph() -> InMemoryGraphRepository:
    """run (orchestrator, worktree) > phase > agent (worktree) > helper."""
    made = InMemoryGraphRepository()
    made.save(Node(node_id="run", agent_type=AgentType.ORCHESTRATOR, worktree_id="main"))
    made.save(Node(node_id="phase", agent_type=AgentType.TICKET_ORCHESTRATOR, parent_id="run"))
    made.save(Node(node_id="agent", agent_type=AgentType.TICKET_AGENT, parent_id="phase", worktree_id="one"))
    made.save(Node(node_id="helper", agent_type=AgentType.CONTEXT_MANAGER, parent_id="agent"))
    return made


@pytest.mark.spec("MF-002", "FR-002")
def test_the_orchestrator_is_found_from_everywhere_below_it(graph: InMemoryGraphRepository) -> None:
    """Its own node, nodes below it, and keys below theirs lead to the orchestrator."""
    for text in ("run", "phase", "agent", "helper", "helper/step/2"):
        found = find_orchestrator(graph, ArtifactKey(text))
        assert found is not None
        assert found.node_id == "run"
    assert find_orchestrator(graph, ArtifactKey("stranger")) is None


def test_a_session_works_in_the_nearest_worktree_above(graph: InMemoryGraphRepository) -> None:
    """An agent's own worktree counts before the orchestrator's."""
    nearest = {
        text: find_node_with_worktree(graph, ArtifactKey(text)) for text in ("run", "phase", "agent", "helper/x")
    }
    assert {text: node.node_id for text, node in nearest.items() if node is not None} == {
        "run": "run",
        "phase": "run",
        "agent": "agent",
        "helper/x": "agent",
    }
    assert find_node(graph, ArtifactKey("runner")) is None


def test_children_keep_the_order_in_which_they_came(graph: InMemoryGraphRepository) -> None:
    """Saving a node again neither doubles nor moves it; another parent takes it over."""
    graph.save(Node(node_id="second", agent_type=AgentType.TICKET_AGENT, parent_id="phase"))
    graph.update("agent", lambda node: node.evolve(title="again"))
    assert [node.node_id for node in graph.children("phase")] == ["agent", "second"]
    graph.update("agent", lambda node: node.evolve(parent_id="run"))
    assert [node.node_id for node in graph.children("phase")] == ["second"]
    assert [node.node_id for node in graph.children("run")] == ["phase", "agent"]
    assert graph.children("nobody") == ()


@pytest.mark.parametrize(("node", "above"), [("run", "helper"), ("agent", "agent")])
def test_a_node_is_never_below_itself(graph: InMemoryGraphRepository, node: str, above: str) -> None:
    """A cycle is refused, and nothing is changed."""
    before = graph.get(node)
    with pytest.raises(Refusal, match="its own descendant"):
        graph.update(node, lambda each: each.evolve(parent_id=above))
    assert graph.get(node) is before


def test_an_update_keeps_the_id(graph: InMemoryGraphRepository) -> None:
    """A node cannot become another one; what is not kept cannot be updated."""
    with pytest.raises(Refusal) as refused:
        graph.update("agent", lambda node: node.evolve(node_id="other"))
    assert refused.value.reference == "node-id-changed"
    assert graph.update("stranger", lambda node: node) is None


def test_updates_from_many_threads_are_all_kept() -> None:
    """Sixteen threads append to one title."""
    graph = InMemoryGraphRepository()
    graph.save(Node(node_id="run", agent_type=AgentType.ORCHESTRATOR))
    start = threading.Barrier(16)

    def work() -> None:
        start.wait()
        for _ in range(25):
            graph.update("run", lambda node: node.evolve(title=node.title + "x"))

    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(work) for _ in range(16)]:
            done.result()
    found = graph.get("run")
    assert found is not None
    assert len(found.title) == 400


@pytest.mark.parametrize("status", NodeStatus)
def test_every_status_says_where_it_leads(status: NodeStatus) -> None:
    """What is allowed is done, what is not is refused with what would be; staying is always possible."""
    node = Node(node_id="n", agent_type=AgentType.TICKET_AGENT, status=status)
    assert node.moved_to(status) is node
    for other in set(NodeStatus) - {status}:
        if other in TRANSITIONS[status]:
            assert node.moved_to(other).status is other
        else:
            with pytest.raises(Refusal) as refused:
                node.moved_to(other)
            assert refused.value.reference == "node-transition"


def test_nothing_becomes_pending_again_and_canceled_is_final() -> None:
    """The two fixed ends of a node's life."""
    assert all(NodeStatus.PENDING not in reached for reached in TRANSITIONS.values())
    assert TRANSITIONS[NodeStatus.CANCELED] == frozenset()
    assert TRANSITIONS[NodeStatus.MERGED] == {NodeStatus.RUNNING}


def test_three_agent_types_dispatch() -> None:
    """Only the dispatches of the three families collect results."""
    assert {kind for kind in AgentType if kind.dispatches} == DISPATCH_TYPES
    assert len(DISPATCH_TYPES) == 3


@pytest.mark.spec("US5.3")
def test_a_nodes_worktree_comes_with_what_it_is_granted() -> None:
    """The graph keeps ids, the worktree service knows paths; submodules that the node does not name are closed."""
    world = World()
    node = Node(node_id="n", agent_type=AgentType.TICKET_AGENT, worktree_id="main", granted_submodules=("lib",))
    found = worktree_of_node(world.worktrees, node)
    assert found is not None
    assert [module.submodule_name for module in found.submodule_worktrees] == ["lib"]
    assert [module.submodule_name for module in found.ungranted_submodules] == ["doc"]
    everything = worktree_of_node(world.worktrees, node.evolve(granted_submodules=None))
    assert everything == world.main
    with pytest.raises(Refusal) as refused:
        worktree_of_node(world.worktrees, node.evolve(granted_submodules=("lib", "nowhere")))
    assert refused.value.reference == "submodule-unknown"
    assert "nowhere" in str(refused.value)


@pytest.mark.spec("EDGE-1", "EDGE-5")
def test_a_node_without_a_worktree_differs_from_one_whose_worktree_is_gone() -> None:
    """Not yet is no error; no longer is one."""
    world = World()
    node = Node(node_id="n", agent_type=AgentType.ORCHESTRATOR)
    assert worktree_of_node(world.worktrees, node) is None
    assert worktree_of_key(world.graph, world.worktrees, ArtifactKey("stranger")) is None
    with pytest.raises(Refusal) as refused:
        worktree_of_node(world.worktrees, node.evolve(worktree_id="removed"))
    assert refused.value.reference == "worktree-gone"


@pytest.mark.spec("US5.1", "US5.3", "FR-017")
def test_a_session_id_leads_to_its_worktree() -> None:
    """First what was written down for the session, else its node; an unknown or ended session leads nowhere."""
    world = World()
    world.graph.save(Node(node_id="run/agent", agent_type=AgentType.TICKET_AGENT, parent_id="run"))

    def found(session: str) -> str | None:
        context = worktree_of_session(session, world.contexts, world.graph, world.worktrees)
        return None if context is None else context.worktree_id

    assert found("run") == "main"
    assert found("run/agent") == "main"
    assert found("run/agent/invented") is None
    assert found("stranger") is None
    assert found("") is None
    own = ArtifactKey("run/agent")
    world.contexts.update(own, lambda context: context.evolve(worktree_context=worktree("own")))
    assert found("run/agent") == "own"
    world.contexts.clear(own)
    assert found("run/agent") is None
