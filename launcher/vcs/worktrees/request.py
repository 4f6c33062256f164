"""What somebody asks of the worktree service."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from launcher.vcs.worktrees.models import Worktree

Step = Callable[[str], None]
"""Called with a word before each change on the disk; tests kill the process there."""

Say = Callable[[str], None]
"""Takes a line about what is going on, for long work."""

Unharvested = Callable[[Path], bool | tuple[str, ...]]
"""What the worktree with this root has in a private git directory that was not brought home, in words; or whether."""


def quiet(_: str) -> None:
    """A `Step` or `Say` for nobody."""


class Options(NamedTuple):
    """How a worktree is to be made.

    Attributes:
        branch: its branch; one that exists is taken up where it is. None: ``agent/<ticket>``, which must be new.
        start: the commit to start from, for a new branch. None: the parent's HEAD.
        path: its directory. None: beside the parent.
        submodules: names of the ones to populate. None: all.
        copy: patterns of untracked files to copy from the parent.
        sparse: directories to check out, in cone mode. None: as the parent does.
        filters: names of `filter` drivers, of the repository's or the user's configuration, that may run (``lfs``).
        workers: processes that write files. None: as many as there are processors, 8 at most.
    """

    branch: str | None = None
    start: str | None = None
    path: str | None = None
    submodules: tuple[str, ...] | None = None
    copy: tuple[str, ...] = ()
    sparse: tuple[str, ...] | None = None
    filters: tuple[str, ...] = ()
    workers: int | None = None

    def processes(self) -> int:
        """How many gits write files. Two are quicker than one, even on one processor: they overlap."""
        return self.workers if self.workers is not None else min(8, max(2, len(os.sched_getaffinity(0))))

    def settings(self) -> tuple[tuple[str, str], ...]:
        """Git configuration of the checkout."""
        return (("checkout.workers", str(self.processes())), ("checkout.thresholdForParallelism", "50"))


# What became of a worktree that was removed.


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
