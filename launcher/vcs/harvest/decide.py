"""What a harvest does with each ref: moves it, keeping what it was if need be, or leaves it and keeps the work beside.

Reads refs of trusted repositories; changes nothing.
"""

from dataclasses import replace
from functools import cached_property

from launcher.vcs.git import Git
from launcher.vcs.harvest import crossing
from launcher.vcs.harvest.further import next_number
from launcher.vcs.harvest.gather import Found
from launcher.vcs.harvest.parts import Entry, Part, PartResult
from launcher.vcs.private import ref_files
from launcher.vcs.private.record import pin
from launcher.vcs.refs import Taken, Update
from launcher.vcs.worktrees.admin_files import checked_out
from policy.errors import Refusal
from policy.pasted import quoted

_ROOT = "refs/paddock"


def beside(worktree_id: str, name: str) -> str:
    """Where work is kept whose branch somebody else has moved. `name`: the branch's full name, or HEAD."""
    return f"{_ROOT}/agents/{worktree_id}/{name.removeprefix('refs/heads/')}"


def kept_places(worktree_id: str) -> tuple[str, str]:
    """What the names of refs begin with in which a worktree's work is kept: beside branches, and of detached HEADs."""
    return f"{_ROOT}/agents/{worktree_id}", f"{_ROOT}/detached/{worktree_id}"


def join(ref: str, path: str = "") -> str:
    """The command that joins kept work with what is checked out.

    The agent's files lie in the checkout already, and not all of them are known to git: a mere merge would refuse to
    write over them. Staged, they are stashed around it, and what both sides have is no conflict.

    Args:
        path: root of the checkout; empty for the one that the user is in.
    """
    git = f"git -C {quoted(path)}" if path else "git"
    return f"{git} add -A && {git} merge --autostash {quoted(ref)}"


class _Places:
    """Where the work in one repository is kept that no branch can have."""

    def __init__(self, found: Found, worktree_id: str) -> None:
        self._found = found
        self._named, self._numbered = kept_places(worktree_id)
        self._id = worktree_id

    @cached_property
    def _refs(self) -> dict[str, str]:
        places = [f"{place}/" for place in (self._named, self._numbered)]
        there = ref_files.may_be_below(self._found.part.common_dir, places)
        return self._found.git.refs(*places) if there else {}

    def beside(self, name: str, oid: str) -> str:
        """The ref that keeps `oid`: of that branch's name, if none that is kept for another one bars it."""
        aside = beside(self._id, name)
        if Taken(self._refs).bars(aside):
            return self.numbered(oid)
        self._refs.setdefault(aside, oid)
        return aside

    def numbered(self, oid: str) -> str:
        """The numbered ref that keeps `oid`, or work that it goes on from; or a new one."""
        assert self._found.quarantine is not None
        below = f"{self._numbered}/"
        known = {kept: ref for ref, kept in self._refs.items() if ref.startswith(below)}
        if oid not in known:
            git, quarantine = self._found.git, self._found.quarantine
            older = (ref for ref, kept in git.refs(below).items() if crossing.contains(git, quarantine, oid, kept))
            numbers = (int(number) for ref in known.values() if (number := ref.removeprefix(below)).isdigit())
            known[oid] = next(older, "") or f"{below}{max(numbers, default=0) + 1}"
            self._refs[known[oid]] = oid
        return known[oid]


