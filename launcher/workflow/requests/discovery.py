"""The discovery family: finding out what is there (contracts sections 7 and 11)."""

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
