"""Which commit each submodule gets when two commits of its parent meet. Pure decisions; the engine does the merging.

git merges a submodule's pointer only where one side descends from the other, and only beside a checkout of it. Here
every submodule is settled first, by name (so that moves and renames are followed), and what was settled is then put
into both sides, so that git finds nothing left to decide.
"""

from enum import Enum
from typing import NamedTuple

from launcher.vcs.merge.gitlinks import Gitlink


class Action(Enum):
    """What a submodule needs."""

    KEEP = "keep"  # nothing new from the source
    TAKE = "take"  # the source's commit, and git sees it by itself
    SETTLE = "settle"  # both sides have moved on: merge in the submodule
    ADDED = "added"  # only the source has it
    REMOVED = "removed"  # the source has removed it, unchanged on our side
    LEAVE = "leave"  # git is to say that it is a conflict (one side removed what the other changed)


class Decision(NamedTuple):
    """What becomes of one submodule.

    Attributes:
        name: of the submodule.
        action: see `Action`.
        ours: as the target records it.
        theirs: as the source records it.
        base: as their common ancestor records it.
        path: where the result has it; None where the sides have moved it to different places.
    """

    name: str
    action: Action
    ours: Gitlink | None
    theirs: Gitlink | None
    base: Gitlink | None
    path: str | None = None


def decide(ours: dict[str, Gitlink], theirs: dict[str, Gitlink], base: dict[str, Gitlink]) -> list[Decision]:
    """A decision for every submodule of either side, in the order of their names."""
    return [_one(name, ours.get(name), theirs.get(name), base.get(name)) for name in sorted({*ours, *theirs})]


def _one(name: str, ours: Gitlink | None, theirs: Gitlink | None, base: Gitlink | None) -> Decision:
    before = base.commit if base else ""
    if ours is None:
        assert theirs is not None
        if base is None:
            return Decision(name, Action.ADDED, ours, theirs, base, theirs.path)
        action = Action.KEEP if theirs.commit == before else Action.LEAVE
        return Decision(name, action, ours, theirs, base)
    if theirs is None:
        if base is None:
            return Decision(name, Action.KEEP, ours, theirs, base, ours.path)
        action = Action.REMOVED if ours.commit == before else Action.LEAVE
        return Decision(name, action, ours, theirs, base)
    path = _place(ours.path, theirs.path, base.path if base else None)
    if theirs.commit in (ours.commit, before):
        action = Action.KEEP
    elif ours.commit == before:
        action = Action.TAKE
    else:
        action = Action.SETTLE
    return Decision(name, action, ours, theirs, base, path)


def _place(ours: str, theirs: str, base: str | None) -> str | None:
    if ours == theirs or theirs == base:
        return ours
    return theirs if ours == base else None


def overrides(decision: Decision, commit: str) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """What to change in our and in their tree so that both record `commit` where the result has the submodule.

    Where the two sides have moved it to different places, each keeps its own: `.gitmodules` will conflict.
    """
    ours, theirs = decision.ours, decision.theirs
    assert ours is not None
    assert theirs is not None
    return _moved(ours.path, decision.path, commit), _moved(theirs.path, decision.path, commit)


def _moved(now: str, wanted: str | None, commit: str) -> dict[str, str | None]:
    if wanted is None or wanted == now:
        return {now: commit}
    return {now: None, wanted: commit}


def needs_override(decision: Decision, commit: str) -> bool:
    """Whether git, left alone, would not arrive at `commit`."""
    ours, theirs, base = decision.ours, decision.theirs, decision.base
    if ours is None or theirs is None:
        return False
    if theirs in (base, ours):
        return commit != ours.commit
    return ours != base or commit != theirs.commit
