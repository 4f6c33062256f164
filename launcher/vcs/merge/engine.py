"""Merging two commits of a repository, its submodules first, as objects: no ref, index or file of the user's moves."""

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from enum import Enum
from typing import NamedTuple, Self

from launcher.vcs import gitlinks
from launcher.vcs.added_packs import Held
from launcher.vcs.git import Git, GitFailed, kill
from launcher.vcs.gitlinks import Gitlink
from launcher.vcs.merge import report
from launcher.vcs.merge.descriptors import (
    MergeConflict,
    Outcome,
    Source,
    StageNumber,
    SubmoduleMergeResult,
    SubmoduleStatus,
    gitlink_conflict,
)
from launcher.vcs.merge.object_store import Relation, Store
from launcher.vcs.merge.runs import Move
from launcher.vcs.merge.target import Place
from policy.pasted import cited

# Taking commits from one trusted store to another of the same submodule, offline.


_INDEX = ("index-pack", "--stdin", "--fix-thin", "--strict")
_PACK = ("pack-objects", "--revs", "--thin", "--stdout", "-q", "--delta-base-offset")


def transfer_objects(source: Git, target: Git, commit: str) -> None:
    """Copies `commit` and what `target` lacks of its history."""
    tips = sorted(set(target.text("for-each-ref", "--format=%(objectname)").split()))
    common = [one.oid for one in source.objects(tips) if one.kind != "missing"] if tips else []
    wanted = "".join((f"{commit}\n", *(f"^{tip}\n" for tip in common))).encode()
    pipe = subprocess.PIPE
    packing = source.start(*_PACK, stdin=pipe, stdout=pipe)
    try:
        indexing = target.start(*_INDEX, stdin=packing.stdout, stderr=pipe)
        try:
            assert packing.stdin is not None
            assert packing.stdout is not None
            assert indexing.stderr is not None
            packing.stdout.close()  # index-pack alone reads it, so pack-objects notices when that dies
            try:
                packing.stdin.write(wanted)
                packing.stdin.close()
            except BrokenPipeError:
                pass  # its exit status tells
            err = indexing.stderr.read()
            statuses = packing.wait(source.timeout), indexing.wait(target.timeout)
        finally:
            kill(indexing)
    finally:
        kill(packing)
    if any(statuses):
        why = f"exit status {statuses[1]}, pack-objects {statuses[0]}"
        raise GitFailed("git-failed", _INDEX, target.git_dir, why, status=statuses[1], err=err)


# Which commit each submodule gets when two commits of its parent meet. Pure decisions; the engine does the merging.
#
# git merges a submodule's pointer only where one side descends from the other, and only beside a checkout of it.
# Here every submodule is settled first, by name (so that moves and renames are followed), and what was settled is
# then put into both sides, so that git finds nothing left to decide.


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
    return [_decided(name, ours.get(name), theirs.get(name), base.get(name)) for name in sorted({*ours, *theirs})]


def _decided(name: str, ours: Gitlink | None, theirs: Gitlink | None, base: Gitlink | None) -> Decision:
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
    path = _decided_place(ours.path, theirs.path, base.path if base else None)
    if theirs.commit in (ours.commit, before):
        action = Action.KEEP
    elif ours.commit == before:
        action = Action.TAKE
    else:
        action = Action.SETTLE
    return Decision(name, action, ours, theirs, base, path)


def _decided_place(ours: str, theirs: str, base: str | None) -> str | None:
    if ours == theirs or theirs == base:
        return ours
    return theirs if ours == base else None


def gitlink_overrides(decision: Decision, commit: str) -> tuple[dict[str, str | None], dict[str, str | None]]:
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


class Level(NamedTuple):
    """One repository in the tree of submodules.

    Attributes:
        name: those of the submodules that lead to it, from outside in, joined by ``/``; empty for the main one.
        modules: the way to its store from the main one's `modules` directory.
        prefix: what its paths begin with, seen from the main worktree.
        place: where it is.
        sources: where it is in the worktrees that are merged.
    """

    name: str
    modules: str
    prefix: str
    place: Place
    sources: tuple[Place, ...]

    def named(self, key: str) -> str:
        """The name of a submodule in it."""
        return f"{self.name}/{key}" if self.name else key

    def inside(self, link: Gitlink, path: str, place: Place) -> "Level":
        """The submodule of a gitlink that is at `path` here, and at `place`."""
        modules = f"{self.modules}/modules/{link.name}" if self.modules else link.name
        found = [source.submodule(link.name, link.path) for source in self.sources]
        sources = tuple(source for source in found if source is not None)
        return Level(self.named(link.name), modules, f"{self.prefix}{path}/", place, sources)