def decide(found: Found, worktree_id: str) -> tuple[Entry | None, tuple[PartResult, ...]]:
    """What is to be published of one repository, and what will be said about it; (None, ()) for nothing.

    Args:
        worktree_id: names Paddock's own refs.

    Refusals: harvest-branch-exists.
    """
    part, git = found.part, found.git
    assert found.quarantine is not None
    updates: list[Update] = []
    extra: list[PartResult] = []
    places = _Places(found, worktree_id)
    counted = [found.target] if found.target else []
    for name, oid in found.extra.items():
        update = _created(found, places, name, oid)
        commits = _new(found, oid, *counted)
        counted.append(oid)
        aside = "" if update.ref == name else update.ref
        note = f"{name.removeprefix('refs/heads/')} cannot be moved, so the work is kept in {aside}" if aside else ""
        extra.append(PartResult(part.name, name, found.standing.get(name, ""), oid, commits, kept=aside, note=note))
        updates.append(update)
    updates += [Update(f"{_ROOT}/links/{oid}", "", oid) for oid in found.links]
    updates += [Update(name, "0" * part.digits, oid) for name, oid in found.stashes.items()]
    results: list[PartResult] = []
    index: tuple[str, str] | None = None
    base = ""
    if found.new:
        now = git.ref(part.ref)
        result, moved = _moved(found, places, worktree_id, now)
        results.append(result)
        updates += moved
        if moved and not result.kept:
            base = found.new
            updates.append(Update(pin(worktree_id), "", found.new))
            # The index has to follow where the checkout is still where it was.
            if ref_files.named(part.git_dir) == (part.branch or ""):
                index = (now, found.target)
    results += extra
    head = _followed(found, updates)
    if head is not None:
        index = (git.ref(head[0]), found.extra.get(head[1]) or git.ref(head[1]))
        updates = [update for update in updates if update.ref != pin(worktree_id)]
        updates.append(Update(pin(worktree_id), "", head[2]))
    if found.detached and not (found.new and crossing.contains(git, found.quarantine, found.target, found.detached)):
        result, kept = _detached(found, places)
        results.append(result)
        updates += kept
    if not updates and head is None:
        return None, tuple(results)
    entry = Entry(
        part.name,
        part.path,
        part.git_dir,
        part.common_dir,
        found.quarantine.directory,
        tuple(updates),
        index=index,
        private=part.private,
        base=base,
        tip=found.signed if base else "",
        head=head,
    )
    return entry, tuple(results)


def _moved(found: Found, places: _Places, worktree_id: str, now: str) -> tuple[PartResult, list[Update]]:
    """The updates that bring the own branch (or HEAD) to the new commit, given where it is now."""
    part, git, new = found.part, found.git, found.target
    assert found.quarantine is not None
    result = PartResult(part.name, part.ref, now, new, commits=_new(found, new), files=found.files)
    if now == new:
        return result, []
    aside = places.beside(part.ref, new)
    if part.branch is None and ref_files.named(part.git_dir):
        # Detached when the session began, and on a branch by now.
        return _kept(found, result, aside, worktree_id)
    if not now and not part.base:
        return result, [Update(part.ref, "0" * part.digits, new, aside)]
    # All commits that cross are ancestors of the only one that was asked for, and so are their parents.
    if now and (
        (found.wanted == (new,) and now in found.parents) or crossing.contains(git, found.quarantine, new, now)
    ):
        if not result.commits:  # another harvest has brought the same ones: what the branch gains is told
            words = ("rev-list", "--count", new, "--not", now)
            result = replace(result, commits=int(git.run(*words, environment=found.quarantine.environment).out))
        return result, [Update(part.ref, now, new, aside)]
    if now and now == part.base:
        backup = _free(git, f"{_ROOT}/backup/{worktree_id}")
        rewritten = replace(result, rewritten=True, backup=backup)
        return rewritten, [Update(backup, "", now), Update(part.ref, now, new, aside)]
    if now and crossing.contains(git, found.quarantine, now, new):
        return result, []
    return _kept(found, result, aside, worktree_id)


def _kept(found: Found, result: PartResult, aside: str, worktree_id: str) -> tuple[PartResult, list[Update]]:
    """The work goes beside its branch; what an earlier harvest kept there and is no part of it gets a ref besides."""
    git, before = found.git, found.git.ref(aside)
    assert found.quarantine is not None
    name = found.part.ref.removeprefix("refs/heads/")
    note = (
        f"{name} was moved outside the jail in the meantime, so the work is kept in {aside}; {_join(found.part, aside)}"
    )
    kept = replace(result, kept=aside, again=before == found.target, note=note)
    if kept.again:
        return kept, []
    if not before or crossing.contains(git, found.quarantine, found.target, before):
        return kept, [Update(aside, "", found.target)]
    return kept, [Update(_free(git, f"{_ROOT}/backup/{worktree_id}"), "", before), Update(aside, "", found.target)]


