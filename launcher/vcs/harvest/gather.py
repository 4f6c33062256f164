"""The first half of a harvest: everything new crosses into quarantines and is checked. Nothing is visible yet."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from launcher.safefs import walk
from launcher.vcs import gitlinks, jailed_git
from launcher.vcs.added_packs import Quarantine
from launcher.vcs.git import Git
from launcher.vcs.harvest import crossing, jail, trees
from launcher.vcs.harvest.jail import Reading, pinned
from launcher.vcs.harvest.parts import Handoff, Limits, Part
from launcher.vcs.private.record import GIT, Repository
from policy.errors import Refusal, in_rows
from policy.pasted import cited, pathspec, quoted

# The way out of harvest-gitlink: the command that puts files in place of a repository that the agent has made.


def merge_command(part: Part, git: Git, where: str, new: str, commits: int, environment: Mapping[str, str]) -> str:
    """What can be pasted as it is: the next session makes the new commits anew, with the files in them.

    The repository is removed outside: in a jail, one that lies there when it starts is read-only. That must not lead
    elsewhere through a link of the agent's, so nothing is offered where there is one.

    All of the new commits become one when there are several, as an earlier one may name the repository, too.

    Args:
        part: whose commits name what nobody has.
        where: the place that they name, relative to `part.path`.
        environment: names the quarantine that they are in.

    Returns:
        The command; "" when what lies there has been exchanged for something else.
    """
    place = os.path.join(part.path, where)
    if os.path.realpath(place) != place or not os.path.isdir(place):
        return ""
    steps = [f"git rm -qf --cached -- {pathspec(where)}", f"git add -- {pathspec(where)}"]
    sections = gitlinks.paths_by_name(git, new, environment, ok=(0, 1, 3, 128))
    for name in (name for name, path in sections.items() if path == where):
        steps += [f"git config -f .gitmodules --remove-section {quoted(f'submodule.{name}')}"]
        steps += ["git add .gitmodules"]
    if commits > 1 and part.base:
        steps = [f"git reset -q --soft {part.base}", *steps, "git commit -q -C ORIG_HEAD"]
    else:
        steps += ["git commit -q --amend --no-edit"]
    if part.prefix:
        steps.insert(0, f"cd {quoted(part.prefix)}")
    removed = f"rm -rf {quoted(f'{place}/.git')}"
    return f"{removed} && paddock run --worktree {quoted(part.root)} -- sh -c {quoted(' && '.join(steps))}"


# A look at an agent's object directory before git reads it, even in a jail: plain files and directories only.
#
# Git opens what bears an object's name. A FIFO in its place would never answer, and the harvest would wait for it.
# Layout: gitrepository-layout(5).


MOST_ENTRIES = 4_000_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MOST_DEPTH = 3  # objects, pack, and what tools of git put below it (pack/multi-pack-index.d)


def check_agent_objects(tree: str, below: str) -> None:
    """Refuses (harvest-git-replaced) an object directory that holds anything but files and directories."""
    top = os.open(tree, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        seen = 0
        packs = f"{below}/pack"
        pending = [(below, 0)]
        while pending:
            here, depth = pending.pop()
            for name, kind in _listing(top, tree, here):
                seen += 1
                path = f"{tree}/{here}/{name}"
                if seen > MOST_ENTRIES:
                    raise _object_refused(f"{cited(path)} exceeds the limit")
                if here == packs and name.endswith(".keep"):
                    continue  # git asks whether it is there (access(2)), and never opens it
                if kind == "other":
                    raise _object_refused(f"{cited(path)} is neither a file nor a directory",
                        f"git makes no such entry: rm {quoted(path, own=False)}; paddock worktree harvest")  # fmt: skip
                if kind == "dir" and depth < _MOST_DEPTH:
                    pending.append((f"{here}/{name}", depth + 1))
    finally:
        os.close(top)


def _listing(top: int, tree: str, here: str) -> list[tuple[str, str]]:
    try:
        descriptor = walk.open_inside(top, here, _DIRECTORY)
    except OSError as error:
        raise _object_refused(f"{cited(f'{tree}/{here}')}: {error.strerror}") from None
    try:
        with os.scandir(descriptor) as entries:
            return [(entry.name, _kind(entry)) for entry in entries]
    finally:
        os.close(descriptor)


def _kind(entry: "os.DirEntry[str]") -> str:
    if entry.is_file(follow_symlinks=False):
        return "file"
    return "dir" if entry.is_dir(follow_symlinks=False) else "other"


def _object_refused(why: str, step: str = "") -> Refusal:
    told = (
        "the agent replaced or damaged them; the main repository is unchanged, and files in the worktree "
        "are as the agent left them"
    )
    return Refusal(
        "harvest-git-replaced",
        "the private git directory's objects cannot be read",
        context=why,
        hint=in_rows(step, told),
    )


MOST_HANDOFF = 100_000
"""Hand-off files that may change: each one is told."""

_TAKE_OUT = (
    "remove nothing behind the link; let the agent amend its commit without that submodule; the work "
    "stays in the private git directory until then"
)


@dataclass
class Found:
    """What one repository brings.

    Args:
        new: the commit to take over; "" when the tip has not moved.
        signed: the commit that stands for it in the main repository, signed; "" when that is the same.
        detached: the commit of a detached HEAD that is to be kept; "" for none.
        extra: branches to take over beside it: full name -> commit.
        offered: further branches and tags to take over if they are sound, by the full name that they get.
        standing: where refs of `extra` that an earlier harvest made are now; it may move those on.
        follow: full name of the branch that the checkout outside is to be on, and the agent's commit there; () to leave
            it.
        stashes: stashes to take over: full name of the ref that it gets -> commit.
        added: places of submodules that new commits name for the first time, with a `.git` of the agent's, or
            behind a link.
        gitlinks: path of a submodule -> its commits that new commits name there.
        links: commits that commits of the repository around it name, and that are new here.
        quarantine: where the objects are.
        commits: number of new ones.
        parents: of the new ones.
        files: how many differ between the branch before and after.
        further_files: how many differ between the branch before, and the detached HEAD and each of `extra`.
        handoff: what the hand-off says of them all.
    """

    part: Part
    git: Git
    new: str = ""
    signed: str = ""
    detached: str = ""
    extra: dict[str, str] = field(default_factory=dict)
    offered: dict[str, str] = field(default_factory=dict)
    standing: dict[str, str] = field(default_factory=dict)
    follow: tuple[str, str] | tuple[()] = ()
    stashes: dict[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    gitlinks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    quarantine: Quarantine | None = None
    commits: int = 0
    parents: frozenset[str] = frozenset()
    files: int = 0
    further_files: int = 0
    handoff: dict[tuple[str, str, str], None] = field(default_factory=dict)

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
    directory: str,
    work: str,
    founds: Iterable[Found],
    limits: Limits,
    handoff: Handoff,
    step: Callable[[str], None],
) -> tuple[Found, ...]:
    """Takes over and checks what `founds` name; repositories before their submodules, whose commits they may name.

    Args:
        founds: every repository of the worktree, with or without something new.

    Returns:
        Those with something new.

    Refusals: what `transfer` and `checks` refuse, harvest-gitlink.
    """
    founds = tuple(founds)
    named: dict[str, tuple[Part, str, dict[str, None]]] = {}
    by_path = {found.part.path: found for found in founds}
    for number, found in enumerate(founds):
        part = found.part
        around, path, oids = named.pop(part.path, (part, "", {}))
        if not (found.wanted or found.offered or oids):
            continue
        reading = reading_of(directory, work, part)
        found.extra |= _sound(found, reading)
        found.links = _links(found, reading, around, path, tuple(oids))
        if not found.wanted:
            continue
        step(f"take {part.name or 'worktree'}")
        found.quarantine = crossing.take(part, found.git, reading, found.wanted, f"{work}/{number}", limits)
        step(f"check {part.name or 'worktree'}")
        crossed = reading._replace(objects=found.quarantine.directory)
        own = (one.oid for one in crossing.own_objects(found.git, found.quarantine) if one.kind == "tree")
        trees.check(part, found.git, crossed, own, limits)
        crossing.check_sizes(part, found.git, found.quarantine, found.wanted, limits)
        base = part.base or ""
        held = pinned(found.git, os.path.basename(directory), base)
        crossing.connected(part, found.git, found.quarantine, found.wanted, held)
        contents = crossing.contents(part, found.git, crossed, found.wanted, limits)
        found.commits, found.parents, found.gitlinks = contents
        if found.new:
            found.files = _differing(found, found.new, limits, handoff)
        for oid in dict.fromkeys(filter(None, (found.detached, *found.extra.values()))):
            found.further_files += _differing(found, oid, limits, handoff)
        for oid, old in _on_no_branch(found):
            _differing(found, oid, limits, handoff, old)
        for where, commits in contents.gitlinks.items():
            known = named.setdefault(os.path.normpath(f"{part.path}/{where}"), (part, where, {}))[2]
            known.update(dict.fromkeys(commits))
    for part, where, oids in named.values():
        for found, oid in _elsewhere(part, where, tuple(oids), by_path):
            _differing(found, oid, limits, handoff)
        seen = gitlinks.reach(part.root, f"{part.path}/{where}/.git")
        by_path[part.path].added += (where,) if seen.there or seen.link else ()
    return tuple(found for found in founds if found.wanted)


def _differing(found: Found, new: str, limits: Limits, handoff: Handoff, old: str | None = None) -> int:
    """How many files differ between `old`, or the branch before, and `new`; keeps what the hand-off says of them.

    Refusals: harvest-too-large.
    """
    assert found.quarantine is not None
    number = 0
    old = (found.part.base or "") if old is None else old
    for change in crossing.files(found.part, found.git, found.quarantine, old, new, limits):
        number += 1
        if told := handoff(change):
            found.handoff[told] = None
            if len(found.handoff) > MOST_HANDOFF:
                raise crossing.too_large(found.part, f"more than {MOST_HANDOFF} hand-off files change", "")
    return number


def _on_no_branch(found: Found) -> Iterable[tuple[str, str | None]]:
    """The trees of commits of submodules that commits name and those of stashes, each with what to compare it with.

    From a stash, `git stash apply` also brings what was staged, and files that git did not track: they are alone in a
    tree of theirs.
    """
    assert found.quarantine is not None
    asked: list[tuple[str, str | None]] = [(oid, None) for oid in found.links]
    for end, old in (("", None), ("^2", None), ("^3", "")):
        asked += [(oid + end, old) for oid in found.stashes.values()]
    trees = found.git.objects((f"{name}^{{tree}}" for name, _ in asked), found.quarantine.environment)
    return dict.fromkeys((one.oid, old) for (_, old), one in zip(asked, trees, strict=True) if one.kind == "tree")


def names(found: Found, where: str) -> bool:
    """Whether one of the commits that refs will be at has a gitlink at `where`, not just a commit on the way there."""
    assert found.quarantine is not None
    environment = found.quarantine.environment
    oids = filter(None, (found.new, found.detached, *found.extra.values()))
    return any(where in gitlinks.of_tree(found.git, oid, (where,), environment) for oid in oids)


def _sound(found: Found, reading: Reading) -> dict[str, str]:
    """What is offered without what leads to no commit: an agent can write anything where a ref is expected."""
    if not found.offered:
        return {}
    asked = (f"{oid}^{{commit}}" for oid in found.offered.values())
    answers = jail.objects(reading, asked, f"reading further branches of {found.part.label}")
    pairs = zip(found.offered.items(), answers, strict=True)
    return {ref: oid for (ref, oid), one in pairs if one.kind == "commit"}


def _links(found: Found, reading: Reading, around: Part, path: str, oids: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `oids` that the submodule's store has not, and that are not its new commit; all must be the agent's."""
    new = tuple(oid for oid in crossing.missing(found.git, oids) if oid != found.new)
    if not new:
        return ()
    answers = jail.objects(reading, new, f"looking for commits of {found.part.label}")
    for oid, one in zip(new, answers, strict=True):
        if one.kind != "commit":
            raise crossing.gitlink_refused(around, path, oid, "it is neither in the submodule nor in its private copy")
    return new


