"""All message types in one place, for those who keep or read messages without knowing which they are."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from launcher.vcs.merge.models import AgentMergeStatus, MergeAggregation, MergeDescriptor, Text
from launcher.workflow.values import AgentType, ArtifactKey, Frozen
from policy.sandbox_context import WorktreeSandboxContext

# What every request, result and dispatch result has: keys, and the worktree it belongs to (FR-004, contracts 7,
# 11).
#
# Requests are data of models and agents; the worktree in them is only believed after `decorators.worktree` has
# looked at it.


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


# Requests to the agent that finds what other agents need to know.


class ContextManagerRoutingRequest(AgentRequest):
    """An agent asks for the context manager.

    Attributes:
        reason: what it needs to know.
        return_to: who goes on afterwards.
    """

    agent_type: ClassVar[AgentType] = AgentType.CONTEXT_MANAGER

    kind: Literal["ContextManagerRoutingRequest"] = "ContextManagerRoutingRequest"
    reason: Text = ""
    return_to: AgentType | None = None


class ContextManagerRequest(AgentRequest):
    """To the context manager itself.

    Attributes:
        reason: what is to be found out.
        return_to: who goes on afterwards.
    """

    agent_type: ClassVar[AgentType] = AgentType.CONTEXT_MANAGER

    kind: Literal["ContextManagerRequest"] = "ContextManagerRequest"
    reason: Text = ""
    return_to: AgentType | None = None


# The discovery family: finding out what is there (contracts sections 7 and 11).


class DiscoveryOrchestratorRequest(AgentRequest):
    """To the agent that decides what has to be found out."""

    agent_type: ClassVar[AgentType] = AgentType.DISCOVERY_ORCHESTRATOR

    kind: Literal["DiscoveryOrchestratorRequest"] = "DiscoveryOrchestratorRequest"


class DiscoveryAgentRequest(OwnWorktreeRequest):
    """To one agent that looks at one part of the code.

    Attributes:
        focus: which part.
    """

    agent_type: ClassVar[AgentType] = AgentType.DISCOVERY_AGENT

    kind: Literal["DiscoveryAgentRequest"] = "DiscoveryAgentRequest"
    focus: Text = ""


class DiscoveryAgentRequests(DispatchRequest):
    """The requests to all discovery agents of one dispatch.

    Attributes:
        requests: one per agent.
    """

    agent_type: ClassVar[AgentType] = AgentType.DISCOVERY_AGENT_DISPATCH

    kind: Literal["DiscoveryAgentRequests"] = "DiscoveryAgentRequests"
    requests: tuple[DiscoveryAgentRequest, ...] = ()

    @property
    def children(self) -> tuple[DiscoveryAgentRequest, ...]:
        """The single requests."""
        return self.requests


class DiscoveryAgentResult(AgentResult):
    """What one discovery agent has found."""

    kind: Literal["DiscoveryAgentResult"] = "DiscoveryAgentResult"


class DiscoveryAgentResults(ResultsRequest):
    """What all discovery agents of one dispatch have brought.

    Attributes:
        results: in the order in which they are merged.
    """

    agent_type: ClassVar[AgentType] = AgentType.DISCOVERY_AGENT_DISPATCH

    kind: Literal["DiscoveryAgentResults"] = "DiscoveryAgentResults"
    results: tuple[DiscoveryAgentResult, ...] = ()

    def child_results(self) -> tuple[DiscoveryAgentResult, ...]:
        """The single results, in the order in which they are merged."""
        return self.results


class DiscoveryCollectorRequest(AgentRequest):
    """To the agent that makes one picture of all findings.

    Attributes:
        results: what to bring together.
    """

    agent_type: ClassVar[AgentType] = AgentType.DISCOVERY_COLLECTOR

    kind: Literal["DiscoveryCollectorRequest"] = "DiscoveryCollectorRequest"
    results: tuple[DiscoveryAgentResult, ...] = ()


# Requests at the two ends of a workflow: to the orchestrator, and to the one who sums everything up.


class OrchestratorRequest(AgentRequest):
    """To the agent that everything starts with. Its worktree is that of its node in the graph (FR-002)."""

    agent_type: ClassVar[AgentType] = AgentType.ORCHESTRATOR

    kind: Literal["OrchestratorRequest"] = "OrchestratorRequest"


class OrchestratorCollectorRequest(AgentRequest):
    """To the agent that sums up the whole workflow.

    Attributes:
        summary: what the phases have come to.
    """

    agent_type: ClassVar[AgentType] = AgentType.ORCHESTRATOR_COLLECTOR

    kind: Literal["OrchestratorCollectorRequest"] = "OrchestratorCollectorRequest"
    summary: Text = ""


# The planning family: deciding what is to be done (contracts sections 7 and 11).


class PlanningOrchestratorRequest(AgentRequest):
    """To the agent that decides what has to be planned."""

    agent_type: ClassVar[AgentType] = AgentType.PLANNING_ORCHESTRATOR

    kind: Literal["PlanningOrchestratorRequest"] = "PlanningOrchestratorRequest"


class PlanningAgentRequest(OwnWorktreeRequest):
    """To one agent that plans one part of the work.

    Attributes:
        focus: which part.
    """

    agent_type: ClassVar[AgentType] = AgentType.PLANNING_AGENT

    kind: Literal["PlanningAgentRequest"] = "PlanningAgentRequest"
    focus: Text = ""


class PlanningAgentRequests(DispatchRequest):
    """The requests to all planning agents of one dispatch.

    Attributes:
        requests: one per agent.
    """

    agent_type: ClassVar[AgentType] = AgentType.PLANNING_AGENT_DISPATCH

    kind: Literal["PlanningAgentRequests"] = "PlanningAgentRequests"
    requests: tuple[PlanningAgentRequest, ...] = ()

    @property
    def children(self) -> tuple[PlanningAgentRequest, ...]:
        """The single requests."""
        return self.requests


class PlanningAgentResult(AgentResult):
    """One planning agent's plan."""

    kind: Literal["PlanningAgentResult"] = "PlanningAgentResult"