class _Settled(NamedTuple):
    """What is known of the submodules of one merge."""

    results: list[SubmoduleMergeResult]
    ours: dict[str, str | None]
    theirs: dict[str, str | None]
    conflicts: tuple[MergeConflict, ...] = ()
    error: str = ""


class Engine:
    """Merges commits of one repository and of the submodules below it.

    Args:
        place: the repository, through the worktree that is merged into.
        hold: descriptors that git processes inherit.

    Nothing is left behind of what it makes, but for what `publish` or `show` is called for.

    Attributes:
        held: holds what was published, until `close`.
    """

    def __init__(self, place: Place, who: Mapping[str, str], *, hold: Sequence[int] = (), run: str = "trial") -> None:
        self.place = place
        self._who = who
        self._hold = hold
        self._stores: dict[str, Store] = {}
        self._links: dict[tuple[str, str], dict[str, Gitlink]] = {}
        self._commits: dict[tuple[str, str], dict[str, str]] = {}
        self._stack = ExitStack()
        self.held = self._stack.enter_context(Held(f"merge {run}, until refs point to its commits"))
        self.main = self.store(place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def store(self, place: Place) -> Store:
        """The store of a place; one per repository."""
        if place.common_dir not in self._stores:
            store = Store(place.common_dir, self._who, hold=self._hold)
            self._stores[place.common_dir] = self._stack.enter_context(store)
        return self._stores[place.common_dir]

    def publish(self, moves: Sequence[Move]) -> None:
        """Adds the commits of some moves to their repositories, and to others all that was made there."""
        others = dict(self._stores)
        for move in moves:
            store = self._stores[Git(move.git_dir).common_dir]
            store.publish(self.held, [move.new] if move.ref else [move.old, move.new], on=move.old if move.ref else "")
            others.pop(store.git_dir, None)
        for store in others.values():
            store.publish(self.held, store.made)

    def show(self) -> None:
        """Adds all commits that were made so far to their repositories, for others to look at."""
        for store in self._stores.values():
            store.publish(self.held, store.made)

    def links(self, store: Store, commit: str) -> dict[str, Gitlink]:
        """The submodules that a commit records, by name; asked once."""
        key = (store.git_dir, commit)
        if key not in self._links:
            self._links[key] = store.links(commit)
        return self._links[key]

    def recorded(self, store: Store, commit: str) -> dict[str, str]:
        """All gitlinks of a commit, path -> commit, whatever its `.gitmodules` names; asked once."""
        key = (store.git_dir, commit)
        if key not in self._commits:
            self._commits[key] = gitlinks.of_tree(store.git, commit)
        return self._commits[key]

    def merge(
        self, ours: str, source: Source, message: str, *, relation: Relation | None = None, submodules: bool = True
    ) -> Outcome:
        """Merges a source into the commit `ours` of the main repository.

        Args:
            relation: how the two stand to each other, where that is known.
            submodules: whether there may be any to look at.

        Raises:
            GitFailed: git itself failed; Refusal: a submodule's place cannot be trusted.
        """
        sources = (source.place,) if source.place else ()
        level = Level("", "", "", self.place, sources)
        return self._merge(level, ours, source.commit, message, relation, submodules=submodules, heads=source.heads)

    def fetch(self, level: Level, commit: str) -> bool:
        """Whether the store of a submodule has `commit`, after looking for it in all its other stores."""
        store = self.store(level.place)
        if store.has_commit(commit):
            return True
        own = [source.common_dir for source in level.sources]
        for git_dir in dict.fromkeys((*own, *self.place.other_stores(level.modules))):
            if git_dir == level.place.common_dir:
                continue
            other = Git(git_dir, hold=self._hold)
            if other.run("cat-file", "-e", f"{commit}^{{commit}}", ok=(0, 1, 128)).status == 0:
                transfer_objects(other, store.git, commit)
                store.made.append(commit)
                return True
        return False

    def _merge(
        self,
        level: Level,
        ours: str,
        theirs: str,
        message: str,
        relation: Relation | None,
        *,
        submodules: bool,
        heads: bool,
    ) -> Outcome:
        store = self.store(level.place)
        relation = relation or store.relation(ours, theirs)
        settled = _Settled([], {}, {})
        if submodules:
            settled = self._settle(level, ours, theirs, message, relation, heads=heads)
            if settled.conflicts or settled.error:
                return Outcome("", conflicts=settled.conflicts, error=settled.error, submodules=tuple(settled.results))
        results = tuple(settled.results)
        if not settled.ours and not settled.theirs:
            if not relation.theirs_alone:
                return Outcome(ours, no_op=True, submodules=results)
            if not relation.ours_alone:
                return Outcome(theirs, fast_forward=True, submodules=results)
        try:
            left = self._with(store, ours, settled.ours)
            right = self._with(store, theirs, settled.theirs)
        except GitFailed as error:
            return Outcome("", error=f"the submodule pointers could not be set: {error.message}",
                           submodules=undone(results, SubmoduleStatus.POINTER_NOT_UPDATED))  # fmt: skip
        if not relation.theirs_alone:
            tree = store.trees([left])[0]
            return Outcome(store.commit(tree, [ours], message), submodules=results)
        if not relation.ours_alone:
            tree = store.trees([right])[0]
            return Outcome(store.commit(tree, [theirs], message), submodules=results)
        merged = store.merge_trees(left, right, attributes=ours)
        without = undone(results, SubmoduleStatus.ROLLED_BACK)
        if merged is None:
            return Outcome("", error="they have no common ancestor", submodules=without)
        if not merged.clean:
            found = report.conflicts(merged, prefix=level.prefix, submodule=level.name or None)
            return Outcome("", conflicts=found, submodules=without)
        return Outcome(store.commit(merged.tree, [ours, theirs], message), submodules=results)

    def _with(self, store: Store, commit: str, changes: dict[str, str | None]) -> str:
        """A commit beside `commit`, with other gitlinks; for merging only, no ref will ever lead to it."""
        if not changes:
            return commit
        tree = store.with_gitlinks(commit, changes)
        return store.commit(tree, [commit], "Gitlinks.\n")

    def _settle(
        self, level: Level, ours: str, theirs: str, message: str, relation: Relation, *, heads: bool
    ) -> _Settled:
        store = self.store(level.place)
        left, right = self.links(store, ours), self.links(store, theirs)
        recorded = right
        settled = _Settled([], {}, {})
        if not left and not right:
            return settled
        if heads:
            right, problem = self._ahead(level, right)
            if problem:
                return settled._replace(error=problem)
        if not relation.theirs_alone:
            base = self.links(store, theirs)
        elif not relation.ours_alone:
            base = left
        else:
            bases = store.bases(ours, theirs)
            base = self.links(store, bases[0]) if bases else {}
        decisions = decide(left, right, base)
        for number, decision in enumerate(decisions):
            failed = self._one(level, decision, recorded.get(decision.name), message, settled, heads=heads)
            if failed is not None:
                kept = list(undone(tuple(settled.results), SubmoduleStatus.ROLLED_BACK))
                kept += [
                    SubmoduleMergeResult(submodule_name=level.named(later.name), status=SubmoduleStatus.SKIPPED)
                    for later in decisions[number + 1 :]
                ]
                return settled._replace(results=kept, conflicts=failed.conflicts, error=failed.error)
        return settled

    def _one(
        self,
        level: Level,
        decision: Decision,
        recorded: Gitlink | None,
        message: str,
        settled: _Settled,
        *,
        heads: bool,
    ) -> Outcome | None:
        """Settles one submodule; an Outcome only when that failed. `recorded`: what the source's commit itself has."""
        name = level.named(decision.name)
        action = decision.action

        def add(status: SubmoduleStatus, outcome: Outcome | None = None) -> None:
            old = decision.ours.commit if decision.ours else ""
            result = None if outcome is None else outcome.result(name, name, old)
            pointer = status in (SubmoduleStatus.MERGED, SubmoduleStatus.UP_TO_DATE, SubmoduleStatus.ADDED,
                                 SubmoduleStatus.REMOVED)  # fmt: skip
            settled.results.append(
                SubmoduleMergeResult(submodule_name=name, merge_result=result, pointer_updated=pointer, status=status)
            )

        if action is Action.LEAVE or (action is Action.KEEP and decision.theirs is None):
            return None
        if action is Action.ADDED:
            add(SubmoduleStatus.ADDED)
            if decision.theirs is not None and decision.theirs != recorded:
                settled.theirs[decision.theirs.path] = decision.theirs.commit
            return None
        if action is Action.REMOVED:
            add(SubmoduleStatus.REMOVED)
            return None
        assert decision.theirs is not None
        commit = decision.ours.commit if decision.ours else decision.theirs.commit
        if action is Action.KEEP:
            add(SubmoduleStatus.UP_TO_DATE, Outcome(commit, no_op=True))
        elif action is Action.TAKE:
            commit = decision.theirs.commit
            add(SubmoduleStatus.MERGED, Outcome(commit, fast_forward=True))
        else:
            outcome = self._inside(level, decision, name, message, heads=heads)
            settled.results.extend(outcome.submodules)
            if not outcome.commit:
                add(SubmoduleStatus.CONFLICTED if outcome.conflicts else SubmoduleStatus.FAILED, outcome)
                return outcome
            commit = outcome.commit
            add(SubmoduleStatus.UP_TO_DATE if outcome.no_op else SubmoduleStatus.MERGED, outcome)
        if needs_override(decision._replace(theirs=recorded), commit):
            on_ours, on_theirs = gitlink_overrides(decision, commit)
            settled.ours.update(on_ours)
            settled.theirs.update(on_theirs)
        return None

    def _inside(self, level: Level, decision: Decision, name: str, message: str, *, heads: bool) -> Outcome:
        """Merges the two sides of one submodule in its own store."""
        ours, theirs, base = decision.ours, decision.theirs, decision.base
        assert ours is not None
        assert theirs is not None
        place = level.place.submodule(decision.name, ours.path)
        if place is None:
            return Outcome("", error=f"submodule {cited(name)} has work on both sides, and its repository is missing "
                           f"here: {gitlinks.how_to_populate(level.place.worktree, ours.path, ours.path)}")  # fmt: skip
        inner = level.inside(theirs, decision.path or ours.path, place)
        for commit in (ours.commit, theirs.commit):
            if not self.fetch(inner, commit):
                return Outcome("", error=f"submodule {cited(name)}: commit {commit[:12]} is in no repository here")
        store = self.store(place)
        relation = store.relation(ours.commit, theirs.commit)
        if base is not None and relation.ours_alone and relation.theirs_alone:
            rewound = [side for side in (ours, theirs) if not store.git.contains(side.commit, base.commit)]
            if rewound:
                return Outcome("", conflicts=(_rewound(level, decision, name),))
        return self._merge(inner, ours.commit, theirs.commit, message, relation, submodules=True, heads=heads)

    def _ahead(self, level: Level, links: dict[str, Gitlink]) -> tuple[dict[str, Gitlink], str]:
        """`links` with what is checked out in the source's worktree, where that is ahead; or why it cannot be told."""
        found = dict(links)
        for source in level.sources:
            if source.worktree is None:
                continue
            for name, link in links.items():
                place = source.submodule(name, link.path)
                if place is None or place.worktree is None:
                    continue
                git = Git(place.git_dir)
                head = git.ref("HEAD")
                if not head or head == link.commit:
                    continue
                try:
                    counts = git.text("rev-list", "--left-right", "--count", f"{link.commit}...{head}").split()
                except GitFailed:
                    return found, f"submodule {cited(name)}: commit {link.commit[:12]} of the trunk is missing"
                if counts[0] != "0" and counts[1] != "0":
                    return found, (
                        f"submodule {cited(name)}: the checked-out commit ({head[:12]}) and the recorded one "
                        f"({link.commit[:12]}) have diverged"
                    )
                if counts[0] == "0":
                    found[name] = link._replace(commit=head)
        return found, ""


def undone(results: tuple[SubmoduleMergeResult, ...], status: SubmoduleStatus) -> tuple[SubmoduleMergeResult, ...]:
    """The results where nothing comes of submodules that were merged."""
    return tuple(
        result.model_copy(update={"status": status, "pointer_updated": False})
        if result.successful and result.merge_result is not None and not result.merge_result.no_op
        else result
        for result in results
    )


def _rewound(level: Level, decision: Decision, name: str) -> MergeConflict:
    ours, theirs, base = decision.ours, decision.theirs, decision.base
    assert ours is not None
    assert theirs is not None
    assert base is not None
    sides: dict[StageNumber, str] = {1: base.commit, 2: ours.commit, 3: theirs.commit}
    message = f"Failed to merge submodule {cited(name)}: one side went back behind their common ancestor"
    return gitlink_conflict(name, level.prefix + ours.path, sides, message)
