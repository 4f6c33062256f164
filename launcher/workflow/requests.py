"""The messages of a workflow: requests to agents, their results, and the keys by which both are found."""

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, TypeVar, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    RootModel,
    ValidationError,
    field_validator,
)

from launcher.vcs.merge.descriptors import AgentMergeStatus, MergeAggregation, MergeDescriptor, Text
from policy.sandbox_context import Name, WorktreeSandboxContext

# What the models of the workflow have in common: frozen, strict about names, convertible to JSON and back.

_V = TypeVar("_V")


class Frozen(BaseModel):
    """A model that never changes; updates make a new one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def evolve(self, **changes: object) -> Self:
        """A copy with some fields replaced, validated as a whole."""
        return type(self).model_validate({**dict(self), **changes})


class ReadOnly(Mapping[str, _V]):
    """A mapping that nobody can change (types.MappingProxyType can be neither copied nor pickled)."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[str, _V] | None = None) -> None:
        """Takes a copy of `entries`."""
        self._entries = dict(entries or {})

    def __getitem__(self, name: str) -> _V:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __hash__(self) -> int:
        return hash(frozenset(self._entries.items()))

    def __repr__(self) -> str:
        return repr(self._entries)


Metadata = Annotated[Mapping[Name, str], AfterValidator(ReadOnly), PlainSerializer(dict)]
"""Labels and their values, read-only."""

NO_LABELS: Mapping[str, str] = ReadOnly()


# Which kinds of agents there are.


class AgentType(StrEnum):
    """The role of an agent, by which prompt contributors and nodes are chosen."""

    ORCHESTRATOR = "orchestrator"
    ORCHESTRATOR_COLLECTOR = "orchestrator-collector"
    DISCOVERY_ORCHESTRATOR = "discovery-orchestrator"
    DISCOVERY_AGENT_DISPATCH = "discovery-agent-dispatch"
    DISCOVERY_AGENT = "discovery-agent"
    DISCOVERY_COLLECTOR = "discovery-collector"
    PLANNING_ORCHESTRATOR = "planning-orchestrator"
    PLANNING_AGENT_DISPATCH = "planning-agent-dispatch"
    PLANNING_AGENT = "planning-agent"
    PLANNING_COLLECTOR = "planning-collector"
    TICKET_ORCHESTRATOR = "ticket-orchestrator"
    TICKET_AGENT_DISPATCH = "ticket-agent-dispatch"
    TICKET_AGENT = "ticket-agent"
    TICKET_COLLECTOR = "ticket-collector"
    REVIEW_AGENT = "review-agent"
    MERGER_AGENT = "merger-agent"
    CONTEXT_MANAGER = "context-manager"

    @property
    def dispatches(self) -> bool:
        """Whether it sends several agents to work and collects what they bring."""
        return self in DISPATCH_TYPES


DISPATCH_TYPES = frozenset(
    {AgentType.DISCOVERY_AGENT_DISPATCH, AgentType.PLANNING_AGENT_DISPATCH, AgentType.TICKET_AGENT_DISPATCH}
)


# Artifact keys: the names under which requests, results and sessions are found (contracts sections 2 and 6).


MAX_LENGTH = 512
_SEGMENT = re.compile(r"[A-Za-z0-9._~:@+=-]+")