def _detached(found: Found, places: _Places) -> tuple[PartResult, list[Update]]:
    """Commits on a detached HEAD get a numbered ref: the one of the work that they go on from, or one of their own."""
    part, git, oid = found.part, found.git, found.detached
    assert found.quarantine is not None
    aside = places.numbered(oid)
    again = git.ref(aside) == oid
    commits = _new(found, oid, *([found.target] if found.target else []))
    name = part.ref.removeprefix("refs/heads/")
    note = f"the agent committed on a detached HEAD, not on {name}: the work is kept in {aside}; {_join(part, aside)}"
    result = PartResult(part.name, part.ref, "", oid, commits, found.further_files, kept=aside, again=again, note=note)
    return result, [] if again else [Update(aside, "", oid)]


def _new(found: Found, oid: str, *known: str) -> int:
    """How many commits of what leads to `oid` the repository has not, nor `known`: others may cross beside them."""
    assert found.quarantine is not None
    if found.wanted == (oid,):
        return found.commits
    words = ("rev-list", "--count", oid, "--not", *known, "--all")
    return int(found.git.run(*words, environment=found.quarantine.environment).out)


def _join(part: Part, aside: str) -> str:
    """The hint that names the command."""
    return f"to merge them: {join(aside, part.path if part.name else '')}"


def _created(found: Found, places: _Places, name: str, oid: str) -> Update:
    """What makes a further branch or tag, or moves on one that an earlier harvest made."""
    git, now = found.git, found.git.ref(name)
    assert found.quarantine is not None
    if name not in found.offered:
        barred = not now and Taken((*git.refs(), *found.extra)).bars(name)
        if barred:
            raise Refusal(
                "harvest-branch-exists",
                f"no branch {name.removeprefix('refs/heads/')} can be made in the main repository",
                context="another branch has the name of a directory in this one's, or this one of a directory there",
                hint="harvest it under another name: --branch NAME=OTHER",
            )
        if now and now != oid:
            raise Refusal(
                "harvest-branch-exists",
                f"branch {name.removeprefix('refs/heads/')} already exists in the main repository",
                context=f"{found.part.common_dir}: {name} is at {now}, the agent's at {oid}; only the "
                "session's own branches are ever moved",
                hint="harvest it under another name: --branch NAME=OTHER",
            )
        return Update(name, now or "0" * found.part.digits, oid)
    aside = places.beside(name, oid)
    if not now or (
        now == found.standing.get(name)
        and checked_out(found.part.common_dir, name) is None
        and crossing.contains(git, found.quarantine, oid, now)
    ):
        return Update(name, now or "0" * found.part.digits, oid, aside)
    return Update(aside, "", oid)


def only_followed(found: Found) -> Entry:
    """What is to be done where nothing has to cross: the branch that the agent is on is there already."""
    part, git = found.part, found.git
    head = _followed(found, [])
    index = (git.ref(head[0]), git.ref(head[1])) if head is not None else None
    return Entry(part.name, part.path, part.git_dir, part.common_dir, "", (), index, part.private, head=head)


def _followed(found: Found, updates: list[Update]) -> tuple[str, str, str] | None:
    """The branches between which HEAD outside changes: it goes where the agent's is, if nobody else has moved it."""
    if not found.follow or not found.part.branch:
        return None
    part, git, (new, oid) = found.part, found.git, found.follow
    if not any(update.ref == new for update in updates) and not git.ref(new):
        return None  # kept beside
    if (git.ref(found.part.branch) or None) != part.base:
        return None  # the user has moved his branch: the work is kept beside it, and the checkout stays
    if ref_files.named(part.git_dir) != part.branch or checked_out(part.common_dir, new) is not None:
        return None
    return part.branch, new, oid


def _free(git: Git, prefix: str) -> str:
    """The first number below `prefix` that names no ref."""
    return f"{prefix}/{next_number(git, f'{prefix}/')}"
