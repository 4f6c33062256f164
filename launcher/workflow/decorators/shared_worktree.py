"""Agents that share a worktree are merged once, and each is told."""

from collections.abc import Sequence

from launcher.vcs.merge.models import AgentMergeStatus, MergeAggregation, MergeDescriptor, MergeDirection

_NOTHING_NEW = MergeDescriptor(merge_direction=MergeDirection.CHILD_TO_TRUNK, successful=True)


def first_in_each_worktree(statuses: Sequence[AgentMergeStatus]) -> list[AgentMergeStatus]:
    """`statuses` without those whose worktree an earlier one has; all that have none stay."""
    seen: set[str] = set()
    chosen: list[AgentMergeStatus] = []
    for status in statuses:
        place = status.worktree_context
        if place is None or place.worktree_id not in seen:
            chosen.append(status)
        if place is not None:
            seen.add(place.worktree_id)
    return chosen


def spread(asked: MergeAggregation, everybody: Sequence[AgentMergeStatus]) -> MergeAggregation:
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
