"""Tells the ticket orchestrator about worktrees (FR-008, FR-009, contracts section 3)."""

from launcher.workflow.agent_types import AgentType
from launcher.workflow.contexts.request_context import PromptContext
from launcher.workflow.prompts.wording import code
from launcher.workflow.requests.base import DispatchRequest
from policy.worktree import WorktreeSandboxContext

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
