"""Requests at the two ends of a workflow: to the orchestrator, and to the one who sums everything up."""

from typing import ClassVar, Literal

from launcher.vcs.merge.conflict import Text
from launcher.workflow.agent_types import AgentType
from launcher.workflow.requests.base import AgentRequest


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
