"""Pruning what Paddock keeps in repositories and nothing needs any more: its refs, and journals of merges.

Merges and harvests keep commits in `refs/paddock/...`, so that they can be taken back or found again. Refs that hold
what a branch, a tag or a remote-tracking branch holds too are given up after a while, or when there are many; what
nothing else holds stays much longer, and its end is reported. Refs of a worktree go with it, also where the user
removed it with git alone: when no private git directory, no worktree and no row of Paddock's has their id any more.
"""

import json
import os
import time
from calendar import timegm
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from launcher.safefs import walk
from launcher.safefs.remove import remove_tree
from launcher.vcs import checkout, written
from launcher.vcs.disk import Present
from launcher.vcs.git import Git
from launcher.vcs.harvest import agent_refs, outstanding
from launcher.vcs.merge.runs import UNFINISHED, Journal, Run
from launcher.vcs.private import lock
from launcher.vcs.private import record as records
from launcher.vcs.private.contents import unreached
from launcher.vcs.worktrees import admin_files
from launcher.vcs.worktrees.store import FILE, WorktreeRepository
from policy.errors import Refusal
from policy.launch import worktree_id

_DAY = 86_400.0
_ROOT = "refs/paddock/"
_SEEN = "kept-refs.json"
_HOLDING = ("refs/heads/", "refs/tags/", "refs/remotes/", "refs/notes/", "refs/stash")
_RUN = "%Y%m%d-%H%M%S"
"""How the id of a merge run begins."""
_OF_WORKTREES = ("base", "agents", "detached", "stash")


class Bounds(NamedTuple):
    """How long, and how much.

    Attributes:
        days: for which merges and backups are kept.
        most: of the merges of a repository, and of the backups of a worktree; the newest ones.
        lost_days: for which work is kept that no branch, tag or remote-tracking branch has.
    """

    days: float = 30.0
    most: int = 100
    lost_days: float = 90.0


class Unneeded(NamedTuple):
    """Something that nothing needs.

    Attributes:
        repository: git directory that has it.
        name: full name of a ref, or the id of a merge run, whose journal goes.
        oid: what the ref holds; "" for a run.
        why: in words.
        lost: whether no branch, tag or remote-tracking branch has that work.
        size: bytes of a directory that goes; 0 for a ref.
    """

    repository: str
    name: str
    oid: str
    why: str
    lost: bool
    size: int = 0

    def as_dict(self) -> dict[str, object]:
        """Plain data for ``--json``."""
        return self._asdict()


class Pruned(NamedTuple):
    """What was removed, or would be; repositories that could not be looked at, with the reason; refs that stay."""

    removed: tuple[Unneeded, ...]
    notes: tuple[str, ...]
    kept: int = 0


def prune(
    state: str,
    repositories: Iterable[str] = (),
    bounds: Bounds = Bounds(),  # noqa: B008  # immutable
    *,
    dry_run: bool = False,
    now: float | None = None,
) -> Pruned:
    """Removes what nothing needs, in every repository that Paddock's state knows.

    Args:
        repositories: git directories of further ones (what all worktrees share).
        now: seconds since the epoch.
    """
    return _Pruning(state, bounds, time.time() if now is None else now, dry_run=dry_run).run(repositories)


class _Ref(NamedTuple):
    """A ref of Paddock's: `kind` and `owner` are the first parts of its name."""

    repository: str
    name: str
    oid: str
    kind: str
    owner: str
    age: float
    lost: bool


