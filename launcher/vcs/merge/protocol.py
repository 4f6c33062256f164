"""What the workflow layer asks of the merge engine; its decorators know nothing else of git."""

from collections.abc import Sequence
from typing import Protocol

from launcher.vcs.merge.models import AgentMergeStatus, MergeAggregation, MergeDescriptor
from policy.worktree import WorktreeSandboxContext


class MergeService(Protocol):
    """Merging by worktree contexts. What cannot be merged is an answer, not an exception.

    Both phases answer with a descriptor also when a worktree is gone (EC-MF-004), its session is still running, or
    git failed: `successful` is False then, with `error_message` and `hint`.
    """

    def merge_trunk_to_child(self, trunk: WorktreeSandboxContext, child: WorktreeSandboxContext) -> MergeDescriptor:
        """Phase 1: brings the trunk's work to one child; a conflict leaves the child as it was."""
        ...

    def merge_children_to_trunk(
        self, children: Sequence[AgentMergeStatus], trunk: WorktreeSandboxContext
    ) -> MergeAggregation:
        """Phase 2: brings every child's work to the trunk, in this order, up to the first that conflicts.

        Args:
            children: pending statuses, with phase 1's descriptor where there is one; those without a worktree context
                count as merged.
            trunk: where to.
        """
        ...
