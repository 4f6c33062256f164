"""How a worktree is: what in it would be lost if it were removed. Git reads here, and writes nothing."""

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from launcher.jail import processes
from launcher.safefs import walk
from launcher.safefs.guarded_files import Inside
from launcher.vcs import gitlinks, jailed_git
from launcher.vcs.git import EMPTY_TREE, Git, GitFailed, in_gits_words
from launcher.vcs.git_config import UserConfig
from launcher.vcs.harvest import further, lfs
from launcher.vcs.harvest.outstanding import BRANCHES, COMMITS, JAILED, OPERATIONS, REPOSITORY
from launcher.vcs.jailed_git import JailedGit
from launcher.vcs.private import pointer
from launcher.vcs.private.record import directory_of
from launcher.vcs.scratch import Scratch
from launcher.vcs.worktrees import admin_files, at_stake, damage, ignored_files
from launcher.vcs.worktrees.at_stake import Kept
from launcher.vcs.worktrees.ignored_files import Ignored
from launcher.vcs.worktrees.models import Part, State, Unharvested, Worktree
from policy.errors import Refusal, printable
from policy.pasted import cited, joined, quoted
from policy.plan import beneath

# Changed files at which git was told not to look: `git status` says nothing of them, and they are work all the
# same.
#
# Users keep settings of their own in tracked files that way (git-update-index(1), ``--skip-worktree`` and
# ``--assume-unchanged``). Files that a sparse checkout leaves out have the same mark, and are not there.


_SKIPPED = b"S"
_GITLINK = b"160000"
_UNUSUAL = re.compile(rb"\0((?!H 1[02]0)[^\0]+)")


def unwatched_index(git: JailedGit) -> list[bytes]:
    """Submodules and entries with a mark, as ``git ls-files -v --stage`` prints them.

    Tens of thousands of files without one are told apart by the expression alone: 4 ms instead of 40 for 50,000.
    """
    return _UNUSUAL.findall(b"\0" + git.run("ls-files", "-v", "--stage", "-z").out)


def unwatched_gitlinks(entries: list[bytes]) -> list[bytes]:
    """The submodules among `entries`, without their marks: as ``git ls-files --stage`` prints them."""
    return [entry[2:] for entry in entries if entry[2:9] == _GITLINK + b" "]


def unwatched_changed(git: JailedGit, entries: list[bytes]) -> list[bytes]:
    """Marked files that exist and differ from the index; paths relative to the work tree."""
    unseen = b""
    with Inside(git.work_tree) as inside:
        for record in entries:
            mark, _, entry = record.partition(b" ")
            told, _, path = entry.partition(b"\t")
            if (mark == _SKIPPED or mark.islower()) and told[:6] != _GITLINK and inside.exists(os.fsdecode(path)):
                unseen += entry + b"\0"
    if not unseen:
        return []
    with Scratch() as scratch:
        own = {"GIT_INDEX_FILE": scratch.path("index")}
        git.repository.run("update-index", "-z", "--index-info", input=unseen, environment=own)
        jailed_git.run_patiently(git, "update-index", "-q", "--refresh", ok=(0, 1), environment=own)
        names = git.run("diff-files", "--name-only", "-z", environment=own).out.split(b"\0")
    return [name for name in names if name]


# What `git status` says of the files, and what it does not say: git passes over a `.git` wherever it lies, and over
# what it cannot open. So we look through the directories, too, but for those that are wholly ignored.

_STATUS = ("status", "--porcelain=v2", "-z", "--no-renames", "--ignore-submodules=all", "--untracked-files=normal",
           "--ignored=matching")  # fmt: skip
"""Without --ignore-submodules git would start itself in directories whose git directory an agent may have made."""


class Status(NamedTuple):
    """The files of one part.

    Attributes:
        records: of git-status(1).
        hidden: each `.git`, in whatever case, but for a file at the root: paths relative to it.
        closed: the first thing that could not be looked at; "" for none.
        bare: git directories by any other name, all of which is new: without empty directories they would be none.
    """

    records: list[bytes]
    hidden: tuple[str, ...]
    closed: str
    bare: tuple[str, ...]


