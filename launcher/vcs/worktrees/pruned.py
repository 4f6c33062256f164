"""Worktrees that git has forgotten (`git worktree prune`, `git gc`) while work of theirs is still somewhere else.

Commits that no harvest took over are in the private git directory, and kept ones in refs; neither is git's to prune.
Both are found by the worktree's git directory, so that is made again: a small one, without anything that was staged.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.vcs.git import Git
from launcher.vcs.quarantine import lock, record
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


@contextmanager
def stand_in(directory: str, known: record.Record) -> Iterator[None]:
    """A git directory for a worktree that git has pruned and Paddock never made, as long as its work is taken over.

    Args:
        directory: of its private git directory.
        known: the record there.

    Raises:
        Refusal: worktree-replaced: git has made another worktree with that git directory.
    """
    own = known.repositories[0]
    if lock.is_of_another(own.git_dir, directory):
        raise Refusal(
            "worktree-replaced",
            f"git has made another worktree at {known.worktree}",
            context=f"work of the one before waits in {directory}",
            hint="paddock run there puts it aside, and says where",
        )
    if known.kind != "linked" or os.path.isdir(own.git_dir) or not os.path.isdir(f"{own.common_dir}/objects"):
        yield
        return
    owner = os.path.basename(directory)
    part = Part(
        name="", worktree_id=owner, path=Path(known.worktree), common_dir=Path(own.common_dir),
        git_dir=Path(own.git_dir), branch=None, branch_made=False, base=own.base or "0" * 40,
    )  # fmt: skip
    files.restore(part, owner, f"ref: {own.branch}" if own.branch else own.base or "")
    try:
        yield
    finally:
        files.discard(part, owner)
