"""Phase 1: the trunk's work is brought to an agent's worktree when its result comes (contracts section 9)."""

import logging

from launcher.vcs.merge.models import MergeDescriptor, MergeDirection
from launcher.vcs.merge.protocol import MergeService
from launcher.workflow.decorators.protocol import DecoratorContext, Result
from launcher.workflow.decorators.result_worktrees import ResultWorktrees

log = logging.getLogger(__name__)

ORDER = 1000


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
            log.debug("%s was sent by nobody who has a worktree", result.artifact_key)
            return result
        return result.with_worktree_context(child).with_merge_descriptor(descriptor)
