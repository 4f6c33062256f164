"""The planning family: deciding what is to be done (contracts sections 7 and 11)."""

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
