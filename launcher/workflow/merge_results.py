"""Both merge phases of a dispatch, and the graph that follows them (contracts sections 9 and 10, plan.md)."""

import logging
from collections import Counter
from collections.abc import Sequence

from launcher.vcs.merge.descriptors import (
    AgentMergeStatus,
    MergeAggregation,
    MergeDescriptor,
    MergeDirection,
    MergeService,
)
from launcher.workflow.chain import DecoratorContext, Request, Result, Results
from launcher.workflow.graph import GraphRepository, NodeStatus
from launcher.workflow.request_context import RequestContextRepository
from launcher.workflow.requests import AgentRequest, AgentResult, MergerInterruptRequest, MergerRequest
from launcher.workflow.worktrees import WorktreeService, trusted
from policy.errors import Refusal
from policy.sandbox_context import WorktreeSandboxContext

# Agents that share a worktree are merged once, and each is told.


_NOTHING_NEW = MergeDescriptor(merge_direction=MergeDirection.CHILD_TO_TRUNK, successful=True)


def first_in_each_worktree(statuses: Sequence[AgentMergeStatus]) -> list[AgentMergeStatus]:
    """`statuses` with the first of each worktree only; those without a worktree all stay."""
    seen: set[str] = set()
    chosen: list[AgentMergeStatus] = []
    for status in statuses:
        place = status.worktree_context
        if place is None or place.worktree_id not in seen:
            chosen.append(status)
        if place is not None:
            seen.add(place.worktree_id)
    return chosen


def spread_results(asked: MergeAggregation, everybody: Sequence[AgentMergeStatus]) -> MergeAggregation:
    """What merging the first in each worktree means for all, in the order of `everybody`.

    A later agent of a worktree that was merged has brought nothing new. Behind a conflict everybody is pending: its
    worktree may have been merged with an earlier agent, but nobody has looked for what came after.
    """
    tried = {status.agent_result_id: status for status in asked.merged}
    merged: list[AgentMergeStatus] = []
    pending: list[AgentMergeStatus] = []
    conflicted: AgentMergeStatus | None = None
    for status in everybody:
        if conflicted is not None:
            pending.append(status)
        elif asked.conflicted is not None and asked.conflicted.agent_result_id == status.agent_result_id:
            conflicted = asked.conflicted
        else:
            alone = status.model_copy(update={"merge_descriptor": _NOTHING_NEW})
            merged.append(tried.get(status.agent_result_id, alone))
    return MergeAggregation(merged=tuple(merged), pending=tuple(pending), conflicted=conflicted)


# Whose work a result is: the agent's worktree, and the trunk that it was made from.


class ResultWorktrees:
    """Finds worktrees for both merge phases.

    Args:
        contexts: what was written down about each agent's session; believed before what a result claims.
        worktrees: confirms claims, and knows parents.
    """

    def __init__(self, contexts: RequestContextRepository, worktrees: WorktreeService) -> None:
        """See the class."""
        self._contexts = contexts
        self._worktrees = worktrees

    def of_result(self, result: AgentResult) -> WorktreeSandboxContext | None:
        """The worktree of the agent that returned `result`; None when it has none."""
        stored = self._contexts.get(result.context_id)
        if stored is not None and stored.worktree_context is not None:
            return stored.worktree_context
        return trusted(self._worktrees, result.worktree_context)

    def trunk_of(
        self, result: AgentResult, child: WorktreeSandboxContext, last: AgentRequest | None
    ) -> WorktreeSandboxContext | None:
        """The trunk for phase 1: of the dispatch `last`, or of the one before when `last` is the agent's own request.

        None when nothing is known of a trunk, or when it no longer exists.
        """
        if last is not None and last.context_id != result.context_id:
            return last.worktree_context
        stored = self._contexts.get(result.context_id)
        before = None if stored is None else stored.previous_request
        if before is not None and before.context_id != result.context_id:
            return before.worktree_context
        return None if child.parent_worktree_id is None else self._worktrees.worktree_context(child.parent_worktree_id)

    def trunk_of_dispatch(self, dispatch: AgentRequest, last: AgentRequest | None) -> WorktreeSandboxContext | None:
        """The trunk for phase 2: of the dispatch that was answered, else as written down, else as confirmed."""
        if last is not None and last.worktree_context is not None:
            return last.worktree_context
        stored = self._contexts.get(dispatch.context_id)
        if stored is not None and stored.worktree_context is not None:
            return stored.worktree_context
        return trusted(self._worktrees, dispatch.worktree_context)


log = logging.getLogger(__name__)

ORDER = 1000


