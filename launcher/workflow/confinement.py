"""From a worktree context to the options of `paddock run` that hold a command to it."""

from policy.worktree import WorktreeSandboxContext


def run_options(context: WorktreeSandboxContext) -> list[str]:
    """The words for `paddock run`, in front of ``--``.

    A submodule that is not granted is denied by its path: in a worktree that was made for an agent its directory is
    empty, and to the launcher an empty directory would be one like any other.
    """
    words = ["--worktree", str(context.worktree_path)]
    for path in (*(module.worktree_path for module in context.ungranted_submodules), *context.denied_paths):
        words += ["--deny", str(path)]
    return [*words, "--freeze-root"] if context.freeze_root else words