def _elsewhere(part: Part, where: str, oids: tuple[str, ...], by_path: dict[str, Found]) -> Iterator[tuple[Found, str]]:
    """A gitlink at a place that is no populated submodule: one that was moved or added there is known to another.

    Yields which one has a commit that is new.
    """
    for found in by_path.values():
        if found.part.prefix:
            new = crossing.missing(found.git, oids)
            oids = crossing.missing(found.git, new, found.quarantine)
            yield from ((found, oid) for oid in new if oid not in oids)
    if oids:
        raise _unknown(by_path[part.path], where, oids[0])


def _unknown(around: Found, where: str, oid: str) -> Refusal:
    """The Refusal for a commit that could be in no repository of the user's: there is none at that place."""
    part, git = around.part, around.git
    assert around.quarantine is not None
    seen = gitlinks.reach(part.root, f"{part.path}/{where}")
    if seen.link:
        return crossing.gitlink_refused(
            part, where, oid, f"{seen.link_in_words}, and a submodule is never behind a link", _TAKE_OUT
        )
    if part.base and where in gitlinks.of_tree(git, part.base, (where,)):
        why = (
            f"the submodule at {cited(where)} is not populated outside, so there is no repository to harvest its "
            "commits into"
        )
        update = gitlinks.update_command(part.path, where)
        return crossing.gitlink_refused(part, where, oid, why, f"populate it and start a session here again: {update}")
    command = merge_command(part, git, where, around.target, around.commits, around.quarantine.environment)
    return crossing.gitlink_refused(
        part,
        where,
        oid,
        f"the agent made or cloned the repository at {cited(where)}, and there is none outside to harvest its "
        "commits into",
        in_rows(
            f"take in its files: {command}" if command else "",
            f"{'or ' if command else ''}have it published, and add the submodule outside",
        ),
    )


def reading_of(directory: str, work: str, part: Repository) -> Reading:
    """What a jail shows of a private repository's objects (harvest-git-replaced); `work`: a directory of ours."""
    tree = f"{directory}/{GIT}"
    below = f"{part.private}/objects" if part.private else "objects"
    check_agent_objects(tree, below)
    empty = jailed_git.make(f"{work}/empty-{part.digits}", part.digits)
    return Reading(empty, f"{tree}/{below}", part.stores or (f"{part.common_dir}/objects",))
