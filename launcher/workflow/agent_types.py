"""Which kinds of agents there are."""

from enum import StrEnum


class AgentType(StrEnum):
    """The role that an agent plays; prompt contributors and nodes are told apart by it."""

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