class _Pruning:
    def __init__(self, state: str, bounds: Bounds, now: float, *, dry_run: bool) -> None:
        self._state = state
        self._bounds = bounds
        self._now = now
        self._dry_run = dry_run
        self._before = self._read_seen()
        self._seen: dict[str, float] = {}
        self._notes: list[str] = []
        self._unread: set[str] = set()
        self._removed: list[Unneeded] = []

    def run(self, repositories: Iterable[str]) -> Pruned:
        stores, living = self._known(repositories)
        refs: list[_Ref] = []
        for store in stores:
            living.update(map(worktree_id, _roots(store)))
            try:
                refs += self._refs(store)
            except (Refusal, OSError) as error:
                self._notes.append(f"{store}: {error.message if isinstance(error, Refusal) else error.strerror}")
                self._unread.add(store)
                prefix = f"{store}\0"
                self._seen.update((key, when) for key, when in self._before.items() if key.startswith(prefix))
        self._remove_refs([*self._backups(refs), *self._of_gone_worktrees(refs, living), *self._links(refs)])
        for directory in self._journals():
            self._prune_runs(Journal(directory), refs)
        self._remove_refs(self._without_journal(refs))
        if not self._dry_run:
            content = json.dumps(self._seen).encode()
            walk.replace(f"{self._state}/{_SEEN}", content)
        gone = {(each.repository, each.name) for each in self._removed}
        kept = sum((each.repository, each.name) not in gone for each in refs)
        return Pruned(tuple(self._removed), tuple(self._notes), kept)

    def _known(self, repositories: Iterable[str]) -> tuple[list[str], set[str]]:
        """Repositories and stores of their submodules; ids of worktrees of which Paddock has something."""
        stores = set(map(os.path.realpath, repositories))
        living: set[str] = set()
        abandoned: dict[str, str] = {}
        for place in ("git", "removed"):
            for name in _names(f"{self._state}/{place}"):
                directory = f"{self._state}/{place}/{name}"
                try:
                    known = records.read(directory)
                except Refusal:
                    known = None  # nobody can tell what it needs
                stores.update(each.common_dir for each in (known.repositories if known is not None else ()))
                if place == "git" and known is not None and _is_abandoned(directory, known):
                    abandoned[name] = known.repositories[0].common_dir
                else:
                    living.add(name)
        if os.path.exists(f"{self._state}/{FILE}"):
            for row in WorktreeRepository(self._state).all():
                living.update((row.worktree_id, *(part.worktree_id for part in row.parts)))
                stores.update(os.fspath(part.common_dir) for part in row.parts)
        for name in abandoned.keys() - living:
            if not self._given_up(f"{self._state}/git/{name}", abandoned[name]):
                living.add(name)
        for directory in self._journals():
            for run in _runs(Journal(directory)):
                stores.update(_common(os.fspath(move.git_dir)) for move in run.moves)
        for store in tuple(stores):
            above = _common(
                store.partition("/modules/")[0]
            )  # a submodule's: its worktrees are the repository's around it
            stores.update((above, *(path for _, path in checkout.module_dirs(f"{above}/modules", "", Present()))))
        return sorted(store for store in stores if os.path.isdir(f"{store}/objects")), living

    def _given_up(self, directory: str, common_dir: str) -> bool:
        """Removes the private git directory of a worktree that git has forgotten; False when a session has begun."""
        descriptor = lock.opened(directory)
        try:
            known = records.read(directory)
            if not lock.alone(descriptor, wait=False) or known is None or not _is_abandoned(directory, known):
                return False
            if not self._dry_run and (failures := remove_tree(directory)):
                self._notes += failures
                return False
        finally:
            os.close(descriptor)
        why = "git has forgotten its worktree, and nothing in it is unharvested"
        self._removed.append(Unneeded(common_dir, directory, "", why, lost=False))
        return True

    def _refs(self, store: str) -> list[_Ref]:
        git = Git(store)
        named = list(git.refs(_ROOT).items())
        lost = unreached(git, {oid for _, oid in named}, refs=_HOLDING) if named else set()
        found = []
        for name, oid in named:
            kind, _, inner = name.removeprefix(_ROOT).partition("/")
            age = self._now - self._since(store, name, oid)
            found.append(_Ref(store, name, oid, kind, inner.partition("/")[0], age, oid in lost))
        return found

    def _since(self, store: str, name: str, oid: str) -> float:
        """Since when a ref has its value: by its name, by our own note, or by its file (which git packs away)."""
        word, pattern = "", ""
        if name.startswith(f"{_ROOT}backup/"):  # below other kinds are names that an agent chose
            word, pattern = name.rpartition("/")[2][:16], "%Y%m%dT%H%M%SZ"
        elif name.startswith(f"{_ROOT}merge/"):
            word, pattern = name.split("/")[3][:15], _RUN
        if word:
            with suppress(ValueError):
                return float(timegm(time.strptime(word, pattern)))
        key = f"{store}\0{name}\0{oid}"
        if key not in self._before:
            try:
                since = os.stat(f"{store}/{name}").st_mtime
            except OSError:
                since = self._now
            self._before[key] = min(since, self._now)
        self._seen[key] = self._before[key]
        return self._before[key]

    def _may_go(self, ref: _Ref, *, due: bool) -> str:
        """Why a ref may go that nothing needs; "" when it stays."""
        if ref.lost:
            days = self._bounds.lost_days
            return f"on no branch, and older than {days:g} days" if ref.age > days * _DAY else ""
        return "its commits are on a branch, a tag or a remote-tracking branch" if due else ""

    def _backups(self, refs: list[_Ref]) -> Iterator[Unneeded]:
        """Refs of harvests and removals, by age and number."""
        owners: dict[tuple[str, str], list[_Ref]] = {}
        for ref in refs:
            if ref.kind == "backup":
                owners.setdefault((ref.repository, ref.owner), []).append(ref)
        for several in owners.values():
            for number, ref in enumerate(sorted(several, key=lambda each: each.age)):
                due = number >= self._bounds.most or ref.age > self._bounds.days * _DAY
                if why := self._may_go(ref, due=due):
                    yield Unneeded(ref.repository, ref.name, ref.oid, why, ref.lost)

    def _of_gone_worktrees(self, refs: list[_Ref], living: set[str]) -> Iterator[Unneeded]:
        for ref in refs:
            if ref.kind in _OF_WORKTREES and ref.owner not in living and (why := self._may_go(ref, due=True)):
                yield Unneeded(ref.repository, ref.name, ref.oid, f"its worktree is gone; {why}", ref.lost)

    def _links(self, refs: list[_Ref]) -> Iterator[Unneeded]:
        """Commits of submodules that harvested commits name: nothing else may hold them, and then they stay."""
        for ref in refs:
            if ref.kind == "links" and not ref.lost and ref.age > self._bounds.days * _DAY:
                yield Unneeded(ref.repository, ref.name, ref.oid, self._may_go(ref, due=True), lost=False)

    def _without_journal(self, refs: list[_Ref]) -> Iterator[Unneeded]:
        """Refs of merges without a journal here: another state directory may have it, so only old ones go."""
        known = {name for directory in self._journals() for name in Journal(directory).runs()}
        gone = {each.name for each in self._removed}
        for ref in refs:
            if ref.kind != "merge" or ref.owner in known or ref.name in gone:
                continue
            if ref.age > self._bounds.lost_days * _DAY:
                why = f"its merge is older than {self._bounds.lost_days:g} days, and has no journal here"
                yield Unneeded(ref.repository, ref.name, ref.oid, why, ref.lost)

    def _prune_runs(self, journal: Journal, refs: list[_Ref]) -> None:
        """Merges by age and number, each with its journal; none that is unfinished, and none while one is at work."""
        try:
            with journal.lock(wait=0):
                active = journal.unfinished()
                for number, run in enumerate(sorted(_runs(journal), key=lambda each: each.run_id, reverse=True)):
                    age = self._now - timegm(time.strptime(run.run_id[:15], _RUN))
                    if number < self._bounds.most and age <= self._bounds.days * _DAY:
                        continue
                    own = [ref for ref in refs if ref.kind == "merge" and ref.owner == run.run_id]
                    whys = [self._may_go(ref, due=True) for ref in own]
                    unread = any(_common(os.fspath(move.git_dir)) in self._unread for move in run.moves)
                    if run.state in UNFINISHED or run == active or unread or not all(whys):
                        continue
                    done = self._remove_refs(
                        Unneeded(ref.repository, ref.name, ref.oid, why, ref.lost)
                        for ref, why in zip(own, whys, strict=True)
                    )
                    if done:
                        why = f"its merge is older than {self._bounds.days:g} days, or {self._bounds.most} are newer"
                        self._removed.append(Unneeded(journal.directory, run.run_id, "", why, lost=False))
                        if not self._dry_run:
                            journal.forget(run.run_id)
        except Refusal as refusal:
            self._notes.append(f"{refusal.message}: {refusal.context}")

    def _remove_refs(self, unneeded: Iterable[Unneeded]) -> bool:
        """Removes refs that still have their values, all of a repository or none. Whether all are gone."""
        stores: dict[str, list[Unneeded]] = {}
        for each in unneeded:
            stores.setdefault(each.repository, []).append(each)
        complete = True
        for store, several in stores.items():
            try:
                if not self._dry_run:
                    self._deleted(store, several)
            except Refusal as refusal:
                self._notes.append(f"{store}: {refusal.message}")
                complete = False
            else:
                self._removed += several
        return complete

    def _deleted(self, store: str, several: list[Unneeded]) -> None:
        git = Git(store)
        lines = "".join(f"delete {each.name} {each.oid}\n" for each in several)
        git.run("update-ref", "-m", "paddock: prune", "--stdin", input=os.fsencode(lines))
        for each in several:
            _, _, kind, owner, *_ = each.name.split("/")
            if kind == "base" and os.path.lexists(records.directory_of(self._state, owner)):
                # A session has begun there in this very moment, and has taken the pin for its own.
                git.run("update-ref", each.name, each.oid, "", ok=(0, 128))

    def _journals(self) -> list[str]:
        return [f"{self._state}/merges/{name}" for name in _names(f"{self._state}/merges")]

    def _read_seen(self) -> dict[str, float]:
        try:
            with open(f"{self._state}/{_SEEN}", "rb") as file:
                return {str(key): float(when) for key, when in json.load(file).items()}
        except (FileNotFoundError, ValueError, AttributeError, TypeError):
            return {}


