"""The graph follows what happens: nodes change their status with requests, results and merges (plan.md)."""

import logging

from launcher.workflow.decorators.chain import DecoratorContext, Request, Result, Results
from launcher.workflow.graph.repository import GraphRepository, NodeStatus
from launcher.workflow.requests.catalog import MergerInterruptRequest, MergerRequest

log = logging.getLogger(__name__)

ORDER = 1100
"""Behind the merges, whose outcome it writes down."""


def move(graph: GraphRepository, node_id: str, status: NodeStatus) -> None:
    """Gives a node a new status. A node that is not kept, or that is canceled, changes nothing for the workflow.

    What has been merged has been merged: a status that does not fit is told in the log and never an error here.
    """
    node = graph.get(node_id)
    if node is None:
        log.debug("no node is kept for %s", node_id)
        return
    if node.status is NodeStatus.PENDING and status is not NodeStatus.CANCELED:
        graph.update(node_id, lambda each: each.moved_to(NodeStatus.RUNNING))
    if graph.update(node_id, lambda each: each.moved_to(status) if each.can_become(status) else each) is not None:
        after = graph.get(node_id)
        if after is not None and after.status is not status:
            log.warning("node %s stays %s, it cannot become %s", node_id, after.status, status)


class NodeStateRequestDecorator:
    """The receiver's node runs; the node of an agent whose work conflicts is being merged, or waits for a person."""

    name = "node-state"
    order = ORDER

    def __init__(self, graph: GraphRepository) -> None:
        """Takes the graph to write to."""
        self._graph = graph

    def decorate(self, request: Request, context: DecoratorContext) -> Request:
        """`request`, as it is."""
        if isinstance(request, MergerRequest | MergerInterruptRequest):
            conflicted = request.conflicted
            agent = request.ticket_agent.value if request.ticket_agent is not None else None
            about = conflicted.agent_result_id if conflicted is not None else agent
            if about is not None:
                waits = isinstance(request, MergerInterruptRequest)
                move(self._graph, about, NodeStatus.WAITING_INPUT if waits else NodeStatus.MERGING)
        move(self._graph, request.context_id.value, NodeStatus.RUNNING)
        return request


class NodeStateResultDecorator:
    """An agent's node is complete, or in conflict with the trunk (phase 1)."""

    name = "node-state"
    order = ORDER

    def __init__(self, graph: GraphRepository) -> None:
        """Takes the graph to write to."""
        self._graph = graph

    def decorate(self, result: Result, context: DecoratorContext) -> Result:
        """`result`, as it is."""
        descriptor = result.merge_descriptor
        clean = descriptor is None or descriptor.successful
        move(self._graph, result.context_id.value, NodeStatus.COMPLETED if clean else NodeStatus.CONFLICTED)
        return result


class NodeStateResultsDecorator:
    """Each agent's node is merged, in conflict or waiting, and the dispatch's complete or open (phase 2)."""

    name = "node-state"
    order = ORDER

    def __init__(self, graph: GraphRepository) -> None:
        """Takes the graph to write to."""
        self._graph = graph

    def decorate(self, results: Results, context: DecoratorContext) -> Results:
        """`results`, as they are."""
        aggregation = results.merge_aggregation
        if aggregation is not None:
            for status in aggregation.merged:
                move(self._graph, status.agent_result_id, NodeStatus.MERGED)
            if aggregation.conflicted is not None:
                move(self._graph, aggregation.conflicted.agent_result_id, NodeStatus.CONFLICTED)
            for status in aggregation.pending:
                move(self._graph, status.agent_result_id, NodeStatus.WAITING_MERGE)
        done = aggregation is None or aggregation.all_successful
        move(self._graph, results.context_id.value, NodeStatus.COMPLETED if done else NodeStatus.WAITING_DECISION)
        return results
