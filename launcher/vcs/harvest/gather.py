"""The first half of a harvest: everything new crosses into quarantines and is checked. Nothing is visible yet."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from launcher.vcs import gitlinks, skeleton, way
from launcher.vcs.git import Git
from launcher.vcs.harvest import agent_objects, checks, taking_in, transfer
from launcher.vcs.harvest.jail import Jailed, Reading
from launcher.vcs.harvest.parts import FileChange, Limits, Part
from launcher.vcs.harvest.trusted import pinned
from launcher.vcs.held import Quarantine
from launcher.vcs.quarantine.record import GIT
from policy.errors import Refusal, printable

MOST_LINKS = 10_000
"""Commits of one submodule that new commits may name."""

_TAKE_OUT = (
    "remove nothing of what lies behind the link; let the agent amend its commit without that submodule; the work "
    "stays in the private git directory until then"
)


@dataclass
class Found:
    """What one repository brings.

    Args:
        part: the repository.
        git: on it.
        new: the commit to take over; "" when the tip has not moved.
        signed: the commit that stands for it in the main repository, signed; "" when that is the same.
        detached: the commit of a detached HEAD that is to be kept; "" for none.
        extra: branches to take over beside it: full name -> commit.
        stashes: stashes to take over: full name of the ref that it gets -> commit.
        added: places of submodules that new commits name for the first time, with a `.git` of the agent's, or
            behind a link.
        gitlinks: path of a submodule -> its commits that new commits name there.
        links: commits that commits of the repository around it name, and that are new here.
        quarantine: where the objects are.
        commits: number of new ones.
        parents: of the new ones.
        files: what differs between the branch before and after.
        detached_files: what differs between the branch before and the detached HEAD.
    """

    part: Part
    git: Git
    new: str = ""
    signed: str = ""
    detached: str = ""
    extra: dict[str, str] = field(default_factory=dict)
    stashes: dict[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    gitlinks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    quarantine: Quarantine | None = None
    commits: int = 0
    parents: frozenset[str] = frozenset()
    files: tuple[FileChange, ...] = ()
    detached_files: tuple[FileChange, ...] = ()

    @property
    def target(self) -> str:
        """What the ref becomes."""
        return self.signed or self.new

    @property
    def work(self) -> tuple[str, ...]:
        """The commits that are to cross, without stashes: those are nobody's history."""
        own = (oid for oid in (self.new, self.detached) if oid)
        return tuple(dict.fromkeys((*own, *self.extra.values(), *self.links)))

    @property
    def wanted(self) -> tuple[str, ...]:
        """All commits that are to cross."""
        return tuple(dict.fromkeys((*self.work, *self.stashes.values())))


def gather(
    directory: str, work: str, founds: Iterable[Found], limits: Limits, step: Callable[[str], None]
) -> tuple[Found, ...]:
    """Takes over and checks what `founds` name; repositories before their submodules, whose commits they may name.

    Args:
        directory: of the private git directory.
        work: a directory of the harvest's own.
        founds: every repository of the worktree, with or without something new.
        limits: bounds.
        step: told what comes next.

    Returns:
        Those with something new.

    Raises:
        Refusal: what `transfer` and `checks` refuse, harvest-gitlink.
    """
    founds = tuple(founds)
    named: dict[str, tuple[Part, str, dict[str, None]]] = {}
    by_path = {found.part.path: found for found in founds}
    for number, found in enumerate(founds):
        part = found.part
        around, path, oids = named.pop(part.path, (part, "", {}))
        if not (found.wanted or oids):
            continue
        reading = _reading(directory, work, part)
        found.links = _links(found, reading, around, path, tuple(oids))
        if not found.wanted:
            continue
        step(f"take {part.name or 'worktree'}")
        found.quarantine = transfer.take(part, found.git, reading, found.wanted, f"{work}/{number}", limits)
        step(f"check {part.name or 'worktree'}")
        own = transfer.check_sizes(part, found.git, found.quarantine, found.wanted, limits)
        held = pinned(found.git, os.path.basename(directory), part.base)
        transfer.connected(part, found.git, found.quarantine, found.wanted, own, held)
        contents = checks.contents(part, found.git, found.quarantine, found.wanted, limits)
        found.commits, found.parents, found.gitlinks = contents
        if found.new:
            found.files = checks.files(part, found.git, found.quarantine, part.base, found.new, limits)
        if found.detached:
            found.detached_files = checks.files(part, found.git, found.quarantine, part.base, found.detached, limits)
        for where, commits in contents.gitlinks.items():
            if len(commits) > MOST_LINKS:
                why = f"they name {len(commits)} commits of the submodule {printable(where)}, and at most {MOST_LINKS}"
                raise transfer.too_large(part, f"{why} are taken over", "")
            known = named.setdefault(os.path.normpath(f"{part.path}/{where}"), (part, where, {}))[2]
            known.update(dict.fromkeys(commits))
    for part, where, oids in named.values():
        _elsewhere(part, where, tuple(oids), by_path)
        seen = way.look(part.root, f"{part.path}/{where}/.git")
        by_path[part.path].added += (where,) if seen.there or seen.link else ()
    return tuple(found for found in founds if found.wanted)