def status(git: JailedGit, part: Part, worktree: Worktree) -> Status:
    """Looks through the files of a part, without those of other parts inside it."""
    with Scratch() as scratch:  # for a sparse index git writes trees, and would say that it cannot
        os.mkdir(scratch.path("objects"))
        done = jailed_git.run_patiently(git, *_STATUS, environment={"GIT_OBJECT_DIRECTORY": scratch.path("objects")})
    records = done.out.split(b"\0")
    left_out = {os.fsdecode(record[2:]).rstrip("/") for record in records if record[:2] == b"! "}
    left_out.update(os.path.relpath(other.path, part.path) for other in worktree.parts)
    hidden: list[str] = []
    closed: list[str] = []

    def failed(path: str, error: OSError) -> None:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):  # gone meanwhile
            closed.append(jailed_git.fault_of(path, os.strerror(error.errno or 0)))

    def skip(path: str) -> bool:
        if jailed_git.is_git(path):
            hidden.append(path)
            return True
        if path in left_out:
            return True
        if too_long := len(os.fsencode(path)) > jailed_git.MOST_PATH:
            closed.append(jailed_git.fault_of(path, jailed_git.TOO_LONG))
        return too_long

    complaint = jailed_git.unread(done)
    new = tuple(os.fsdecode(record[2:]) for record in records if record[:2] == b"? " and record.endswith(b"/"))
    bare: list[str] = []
    for path, entry in walk.files(git.work_tree, skip, failed=failed):
        # At the root, a file is the part's own pointer: what takes its place leads elsewhere, where it stays.
        if jailed_git.is_git(entry.name) and path != pointer.NAME:
            hidden.append(path)
        if entry.name == "HEAD" and path.startswith(new):
            place = os.path.dirname(path)
            bare += [place] if f"{place}/".startswith(new) and ignored_files.is_git_dir(git.work_tree, place) else []
        if complaint and "\n" in path:  # git has it in its words as it is: the next line may be an agent's
            closed.append(f"{cited(path)}: {OF_LINES}")
    return Status(records, tuple(sorted(hidden)), next(filter(None, (*closed, complaint)), ""), tuple(sorted(bare)))


# Who is at work in a worktree: processes that have their current directory in it.


def processes_at_work(root: str) -> tuple[int, ...]:
    """Processes whose current directory lies below `root`, as far as this user may see them (proc(5))."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                here = os.readlink(f"/proc/{name}/cwd")
            except OSError:
                continue  # ended, or somebody else's
            if here == root or here.startswith(f"{root}/"):
                found.append(int(name))
    return tuple(sorted(found))


def named_processes(ids: Iterable[int]) -> list[str]:
    """Processes with what they run, for people: ``bash (4711)``; this one says that it is this command."""
    found = []
    for pid in ids:
        name, above = processes.name_and_parent(pid)
        command = "ended meanwhile" if above < 0 else cited(os.fsdecode(name))
        found.append(f"{'this command' if pid == os.getpid() else command} ({pid})")
    return found


def are_callers(ids: Iterable[int]) -> bool:
    """Whether all of these are this command or its ancestors, such as the user's shell."""
    return all(processes.is_below(os.getpid(), pid) for pid in ids)


_MOST_COPIED = 1 << 20
"""Bytes of an untracked file up to which it is compared with the parent's."""

_MOST_NAMED = 20
"""Names of uncommitted files that are kept for each part."""

_PATH_AT = {b"1 ": 8, b"2 ": 9, b"u ": 10}
"""Spaces before the path in a record of git-status(1), ``--porcelain=v2``."""

UNREAD = "what git cannot read"
"""How the `problem` of a part begins whose files are closed to this user, or to git without privileges."""


NO_NAME = "git takes no such name"
"""How a complaint ends about a name that git refuses to record, in whatever case, as Windows or macOS would read it."""
OF_LINES = "a name of several lines, from which git's complaints cannot be told"


def opening(path: str, why: str) -> str:
    """What helps where git cannot look at something."""
    if why.endswith(jailed_git.TOO_DEEP):
        return "git reads no path of more than 4095 bytes: look at what is named there, and move or remove it"
    if not why.endswith((os.strerror(errno.EACCES), os.strerror(errno.EPERM))):
        return "look at what is named there, and move, rename or remove it"
    return f"{joined(('chmod', '-R', 'u+rwX', path))} opens what is closed, then: paddock worktree status"


