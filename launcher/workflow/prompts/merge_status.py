"""Tells the routing model how the merges went (MF-021, EC-MF-008, contracts section 13)."""

from launcher.vcs.merge.models import AgentMergeStatus, MergeAggregation
from launcher.workflow.contexts.request_context import PromptContext
from launcher.workflow.prompts.protocol import PromptContributor
from launcher.workflow.prompts.wording import code
from launcher.workflow.requests.base import ResultsRequest

METADATA_KEY = "mergeAggregation"

_INTRODUCTION = """\
## Worktree Merge Status

The agents' worktrees were merged into the parent worktree, one after another. What follows is how far that went; use
it to decide what comes next."""

_CHOICES = """\
**Action Required**: decide what to do about this conflict. You can
- send a `MergerInterruptRequest` to stop here and ask a person,
- send a `MergerRequest` to have the conflict resolved,
- leave this agent's changes out and go on with the others."""


class MergeAggregationPromptContributor:
    """The state of one aggregation.

    Args:
        aggregation: what is told.
    """

    name = "MergeAggregationPromptContributor"
    priority = 500

    def __init__(self, aggregation: MergeAggregation) -> None:
        """See the class."""
        self.aggregation = aggregation

    def include(self, context: PromptContext) -> bool:
        """Always: it exists only where there is something to tell."""
        return True

    def contribute(self, context: PromptContext) -> str:
        """Overall status, then who is merged, who conflicts and with which files, and who was not tried."""
        told = self.aggregation
        overall = "ALL MERGED SUCCESSFULLY" if told.all_successful else "MERGE CONFLICTS DETECTED"
        parts = [_INTRODUCTION, f"**Overall Status**: {overall}"]
        if told.merged:
            parts.append("\n".join([f"### Successfully Merged ({len(told.merged)})", *map(_merged, told.merged)]))
        if told.conflicted is not None:
            parts += [_conflicted(told.conflicted), _CHOICES]
        if told.pending:
            lines = [f"- ○ {code(status.agent_result_id)}" for status in told.pending]
            explained = "Not merged yet, because merging stops at the first conflict:"
            parts.append("\n".join([f"### Pending ({len(told.pending)})", explained, *lines]))
        return "\n\n".join(parts)


class MergeAggregationPromptContributorFactory:
    """Makes the contributor for dispatch agents whose request, or whose prompt's metadata, holds an aggregation."""

    def create(self, context: PromptContext) -> list[PromptContributor]:
        """One contributor or none."""
        if context.current_request is None or not context.agent_type.dispatches:
            return []
        found = _aggregation(context)
        return [] if found is None else [MergeAggregationPromptContributor(found)]


def _aggregation(context: PromptContext) -> MergeAggregation | None:
    request = context.current_request
    if isinstance(request, ResultsRequest) and request.merge_aggregation is not None:
        return request.merge_aggregation
    noted = context.metadata.get(METADATA_KEY)
    return noted if isinstance(noted, MergeAggregation) else None


def _merged(status: AgentMergeStatus) -> str:
    remark = ""
    if status.merge_descriptor is None:
        remark = " (no worktree of its own)"
    elif status.merge_descriptor.no_op:
        remark = " (no changes)"
    return f"- ✓ {code(status.agent_result_id)}{remark}"


def _conflicted(status: AgentMergeStatus) -> str:
    lines = ["### Conflicted", f"- ✗ {code(status.agent_result_id)}"]
    descriptor = status.merge_descriptor
    assert descriptor is not None  # the aggregation's own rule
    if descriptor.error_message:
        lines.append(f"  - Reason: {code(descriptor.error_message)}")
    if descriptor.conflict_files:
        lines.append("  - Conflict files:")
        lines += [f"    - {code(path)}" for path in descriptor.conflict_files]
    for part in descriptor.submodule_merge_results:
        if not part.successful:
            lines.append(f"  - Submodule {code(part.submodule_name)}: {part.status}")
    earlier = status.child_merge_descriptor
    if earlier is not None and not earlier.successful:
        lines.append("  - The trunk's changes could not be merged into this agent's worktree before, either.")
    return "\n".join(lines)