class WorktreeMergeResultsDecorator:
    """Puts the aggregation on the results of a dispatch (MF-014 to MF-021).

    It reports and decides nothing: what happens about a conflict is the routing model's choice (MF-022).

    Args:
        merges: merges the children in order, submodules first, up to the first conflict.
        places: finds the worktrees.
    """

    name = "worktree-merge-results"
    order = ORDER

    def __init__(self, merges: MergeService, places: ResultWorktrees) -> None:
        """See the class."""
        self._merges = merges
        self._places = places

    def decorate(self, results: Results, context: DecoratorContext) -> Results:
        """`results` with an aggregation; as they are when the dispatch has no worktree.

        Raises:
            Refusal: `results-duplicate`, before anything is merged.
        """
        trunk = self._places.trunk_of_dispatch(results, context.last_request)
        if trunk is None:
            log.debug("%s has no worktree, so there is nothing to merge into", results.artifact_key)
            return results
        statuses = [self._pending(result, trunk) for result in results.child_results()]
        ids = [status.agent_result_id for status in statuses]
        doubles = sorted(name for name, count in Counter(ids).items() if count > 1)
        if doubles:
            raise Refusal(
                "results-duplicate",
                f"{type(results).__name__} {results.artifact_key} has more than one result of the same agent",
                context=f"twice or more: {', '.join(doubles)}",
            )
        asked = first_in_each_worktree(statuses)
        aggregation = self._merges.merge_children_to_trunk(asked, trunk)
        given, accounted = [status.agent_result_id for status in asked], _in_order(aggregation)
        if accounted != given:
            raise RuntimeError(f"the merge service was given {given} and reported on {accounted}")
        return results.with_worktree_context(trunk).with_merge_aggregation(spread_results(aggregation, statuses))

    def _pending(self, result: AgentResult, trunk: WorktreeSandboxContext) -> AgentMergeStatus:
        worktree = self._places.of_result(result)
        if worktree is not None and worktree.worktree_id == trunk.worktree_id:
            worktree = None  # it worked in the trunk itself: its work is there already
        return AgentMergeStatus(
            agent_result_id=result.context_id.value,
            worktree_context=worktree,
            child_merge_descriptor=result.merge_descriptor,
        )


def _in_order(aggregation: MergeAggregation) -> list[str]:
    """All agents of an aggregation in order: merged, the conflicted one, those not tried."""
    tried = [*aggregation.merged, *([aggregation.conflicted] if aggregation.conflicted else []), *aggregation.pending]
    return [status.agent_result_id for status in tried]


# Phase 1: the trunk's work is brought to an agent's worktree when its result comes (contracts section 9).


class WorktreeMergeResultDecorator:
    """Puts the outcome of trunk -> child on the result (MF-009 to MF-013).

    Args:
        merges: carries it out.
        places: finds the two worktrees.
    """

    name = "worktree-merge-result"
    order = ORDER

    def __init__(self, merges: MergeService, places: ResultWorktrees) -> None:
        """See the class."""
        self._merges = merges
        self._places = places

    def decorate(self, result: Result, context: DecoratorContext) -> Result:
        """`result` with a descriptor; as it is when the agent has no worktree (EC-MF-006)."""
        child = self._places.of_result(result)
        if child is None:
            log.debug("%s has no worktree, so there is nothing to merge", result.artifact_key)
            return result
        trunk = self._places.trunk_of(result, child, context.last_request)
        if trunk is not None:
            if trunk.worktree_id == child.worktree_id:  # it works in the trunk itself
                descriptor = MergeDescriptor(merge_direction=MergeDirection.TRUNK_TO_CHILD, successful=True)
            else:
                descriptor = self._merges.merge_trunk_to_child(trunk, child)
        elif child.parent_worktree_id is not None:
            descriptor = MergeDescriptor(  # EC-MF-004
                merge_direction=MergeDirection.TRUNK_TO_CHILD,
                successful=False,
                error_message=f"the parent worktree {child.parent_worktree_id} no longer exists",
            )
        else:
            log.debug("%s has no sender with a worktree", result.artifact_key)
            return result
        return result.with_worktree_context(child).with_merge_descriptor(descriptor)


# The graph follows what happens: nodes change their status with requests, results and merges (plan.md).

NODE_STATE_ORDER = 1100
"""Behind the merges, whose outcome it writes down."""


def move(graph: GraphRepository, node_id: str, status: NodeStatus) -> None:
    """Gives a node a new status. A node that is not kept, or that is canceled, changes nothing for the workflow.

    What has been merged has been merged: a status that does not fit is told in the log and never an error here.
    """
    node = graph.get(node_id)
    if node is None:
        log.debug("no node is recorded for %s", node_id)
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
    order = NODE_STATE_ORDER

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
    order = NODE_STATE_ORDER

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
    order = NODE_STATE_ORDER

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