class PartCondition(NamedTuple):
    """How one part of a worktree is.

    Attributes:
        name: empty for the main part.
        branch: branch that is checked out now; None with a detached HEAD.
        head: the commit that is checked out; None before the first one.
        ahead: commits since the base.
        modified: tracked paths that differ from HEAD, where files are missing: those that are staged.
        untracked: paths that git neither knows nor ignores, but for files that are as in the parent; a directory
            counts once.
        uncommitted: the first of those two, by name, relative to the worktree's root.
        strangers: places of submodules of which nothing is known, and that hold something all the same.
        hidden: each other `.git` in a directory: git lists nothing of what is in it, and no backup has it.
        operation: a merge, rebase or the like that is not finished.
        loose: commits that no ref which stays holds, the checked out one first.
        broken: files of refs that name no commit.
        kept: commits of agents that harvests have kept in refs of their own.
        lagging: roots of submodules that are checked out at an older commit than is recorded. Nothing would be lost
            with that, and committing it would take them back.
        ignored: what git ignores there; it goes with the files.
        problem: why nothing more could be found out; empty when all is well.
    """

    name: str
    branch: str | None = None
    head: str | None = None
    ahead: int = 0
    modified: int = 0
    untracked: int = 0
    uncommitted: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    operation: str = ""
    loose: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    kept: tuple[Kept, ...] = ()
    lagging: tuple[str, ...] = ()
    ignored: Ignored = Ignored()
    problem: str = ""

    def at_stake(self) -> list[str]:
        """What would be lost with the files, in words."""
        found = [self.problem] if self.problem else []
        if self.modified:
            found.append(f"{self.modified} modified")
        if self.untracked:
            found.append(f"{self.untracked} untracked")
        found += [f"the content of {cited(place)}, where a submodule belongs" for place in self.strangers]
        found += [f"{cited(entry)}, which no backup can hold" for entry in self.hidden[: ignored_files.MOST_SHOWN]]
        if len(self.hidden) > ignored_files.MOST_SHOWN:
            found[-1] += f", and {len(self.hidden) - ignored_files.MOST_SHOWN} more such"
        if self.operation:
            found.append(f"a {self.operation} in progress")
        if self.loose:
            found.append("commits on no branch")
        found += [f"what {cited(path)} led to, which names no commit" for path in self.broken]
        found += map(str, self.kept)
        return [f"submodule {cited(self.name)}: {text}" for text in found] if self.name else found


class Condition(NamedTuple):
    """How a worktree is.

    Attributes:
        worktree_id: whose.
        path: its root.
        state: as the store has it, after a look at the disk.
        parts: the main one first.
        unharvested: whether commits wait in a private git directory.
        unharvested_in: roots of the parts that these belong to.
        waiting: what waits there, in words.
        stashes: the agent's, which harvests have taken over; the refs stay when the worktree goes.
        inner: other worktrees that git knows and that are inside this one, or have their repository in a git directory
            that goes with it: root and git directory of the repository.
        docked: git directories that were in the worktree, and that the end of a session has put aside.
        own_stores: submodules that keep commits nowhere but in git directories that go (`at_stake.own_stores`).
        lost_pointers: submodules whose files are there without the `.git` that leads to their git directory.
        in_use: processes that have their current directory in it.
        locked: reason of the user's own `git worktree lock`; None without one.
    """

    worktree_id: str
    path: str
    state: State
    parts: tuple[PartCondition, ...] = ()
    unharvested: bool = False
    unharvested_in: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    stashes: tuple[Kept, ...] = ()
    inner: tuple[tuple[str, str], ...] = ()
    docked: tuple[str, ...] = ()
    own_stores: tuple[tuple[str, str], ...] = ()
    lost_pointers: tuple[str, ...] = ()
    in_use: tuple[int, ...] = ()
    locked: str | None = None

    def at_stake(self) -> list[str]:
        """What would be lost with the worktree, in words; empty when nothing."""
        found = [text for part in self.parts for text in part.at_stake()]
        found += self.others()
        found += [f"submodule {cited(name)}: commits that are on no remote" for name, _ in self.own_stores]
        found += [f"a repository that was moved aside: {cited(path)}" for path in self.docked]
        return [*found, *self.waiting]

    def others(self) -> list[str]:
        """The other worktrees inside it."""
        return [f"another git worktree: {cited(os.path.relpath(root, self.path))}" for root, _ in self.inner]

    def uncommitted(self) -> tuple[list[str], int]:
        """The first files that are not committed, relative to the worktree's root, and how many there are."""
        named = [name for part in self.parts for name in part.uncommitted]
        return named[:_MOST_NAMED], sum(part.modified + part.untracked for part in self.parts)

    def opening(self) -> list[str]:
        """What helps where something in it is closed to git, so that nobody knows what would be lost."""
        closed = [part.problem for part in self.parts if part.problem.startswith(UNREAD)]
        return list(dict.fromkeys(opening(self.path, why) for why in closed))

    def lagging(self) -> list[str]:
        """Submodules that are older than recorded, each with the command that updates it on its branch."""
        said = []
        for root in (root for part in self.parts for root in part.lagging):
            words = ("git", "-C", os.path.dirname(root), "submodule", "update", "--merge", os.path.basename(root))
            name = os.path.relpath(root, self.path)
            said.append(f"submodule {cited(name)} is checked out at an older commit than recorded: {joined(words)}")
        return said

    def unknown_to_git(self) -> list[str]:
        """Submodules that git outside does not see, each with the command that changes it."""
        repair = joined(("paddock", "worktree", "repair", self.path))
        return [
            f"submodule {cited(name)} has lost its .git, so git does not see it: {repair}"
            for name in self.lost_pointers
        ]

    def ignored(self) -> list[str]:
        """What git ignores and a removal takes along, in words."""
        return [
            f"submodule {cited(part.name)}: {part.ignored}" if part.name else str(part.ignored)
            for part in self.parts
            if part.ignored.names
        ]

    def fetched(self) -> bool:
        """Whether a harvest brings any of what waits by itself: commits of the branch there, stashes."""
        return any(JAILED not in each and BRANCHES not in each and REPOSITORY not in each for each in self.waiting)

    def beside(self) -> list[Kept]:
        """Work at stake that has a ref of its own: the ref stays when the worktree goes, but nothing leads to it."""
        return [one for part in self.parts for one in part.kept]


