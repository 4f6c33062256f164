"""What goes into a merge of two commits, and what comes out of it."""

from typing import NamedTuple

from launcher.vcs.merge.conflict import MergeConflict
from launcher.vcs.merge.models import SubmoduleMergeResult
from launcher.vcs.merge.place import Place


class Outcome(NamedTuple):
    """The merge of one source into one target commit.

    Attributes:
        commit: what the target would be; "" on failure, the target itself for a no-op.
        no_op: the target holds it already.
        fast_forward: the source itself is the result.
        conflicts: what git could not decide; those in submodules come first.
        error: why it failed, when not by conflicts alone.
        submodules: one result for each submodule that was looked at, innermost first.
        hint: the way out of a failure, where it has one of its own.
    """

    commit: str
    no_op: bool = False
    fast_forward: bool = False
    conflicts: tuple[MergeConflict, ...] = ()
    error: str = ""
    submodules: tuple[SubmoduleMergeResult, ...] = ()
    hint: str = ""


class Source(NamedTuple):
    """What is merged.

    Attributes:
        label: as people call it.
        commit: of the main repository.
        place: the worktree it comes from, when it is known: its submodules' stores may hold commits that no other
            store has.
        heads: take what is checked out in the submodules of `place`, where it is ahead of what the commit records.
    """

    label: str
    commit: str
    place: Place | None = None
    heads: bool = False
