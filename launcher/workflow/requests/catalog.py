"""All message types in one place, for those who keep or read messages without knowing which they are."""

from typing import Annotated

from pydantic import Field

from launcher.workflow.requests.base import AgentRequest, AgentResult
from launcher.workflow.requests.context_manager import ContextManagerRequest, ContextManagerRoutingRequest
from launcher.workflow.requests.discovery import (
    DiscoveryAgentRequest,
    DiscoveryAgentRequests,
    DiscoveryAgentResult,
    DiscoveryAgentResults,
    DiscoveryCollectorRequest,
    DiscoveryOrchestratorRequest,
)
from launcher.workflow.requests.orchestration import OrchestratorCollectorRequest, OrchestratorRequest
from launcher.workflow.requests.planning import (
    PlanningAgentRequest,
    PlanningAgentRequests,
    PlanningAgentResult,
    PlanningAgentResults,
    PlanningCollectorRequest,
    PlanningOrchestratorRequest,
)
from launcher.workflow.requests.review import MergerInterruptRequest, MergerRequest, ReviewRequest
from launcher.workflow.requests.ticket import (
    TicketAgentRequest,
    TicketAgentRequests,
    TicketAgentResult,
    TicketAgentResults,
    TicketCollectorRequest,
    TicketOrchestratorRequest,
)

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
