"""What people know worktrees by: the ticket, and the branch that is checked out."""

import os
from collections.abc import Iterable
from contextlib import suppress

from launcher.vcs import checkout
from launcher.vcs.disk import Present
from launcher.vcs.private import ref_files
from launcher.vcs.worktrees.store import WorktreeRepository
from policy.errors import Refusal


def of(state: str, roots: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Root of each worktree -> (ticket, branch), "" for what it has not.

    Args:
        state: Paddock's state directory.
        roots: of worktrees.
    """
    store = WorktreeRepository(state)
    tickets = {row.path: row.ticket for row in store.all()} if os.path.exists(store.path) else {}
    found = {}
    for root in roots:
        branch = ""
        with suppress(Refusal, OSError):  # gone, or an agent is at its `.git`
            git_dir = checkout.find(root, Present(), exact=True).git_dir
            branch = ref_files.named(git_dir).removeprefix("refs/heads/") or "detached"
        found[root] = (tickets.get(root, ""), branch)
    return found
