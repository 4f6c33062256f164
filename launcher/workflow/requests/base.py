"""What every request, result and dispatch result has: keys, and the worktree it belongs to (FR-004, contracts 7, 11).

Requests are data of models and agents; the worktree in them is only believed after `decorators.worktree` has
looked at it.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self

from pydantic import Field

from launcher.vcs.merge.conflict import Text
from launcher.vcs.merge.models import MergeAggregation, MergeDescriptor
from launcher.workflow.agent_types import AgentType
from launcher.workflow.keys import ArtifactKey
from launcher.workflow.values import Frozen
from policy.worktree import WorktreeSandboxContext


class Message(Frozen):
    """A request or a result.

    Attributes:
        context_id: whose session it belongs to; the session id of its agent.
        artifact_key: the name of this very message; the context id unless told otherwise.
        worktree_context: where its agent works; None before the worktree exists, or where none is used.
    """

    context_id: ArtifactKey
    artifact_key: ArtifactKey = Field(default_factory=lambda data: data["context_id"])
    worktree_context: WorktreeSandboxContext | None = None

    @property
    def session_id(self) -> str:
        """The text of the context id (FR-004c)."""
        return self.context_id.value

    def with_worktree_context(self, worktree: WorktreeSandboxContext | None) -> Self:
        """A copy that belongs to `worktree`."""
        return self if worktree is self.worktree_context else self.evolve(worktree_context=worktree)


class AgentRequest(Message):
    """Something that an agent is asked to do.

    Attributes:
        goal: what for, in a sentence or more.
    """

    agent_type: ClassVar[AgentType]

    goal: Text = ""


class OwnWorktreeRequest(AgentRequest):
    """A request to one of several agents that work side by side, each in a worktree of its own."""

    @property
    def worktree_label(self) -> str:
        """What its worktree and branch are named after; unique among the requests of one dispatch."""
        return self.context_id.value.rpartition("/")[2]


class DispatchRequest(AgentRequest):
    """The requests to several agents, sent out together."""

    @property
    @abstractmethod
    def children(self) -> Sequence[OwnWorktreeRequest]:
        """The single requests."""

    def with_children(self, children: Sequence[OwnWorktreeRequest]) -> Self:
        """A copy with the single requests replaced; they are of the family's own type."""
        return self.evolve(requests=tuple(children))


class AgentResult(Message):
    """What an agent brings back.

    Attributes:
        output: its answer.
        merge_descriptor: how bringing the trunk's work into its worktree went (phase 1); None before that.
    """

    output: Text = ""
    merge_descriptor: MergeDescriptor | None = None

    def with_merge_descriptor(self, descriptor: MergeDescriptor) -> Self:
        """A copy with phase 1's outcome."""
        return self.evolve(merge_descriptor=descriptor)


class ResultsRequest(AgentRequest):
    """The results of one dispatch, on their way to the model that decides what comes next (contracts section 11).

    Attributes:
        merge_aggregation: how bringing the results into the trunk went (phase 2); None before that.
    """

    merge_aggregation: MergeAggregation | None = None

    @abstractmethod
    def child_results(self) -> Sequence[AgentResult]:
        """The single results, in the order in which they are merged."""

    def with_merge_aggregation(self, aggregation: MergeAggregation) -> Self:
        """A copy with phase 2's outcome."""
        return self.evolve(merge_aggregation=aggregation)