class ArtifactKey(RootModel[str]):
    """A path of segments, such as ``run-7/ticket-2``. Equal texts are equal keys; the JSON form is the text.

    The value is also the session id that tools send in a header, so it holds only characters that mean nothing to
    HTTP, shells and file systems, and no ``.`` or ``..`` segment.
    """

    model_config = ConfigDict(frozen=True)

    @field_validator("root")
    @classmethod
    def _plain(cls, value: str) -> str:
        if len(value) > MAX_LENGTH:
            raise ValueError(f"an artifact key has at most {MAX_LENGTH} characters, not {len(value)}")
        for segment in value.split("/"):
            if not _SEGMENT.fullmatch(segment) or segment in (".", ".."):
                raise ValueError(
                    f"{segment!r} cannot be part of an artifact key: letters, digits and ._~:@+=- between slashes"
                )
        return value

    @classmethod
    def new(cls, label: str) -> Self:
        """A new unique key that begins with `label`."""
        return cls(f"{label}-{uuid.uuid4().hex}")

    @classmethod
    def of(cls, key: "ArtifactKey | str") -> "ArtifactKey | None":
        """The key itself, or the key that a text names; None when the text cannot be one."""
        if isinstance(key, ArtifactKey):
            return key
        try:
            return ArtifactKey(key)
        except ValidationError:
            return None

    @property
    def value(self) -> str:
        """The text: the session id."""
        return self.root

    @property
    def parent(self) -> "ArtifactKey | None":
        """The key that this one was made from with `child`; None at the top."""
        head, slash, _ = self.root.rpartition("/")
        return ArtifactKey(head) if slash else None

    def child(self, label: str) -> "ArtifactKey":
        """The key of something that belongs to this one.

        Raises:
            pydantic.ValidationError: `label` is not one plain segment or more.
        """
        return ArtifactKey(f"{self.root}/{label}")

    def __hash__(self) -> int:
        return hash(self.root)

    def __str__(self) -> str:
        return self.root


# What every request, result and dispatch result has: keys, and the worktree it belongs to (FR-004, contracts 7,
# 11).
#
# Requests are data of models and agents; the worktree in them is only believed after `enrichment` has
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
    """The requests to several agents, sent out together. Each type names its own `requests`."""

    if TYPE_CHECKING:
        requests: tuple[OwnWorktreeRequest, ...] = ()

    @property
    def children(self) -> tuple[OwnWorktreeRequest, ...]:
        """The single requests."""
        return self.requests

    def with_children(self, children: Sequence[OwnWorktreeRequest]) -> Self:
        """A copy with the single requests replaced; they are of the family's own type."""
        return self.evolve(requests=tuple(children))

    def share_of(self, session_id: str) -> Self:
        """A copy with the single requests of one session only: what one agent's context remembers of a dispatch.

        With those of all its siblings, a dispatch to a thousand agents would be written down a million times.
        """
        return self.with_children([child for child in self.children if child.session_id == session_id])


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

    Each type names its own `results`.

    Attributes:
        merge_aggregation: how bringing the results into the trunk went (phase 2); None before that.
    """

    merge_aggregation: MergeAggregation | None = None

    if TYPE_CHECKING:
        results: tuple[AgentResult, ...] = ()

    def child_results(self) -> tuple[AgentResult, ...]:
        """The single results, in the order in which they are merged."""
        return self.results

    def with_merge_aggregation(self, aggregation: MergeAggregation) -> Self:
        """A copy with phase 2's outcome."""
        return self.evolve(merge_aggregation=aggregation)


class WorkOfAnAgentRequest(AgentRequest):
    """A request about the work of another agent, in whose worktree it is carried out.

    Attributes:
        ticket_agent: context id of that agent.
        conflicted: its merge status, where it could not be merged; its worktree is preferred.
    """

    ticket_agent: ArtifactKey | None = None
    conflicted: AgentMergeStatus | None = None


# The types of contracts sections 7 and 11. `kind` tells them apart in JSON.


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
    """To the agent that finds what other agents need to know.

    Attributes:
        reason: what is to be found out.
        return_to: who goes on afterwards.
    """

    agent_type: ClassVar[AgentType] = AgentType.CONTEXT_MANAGER
    kind: Literal["ContextManagerRequest"] = "ContextManagerRequest"
    reason: Text = ""
    return_to: AgentType | None = None


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
    """To all discovery agents of one dispatch."""

    agent_type: ClassVar[AgentType] = AgentType.DISCOVERY_AGENT_DISPATCH
    kind: Literal["DiscoveryAgentRequests"] = "DiscoveryAgentRequests"
    requests: tuple[DiscoveryAgentRequest, ...] = ()


class DiscoveryAgentResult(AgentResult):
    """What one discovery agent has found."""

    kind: Literal["DiscoveryAgentResult"] = "DiscoveryAgentResult"


