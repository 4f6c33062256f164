"""What became of a worktree that was removed."""

from typing import NamedTuple

from launcher.vcs.worktrees.models import Worktree


class Removed(NamedTuple):
    """What became of a worktree.

    Attributes:
        worktree: as it was.
        backups: (git directory, ref) of each backup; for submodules with stores of their own, where those are now.
        branches_deleted: (git directory, branch) whose commits others have too.
        branches_kept: (git directory, branch) with commits of their own, or not made by Paddock.
        set_aside: where commits that were not harvested are kept; empty when there were none.
        refs_kept: (git directory, ref) of each ref with work of the agent's that nobody has joined.
        stashes: (git directory, ref) of each stash of the agent's that harvests have taken over.
        ignored: files that git ignored, which are gone, in words.
    """

    worktree: Worktree
    backups: list[tuple[str, str]]
    branches_deleted: list[tuple[str, str]]
    branches_kept: list[tuple[str, str]]
    set_aside: str
    refs_kept: list[tuple[str, str]]
    stashes: list[tuple[str, str]]
    ignored: list[str]

    def lines(self) -> list[str]:
        """Where everything of it is now, for people."""
        return [
            *(f"its work is kept: {ref} in {where}" for where, ref in self.backups),
            *(f"commits of the agent that nobody has joined stay in {ref} in {where}" for where, ref in self.refs_kept),
            *(f"a stash of the agent's stays in {ref} in {where}" for where, ref in self.stashes),
            *(
                f"deleted branch {branch}, whose commits are all elsewhere too, in {where}"
                for where, branch in self.branches_deleted
            ),
            *(f"kept branch {branch} in {where}" for where, branch in self.branches_kept),
            *(f"gone with it, as git ignored it: {text}" for text in self.ignored),
            *([kept_aside(self.set_aside)] if self.set_aside else []),
        ]


def kept_aside(place: str) -> str:
    """Where a private git directory was put, in words."""
    return f"the private git directory with commits that were not harvested is kept: {place}"