def names(found: Found, where: str) -> bool:
    """Whether one of the commits that refs will be at has a gitlink at `where`, not just a commit on the way there."""
    assert found.quarantine is not None
    environment = found.quarantine.environment
    oids = filter(None, (found.new, found.detached, *found.extra.values()))
    return any(where in gitlinks.of_tree(found.git, oid, (where,), environment) for oid in oids)


def _links(found: Found, reading: Reading, around: Part, path: str, oids: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `oids` that the submodule's store has not, and that are not its new commit; all must be the agent's."""
    new = tuple(oid for oid in checks.missing(found.git, oids) if oid != found.new)
    if not new:
        return ()
    asked = "".join(f"{oid}\n" for oid in new).encode()
    with Jailed(("cat-file", "--batch-check"), reading, stdin=asked) as jailed:
        assert jailed.process.stdout is not None
        answers = jailed.process.stdout.read().decode(errors="replace").splitlines()
        jailed.check(f"looking for commits of {found.part.label}")
    for oid, answer in zip(new, answers, strict=True):
        if answer.split()[1:2] != ["commit"]:
            raise checks.gitlink_refused(around, path, oid, "it is in neither the submodule nor its private copy")
    return new


def _elsewhere(part: Part, where: str, oids: tuple[str, ...], by_path: dict[str, Found]) -> None:
    """A gitlink at a place that is no populated submodule: one that was moved or added there is known to another."""
    for found in by_path.values():
        if found.part.prefix:
            oids = checks.missing(found.git, oids, found.quarantine)
    if oids:
        raise _unknown(by_path[part.path], where, oids[0])


def _unknown(around: Found, where: str, oid: str) -> Refusal:
    """The Refusal for a commit that could be in no repository of the user's: there is none at that place."""
    part, git = around.part, around.git
    assert around.quarantine is not None
    seen = way.look(part.root, f"{part.path}/{where}")
    if seen.link:
        return checks.gitlink_refused(part, where, oid, f"{seen.told}, and no submodule lies behind a link", _TAKE_OUT)
    if part.base and where in gitlinks.of_tree(git, part.base, (where,)):
        why = f"the submodule at {where} is not populated outside, so its commits have nowhere to go"
        update = way.update(part.path, where)
        return checks.gitlink_refused(part, where, oid, why, f"populate it and start a session here again: {update}")
    command = taking_in.command(part, git, where, around.target, around.commits, around.quarantine.environment)
    return checks.gitlink_refused(
        part,
        where,
        oid,
        f"the agent has made or cloned the repository at {where}, and outside there is none to take its commits",
        (f"take in its files: {command}\nor " if command else "") + "have it published, and add the submodule outside",
    )


def _reading(directory: str, work: str, part: Part) -> Reading:
    tree = f"{directory}/{GIT}"
    below = f"{part.inside}/objects" if part.inside else "objects"
    agent_objects.check(tree, below)
    empty = skeleton.make(f"{work}/empty-{part.digits}", part.digits)
    return Reading(empty, f"{tree}/{below}", part.stores or (part.store,))
