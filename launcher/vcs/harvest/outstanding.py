"""Which private git directories hold work that is nowhere else.

`worktree status` and `remove` ask whether commits would be lost with one: `tips.harvest_due` reads a few files and errs
on the safe side, and here the trusted repository is asked besides, which starts git: what a ref of its own reaches, on
a branch or kept beside one, is not lost. The service asks which ones a harvest is due in: that starts no process.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from launcher.safefs import walk
from launcher.safefs.guarded_files import Inside
from launcher.vcs import gitlinks
from launcher.vcs.git import EMPTY_TREE, Git, parsed_differences
from launcher.vcs.harvest import agent_refs, further, gather, jail
from launcher.vcs.harvest.agent_refs import STASH
from launcher.vcs.harvest.decide import kept_places
from launcher.vcs.private import lock, withheld
from launcher.vcs.private import record as records
from launcher.vcs.private.contents import given_oids, given_place, reached, unreached
from launcher.vcs.scratch import Scratch
from policy.errors import Refusal
from policy.pasted import cited

_MOST_NAMED = 5
_SHORT = re.compile("^refs/(heads/)?")
COMMITS = "commits that were not harvested"
JAILED, BRANCHES = " in a jail", "not harvested: "
REPOSITORY = "a repository in the private git directory: "
"""Words of what waits that no harvest brings by itself: what no commit has, further branches, repositories."""
OPERATIONS = {
    "rebase-merge": "rebase",
    "rebase-apply": "rebase or am",
    "MERGE_HEAD": "merge",
    "MERGE_AUTOSTASH": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "sequencer": "cherry-pick or revert",
    "BISECT_LOG": "bisect",
    "NOTES_MERGE_PARTIAL": "merge of notes",
}
"""What of a git directory tells that an operation is not finished. It may hold work alone, as an autostash does."""


class Unharvested(NamedTuple):
    """A private git directory in which work waits.

    Attributes:
        worktree: root of its worktree, which may have gone; "" where `damage` is why that cannot be told.
        directory: see `record`.
        strict: a session with a strict hand-off left it.
        damage: why its record cannot be read.
        busy: a session lives there after all, whose end brings the work home.
    """

    worktree: str
    directory: str
    strict: bool = False
    damage: Refusal | None = None
    busy: bool = False


def unharvested(state: str) -> Iterator[Unharvested]:
    """The private git directories that a harvest is due in. Reads a few files of each, and starts no process.

    A harvest that could do no more (the work is kept beside a branch, say) is not due again before something changes.
    """
    try:
        names = sorted(os.listdir(f"{state}/git"))
    except FileNotFoundError:
        return
    for name in names:
        directory = f"{state}/git/{name}"
        try:
            record = records.read(directory)
            if record is not None and _is_due(directory, record):
                yield Unharvested(
                    record.worktree, directory, withheld.is_strict(directory), busy=not _is_free(directory)
                )
        except Refusal as refusal:
            yield Unharvested("", directory, damage=refusal)
        except (FileNotFoundError, NotADirectoryError):
            continue  # somebody else was quicker


def _is_free(directory: str) -> bool:
    """Whether no session lives there, and nobody makes, renews or harvests it."""
    descriptor = lock.opened(directory)
    try:
        return lock.alone(descriptor, wait=False)
    finally:
        os.close(descriptor)


def settle(directory: str, looked: int) -> None:
    """Notes, after a harvest, that nothing more can be done with what is there (OSError).

    Args:
        looked: when the harvest began to look (ns since the epoch).
    """
    try:
        record = records.read(directory)
        if record is not None and agent_refs.harvest_due(directory):
            records.note(directory, records.SETTLED, f"{looked}\n{_seen(directory, record)}".encode())
    except Refusal:
        return


def _seen(directory: str, record: records.Record) -> str:
    """What is there, for comparison."""
    found = [(tip.repository.private, tip.new, tip.on, tip.detached) for tip in agent_refs.read(directory, record)]
    return hashlib.sha256(repr(found).encode("utf-8", "surrogateescape")).hexdigest()


def _is_due(directory: str, record: records.Record) -> bool:
    if not agent_refs.harvest_due(directory):
        return False
    if os.path.lexists(f"{directory}/{records.HARVEST}/{agent_refs.HARVEST_JOURNAL}"):
        return True
    try:
        looked, seen = (records.noted(directory, records.SETTLED) or b"").decode("ascii").split()
        if _seen(directory, record) != seen:
            return True
        return any(agent_refs.further(directory, repository, int(looked)) for repository in record.repositories)
    except (Refusal, ValueError):
        return True


def outstanding(directory: str, *, kept: bool = True) -> bool:
    """Whether commits wait there that the main repository has not; what is unusual counts as some.

    Args:
        kept: any ref counts, also one in which a harvest keeps work; False: only the branch that was checked out.

    Refusals: git-record-damaged.
    """
    return bool(waiting(directory, kept=kept))


def waiting(directory: str, *, kept: bool = True) -> tuple[str, ...]:
    """What waits there, in words; see `outstanding`."""
    record = records.read(directory)
    if record is None:
        return ()
    if os.path.lexists(f"{directory}/{records.HARVEST}/{agent_refs.HARVEST_JOURNAL}"):
        return ("an unfinished harvest",)
    standing = records.read_signed(directory)
    identity = os.path.basename(os.path.realpath(directory))
    found: list[str] = []
    try:
        places = kept_places(identity) if kept else None
        for tip in agent_refs.read(directory, record):
            where = f"submodule {cited(tip.repository.name)}: " if tip.repository.name else ""
            if _waits(tip, places, standing):
                found.append(f"{where}{COMMITS}")
            entries = len(further.waiting_stashes(directory, tip.repository))
            if entries:
                found.append(f"{where}{entries} stash{'' if entries == 1 else 'es'} not harvested")
            beside = _beside(directory, tip.repository, places, standing)
            if kept:  # a merge takes the branch as it stands
                found += [f"{where}{each}" for each in _under_way(directory, tip.repository)]
                found += [f"{where}{each}" for each in _staged(directory, tip.repository)]
            if beside:
                more = f" and {len(beside) - _MOST_NAMED} more" if len(beside) > _MOST_NAMED else ""
                found.append(f"{where}{BRANCHES}{', '.join(beside[:_MOST_NAMED])}{more}")
        if kept:
            found += _repositories(directory, record)
    except (Refusal, OSError):
        found.append(COMMITS)
    return tuple(dict.fromkeys(found))


def beside_branches(directory: str) -> list[tuple[str, str, int]]:
    """Refs in which harvests keep work that no branch has, root of the checkout and number of commits for each."""
    record = records.read(directory)
    places = [f"{place}/" for place in kept_places(os.path.basename(os.path.realpath(directory)))]
    found = []
    for repository in record.repositories if record is not None else ():
        git = Git(repository.git_dir)
        for name in sorted(git.refs(*places)):
            count = int(git.text("rev-list", "--count", name, "--not", "HEAD", "--branches"))
            if count:
                found.append((name, repository.path, count))
    return found


def has_branch(directory: str, name: str) -> bool:
    """Whether the agent of a worktree has a branch of this name, which may be nowhere else."""
    try:
        record = records.read(directory)
        if record is None:
            return False
        with agent_refs.opened(directory, record.repositories[0]) as refs:
            return refs.branch(f"{agent_refs.HEADS}{name}") is not None
    except (Refusal, OSError):
        return False


def _waits(tip: agent_refs.Tip, places: tuple[str, ...] | None, standing: Mapping[str, str]) -> bool:
    repository = tip.repository
    if tip.new is None and repository.base is not None:
        return True
    if tip.on != repository.branch and tip.detached is None:
        return True  # on a branch of its own, or nowhere
    oids = {oid for oid in (tip.new, tip.detached) if oid is not None and oid != repository.base}
    if not oids:
        return False
    git = Git(repository.git_dir)
    own = git.ref("HEAD" if places is not None else repository.branch or "HEAD")
    others = ("refs/heads/", *(f"{place}/" for place in places)) if places is not None else ()
    return not all(reached(git, standing.get(oid, oid), tips=(own,) if own else (), refs=others) for oid in oids)


def _beside(
    directory: str, repository: records.Repository, places: tuple[str, ...] | None, standing: Mapping[str, str]
) -> list[str]:
    """Further branches, tags and the like of the agent's that nobody can read, or whose commits no host's ref reaches.

    What the host itself has shown him is not his, whatever the host has removed since.
    """
    with agent_refs.opened(directory, repository) as refs:
        everything = refs.below("refs", whole=True) | ({} if places is None else refs.linked())
        named = {*everything.values()}
        loose = {} if places is None else refs.pseudo() | refs.left(repository.branch)
        everything |= {ref: oid for ref, oid in loose.items() if oid not in named}
    known_oids = given_oids(given_place(directory, repository.private)) | {repository.base}
    unwanted = further.dismissed(directory)
    theirs = {
        name: oid
        for name, oid in everything.items()
        if oid not in known_oids and (name != STASH or not oid) and unwanted.get(f"{repository.private}:{name}") != oid
    }
    git = Git(repository.git_dir)
    own = git.ref("HEAD")
    others = ("refs/heads/", "refs/tags/", *(f"{place}/" for place in places or ()))
    known = (own,) if own else ()
    lost = {""} | unreached(git, {standing.get(oid, oid) for oid in theirs.values() if oid}, tips=known, refs=others)
    return sorted(cited(_SHORT.sub("", name)) for name, oid in theirs.items() if standing.get(oid, oid) in lost)


def _under_way(directory: str, repository: records.Repository) -> Iterator[str]:
    """Operations that an agent has begun and not finished, of each git directory the first one."""
    with agent_refs.opened(directory, repository) as refs:
        found = dict(reversed(refs.under_way(OPERATIONS)))
    for place in sorted(found)[:_MOST_NAMED]:
        yield f"a {OPERATIONS[found[place]]} in progress,{JAILED}" + (f": {cited(place)}" if place else "")


_MOST_INDEX = 256 << 20
_MOST_LISTED = 16 << 20
_MOST_FILE = 64 << 20
_MOST_INDEXES = 100
_LINK = {digits: re.compile(b"(?s)(?=link.{4}(.{%d}))" % (digits // 2)) for digits in (40, 64)}


def _staged(directory: str, repository: records.Repository) -> Iterator[str]:
    """What only an index of a jail's has: neither the commit there, nor the file, nor the host's repository."""
    try:
        names = _only_staged(directory, repository)
    except (Refusal, OSError):  # no index that git can read, or one of an agent's that names millions of files
        yield f"staged{JAILED}: more than can be compared"
        return
    if names:
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        yield f"staged{JAILED} only: {', '.join(map(cited, names[:_MOST_NAMED]))}{more}"


def _only_staged(directory: str, repository: records.Repository) -> list[str]:
    """The paths of it, those of linked worktrees' behind their names (OSError, Refusal: it cannot be told)."""
    found: list[str] = []
    with (
        Scratch() as scratch,
        agent_refs.opened(directory, repository) as refs,
        Inside(f"{directory}/{records.GIT}", repository.private) as private,
    ):
        indexes = [place for place in refs.places() if private.exists(f"{place}/index".lstrip("/"))]
        if len(indexes) > _MOST_INDEXES:
            raise OSError(f"more than {_MOST_INDEXES} linked worktrees")
        reading = gather.reading_of(directory, scratch.name, repository)
        for place in indexes:
            _copy_index(private, place, reading.skeleton, repository.digits)
            entries = _entries(reading, refs.head(place)[1] or EMPTY_TREE[repository.digits])
            here = Git(repository.common_dir).objects(oid for _, oid in entries)
            lost = [one for one, known in zip(entries, here, strict=True) if known.kind == "missing"]
            if not place:  # where the files of the others are, only the agent says
                with suppress(FileNotFoundError), Inside(repository.path) as files:  # they may have gone, all of them
                    lost = [one for one in lost if not _is_as_staged(files, *one)]
            found += dict.fromkeys(f"{place}/{os.fsdecode(path)}".lstrip("/") for path, _ in lost)
    return found