class PlanningAgentResults(ResultsRequest):
    """What all planning agents of one dispatch have brought.

    Attributes:
        results: in the order in which they are merged.
    """

    agent_type: ClassVar[AgentType] = AgentType.PLANNING_AGENT_DISPATCH

    kind: Literal["PlanningAgentResults"] = "PlanningAgentResults"
    results: tuple[PlanningAgentResult, ...] = ()

    def child_results(self) -> tuple[PlanningAgentResult, ...]:
        """The single results, in the order in which they are merged."""
        return self.results


class PlanningCollectorRequest(AgentRequest):
    """To the agent that makes tickets of all plans.

    Attributes:
        results: what to bring together.
    """

    agent_type: ClassVar[AgentType] = AgentType.PLANNING_COLLECTOR

    kind: Literal["PlanningCollectorRequest"] = "PlanningCollectorRequest"
    results: tuple[PlanningAgentResult, ...] = ()


# Requests about work that is done: review it, merge what conflicts, or ask a person first.


class WorkOfAnAgentRequest(AgentRequest):
    """A request about the work of another agent, in whose worktree it is carried out.

    Attributes:
        ticket_agent: context id of that agent.
        conflicted: its merge status, where it could not be merged; its worktree is preferred.
    """

    ticket_agent: ArtifactKey | None = None
    conflicted: AgentMergeStatus | None = None


class ReviewRequest(WorkOfAnAgentRequest):
    """To the agent that reviews the work.

    Attributes:
        content: what to look at.
        return_to: who goes on afterwards.
    """

    agent_type: ClassVar[AgentType] = AgentType.REVIEW_AGENT

    kind: Literal["ReviewRequest"] = "ReviewRequest"
    content: Text = ""
    return_to: AgentType | None = None


class MergerRequest(WorkOfAnAgentRequest):
    """To the agent that resolves a merge conflict (MF-022: only the routing model sends it).

    Attributes:
        summary: what the routing model wants done about it.
    """

    agent_type: ClassVar[AgentType] = AgentType.MERGER_AGENT

    kind: Literal["MergerRequest"] = "MergerRequest"
    summary: Text = ""


class MergerInterruptRequest(WorkOfAnAgentRequest):
    """To a person: the workflow waits for a decision about a merge conflict (MF-022).

    Attributes:
        reason: why a person is asked.
        choices: what could be answered.
    """

    agent_type: ClassVar[AgentType] = AgentType.MERGER_AGENT

    kind: Literal["MergerInterruptRequest"] = "MergerInterruptRequest"
    reason: Text = ""
    choices: tuple[Text, ...] = ()


# The ticket family: doing the work (contracts sections 7 and 11).


class TicketOrchestratorRequest(AgentRequest):
    """To the agent that hands out tickets."""

    agent_type: ClassVar[AgentType] = AgentType.TICKET_ORCHESTRATOR

    kind: Literal["TicketOrchestratorRequest"] = "TicketOrchestratorRequest"


