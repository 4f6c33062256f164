"""The ticket family: doing the work (contracts sections 7 and 11)."""

from typing import ClassVar, Literal

from launcher.vcs.merge.conflict import Text
from launcher.workflow.agent_types import AgentType
from launcher.workflow.requests.base import (
    AgentRequest,
    AgentResult,
    DispatchRequest,
    OwnWorktreeRequest,
    ResultsRequest,
)


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