def look(row: Worktree, unharvested: Unharvested, user: UserConfig, state: str) -> Condition:
    """The condition of a worktree; of one that is missing, what its git directories say."""
    path = row.path
    if row.state not in (State.READY, State.MISSING):
        return Condition(worktree_id=row.worktree_id, path=path, state=row.state)
    there = row.state is State.READY
    worktree = at_stake.with_populated(row)
    private = {part.path: directory_of(state, part.worktree_id) for part in worktree.parts}
    # A session may have taken a submodule as its worktree.
    waits = {
        part: unharvested(part.path) for part in worktree.parts if not part.name or os.path.isdir(private[part.path])
    }
    parts = tuple(_part(part, worktree, user) for part in worktree.parts)
    parts += tuple(_part(part, worktree.with_state(State.MISSING), user) for part in at_stake.replaced(row, worktree))
    return Condition(
        worktree_id=worktree.worktree_id,
        path=path,
        state=worktree.state,
        parts=parts,
        unharvested=any(waits.values()),
        unharvested_in=tuple(os.fspath(part.path) for part, found in waits.items() if found),
        waiting=tuple(
            f"submodule {cited(part.name)}: {each}" if part.name else each
            for part, found in waits.items()
            for each in (found if isinstance(found, tuple) else (COMMITS,) * found)
        ),
        stashes=tuple(one for part in worktree.parts for one in at_stake.stashed(part, worktree)),
        inner=tuple(_inner(worktree, row)) if there else (),
        docked=tuple(path for directory in private.values() for path in at_stake.docked(directory)),
        own_stores=at_stake.own_stores(row),
        lost_pointers=tuple(part.name for part in at_stake.lost_pointers(worktree, state)) if there else (),
        in_use=processes_at_work(path),
        locked=admin_files.lock_reason(os.fspath(worktree.main.git_dir)),
    )


def _inner(worktree: Worktree, row: Worktree) -> Iterator[tuple[str, str]]:
    own = {os.fspath(part.git_dir) for part in (*worktree.parts, *row.parts)}
    going = [store for _, store in at_stake.stores(row)]
    for common_dir in dict.fromkeys((*(os.fspath(part.common_dir) for part in worktree.parts), *going)):
        for git_dir in admin_files.linked(common_dir):
            entry = admin_files.points_to(git_dir) or ""
            bound = common_dir in going or beneath(entry, worktree.path)
            if git_dir not in own and bound and os.path.lexists(entry):
                yield os.path.dirname(entry), common_dir