class TicketAgentRequest(OwnWorktreeRequest):
    """To one agent that carries out one ticket (FR-007).

    Attributes:
        ticket_id: the ticket; its worktree is named after it.
        details: what it says.
    """

    agent_type: ClassVar[AgentType] = AgentType.TICKET_AGENT

    kind: Literal["TicketAgentRequest"] = "TicketAgentRequest"
    ticket_id: Text = ""
    details: Text = ""

    @property
    def worktree_label(self) -> str:
        """The ticket's id, else the end of the context id."""
        return self.ticket_id or super().worktree_label


class TicketAgentRequests(DispatchRequest):
    """The requests to all ticket agents of one dispatch.

    Attributes:
        requests: one per agent.
    """

    agent_type: ClassVar[AgentType] = AgentType.TICKET_AGENT_DISPATCH

    kind: Literal["TicketAgentRequests"] = "TicketAgentRequests"
    requests: tuple[TicketAgentRequest, ...] = ()

    @property
    def children(self) -> tuple[TicketAgentRequest, ...]:
        """The single requests."""
        return self.requests


class TicketAgentResult(AgentResult):
    """What one ticket agent has done."""

    kind: Literal["TicketAgentResult"] = "TicketAgentResult"


class TicketAgentResults(ResultsRequest):
    """What all ticket agents of one dispatch have brought.

    Attributes:
        results: in the order in which they are merged.
    """

    agent_type: ClassVar[AgentType] = AgentType.TICKET_AGENT_DISPATCH

    kind: Literal["TicketAgentResults"] = "TicketAgentResults"
    results: tuple[TicketAgentResult, ...] = ()

    def child_results(self) -> tuple[TicketAgentResult, ...]:
        """The single results, in the order in which they are merged."""
        return self.results


class TicketCollectorRequest(AgentRequest):
    """To the agent that sums up the work on all tickets.

    Attributes:
        results: what to bring together.
    """

    agent_type: ClassVar[AgentType] = AgentType.TICKET_COLLECTOR

    kind: Literal["TicketCollectorRequest"] = "TicketCollectorRequest"
    results: tuple[TicketAgentResult, ...] = ()


CONTRACT_TYPES: tuple[type[AgentRequest], ...] = (
    OrchestratorRequest,
    OrchestratorCollectorRequest,
    DiscoveryOrchestratorRequest,
    DiscoveryAgentRequest,
    DiscoveryAgentRequests,
    DiscoveryCollectorRequest,
    PlanningOrchestratorRequest,
    PlanningAgentRequest,
    PlanningAgentRequests,
    PlanningCollectorRequest,
    TicketOrchestratorRequest,
    TicketAgentRequest,
    TicketAgentRequests,
    TicketCollectorRequest,
    ReviewRequest,
    MergerRequest,
    ContextManagerRequest,
    ContextManagerRoutingRequest,
)
"""The types of contracts section 7, in its order."""

RESULTS_TYPES = (TicketAgentResults, PlanningAgentResults, DiscoveryAgentResults)
"""The types of contracts section 11; requests too, because they are what the routing model is asked with."""

REQUEST_TYPES: tuple[type[AgentRequest], ...] = (*CONTRACT_TYPES, *RESULTS_TYPES, MergerInterruptRequest)
"""Every type that flows through the request decorators."""

RESULT_TYPES: tuple[type[AgentResult], ...] = (TicketAgentResult, PlanningAgentResult, DiscoveryAgentResult)
"""The results of dispatched agents (contracts section 9)."""

AnyRequest = Annotated[
    OrchestratorRequest
    | OrchestratorCollectorRequest
    | DiscoveryOrchestratorRequest
    | DiscoveryAgentRequest
    | DiscoveryAgentRequests
    | DiscoveryCollectorRequest
    | PlanningOrchestratorRequest
    | PlanningAgentRequest
    | PlanningAgentRequests
    | PlanningCollectorRequest
    | TicketOrchestratorRequest
    | TicketAgentRequest
    | TicketAgentRequests
    | TicketCollectorRequest
    | ReviewRequest
    | MergerRequest
    | MergerInterruptRequest
    | ContextManagerRequest
    | ContextManagerRoutingRequest
    | TicketAgentResults
    | PlanningAgentResults
    | DiscoveryAgentResults,
    Field(discriminator="kind"),
]
"""A request read from JSON becomes the type that its `kind` names."""
