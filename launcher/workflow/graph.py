"""Where the nodes of a workflow are kept, and how one finds the node that matters."""

import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from launcher.vcs.merge.descriptors import Text
from launcher.workflow.requests import AgentType, ArtifactKey, Frozen
from policy.errors import Refusal
from policy.sandbox_context import Name

# A node of the workflow: one agent's part in it, where it works, and how far it is.


class NodeStatus(StrEnum):
    """How far a node is."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    """Its work is done; an agent's worktree holds the trunk's work too."""
    CONFLICTED = "conflicted"
    """Its work and the trunk's do not go together."""
    WAITING_MERGE = "waiting-merge"
    """Done, but not tried: an agent before it conflicted."""
    WAITING_DECISION = "waiting-decision"
    """A dispatch whose results did not all merge: the routing model decides."""
    MERGING = "merging"
    """A merger agent resolves the conflict."""
    WAITING_INPUT = "waiting-input"
    """A person was asked."""
    MERGED = "merged"
    """Its work is in the trunk."""
    FAILED = "failed"
    CANCELED = "canceled"


_ANYWHERE = frozenset(NodeStatus) - {NodeStatus.PENDING}

TRANSITIONS: dict[NodeStatus, frozenset[NodeStatus]] = dict.fromkeys(NodeStatus, _ANYWHERE) | {
    NodeStatus.PENDING: frozenset({NodeStatus.RUNNING, NodeStatus.CANCELED}),
    # An action may run again; what is in the trunk or has failed does not become anything else by itself.
    NodeStatus.MERGED: frozenset({NodeStatus.RUNNING}),
    NodeStatus.FAILED: frozenset({NodeStatus.RUNNING}),
    NodeStatus.CANCELED: frozenset(),
}
"""Where each status may lead. Staying is always allowed, because an action may run twice."""


class Node(Frozen):
    """One agent's part in the workflow.

    Attributes:
        node_id: equal to the context id of its requests.
        agent_type: its role.
        parent_id: the node that made it; None at the root.
        status: how far it is.
        title: for people.
        worktree_id: where it works; None before the worktree exists, or where it uses its parent's.
        granted_submodules: names of the submodules it may use; None means all.
    """

    node_id: Name
    agent_type: AgentType
    parent_id: Name | None = None
    status: NodeStatus = NodeStatus.PENDING
    title: Text = ""
    worktree_id: Name | None = None
    granted_submodules: tuple[Name, ...] | None = None

    @property
    def has_worktree(self) -> bool:
        """Whether it has its own worktree."""
        return self.worktree_id is not None

    def can_become(self, status: NodeStatus) -> bool:
        """Whether its present status is, or leads to, `status`."""
        return status is self.status or status in TRANSITIONS[self.status]

    def moved_to(self, status: NodeStatus) -> "Node":
        """A copy with another status."""
        if not self.can_become(status):
            raise Refusal(
                "node-transition",
                f"node {self.node_id} is {self.status} and cannot become {status}",
                context=f"{self.status} can become: {', '.join(sorted(TRANSITIONS[self.status])) or 'nothing'}",
            )
        return self if status is self.status else self.evolve(status=status)


class GraphRepository(Protocol):
    """Nodes by id. Safe to share between threads."""

    def save(self, node: Node) -> None:
        """Keeps `node`, in place of an earlier one with its id."""
        ...

    def get(self, node_id: str) -> Node | None:
        """The node; None when there is none."""
        ...

    def update(self, node_id: str, updater: Callable[[Node], Node]) -> Node | None:
        """Replaces a node by what `updater` (free of side effects) makes of it, atomically; None when unknown."""
        ...

    def children(self, node_id: str) -> tuple[Node, ...]:
        """The nodes whose parent this is, in the order in which they were first saved."""
        ...


class InMemoryGraphRepository:
    """A `GraphRepository` in this process's memory."""

    def __init__(self) -> None:
        """Starts empty."""
        self._lock = threading.RLock()
        self._nodes: dict[str, Node] = {}
        self._children: dict[str, dict[str, None]] = {}

    def save(self, node: Node) -> None:
        """Keeps `node`, in place of an earlier one with its id.

        Raises:
            Refusal: `node-cycle` when it would become its own ancestor.
        """
        with self._lock:
            self._refuse_cycle(node)
            before = self._nodes.get(node.node_id)
            if before is not None and before.parent_id is not None and before.parent_id != node.parent_id:
                self._children[before.parent_id].pop(node.node_id)
            self._nodes[node.node_id] = node
            if node.parent_id is not None:
                self._children.setdefault(node.parent_id, {})[node.node_id] = None

    def get(self, node_id: str) -> Node | None:
        """The node; None when there is none."""
        return self._nodes.get(node_id)

    def update(self, node_id: str, updater: Callable[[Node], Node]) -> Node | None:
        """Replaces a node by what `updater` makes of it, atomically; None when it is unknown.

        Raises:
            Refusal: `node-id-changed`. What `updater` raises is passed on; both leave the node as it was.
        """
        with self._lock:
            before = self._nodes.get(node_id)
            if before is None:
                return None
            after = updater(before)
            if after.node_id != node_id:
                raise Refusal("node-id-changed", f"node {node_id} cannot become node {after.node_id}")
            self.save(after)
            return after

    def children(self, node_id: str) -> tuple[Node, ...]:
        """The nodes whose parent this is, in the order in which they were first saved."""
        with self._lock:
            return tuple(self._nodes[child] for child in self._children.get(node_id, ()))

    def _refuse_cycle(self, node: Node) -> None:
        above = node.parent_id
        while above is not None:
            if above == node.node_id:
                raise Refusal("node-cycle", f"node {node.node_id} cannot be its own descendant")
            parent = self._nodes.get(above)
            above = None if parent is None else parent.parent_id


def find_node(graph: GraphRepository, key: ArtifactKey) -> Node | None:
    """The node of a session: the one with its id, else that of the nearest key above it."""
    step: ArtifactKey | None = key
    while step is not None:
        node = graph.get(step.value)
        if node is not None:
            return node
        step = step.parent
    return None


def find_orchestrator(graph: GraphRepository, key: ArtifactKey) -> Node | None:
    """The orchestrator that a session belongs to: its own node or the nearest one above."""
    return _upward(graph, find_node(graph, key), lambda node: node.agent_type is AgentType.ORCHESTRATOR)


def find_node_with_worktree(graph: GraphRepository, key: ArtifactKey) -> Node | None:
    """The node whose worktree a session works in: its own, or the nearest one above that has one."""
    return _upward(graph, find_node(graph, key), lambda node: node.has_worktree)


def _upward(graph: GraphRepository, node: Node | None, wanted: Callable[[Node], bool]) -> Node | None:
    while node is not None and not wanted(node):
        node = None if node.parent_id is None else graph.get(node.parent_id)
    return node
