"""Submodules that a merge would take away from commits that the target records: never unasked.

`git merge` beside a submodule moves its gitlink in the index and leaves its checkout where it was, and `git commit -a`
then records the old commit again. Such a merge commit has all of the trunk's history, so that git sees nothing but a
newer gitlink: what others have done in the submodule would go from the trunk, and from the submodule's branch.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from launcher.vcs.gitlinks import Gitlink
from launcher.vcs.merge.descriptors import (
    MergeConflict,
    Outcome,
    Source,
    SubmoduleMergeResult,
    SubmoduleStatus,
    gitlink_conflict,
)
from launcher.vcs.merge.engine import Engine, Level, undone
from launcher.vcs.merge.object_store import Store
from launcher.vcs.merge.target import Place, stores_below
from policy.pasted import cited, joined, quoted

# Commands by which submodules follow a `git merge` in the checkout around them: git leaves them where they were.
#
# What is not brought along is recorded as it was by the next `git commit -a`, and the others' work is gone from
# there.


UPDATE = "git submodule update --merge --recursive"
"""On its branch where it is on one; a plain update would leave a detached HEAD, and later commits on no branch."""


class _Steps(NamedTuple):
    """Commands that bring commits, and then those that merge them, each before the one around it."""

    fetches: list[str]
    merges: list[str]


def catch_up_commands(
    engine: Engine, here: Place, mine: str, there: Place, other: str, *, recorded: bool = False
) -> list[str]:
    """What comes after ``git merge OTHER`` where `mine` is checked out; nothing where no submodule has to follow.

    Args:
        there: where the submodules are as `other` records them.
        recorded: it is merged already, and what the submodules were at is recorded there.

    Raises:
        GitFailed: git failed; Refusal: a submodule's place cannot be trusted.
    """
    found = _catch_up_below(engine, (here, mine), (there, other), "", recorded=recorded)
    return [*found.fetches, *found.merges, UPDATE] if found is not None else []


def _catch_up_below(
    engine: Engine, mine: tuple[Place, str], other: tuple[Place, str], prefix: str, *, recorded: bool
) -> _Steps | None:
    """None where nothing has to follow."""
    (here, before), (there, after) = mine, other
    left, right = engine.links(engine.store(here), before), engine.links(engine.store(there), after)
    found: _Steps | None = None
    for name, link in right.items():
        was = left.get(name)
        if was is None or was.commit == link.commit:
            continue
        inner, source = here.submodule(name, was.path), there.submodule(name, link.path)
        if inner is None or inner.worktree is None or source is None:
            continue
        store, beside = engine.store(source), inner.common_dir
        if not store.has_commit(link.commit):
            continue  # nobody has it here
        path = f"{prefix}{was.path}"
        deeper = _catch_up_below(engine, (inner, was.commit), (source, link.commit), f"{path}/", recorded=recorded)
        ahead = store.leads_to(link.commit, was.commit, beside=beside)
        if ahead and deeper is None:
            continue
        fetches, merges = deeper or _Steps([], [])
        if not ahead:
            fetches = _fetched(engine, path, link.commit, inner, source) + fetches
        if recorded or not store.leads_to(was.commit, link.commit, beside=beside):
            git = f"git -C {quoted(path)}"
            above = f"git -C {quoted(prefix.rstrip('/'))}" if prefix else "git"
            merges = [*([] if ahead else [f"{git} merge {link.commit}"]), *merges,
                      *([f"{git} commit -m 'Merge submodules'"] if merges else []),
                      f"{above} add {quoted(was.path)}"]  # fmt: skip
        # Else the update takes it along.
        old = found or _Steps([], [])
        found = _Steps(old.fetches + fetches, old.merges + merges)
    return found


def _fetched(engine: Engine, path: str, commit: str, here: Place, there: Place) -> list[str]:
    """The command that brings a submodule's commit into a checkout with a store of its own; none where it is there."""
    if engine.store(here).has_commit(commit):
        return []
    return [joined(("git", "-C", path, "fetch", "--no-recurse-submodules", there.common_dir, commit))]