# Private homes and git directories of worktrees that have gone, which nobody will ever ask for again.


GONE_DAYS = 7.0
"""A worktree that is gone may come back: its disk is not mounted."""

_GONE_MARK = ".gone"
"""File whose age says since when a worktree has been missing."""


def gone_worktrees(
    state: str, roots: Mapping[str, str], days: float = GONE_DAYS, *, dry_run: bool = False
) -> list[Unneeded]:
    """Removes the private directories of worktrees that have been missing for some days.

    A directory of which nobody can tell where its worktree was stays, and so does one with commits that were not
    brought home: those are in no other place.

    Args:
        roots: roots of worktrees by their ids, as somebody has noted them.
        days: since it was first found missing; 0 removes it at once.
        dry_run: nothing is removed, nor noted.
    """
    known = {worktree_id(path): path for path in written.trees(state)} | dict(roots)
    found = []
    for name in sorted({*_names(f"{state}/worktrees"), *(known.keys() & {*_names(f"{state}/git")})}):
        own, private = f"{state}/worktrees/{name}", records.directory_of(state, name)
        root = _root_of(private) or known.get(name)
        if name.startswith(".") or root is None:
            continue
        mark = f"{own}/{_GONE_MARK}"
        if os.path.isdir(root) and worktree_id(root) == name:
            with suppress(FileNotFoundError):
                os.unlink(mark)
            continue
        if not _missing_for(mark, days, dry_run=dry_run) or _holds_work(private):
            continue
        bytes_on_disk = size(own) + size(private)
        if dry_run or not (_given_up(private) or (os.path.isdir(own) and remove_tree(own))):
            found.append(Unneeded(state, own, "", f"its worktree is gone: {root}", lost=False, size=bytes_on_disk))
    return found