def _part(part: Part, worktree: Worktree, user: UserConfig) -> PartCondition:
    git_dir, place = os.fspath(part.git_dir), os.fspath(part.path)
    if not os.path.isdir(git_dir):
        return PartCondition(name=part.name, problem=f"its git directory {git_dir} is missing")
    if astray := at_stake.astray(part):
        return PartCondition(name=part.name, problem=f"another repository is in its git directory: {printable(astray)}")
    try:
        gone = at_stake.is_gone(part)
        if worktree.state is State.MISSING or (gone and at_stake.was_taken_away(part, worktree)):
            return _without_files(part, worktree)
        if gone:
            return PartCondition(name=part.name, problem=f"{place} is missing, or was replaced")
        # The git directory is named, never found by the `.git` in the files: that one an agent may have replaced.
        return _examined(JailedGit(git_dir, place, settings=user.ignores), part, worktree)
    except GitFailed as failure:
        why = (in_gits_words(failure.err) or [failure.message])[-1]
        damaged = [f"{git_dir}/{name} is damaged: paddock worktree repair" for name in damage.found(part)]
        return PartCondition(name=part.name, problem=damaged[0] if damaged else why)
    except Refusal as refusal:
        return PartCondition(name=part.name, problem=f"{refusal.message}: {refusal.context}")


def _without_files(part: Part, worktree: Worktree) -> PartCondition:
    """The condition of a part without files, as its git directory tells it."""
    git_dir = os.fspath(part.git_dir)
    git = Git(git_dir)
    head, broken = git.ref("HEAD", ok=(0, 1, 128)), at_stake.unreadable(part)
    with Scratch() as scratch, Scratch() as none:  # for a sparse index git writes trees
        words = ("diff-index", "--cached", "--name-only", "-z", "--ignore-submodules=all")
        tree = head or EMPTY_TREE[len(part.base)]
        done = JailedGit(git_dir, none.name).run(*words, tree, "--", environment={"GIT_OBJECT_DIRECTORY": scratch.name})
        staged = done.out.split(b"\0")[:-1]
    return PartCondition(
        name=part.name,
        branch=admin_files.branch(git_dir),
        head=head or None,
        ahead=_ahead(git, head, part),
        modified=len(staged),
        uncommitted=tuple(map(os.fsdecode, staged[:_MOST_NAMED])),
        operation=_operation(git_dir),
        loose=at_stake.loose(part, broken),
        broken=tuple(filter(os.path.lexists, broken)),
        kept=at_stake.beside(git, part, worktree, head if damage.is_commit(git, head) else None),
    )


def is_damaged(part: Part, worktree: Worktree) -> bool:
    """Whether git cannot read what the git directory of a part alone has."""
    try:
        _without_files(part, worktree)
    except GitFailed:
        return True
    return False


def alone(worktree: Worktree) -> bool:
    """Whether only the git directories of a worktree have something that `git worktree prune` would remove."""
    whole, going = at_stake.with_populated(worktree), dict(at_stake.stores(worktree)).values()
    own = (part for part in whole.parts if part.linked or os.fspath(part.git_dir) in going)
    parts = (_part(part, whole, UserConfig()) for part in own)
    found = any(part.modified or part.operation or part.loose or part.broken or part.problem for part in parts)
    return found or bool(at_stake.own_stores(worktree))


def _operation(git_dir: str) -> str:
    return next((word for name, word in OPERATIONS.items() if os.path.lexists(f"{git_dir}/{name}")), "")


def _ahead(git: Git, head: str, part: Part) -> int:
    """Commits since the base; 0 where one of the two is not there any more."""
    words = ("rev-list", "--count", head, f"^{part.base}", "--")
    return int(git.run(*words, ok=(0, 128)).out or b"0") if head else 0