class DiscoveryAgentResults(ResultsRequest):
    """The results of all discovery agents of one dispatch."""

    agent_type: ClassVar[AgentType] = AgentType.DISCOVERY_AGENT_DISPATCH
    kind: Literal["DiscoveryAgentResults"] = "DiscoveryAgentResults"
    results: tuple[DiscoveryAgentResult, ...] = ()


class DiscoveryCollectorRequest(AgentRequest):
    """To the agent that makes one picture of all findings."""

    agent_type: ClassVar[AgentType] = AgentType.DISCOVERY_COLLECTOR
    kind: Literal["DiscoveryCollectorRequest"] = "DiscoveryCollectorRequest"
    results: tuple[DiscoveryAgentResult, ...] = ()


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
    """To all planning agents of one dispatch."""

    agent_type: ClassVar[AgentType] = AgentType.PLANNING_AGENT_DISPATCH
    kind: Literal["PlanningAgentRequests"] = "PlanningAgentRequests"
    requests: tuple[PlanningAgentRequest, ...] = ()


class PlanningAgentResult(AgentResult):
    """One planning agent's plan."""

    kind: Literal["PlanningAgentResult"] = "PlanningAgentResult"


class PlanningAgentResults(ResultsRequest):
    """The results of all planning agents of one dispatch."""

    agent_type: ClassVar[AgentType] = AgentType.PLANNING_AGENT_DISPATCH
    kind: Literal["PlanningAgentResults"] = "PlanningAgentResults"
    results: tuple[PlanningAgentResult, ...] = ()


class PlanningCollectorRequest(AgentRequest):
    """To the agent that makes tickets of all plans."""

    agent_type: ClassVar[AgentType] = AgentType.PLANNING_COLLECTOR
    kind: Literal["PlanningCollectorRequest"] = "PlanningCollectorRequest"
    results: tuple[PlanningAgentResult, ...] = ()


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
    """To all ticket agents of one dispatch."""

    agent_type: ClassVar[AgentType] = AgentType.TICKET_AGENT_DISPATCH
    kind: Literal["TicketAgentRequests"] = "TicketAgentRequests"
    requests: tuple[TicketAgentRequest, ...] = ()


class TicketAgentResult(AgentResult):
    """What one ticket agent has done."""

    kind: Literal["TicketAgentResult"] = "TicketAgentResult"


class TicketAgentResults(ResultsRequest):
    """The results of all ticket agents of one dispatch."""

    agent_type: ClassVar[AgentType] = AgentType.TICKET_AGENT_DISPATCH
    kind: Literal["TicketAgentResults"] = "TicketAgentResults"
    results: tuple[TicketAgentResult, ...] = ()

    @property
    def ticket_agent_results(self) -> tuple[TicketAgentResult, ...]:
        """The results, by the name that the specification gives them (contracts section 11)."""
        return self.results


class TicketCollectorRequest(AgentRequest):
    """To the agent that sums up the work on all tickets."""

    agent_type: ClassVar[AgentType] = AgentType.TICKET_COLLECTOR
    kind: Literal["TicketCollectorRequest"] = "TicketCollectorRequest"
    results: tuple[TicketAgentResult, ...] = ()


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

_AFTER = CONTRACT_TYPES.index(MergerRequest) + 1
REQUEST_TYPES: tuple[type[AgentRequest], ...] = (
    *CONTRACT_TYPES[:_AFTER], MergerInterruptRequest, *CONTRACT_TYPES[_AFTER:], *RESULTS_TYPES
)  # fmt: skip
"""Every type that flows through the request decorators."""

RESULT_TYPES: tuple[type[AgentResult], ...] = (TicketAgentResult, PlanningAgentResult, DiscoveryAgentResult)
"""The results of dispatched agents (contracts section 9)."""

if TYPE_CHECKING:
    AnyRequest = AgentRequest
else:
    AnyRequest = Annotated[Union[REQUEST_TYPES], Field(discriminator="kind")]  # noqa: UP007  # made of a tuple
"""A request read from JSON becomes the type that its `kind` names."""

if TYPE_CHECKING:
    AnyResult = AgentResult
else:
    AnyResult = Annotated[Union[RESULT_TYPES], Field(discriminator="kind")]  # noqa: UP007  # made of a tuple
"""A result read from JSON, in the same way."""