class _Way(Enum):
    """Which way a submodule goes."""

    ON = "on"
    BACK = "back"  # to a commit in its own history
    ASIDE = "aside"  # to another line
    MISSING = "missing"  # from a commit that nobody has here, so that nobody can tell
    UNKNOWN = "unknown"


class _Rewind(NamedTuple):
    """A submodule that would leave commits behind, or may."""

    name: str
    path: str
    old: str
    new: str
    way: _Way

    def __str__(self) -> str:
        if self.way is _Way.MISSING:
            return (
                f"submodule {cited(self.name)} would go from {self.old[:12]} to {self.new[:12]}, and what that "
                f"drops is unknown: {self.old[:12]} is not in any repository of it here"
            )
        if self.way is _Way.UNKNOWN:
            return (
                f"submodule {cited(self.name)} would go from {self.old[:12]} to {self.new[:12]} while .gitmodules "
                "calls it something else, or nothing, and what that drops cannot be told"
            )
        how = f"would go {self.way.value} to {self.new[:12]}"
        return f"submodule {cited(self.name)} {how}, which lacks already merged commits of {self.old[:12]}"

    def conflict(self) -> MergeConflict:
        return gitlink_conflict(self.name, self.path, {2: self.old, 3: self.new}, str(self))

    def result(self) -> SubmoduleMergeResult:
        failed = Outcome("", conflicts=(self.conflict(),), error=str(self)).result(self.name, self.name, self.old)
        return SubmoduleMergeResult(submodule_name=self.name, merge_result=failed, status=SubmoduleStatus.CONFLICTED)


def refused(engine: Engine, ours: str, source: Source, outcome: Outcome, allowed: Collection[str]) -> Outcome:
    """`outcome`, or a conflict where it would take submodules away from commits that `ours` records.

    Args:
        source: what was merged into it.
        allowed: names of the submodules (as in `SubmoduleMergeResult`) that may.
    """
    if outcome.commit in ("", ours):
        return outcome
    top = Level("", "", "", engine.place, (source.place,) if source.place else ())
    several = _below(engine, top, ours, outcome.commit, engine.main)
    found = list({each.name: each for each in several if each.name not in allowed}.values())
    if not found:
        return outcome
    names = {each.name for each in found}
    others = tuple(result for result in outcome.submodules if result.submodule_name not in names)
    return Outcome(
        "",
        conflicts=tuple(each.conflict() for each in found),
        error="\n".join(map(str, found)),
        submodules=(*undone(others, SubmoduleStatus.ROLLED_BACK), *(each.result() for each in found)),
        hint=_hint(engine, ours, source, found),
    )


def _hint(engine: Engine, ours: str, source: Source, found: Sequence[_Rewind]) -> str:
    if gone := [each for each in found if each.way is _Way.MISSING]:
        fetch = "; ".join(f"git -C {quoted(each.path)} fetch origin {each.old}" for each in gone)
        return f"{fetch} (or ask its author to push it); then merge again; or, if that is intended: {_option(found)}"
    here = source.place or engine.place
    steps = catch_up_commands(engine, here, source.commit, engine.place, ours, recorded=True)
    steps = steps or [f"git -C {quoted(each.path)} merge {each.old}" for each in found]
    where = quoted(here.worktree) if source.place is not None and here.worktree else f"a worktree of {source.label}"
    return f"in {where}: {'; '.join(steps)}; git commit -a; then merge again; or, if that is intended: {_option(found)}"


def _option(found: Sequence[_Rewind]) -> str:
    return "paddock merge " + " ".join(f"--rewind {quoted(each.name)}" for each in found)


class _Found(Enum):
    """Why a gitlink is taken for a submodule of before."""

    NAME = "name"  # `.gitmodules` says so
    PLACE = "place"  # it is at its path, and `.gitmodules` calls it otherwise or nothing
    HISTORY = "history"  # only what it records can tell


class _Pair(NamedTuple):
    """A submodule as it was, and a gitlink that may be what has become of it."""

    was: Gitlink
    link: Gitlink
    found: _Found