def _examined(git: JailedGit, part: Part, worktree: Worktree) -> PartCondition:
    text = admin_files.head(git.git_dir)
    branch = text.removeprefix("ref: refs/heads/") if text.startswith("ref: refs/heads/") else None
    head, broken = git.ref("HEAD", ok=(0, 1, 128)) or None, at_stake.unreadable(part)
    records, hidden, closed, bare = status(git, part, worktree)
    large_ones = _large(git, records, os.fspath(part.path))
    changed = [os.fsdecode(record.split(b" ", _PATH_AT[record[:2]])[-1]) for record in records
               if record[:2] in _PATH_AT]  # fmt: skip
    new = [name for name in (os.fsdecode(record[2:]) for record in records if record[:2] == b"? ")
           if not _copied(name, part, worktree)]  # fmt: skip
    index = unwatched_index(git)
    submodules = unwatched_gitlinks(index)
    moved, lagging = _moved_gitlinks(submodules, part, worktree)
    moved += (name for name in _staged_gitlinks(git, submodules, head) if name not in moved)
    modified = [name for name in changed if name not in large_ones] + moved
    modified += [os.fsdecode(name) for name in unwatched_changed(git, index)]
    inside = os.path.relpath(part.path, worktree.path)
    ahead = 0
    if head is not None and head != part.base:
        ahead = int(git.text("rev-list", "--count", head, f"^{part.base}", "--"))
    ignored = _ignored([os.fsdecode(record[2:]) for record in records if record[:2] == b"! "], part, worktree)
    hidden = (*hidden, *bare, *ignored.repositories)
    strangers = at_stake.in_places_of_submodules(submodules, part, worktree)
    return PartCondition(
        name=part.name, branch=branch, head=head, ahead=ahead, modified=len(modified), untracked=len(new),
        uncommitted=tuple(os.path.normpath(f"{inside}/{name}") for name in (modified + new)[:_MOST_NAMED]),
        strangers=tuple(strangers), hidden=tuple(entry for entry in hidden if os.path.dirname(entry) not in strangers),
        operation=_operation(git.git_dir), loose=at_stake.loose(part, broken),
        broken=tuple(filter(os.path.lexists, broken)), kept=at_stake.beside(git, part, worktree, head),
        lagging=lagging, ignored=ignored,
        problem=f"{UNREAD}: {printable(closed)}" if closed else "",
    )  # fmt: skip


def _ignored(names: list[str], part: Part, worktree: Worktree) -> Ignored:
    """What git ignores in a part, without the parts inside it and copies that are as in the parent (`--copy`)."""
    inner = tuple(os.path.relpath(other.path, part.path) for other in worktree.parts if other is not part)
    counted = [name for name in names if name.rstrip("/") not in inner and not _copied(name, part, worktree)]
    return ignored_files.look(os.fspath(part.path), counted)