def _copy_index(private: Inside, place: str, skeleton: str, digits: int) -> None:
    """Copies an index to where a jailed git looks, with the one that it says it shares (gitformat-index(5), link)."""
    with Inside(private.path, place) as directory:
        content = _index(directory, "index")
        names = {name for name in directory.names() if name.startswith("sharedindex.")}
        shared = (f"sharedindex.{one[1].hex()}" for one in re.finditer(_LINK[digits], content)) if names else ()
        found = names.intersection(shared)
        if len(found) > 1:  # git knows one; an agent can have many, and large ones
            raise OSError("an index seems to share several")
        for name in found:
            walk.replace(f"{skeleton}/{name}", _index(directory, name))
    walk.replace(f"{skeleton}/index", content)


def _index(directory: Inside, name: str) -> bytes:
    if (content := directory.read(name, _MOST_INDEX)) is None:
        raise OSError(f"{directory.path}/{name} cannot be read")
    return content


def _entries(reading: jail.Reading, tree: str) -> list[tuple[bytes, str]]:
    """Paths in an index that a tree has otherwise, each with what is staged there: of a conflict up to three."""
    words = ("diff-index", "--cached", "--raw", "--no-abbrev", "--no-renames", "-z", tree, "--")
    changed = list(parsed_differences(_listed(reading, words)))
    found = [(one.path, one.new) for one in changed if one.new.strip("0") and one.new_mode != gitlinks.MODE]
    if any(one.kind == b"U" for one in changed):
        for line in _listed(reading, ("ls-files", "--unmerged", "-z")).split(b"\0")[:-1]:
            mode, oid, rest = line.split(b" ", 2)
            found += [(rest.partition(b"\t")[2], oid.decode())] if mode != gitlinks.MODE else []
    return found