def _pairs(
    named: tuple[dict[str, Gitlink], dict[str, Gitlink]], recorded: tuple[dict[str, str], dict[str, str]]
) -> Iterator[_Pair]:
    """What may have become of each submodule, before and after: `.gitmodules` is the child's, and may call it anything.

    Args:
        named: by name, as `.gitmodules` has them.
        recorded: all gitlinks.
    """
    before, after = named
    paths = {link.path for link in before.values()}
    unnamed = [Gitlink(path, path, commit) for path, commit in recorded[0].items() if path not in paths]
    known = {link.path for name, link in after.items() if name in before}
    for was in (*before.values(), *unnamed):
        same = after.get(was.name) if was.path in paths else None
        if same is not None:
            yield _Pair(was, same, _Found.NAME)
        there = recorded[1].get(was.path)
        if there is not None and (same is None or same.path != was.path):
            found = _Found.HISTORY if was.path in known else _Found.PLACE  # it is another one's by its name
            yield _Pair(was, Gitlink(was.name, was.path, there), found)
        if same is None and there is None:
            added = [(path, commit) for path, commit in recorded[1].items() if path not in recorded[0]]
            if was.commit not in (commit for _, commit in added):
                for path, commit in added:
                    yield _Pair(was, Gitlink(was.name, path, commit), _Found.HISTORY)


def _below(engine: Engine, at: Level, old: str, new: str, holder: Store) -> Iterator[_Rewind]:
    """The outermost ones: what is below follows them. `holder` has the commit `new`."""
    store = engine.store(at.place)
    named = engine.links(store, old), engine.links(holder, new)
    for was, link, found in _pairs(named, (engine.recorded(store, old), engine.recorded(holder, new))):
        if was.commit == link.commit:
            continue
        # Where the target has no store of it, its gitlink alone would move; the child's store can tell.
        place = (
            at.place.submodule(was.name, was.path)
            or next(iter(at.inside(was, "", at.place).sources), None)
            or _anywhere(engine, was.commit)
        )
        if place is None:
            if found is _Found.PLACE:
                yield _Rewind(at.named(was.name), f"{at.prefix}{link.path}", was.commit, link.commit, _Way.UNKNOWN)
            continue
        inner = at.inside(link, link.path, place)
        there = _holder(engine, inner, link.commit)
        own = engine.store(place)
        way = _way(own, there, was.commit, link.commit) if there is not None else _Way.UNKNOWN
        if found is _Found.HISTORY and (
            there is None or not own.is_kin(was.commit, link.commit, beside=there.git_dir if there is not own else "")
        ):
            continue  # another one, and where it has replaced this one, it is told as new
        if way in (_Way.BACK, _Way.ASIDE, _Way.MISSING) or (way is _Way.UNKNOWN and found is _Found.PLACE):
            yield _Rewind(inner.name, inner.prefix.removesuffix("/"), was.commit, link.commit, way)
        elif there is not None and own.has_commit(was.commit):
            yield from _below(engine, inner, was.commit, link.commit, there)


def _anywhere(engine: Engine, commit: str) -> Place | None:
    """The store of a submodule that has a commit, whatever it is called: it may have had another name."""
    for git_dir in stores_below(engine.place.common_dir):
        place = Place(git_dir, git_dir, None)
        if engine.store(place).has_commit(commit):
            return place
    return None


def _holder(engine: Engine, at: Level, commit: str) -> Store | None:
    """The store of a submodule that has a commit; None where nobody has it here. Then its branch cannot move either."""
    others = (*(place.common_dir for place in at.sources), *engine.place.other_stores(at.modules))
    for git_dir in dict.fromkeys((at.place.common_dir, *others)):
        store = engine.store(Place(git_dir, git_dir, None))
        if store.has_commit(commit):
            return store
    return None


def _way(own: Store, there: Store, old: str, new: str) -> _Way:
    """Where a submodule goes. Of a history that is cut off (shallow) or has a hole only a way back can be told."""
    beside = there.git_dir if there is not own else ""
    cut = any(os.path.lexists(f"{store.git_dir}/shallow") for store in (own, there))
    if not own.has_commit(old):
        return _Way.UNKNOWN if cut or there.has_commit(old) else _Way.MISSING
    if own.leads_to(old, new, beside=beside):
        return _Way.ON
    if own.leads_to(new, old, beside=beside):
        return _Way.BACK
    return _Way.UNKNOWN if cut else _Way.ASIDE