def _missing_for(mark: str, days: float, *, dry_run: bool) -> bool:
    """Whether a worktree has been known to be missing for so long; from now on it is."""
    if days <= 0:
        return True
    try:
        return time.time() - os.stat(mark).st_mtime >= days * _DAY
    except FileNotFoundError:
        if not dry_run and os.path.isdir(os.path.dirname(mark)):
            walk.replace(mark, b"")
        return False


def _root_of(directory: str) -> str | None:
    """Root of the worktree that a private git directory belongs to; None when it has none, or cannot be read."""
    try:
        found = records.read(directory)
    except Refusal:
        return None
    return None if found is None else found.worktree


def _holds_work(directory: str) -> bool:
    """Whether commits wait in a private git directory that are nowhere else; what cannot be read counts as some."""
    try:
        return outstanding.outstanding(directory)
    except (Refusal, OSError):
        return True


def _given_up(directory: str) -> list[str]:
    """Removes a private git directory in which no session lives; returns what could not be removed."""
    if not os.path.isdir(directory):
        return []
    descriptor = lock.opened(directory)
    try:
        return remove_tree(directory) if lock.alone(descriptor, wait=False) else [f"{directory} is in use"]
    finally:
        os.close(descriptor)


def size(directory: str) -> int:
    """Bytes on the disk of what lies below a directory, which agents may have filled: no link is followed."""
    total = 0
    with suppress(OSError, RecursionError):  # gone, or nested very deep: then it is that much at least
        for _, _, files, descriptor in os.fwalk(directory, follow_symlinks=False):
            for name in files:
                with suppress(OSError):
                    total += os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_blocks * 512
    return total


def _is_abandoned(directory: str, known: records.Record) -> bool:
    """Whether a private git directory is of a worktree that is gone and pruned, and nothing was committed there since.

    What git still knows may be on a file system that is not mounted.
    """
    own = known.repositories[0]
    forgotten = (
        known.kind == "linked" and os.path.isdir(f"{own.common_dir}/objects") and not os.path.lexists(own.git_dir)
    )
    try:
        return forgotten and not os.path.lexists(known.worktree) and not agent_refs.harvest_due(directory)
    except Refusal:
        return False


def _runs(journal: Journal) -> Iterator[Run]:
    for name in journal.runs():
        with suppress(Refusal):  # damaged, or forgotten meanwhile
            yield journal.read(name)


def _common(git_dir: str) -> str:
    above, _, name = git_dir.rpartition("/worktrees/")
    return above if above and "/" not in name else git_dir  # else a store in a worktree's git directory


def _roots(store: str) -> list[str]:
    linked = [admin_files.points_to(git_dir) for git_dir in admin_files.linked(store)]
    return [
        os.path.dirname(store),
        *(os.path.dirname(entry) for entry in linked if entry is not None and os.path.lexists(entry)),
    ]


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