def _listed(reading: jail.Reading, words: tuple[str, ...]) -> bytes:
    with jail.Jailed(words, reading) as jailed:
        assert jailed.process.stdout is not None
        listed = walk.read_up_to(jailed.process.stdout.fileno(), _MOST_LISTED)
        if listed is None:
            raise OSError("an index names too many files")
        jailed.check("comparing what is staged")
    return listed


def _is_as_staged(files: Inside, path: bytes, oid: str) -> bool:
    content = files.read(os.fsdecode(path), _MOST_FILE)
    if content is None:
        return False
    made = b"blob %d\0%b" % (len(content), content)
    return hashlib.new("sha1" if len(oid) == 40 else "sha256", made).hexdigest() == oid


def _repositories(directory: str, record: records.Record) -> Iterator[str]:
    """Repositories in the private git directory that no harvest looks at, but for what is as it was given."""
    own = record.repositories[0]
    with agent_refs.opened(directory, own) as refs:
        places = refs.repositories()
    for place in sorted({*places} - {each.private for each in record.repositories}):
        if not _is_as_given(directory, place, own.digits):
            yield f"{REPOSITORY}{cited(place)}"


def _is_as_given(directory: str, place: str, digits: int) -> bool:
    """Whether a repository has no object of its own, and no ref but what it was given: any, an agent can write."""
    try:
        with agent_refs.AgentRefs(f"{directory}/{records.GIT}", place, digits) as refs:
            oids = {*(refs.below("refs", whole=True) | refs.linked()).values(), *filter(None, refs.head()[1:])}
            return not refs.has_objects() and oids <= given_oids(given_place(directory, place))
    except (Refusal, OSError):
        return False
