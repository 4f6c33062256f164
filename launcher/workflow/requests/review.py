"""Requests about work that is done: review it, merge what conflicts, or ask a person first."""

from typing import ClassVar, Literal

from launcher.vcs.merge.conflict import Text
from launcher.vcs.merge.models import AgentMergeStatus
from launcher.workflow.agent_types import AgentType
from launcher.workflow.keys import ArtifactKey
from launcher.workflow.requests.base import AgentRequest


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