def _large(git: Git, records: list[bytes], root: str) -> set[str]:
    """Modified files that are unchanged LFS content: the filter that would say so is not run."""
    candidates: list[tuple[str, str]] = []
    for record in records:
        # "1 .M", submodule, modes (HEAD, index, working tree), ids (HEAD, index), path: git-status(1)
        if record.startswith(b"1 .M N..."):
            *_, in_index, here, _, oid, path = record.split(b" ", 8)
            if in_index == here:
                candidates.append((oid.decode(), os.fsdecode(path)))
    pointers = lfs.pointers(git, dict.fromkeys(oid for oid, _ in candidates)) if candidates else {}
    if not pointers:
        return set()
    store = lfs.lfs_store(git)
    tree = walk.open_canonical(root, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        known = ((path, pointers[oid]) for oid, path in candidates if oid in pointers)
        return lfs.unchanged(tree, (one for one in known if lfs.stored(store, one[1])))
    finally:
        os.close(tree)


def _copied(path: str, part: Part, worktree: Worktree) -> bool:
    """Whether an untracked file is still what its parent has in the same place, as `--copy` brings it."""
    if part.name or worktree.parent_path is None:
        return False
    try:
        with Inside(os.fspath(part.path)) as here, Inside(os.fspath(worktree.parent_path)) as above:
            content = here.read(path, _MOST_COPIED)
            return content is not None and content == above.read(path, _MOST_COPIED)
    except OSError:
        return False


def _staged_gitlinks(git: Git, submodules: list[bytes], head: str | None) -> list[str]:
    """Submodules whose commit in the index is not that of `head`: `git status` does not look at them here."""
    staged = {
        os.fsdecode(path): info.split()[1].decode() for info, _, path in (one.partition(b"\t") for one in submodules)
    }
    recorded = gitlinks.of_tree(git, head, staged) if head and staged else {}
    return [path for path, oid in staged.items() if recorded.get(path) != oid]


def _moved_gitlinks(submodules: list[bytes], part: Part, worktree: Worktree) -> tuple[list[str], tuple[str, ...]]:
    """Submodules directly below a part whose commit is not the index's: places of those, and roots of older ones.

    `git merge` leaves a submodule at the commit that was recorded before. It is an ancestor of the one recorded now.
    """
    moved: list[str] = []
    lagging: list[str] = []
    recorded_at = {entry.partition(b"\t")[2]: entry.split()[1].decode("ascii") for entry in submodules}
    for inner in worktree.submodules:
        if inner.name == part.name or not inner.path.is_relative_to(part.path):
            continue
        relative = os.path.relpath(inner.path, part.path)
        recorded = recorded_at.get(os.fsencode(relative))
        if recorded is not None and os.path.isdir(inner.git_dir):
            below = Git(os.fspath(inner.git_dir))
            head = below.ref("HEAD")
            if head == recorded:
                continue
            if below.contains(recorded, head):
                lagging.append(os.fspath(inner.path))
            else:
                moved.append(relative)
    return moved, tuple(lagging)


# How far the work of worktrees has come: nothing committed, committed, merged. Asked of git once per repository.

_BRANCH = "refs/heads/"


class Work(StrEnum):
    """What has become of a worktree's own commits."""

    NONE = "none"
    OPEN = "open"
    MERGED = "merged"
    UNKNOWN = "unknown"


class Progress(NamedTuple):
    """Of one worktree.

    Attributes:
        work: of the branch that is checked out there. UNKNOWN without one, or without a commit in the main checkout.
        into: the branch of the main checkout, "HEAD" when it is on none.
        further: its own branch, where another is checked out, and branches that harvests have made of it, not merged.
        head: the commit that is checked out there, so the one that a merge takes; "" where that cannot be told.
    """

    work: Work
    into: str
    further: tuple[str, ...] = ()
    head: str = ""

    def __str__(self) -> str:
        """For a column."""
        return {
            Work.NONE: "no commits",
            Work.OPEN: "to merge",
            Work.MERGED: f"in {self.into}",
            Work.UNKNOWN: "-",
        }[self.work]

    def lines(self) -> list[str]:
        """What of the worktree's is not merged beside the branch that is checked out, and how it would be."""
        return [f"branch {name} is not merged into {self.into}: paddock merge {quoted(name)}" for name in self.further]


def progress_of(worktrees: Iterable[Worktree], state: str) -> dict[str, Progress]:
    """How far each is, by its id. Merged is what the branch of the repository's main checkout contains."""
    by_repository: dict[str, list[Worktree]] = {}
    for row in worktrees:
        by_repository.setdefault(str(row.main.common_dir), []).append(row)
    found: dict[str, Progress] = {}
    for common_dir, rows in by_repository.items():
        try:
            found.update(_of_repository(common_dir, rows, state))
        except GitFailed:  # gone, or damaged: there is more to say of that than a column has room for
            found.update({row.worktree_id: Progress(Work.UNKNOWN, "") for row in rows})
    return found


def _of_repository(common_dir: str, rows: list[Worktree], state: str) -> dict[str, Progress]:
    found: dict[str, Progress] = {}
    head = admin_files.head(common_dir)
    trunk = head.removeprefix("ref: ")
    into = trunk.removeprefix(_BRANCH) if trunk != head else "HEAD"
    git = Git(common_dir)
    known = git.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{trunk}^{{commit}}", ok=(0, 1, 128))
    tips = git.refs(_BRANCH)
    merged = git.refs(f"--merged={trunk}", _BRANCH) if known.status == 0 else {}
    for row in rows:
        at = admin_files.head(os.fspath(row.main.git_dir))
        ref = at.removeprefix("ref: ") if at.startswith(f"ref: {_BRANCH}") else row.main.ref
        tip = tips.get(ref or "")
        if tip is None or known.status:
            work = Work.UNKNOWN
        elif tip == row.main.base:
            work = Work.NONE
        else:
            work = Work.MERGED if ref in merged else Work.OPEN
        beside = (
            () if tip is None or known.status else _beside(git, row, tip, {**tips, **dict.fromkeys(merged, "")}, state)
        )
        head = tips.get(at.removeprefix("ref: "), "") if at.startswith("ref: ") else at
        found[row.worktree_id] = Progress(work, into, beside, head)
    return found


def _beside(git: Git, row: Worktree, tip: str, open_: Mapping[str, str], state: str) -> tuple[str, ...]:
    """Branches of a worktree whose commits neither the trunk nor `tip`, which is checked out there, contains."""
    made = further.made(directory_of(state, row.worktree_id))
    own = {row.main.ref: open_.get(row.main.ref, "")} if row.main.ref is not None else {}
    return tuple(
        name.removeprefix(_BRANCH)
        for name, oid in {**made, **own}.items()
        if oid == open_.get(name)  # else it is the user's by now
        and oid not in ("", row.main.base)
        and not git.contains(tip, oid)
    )
