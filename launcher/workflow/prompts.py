"""All prompt contributors, by ascending priority."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from launcher.vcs.merge.descriptors import AgentMergeStatus, MergeAggregation
from launcher.workflow.request_context import PromptContext
from launcher.workflow.requests import AgentType, DispatchRequest, ResultsRequest
from policy.errors import Refusal, printable
from policy.sandbox_context import WorktreeSandboxContext

# What a prompt contributor is (contracts section 3).


class PromptContributor(Protocol):
    """Adds a piece of text to some prompts."""

    @property
    def name(self) -> str:
        """Its name, unique in a prompt."""
        ...

    @property
    def priority(self) -> int:
        """Its place: lower numbers come first."""
        ...

    def include(self, context: PromptContext) -> bool:
        """Whether it contributes to this prompt."""
        ...

    def contribute(self, context: PromptContext) -> str:
        """Its text; called only where `include` is true."""
        ...


class PromptContributorFactory(Protocol):
    """Makes contributors for one prompt, when they need something of it."""

    def create(self, context: PromptContext) -> Sequence[PromptContributor]:
        """The contributors of a prompt, which may be none."""
        ...


class PromptContributorRegistry:
    """Makes the contributed part of prompts.

    Args:
        contributors: for every prompt.
        factories: make further ones for each prompt.

    Raises:
        Refusal: `prompt-duplicate` when two contributors have the same name.
    """

    def __init__(
        self,
        contributors: Sequence[PromptContributor] = (),
        factories: Sequence[PromptContributorFactory] = (),
    ) -> None:
        """See the class."""
        self._contributors = tuple(contributors)
        self._factories = tuple(factories)
        _refuse_doubles(self._contributors)

    def contributors(self, context: PromptContext) -> list[PromptContributor]:
        """The contributors to this prompt: lower priorities first, equals in the order of registration."""
        made = [contributor for factory in self._factories for contributor in factory.create(context)]
        everyone = (*self._contributors, *made)
        _refuse_doubles(everyone)
        return sorted(
            (contributor for contributor in everyone if contributor.include(context)),
            key=lambda contributor: contributor.priority,
        )

    def assemble(self, context: PromptContext) -> str:
        """Their texts, one after another, with an empty line between them."""
        texts = (contributor.contribute(context).strip("\n") for contributor in self.contributors(context))
        return "\n\n".join(text for text in texts if text)


def _refuse_doubles(contributors: Sequence[PromptContributor]) -> None:
    doubles = sorted(name for name, count in Counter(each.name for each in contributors).items() if count > 1)
    if doubles:
        raise Refusal("prompt-duplicate", f"more than one prompt contributor is called {', '.join(doubles)}")


# Names from outside in prompts: they must stay names, whatever they hold.


LONGEST = 300


def code(name: str) -> str:
    """`name` as a Markdown code span on one line.

    Ids and paths come from agents; a line break or a backtick in one would let it speak in the prompt's own voice.
    """
    text = printable(name).replace("`", "'")
    return f"`{text if len(text) <= LONGEST else text[:LONGEST] + '...'}`"


# Tells the routing model how the merges went (MF-021, EC-MF-008, contracts section 13).


METADATA_KEY = "mergeAggregation"

_INTRODUCTION = """\
## Worktree Merge Status

The agents' worktrees were merged into the parent worktree, one after another. The results so far are below; use
it to decide what comes next."""

_CHOICES = """\
**Action Required**: decide what to do about this conflict. You can
- send a `MergerInterruptRequest` to stop here and ask a person,
- send a `MergerRequest` to have the conflict resolved,
- skip this agent's changes and continue with the others."""


class MergeAggregationPromptContributor:
    """The state of one aggregation.

    Args:
        aggregation: what is told; None for nothing.
    """

    name = "MergeAggregationPromptContributor"
    priority = 500

    def __init__(self, aggregation: MergeAggregation | None) -> None:
        """See the class."""
        self.aggregation = aggregation

    def include(self, context: PromptContext) -> bool:
        """Whether there is an aggregation."""
        return self.aggregation is not None

    def contribute(self, context: PromptContext) -> str:
        """See `template`."""
        return self.template()

    def template(self) -> str:
        """Overall status, then who is merged, who conflicts and with which files, and who was not tried."""
        told = self.aggregation
        if told is None:
            return ""
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


# Tells the ticket orchestrator about worktrees (FR-008, FR-009, contracts section 3).


_RULES = """\
Every ticket gets a worktree of its own, on a branch of its own, beside this one. They are made for you when you hand
out the tickets: give each ticket an id of its own and describe only that ticket's work in its request. Do not create,
move or remove worktrees or branches yourself; your sandbox does not allow it.

An agent can read and change files in its own worktree only. Tell it paths relative to its worktree's root, never paths
in this worktree or in that of another ticket. What two tickets both need has to be done in one of them, or before both.
When the agents are done, their branches are merged into this worktree one after another, submodules first."""


class TicketOrchestratorWorktreePromptContributor:
    """For the ticket orchestrator only: which worktrees there are, and what each agent must keep to."""

    name = "ticket-orchestrator-worktree"
    priority = 60

    def include(self, context: PromptContext) -> bool:
        """Whether this is the ticket orchestrator's prompt."""
        return context.agent_type is AgentType.TICKET_ORCHESTRATOR

    def contribute(self, context: PromptContext) -> str:
        """The text. The parent's worktree comes from the previous request, else from the current one."""
        requests = [request for request in (context.previous_request, context.current_request) if request is not None]
        parent = next((request.worktree_context for request in requests if request.worktree_context is not None), None)
        lines = ["## Worktrees for Tickets", ""]
        if parent is None:
            lines += ["No worktree is known for this workflow yet, so tickets cannot be handed out separately."]
            return "\n".join(lines)
        lines += [*_described("Your worktree (the parent of all tickets)", parent), "", _RULES]
        given = [
            child
            for request in requests
            if isinstance(request, DispatchRequest)
            for child in request.children
            if child.worktree_context is not None
        ]
        if given:
            lines += ["", "Worktrees that exist already:"]
            for child in given:
                assert child.worktree_context is not None
                lines += _described(f"Ticket {code(child.worktree_label)}", child.worktree_context)
        return "\n".join(lines)


def _described(title: str, worktree: WorktreeSandboxContext) -> list[str]:
    lines = [f"- {title}: {code(str(worktree.worktree_path))}"]
    lines += [
        f"  - submodule {code(module.submodule_name)}: {code(str(module.worktree_path))}"
        for module in worktree.submodule_worktrees
    ]
    lines += [f"  - submodule {code(module.submodule_name)}: not available" for module in worktree.ungranted_submodules]
    return lines
