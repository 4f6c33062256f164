"""A node of the workflow: one agent's part in it, where it works, and how far it is."""

from enum import StrEnum

from launcher.vcs.merge.conflict import Text
from launcher.workflow.agent_types import AgentType
from launcher.workflow.values import Frozen
from policy.errors import Refusal
from policy.worktree import Name


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
        """Whether it has a worktree of its own."""
        return self.worktree_id is not None

    def can_become(self, status: NodeStatus) -> bool:
        """Whether its present status is, or leads to, `status`."""
        return status is self.status or status in TRANSITIONS[self.status]

    def moved_to(self, status: NodeStatus) -> "Node":
        """A copy with another status.

        Raises:
            Refusal: `node-transition` when its present status does not lead there.
        """
        if not self.can_become(status):
            raise Refusal(
                "node-transition",
                f"node {self.node_id} is {self.status} and cannot become {status}",
                context=f"{self.status} leads to: {', '.join(sorted(TRANSITIONS[self.status])) or 'nothing'}",
            )
        return self if status is self.status else self.evolve(status=status)
