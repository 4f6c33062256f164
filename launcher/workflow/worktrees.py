"""What the workflow asks of the worktree service, and which part of a worktree a node is granted."""

from collections.abc import Collection
from typing import Protocol

from policy.errors import Refusal
from policy.worktree import WorktreeSandboxContext


class WorktreeService(Protocol):
    """Worktrees by id. The service makes them; agents never do (their jail forbids it)."""

    def worktree_context(self, worktree_id: str) -> WorktreeSandboxContext | None:
        """The worktree's boundaries with all its submodules; None when it is unknown or no longer exists."""
        ...

    def create_child(self, parent: WorktreeSandboxContext, name: str) -> WorktreeSandboxContext:
        """Makes a worktree on a branch of its own beside the parent's (FR-006), with every submodule.

        Args:
            parent: the worktree whose state it begins with.
            name: what it is named after; the service makes the name unique.

        Raises:
            Refusal: it cannot be made; nothing is left of it.
        """
        ...

    def discard_child(self, worktree_id: str) -> None:
        """Removes a worktree that nobody has worked in yet.

        Raises:
            Refusal: it holds work.
        """
        ...


def granted_part(context: WorktreeSandboxContext, granted: Collection[str] | None) -> WorktreeSandboxContext:
    """`context` with only these submodules granted (story 6); None grants what it grants already.

    Raises:
        Refusal: `submodule-unknown` when one of them does not exist there or was not granted to begin with.
    """
    if granted is None:
        return context
    names = [submodule.submodule_name for submodule in context.submodule_worktrees]
    unknown = sorted(set(granted) - set(names))
    if unknown:
        raise Refusal(
            "submodule-unknown",
            f"worktree {context.main_worktree_path} grants no submodule {', '.join(unknown)}",
            context=f"granted there: {', '.join(names) or 'none'}",
        )
    kept = tuple(module for module in context.submodule_worktrees if module.submodule_name in granted)
    closed = tuple(
        module.model_copy(update={"granted": False})
        for module in context.submodule_worktrees
        if module.submodule_name not in granted
    )
    return type(context).model_validate(
        {
            **dict(context),
            "submodule_worktrees": kept,
            "ungranted_submodules": (*context.ungranted_submodules, *closed),
        }
    )


def trusted(service: WorktreeService, claimed: WorktreeSandboxContext | None) -> WorktreeSandboxContext | None:
    """What the service knows of the worktree that a message claims to have, or None when it does not know it.

    Messages are written by models. What one claims can only make the boundaries narrower: submodules that it leaves
    out are not granted, and its exceptions are added.
    """
    if claimed is None:
        return None
    known = service.worktree_context(claimed.worktree_id)
    if known is None or known.worktree_path != claimed.worktree_path:
        return None
    names = {module.submodule_name for module in claimed.submodule_worktrees}
    narrowed = granted_part(
        known, [module.submodule_name for module in known.submodule_worktrees if module.submodule_name in names]
    )
    return type(known).model_validate(
        {
            **dict(narrowed),
            "denied_paths": tuple(dict.fromkeys((*known.denied_paths, *claimed.denied_paths))),
            "read_only_paths": tuple(dict.fromkeys((*known.read_only_paths, *claimed.read_only_paths))),
            "unpopulated_submodules": tuple(
                dict.fromkeys((*known.unpopulated_submodules, *claimed.unpopulated_submodules))
            ),
            "freeze_root": known.freeze_root or claimed.freeze_root,
        }
    )
