"""Requests to the agent that finds what other agents need to know."""

from typing import ClassVar, Literal

from launcher.vcs.merge.conflict import Text
from launcher.workflow.agent_types import AgentType
from launcher.workflow.requests.base import AgentRequest


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
