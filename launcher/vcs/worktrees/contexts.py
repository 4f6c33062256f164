"""The boundaries of an agent, from a checkout as it is on the disk."""

from pathlib import Path

from launcher.vcs.checkout import Checkout
from launcher.vcs.worktrees.naming import worktree_id
from policy.worktree import MainWorktreeContext, SubmoduleWorktreeContext, WorktreeSandboxContext


def of_checkout(found: Checkout) -> WorktreeSandboxContext:
    """The context of a worktree with all its populated submodules granted.

    The ids are those that a launch there has, and those of the worktrees that the service makes.
    """
    main = worktree_id(found.root)
    submodules = tuple(
        SubmoduleWorktreeContext(
            submodule_name=submodule.name,
            worktree_id=worktree_id(submodule.path),
            worktree_path=Path(submodule.path),
            main_worktree_id=main,
        )
        for submodule in found.submodules
    )
    return WorktreeSandboxContext(
        main_worktree=MainWorktreeContext(
            worktree_id=main,
            worktree_path=Path(found.root),
            submodule_worktree_ids=tuple(submodule.worktree_id for submodule in submodules),
        ),
        submodule_worktrees=submodules,
    )
