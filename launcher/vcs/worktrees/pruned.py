"""Worktrees that git has forgotten (`git worktree prune`, `git gc`) while work of theirs is still somewhere else.

Commits that no harvest took over are in the private git directory, and kept ones in refs; neither is git's to prune.
Both are found by the worktree's git directory, so that is made again: a small one, without anything that was staged.
"""

import os

from launcher.vcs.git import Git
from launcher.vcs.quarantine import record
from launcher.vcs.worktrees import files, kept
from launcher.vcs.worktrees.models import Part, Worktree
from policy.errors import Refusal


def can_be_restored(worktree: Worktree) -> bool:
    """Whether the repository is still there."""
    return os.path.isdir(worktree.main.common_dir / "objects")


def restore(worktree: Worktree, state: str) -> None:
    """Makes the git directories of a worktree again, where they are gone: on the branch that its last session was on.

    May be repeated after a crash. The repository's lock is held.

    Args:
        worktree: whose main part git does not know any more.
        state: Paddock's state directory.

    Raises:
        OSError: they cannot be written.
    """
    for part in filter(lambda part: part.linked, worktree.parts):
        if files.points_to(os.fspath(part.git_dir)) is not None or not os.path.isdir(part.common_dir / "objects"):
            continue
        files.restore(part, worktree.worktree_id, _head(worktree, os.fspath(part.git_dir), state) or _of_part(part))
        # So that git in it is content, should the files come back: nothing is staged. A branch may be gone by now.
        Git(os.fspath(part.git_dir)).run("read-tree", "HEAD", ok=(0, 128))
    files.record(worktree)
    for part in worktree.parts:
        files.unlock(part)


def holds_kept_work(worktree: Worktree) -> bool:
    """Whether a harvest has kept commits in refs that nobody has joined."""
    return any(
        kept.beside(Git(os.fspath(part.common_dir)), part, worktree, None)
        for part in worktree.parts
        if os.path.isdir(part.common_dir / "objects")
    )


def _head(worktree: Worktree, git_dir: str, state: str) -> str:
    """What HEAD was for the last session, as the record of its private git directory says; empty without one."""
    try:
        known = record.read(record.directory_of(state, worktree.worktree_id))
    except Refusal:
        return ""  # damaged: it stays where it is, and who wants to use it is told so
    for repository in known.repositories if known is not None else ():
        if repository.git_dir == git_dir:
            return f"ref: {repository.branch}" if repository.branch else repository.base or ""
    return ""


def _of_part(part: Part) -> str:
    return f"ref: {part.ref}" if part.ref else part.base
