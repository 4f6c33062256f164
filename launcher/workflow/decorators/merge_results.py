"""Phase 2: the work of all agents of a dispatch is brought to the trunk (contracts section 10)."""

import logging
from collections import Counter

from launcher.vcs.merge.models import AgentMergeStatus, MergeAggregation
from launcher.vcs.merge.protocol import MergeService
from launcher.workflow.decorators.protocol import DecoratorContext, Results
from launcher.workflow.decorators.result_worktrees import ResultWorktrees
from launcher.workflow.decorators.shared_worktree import first_in_each_worktree, spread
from launcher.workflow.requests.base import AgentResult
from policy.errors import Refusal
from policy.worktree import WorktreeSandboxContext

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
                f"{type(results).__name__} {results.artifact_key} holds more than one result of the same agent",
                context=f"twice or more: {', '.join(doubles)}",
            )
        asked = first_in_each_worktree(statuses)
        aggregation = self._merges.merge_children_to_trunk(asked, trunk)
        given, accounted = [status.agent_result_id for status in asked], _in_order(aggregation)
        if accounted != given:
            raise RuntimeError(f"the merge service was given {given} and accounted for {accounted}")
        return results.with_worktree_context(trunk).with_merge_aggregation(spread(aggregation, statuses))

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
    """All agents of an aggregation as they were tried: merged ones, the conflicted one, those left."""
    tried = [*aggregation.merged, *([aggregation.conflicted] if aggregation.conflicted else []), *aggregation.pending]
    return [status.agent_result_id for status in tried]
