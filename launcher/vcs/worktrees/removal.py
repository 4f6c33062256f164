"""Removing a worktree: refused while it has work that is nowhere else; forced, that work becomes a ref first."""

import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from launcher.jail import syscalls
from launcher.safefs import walk
from launcher.safefs.guarded_files import Inside
from launcher.safefs.remove import remove_tree
from launcher.vcs import checkout, gitlinks, jailed_git, written
from launcher.vcs.added_packs import Held
from launcher.vcs.disk import Present
from launcher.vcs.git import EMPTY_TREE, Completed, Difference, Git, GitFailed, parsed_differences
from launcher.vcs.git_config import UserConfig
from launcher.vcs.harvest import crossing, outstanding
from launcher.vcs.jailed_git import JailedGit
from launcher.vcs.private import lock as private_lock
from launcher.vcs.private import record, swap, writers
from launcher.vcs.private.pointer import NAME
from launcher.vcs.scratch import Scratch
from launcher.vcs.worktrees import admin_files, at_stake, condition, damage, module_stores
from launcher.vcs.worktrees.condition import Condition
from launcher.vcs.worktrees.creation import IDENTITY, remove_staging
from launcher.vcs.worktrees.models import Part, Removed, Say, State, Step, Unharvested, Worktree, kept_aside
from launcher.vcs.worktrees.store import WorktreeRepository
from policy.errors import Refusal, in_rows, printable
from policy.pasted import cited, joined, quoted
from policy.plan import beneath

# Keeping what would be lost: a commit of everything in the files, held by a ref of our own.


PREFIX = "refs/paddock/backup"

_AUTHOR = {"GIT_AUTHOR_NAME": "paddock", "GIT_AUTHOR_EMAIL": "paddock@localhost", **IDENTITY}


def keep_work(worktree: Worktree) -> list[tuple[str, str]]:
    """Makes a backup of each part, and returns (git directory, ref) of each.

    A backup is a commit on top of HEAD that holds the files as they are: changed ones, new ones, and those of
    repositories that somebody put inside; not what is ignored. Where nothing differs the ref holds HEAD itself. What
    only the index or a rebase, `am` or the like has gets a ref of its own: as a second parent, as stashes have it, it
    would have git-show(1) leave out of the backup what is in it. So does each commit that nothing else holds. Git
    directories that lie among the files are never read.
    """
    row, worktree = worktree, at_stake.with_populated(worktree)
    jailed_git.check_obstacles(worktree.path)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    made: list[tuple[str, str]] = []
    commits: dict[str, str] = {}
    for part in reversed(worktree.parts):  # inner ones first: the outer backup names the inner
        if not os.path.isdir(part.git_dir):
            continue
        place, gone = os.fspath(part.path), at_stake.is_gone(part)
        git = Git(os.fspath(part.git_dir))
        with Held(f"backup of {worktree.worktree_id}, until a ref points to it") as held, Scratch() as empty:
            jailed = JailedGit(git.git_dir, empty.name if gone else place)
            try:
                try:
                    commit, staged = _commits(jailed, part, worktree, commits, held, _head(git), gone=gone)
                except Refusal as refusal:
                    if refusal.reference not in ("git-failed", "harvest-unreadable"):
                        raise
                    jailed.without_head = True  # what it goes on from is not whole
                    commit, staged = _commits(jailed, part, worktree, commits, held, None, gone=gone)
            except GitFailed:
                if not gone or not condition.is_damaged(part, worktree):
                    raise
                commit = staged = ""  # nothing could be told of it by its files either
            commits |= {part.name: commit} if commit else {}
            ref = f"{PREFIX}/{worktree.worktree_id}/{stamp}-{os.urandom(2).hex()}"
            refs = {name: oid for name, oid in ((f"{ref}-staged", staged), (ref, "" if gone else commit)) if oid}
            for name, oid in refs.items():
                words = ("update-ref", "-m", "paddock: backup", name, oid, "0" * len(oid))
                git.variant(hold=held.locks).run(*words, environment=IDENTITY)
            made += _kept_loose(part, worktree, *refs)
            made += [(git.common_dir, name) for name in refs]
    made += (kept for part in at_stake.replaced(row, worktree) for kept in _kept_loose(part, worktree))
    return made[::-1]


def _kept_loose(part: Part, worktree: Worktree, *held: str) -> list[tuple[str, str]]:
    """Makes refs for commits that nothing else holds; (git directory, ref) of each."""
    git = Git(os.fspath(part.common_dir))
    loose = (*at_stake.loose(part, at_stake.unreadable(part), *held), *at_stake.no_commits(part))
    made = {f"{PREFIX}/{worktree.worktree_id}/{oid[:12]}": oid for oid in loose}
    for ref, oid in made.items():
        git.run("update-ref", "-m", "paddock: commit on no branch", ref, oid, environment=IDENTITY)
    return [(git.common_dir, ref) for ref in made]


def _head(git: Git) -> str | None:
    words = ("rev-parse", "--verify", "--quiet", "HEAD^{commit}")  # a damaged repository may not have it
    return git.run(*words, ok=(0, 1, 128)).out.decode("ascii").strip() or None


def _commits(
    git: JailedGit, part: Part, worktree: Worktree, commits: dict[str, str], held: Held, head: str | None, *, gone: bool
) -> tuple[str, str]:
    """A commit of the files, or `head` where they are `gone`, and one of what only the git directory has.

    "" for each where there is nothing of that, or the first has it all.
    """
    with Scratch() as scratch:
        index, objects = scratch.path("index"), scratch.path("objects")
        for directory in (index, objects):
            os.mkdir(directory)
        own = {"GIT_INDEX_FILE": f"{index}/index", "GIT_OBJECT_DIRECTORY": objects}
        git.repository.run("read-tree", head or "--empty", environment={"GIT_INDEX_FILE": f"{index}/index"})
        if not gone:
            _add_files(git, part, worktree, commits, head, own)
        tree = git.run("write-tree", environment=own).out.decode("ascii").strip()
        before = head or EMPTY_TREE[len(tree)]
        staged = _tree_of_index(git, before, tree, own | {"GIT_INDEX_FILE": f"{index}/staged"})
        made = {"": "", **({git.text("rev-parse", f"{head}^{{tree}}"): head} if head else {tree: ""} if gone else {})}
        for each, what in ((tree, worktree.path), (staged, f"what is staged in {worktree.path}")):
            if each not in made:
                words = ["commit-tree", "-m", f"paddock: backup of {what}", *(["-p", head] if head else []), each]
                made[each] = git.run(*words, environment=_AUTHOR | own).out.decode("ascii").strip()
                crossing.adopt(git, objects, made[each], scratch.path(f"quarantine-{each}"), held)
    return made[tree], made[staged]


def _add_files(
    git: JailedGit, part: Part, worktree: Worktree, commits: dict[str, str], head: str | None, own: dict[str, str]
) -> None:
    """Puts what differs from `head` among the files of a part into the index of `own`.

    Refusals: worktree-unreadable.
    """
    seen = condition.status(git, part, worktree)
    odd = next((f"{cited(name)}: {condition.NO_NAME}" for name in seen.hidden if os.path.basename(name) != NAME), "")
    if closed := seen.closed or odd:
        raise _unreadable(git.work_tree, closed)
    links: set[bytes] = set()
    changed: list[bytes] = []
    entries = condition.unwatched_index(git)
    if head:
        links = set(map(os.fsencode, gitlinks.of_tree(git, head)))
    # Without the end of revisions a file called HEAD would be as good an answer.
    before = "HEAD" if head else EMPTY_TREE[len(part.base)]
    asked = ("diff-index", "--name-only", "-z", "--ignore-submodules=all", before, "--")
    names = _seen(git, own["GIT_OBJECT_DIRECTORY"], *asked).split(b"\0")
    changed = [name for name in (*names, *condition.unwatched_changed(git, entries)) if name and name not in links]
    for place in at_stake.in_places_of_submodules(condition.unwatched_gitlinks(entries), part, worktree):
        changed += _inside(part, os.fsencode(place))
    others = _seen(git, own["GIT_OBJECT_DIRECTORY"], "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
    for name in filter(None, others):
        changed += _below(part, name, links) if name.endswith(b"/") else [name]
    _record(git, changed, own)
    for inner in worktree.submodules:
        relative = os.path.relpath(inner.path, part.path)
        if inner.name in commits and os.fsencode(relative) in links:
            entry = f"160000 {commits[inner.name]}\t{relative}\0"
            git.run("update-index", "-z", "--index-info", input=os.fsencode(entry), environment=own)


def _tree_of_index(git: JailedGit, head: str, tree: str, environment: dict[str, str]) -> str:
    """The tree of the index and of `_beside`, if content of it is neither in `head` nor in `tree`; else ""."""
    words = ("diff-index", "--cached", "--raw", "--no-abbrev", "--no-renames", "-z", "--ignore-submodules=none")
    beside = {one.path: one for one in _beside(git)}
    staged, since = (
        {one.path: one for one in parsed_differences(_seen(git, environment["GIT_OBJECT_DIRECTORY"], *words, old, "--"))
         if one.kind != b"U"} | beside
        for old in (head, tree)
    )  # fmt: skip
    new = [path for path, one in staged.items() if one.new.strip("0")]
    found = zip(new, git.objects(staged[path].new for path in new), strict=True)
    # The repository is damaged, but for the commits of submodules, which are in their own.
    missing = {path for path, one in found if one.kind != "blob" and staged[path].new_mode != gitlinks.MODE}
    if since.keys().isdisjoint({*new} - missing):
        return ""
    kept = (one for path, one in staged.items() if path not in missing)
    lines = (b"%s %s\t%s\0" % (one.new_mode, one.new.encode(), one.path) for one in kept)
    git.run("read-tree", head, environment=environment)
    git.run("update-index", "--replace", "-z", "--index-info", input=b"".join(lines), environment=environment)
    return git.run("write-tree", environment=environment).out.decode("ascii").strip()


_OPERATIONS = ("rebase-merge", "rebase-apply", "sequencer", "NOTES_MERGE_WORKTREE")


def _beside(git: JailedGit) -> Iterator[Difference]:
    """What a git directory has and no tree has a place for: the sides of conflicts, and the files of operations.

    The sides are of commits mostly. One of `git checkout -m` is what nobody has committed.
    """
    for side in git.run("ls-files", "--unmerged", "-z").out.split(b"\0")[:-1]:
        mode, oid, stage, path = re.split(rb"[ \t]", side, maxsplit=3)
        yield _added(mode, oid.decode(), b"stage-%s/%s" % (stage, path))
    found = [f"{name}/{path}" for name in _OPERATIONS for path, _ in walk.files(git.git_dir, at=name)]
    lines = b"".join(os.fsencode(f"{git.git_dir}/{name}\n") for name in found)
    words = ("hash-object", "-w", "--no-filters", "--stdin-paths")
    for name, oid in zip(found, git.repository.run(*words, input=lines).out.split() if found else (), strict=True):
        yield _added(b"100644", oid.decode(), os.fsencode(name))


def _added(mode: bytes, oid: str, path: bytes) -> Difference:
    return Difference(b"", mode, "", oid, b"A", b"%s/%s" % (os.fsencode(written.BACKUP), path))


def _seen(git: JailedGit, objects: str, *words: str) -> bytes:
    """What git answers about all files of a worktree; where its index is sparse, it writes trees to `objects`.

    Refusals: worktree-unreadable.
    """
    done = git.run(*words, environment={"GIT_OBJECT_DIRECTORY": objects})
    if closed := jailed_git.unread(done):
        raise _unreadable(git.work_tree, closed)
    return done.out


_KEPT = (stat.S_IFREG, stat.S_IFLNK)


def _record(git: JailedGit, names: list[bytes], environment: dict[str, str]) -> None:
    """Puts files as they are into an index. What is none by now, or is behind a link, is taken out of it first.

    Refusals: worktree-unreadable, worktree-obstructed.
    """
    try:
        with Inside(git.work_tree) as inside:
            seen = {name: inside.status(os.fsdecode(name)) for name in names}
        found = {name: one for name, one in seen.items() if one and stat.S_IFMT(one.st_mode) in _KEPT}
        jailed_git.refuse_holes(git.work_tree, ((os.fsdecode(name), status) for name, status in found.items()))
        there = found.keys()
        for paths, how in ({*names} - there, ("--force-remove",)), (there, ("--add", "--remove", "--replace")):
            if paths:
                lines = b"".join(name + b"\0" for name in sorted(paths))
                git.run("update-index", *how, "-z", "--stdin", input=lines, environment=environment)
        # Git passes over a name that it does not take, and exits with 0.
        left = there - set(git.run("ls-files", "-z", environment=environment).out.split(b"\0"))
        with Inside(git.work_tree) as inside:
            for name in filter(inside.exists, map(os.fsdecode, sorted(left))):
                raise _unreadable(git.work_tree, f"{name}: {condition.NO_NAME}")
    except PermissionError as error:
        raise _unreadable(git.work_tree, error.strerror or "") from None
    except GitFailed as failure:
        if closed := jailed_git.unread(Completed(1, b"", failure.err)):
            raise _unreadable(git.work_tree, closed) from None
        raise


def _unreadable(path: str, why: str) -> Refusal:
    return Refusal("worktree-unreadable", f"{path} cannot be backed up: not all of it can be read",
                   context=printable(why), hint=condition.opening(path, why))  # fmt: skip


def _below(part: Part, name: bytes, links: set[bytes]) -> list[bytes]:
    """The files of a repository inside the worktree, which git lists as one directory; its `.git` is left out."""
    return [] if name.rstrip(b"/") in links else _inside(part, name.rstrip(b"/"))  # [] for a populated submodule


def _inside(part: Part, name: bytes) -> list[bytes]:
    root = os.fsencode(part.path)
    with Inside(os.fspath(part.path)) as inside:
        if not inside.is_directory(os.fsdecode(name)):
            return [name]
    found = walk.files(os.fsdecode(root), jailed_git.is_git, at=os.fsdecode(name))
    return [name + b"/" + os.fsencode(path) for path, _ in found if not jailed_git.is_git(path)]


class Removal:
    """Removes worktrees."""

    def __init__(
        self,
        store: WorktreeRepository,
        state: str,
        unharvested: Unharvested,
        user: UserConfig,
        step: Step,
        say: Say,
        warn: Say,
    ) -> None:
        self._user = user
        self._store = store
        self._state = state
        self._unharvested = unharvested
        self._step = step
        self._say = say
        self._warn = warn

    def remove(self, worktree: Worktree, *, force: bool, keep_branch: bool) -> Removed:
        """Removes a worktree with its submodules, private home and metadata.

        Args:
            worktree: ready or missing.
            force: also with uncommitted or unharvested work, which is kept by a backup ref (set aside, if it was not
                harvested), while processes or sessions are at work in it (not those that share its private git
                directory), when it is locked, and when its directory is missing.
            keep_branch: keep a branch that has no commits of its own, too.

        Refusals: worktree-busy, worktree-in-use, session-running, worktree-locked, worktree-missing, worktree-dirty;
            worktree-obstructed: there are other worktrees in it; git-head-unreadable: of its repository.
        """
        with ExitStack() as stack:
            own = stack.enter_context(self._store.worktree_lock(worktree.worktree_id))
            if own is None:
                raise Refusal("worktree-busy", f"another process is working on {worktree.path}", hint="try again later")
            for part in at_stake.with_populated(worktree).parts:
                stack.enter_context(_no_session(self._state, worktree, part))
            if not force and (live := writers.live(self._state, worktree.path)):
                raise _writing(worktree, [each.name for each in live])
            common_dir = os.fspath(worktree.main.common_dir)
            _check_repositories(worktree)
            with self._store.repository_lock(common_dir):
                self._step("mend")
                done = module_stores.mend(common_dir)  # git could not delete branches of such a submodule
                done += [line for part in worktree.parts if force for line in damage.mend(part)]
                for line in done:
                    self._say(line)
            now = condition.look(worktree, self._unharvested, self._user, self._state)
            _check_inner(now)
            if not force:
                _check(now, worktree)
            if now.at_stake():
                _check_borrowers(worktree, now, self._state)
            backups: list[tuple[str, str]] = []
            beside = now.beside()
            if len(now.at_stake()) > len(beside):
                self._step("backup")
                self._say("keeping uncommitted work")
                backups = keep_work(worktree)
            with self._store.repository_lock(common_dir):
                self._step("record")
                leaving = worktree.with_state(State.REMOVING)
                self._store.save(leaving)
                for part in filter(lambda part: part.linked, leaving.parts):
                    admin_files.relock(part, worktree.worktree_id)
                # A repository in a submodule's place may have its git directory in the private one.
                strange = any(part.strangers or part.hidden for part in now.parts)
                asides = self._set_aside(worktree) if now.unharvested or now.docked or strange else []
                backups += map(os.path.split, asides[1:])
                if strange:
                    self._step("keep strangers")
                    backups += _keep_strangers(worktree, now)
                # What is set aside borrows from them.
                if now.own_stores or asides or any(at in dict(at_stake.stores(worktree)).values() for at, _ in backups):
                    backups = self._keep_stores(worktree, backups, asides)
                self._step("rename")
                _staged(worktree)
                deleted, kept, failures = self._let_go(leaving, keep_branch=keep_branch)
            # A tree takes its time, and nobody else looks at this one while its own lock is held.
            self._emptied(leaving, failures)
            refs = [(one.store, one.ref) for one in beside if os.path.isdir(one.store)]  # or moved, with `own_stores`
            stashed = [(one.store, one.ref) for one in now.stashes if os.path.isdir(one.store)]
            return Removed(worktree, backups, deleted, kept, "".join(asides[:1]), refs, stashed, now.ignored())

    def resume(self, worktree: Worktree) -> str:
        """Ends the removal that a dead process began, after the files left their place.

        Returns where the private git directory is set aside, which may happen only now; "" with nothing to keep.
        """
        if self.waiting(worktree):
            self._set_aside(worktree)
        homes = self._homes(at_stake.with_populated(worktree))
        asides = [aside for _, aside in homes if os.path.isdir(aside)]  # one that was killed may have moved it
        if asides:
            self._keep_stores(worktree, [], asides)
        self.finish(worktree, keep_branch=True)
        return ", ".join(asides)

    def replaced(self, worktree: Worktree) -> None:
        """Forgets a worktree at whose place git has made another one; the repository's lock is held."""
        aside = ""
        # Unless a session has started in the new one meanwhile, and made room for its own.
        if private_lock.is_of_another(os.fspath(worktree.main.git_dir), self._homes(worktree)[0][0]):
            self._step("set aside")
            aside = at_stake.clear_earlier(self._state, worktree.path, worktree.worktree_id, self._unharvested)
        self._step("forget")
        self._store.forget(worktree.worktree_id)
        if aside:
            self._warn(f"git has made another worktree at {worktree.path}; {kept_aside(aside)}")

    def waiting(self, worktree: Worktree) -> str:
        """A private git directory of a worktree, if commits that were not harvested are in it, or may be; else ""."""
        for part in worktree.parts:
            home = record.directory_of(self._state, part.worktree_id)
            try:
                if os.path.isdir(home) and self._unharvested(part.path):
                    return home
            except Refusal:
                return home  # what cannot be read is not for us to give up
        return ""

    def finish(self, worktree: Worktree, *, keep_branch: bool) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Removes what is left of a worktree that is no longer at its place; the repository's lock is held.

        May be repeated. Returns the branches that were deleted and the ones that were kept.
        """
        deleted, kept, failures = self._let_go(worktree, keep_branch=keep_branch)
        self._emptied(worktree, failures)
        return deleted, kept

    def _let_go(
        self, worktree: Worktree, *, keep_branch: bool
    ) -> tuple[list[tuple[str, str]], list[tuple[str, str]], list[str]]:
        """Removes a worktree from its repositories; returns branches deleted, branches that stay, and failures."""
        deleted: list[tuple[str, str]] = []
        kept: list[tuple[str, str]] = []
        failures: list[str] = []
        parts = [part for part in worktree.parts if part.linked]  # others have gone, or been kept, with the main one
        set_aside = any(os.path.isdir(aside) for _, aside in self._homes(worktree))
        for part in reversed(parts):
            self._step(f"metadata {part.name}")
            if not set_aside:  # what is kept there still borrows the objects
                self._unpin(part, worktree)
            failures += admin_files.discard(part, worktree.worktree_id)
        for part in parts:
            if part.branch is not None:
                self._step(f"branch {part.name}")
                gone = not keep_branch and self._delete_branch(part, worktree)
                (deleted if gone else kept).append((os.fspath(part.common_dir), part.branch))
        self._retire_stores(worktree)
        return deleted, kept, failures

    def _emptied(self, worktree: Worktree, failures: list[str]) -> None:
        """Removes the files of a worktree, and forgets it; its own lock, or its repository's, is held."""
        self._step("files")
        self._say(f"removing {worktree.path}")
        identity = syscalls.identity(os.fspath(worktree.staging))
        failures += remove_staging(worktree)
        self._step("home")
        failures += remove_tree(f"{self._state}/worktrees/{worktree.worktree_id}")
        for home, _ in self._homes(worktree):
            failures += remove_tree(home)
        if failures:
            raise _unremovable(worktree, failures)
        self._step("forget")
        written.forget(self._state, worktree.path, identity)
        self._store.forget(worktree.worktree_id)
        self._store.remove_worktree_lock(worktree.worktree_id)

    def _unpin(self, part: Part, worktree: Worktree) -> None:
        """Removes the refs that pin what private git directories borrow."""
        git = Git(os.fspath(part.common_dir))
        for ref in dict.fromkeys(record.pin(each.worktree_id) for each in worktree.parts):
            with suppress(FileNotFoundError):
                os.unlink(f"{git.common_dir}/{ref}.lock")  # of a launch that was killed when it set the ref
            if git.ref(ref):
                git.run("update-ref", "-d", ref)

    def _delete_branch(self, part: Part, worktree: Worktree) -> bool:
        """Deletes a branch that Paddock made, if other refs reach its tip. Returns whether it is gone."""
        git = Git(os.fspath(part.common_dir))
        ref = part.ref
        assert ref is not None
        tip = git.ref(ref)
        if not tip:
            return not os.path.lexists(f"{git.common_dir}/{ref}")  # or git cannot read it
        if not part.branch_made or admin_files.checked_out(os.fspath(part.common_dir), ref) is not None:
            return False
        # Not `--all`: it would bring the HEADs of other worktrees, which may go tomorrow.
        words = ("rev-list", "--ignore-missing", "--max-count=1", tip, "--not", *at_stake.elsewhere(ref))
        own = git.run(*words, ok=(0, 128))
        if own.out or own.status or not damage.is_commit(git, tip):  # of an incomplete history nobody can tell
            return False
        self._say(f"deleting branch {part.branch}: all its commits are elsewhere too")
        words = ("update-ref", "-d", "-m", "paddock: worktree removed", ref, tip)
        return git.run(*words, environment=IDENTITY, ok=(0, 1, 128)).status == 0  # else somebody holds or moves it

    def _set_aside(self, worktree: Worktree) -> list[str]:
        """Moves the private git directories away instead of removing them, as commits are in them; where they are."""
        self._step("set aside")
        done = []
        for source, target in self._homes(at_stake.with_populated(worktree)):
            if os.path.isdir(source):
                os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
                os.rename(source, target)
                done.append(target)
        return done

    def _keep_stores(
        self, worktree: Worktree, backups: list[tuple[str, str]], asides: list[str]
    ) -> list[tuple[str, str]]:
        """Moves submodules' own stores out of the git directories that go; the backups, with where they are then."""
        self._step("keep stores")
        for source, target in _stores(worktree):
            if os.path.isdir(source):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.rename(source, target)
                for aside in asides:
                    at_stake.follow(aside, f"{source}/", f"{target}/", self._warn)
                backups = [(at.replace(f"{source}/", f"{target}/"), ref) for at, ref in backups]
                backups.append(os.path.split(target))
        return backups

    def _retire_stores(self, worktree: Worktree) -> None:
        """Makes bare repositories of the stores that were kept: the files they name are gone."""
        kept = (target for _, target in _stores(worktree))
        for _, store in (each for target in kept for each in checkout.module_dirs(target, "", Present())):
            git = Git(os.fspath(worktree.main.common_dir))  # one on the store would look for its files first
            git.run("config", "--file", f"{store}/config", "--unset-all", "core.worktree", ok=(0, 5))
            git.run("config", "--file", f"{store}/config", "core.bare", "true")

    def keep(self, worktree: Worktree) -> None:
        """Undoes a removal that has not moved the files yet; the repository's lock is held."""
        for source, target in _stores(worktree):  # first: they tell of which submodules there are homes
            if os.path.isdir(target) and os.path.lexists(source):
                self._warn(f"git has made {source} meanwhile; what was there is kept: {target}")
            elif os.path.isdir(target):
                self._step("put stores back")
                os.rename(target, source)
        for source, target in self._homes(at_stake.with_populated(worktree)):
            if os.path.isdir(target) and not os.path.lexists(source):
                self._step("put back")
                os.rename(target, source)
            for stores, _ in _stores(worktree):
                at_stake.follow(source, f"{stores}/", f"{stores}/", self._warn)
        for part in worktree.parts:
            admin_files.unlock(part)
        self._step("kept")
        self._store.save(worktree.with_state(State.READY))

    def _homes(self, worktree: Worktree) -> list[tuple[str, str]]:
        """Where the private git directories of a worktree's parts lie, and where they are set aside; the main first."""
        names = dict.fromkeys(part.worktree_id for part in worktree.parts)
        stamp = f"{worktree.created:.6f}"
        return [(record.directory_of(self._state, name), f"{self._state}/removed/{name}-{stamp}") for name in names]


def _keep_strangers(worktree: Worktree, now: Condition) -> list[tuple[str, str]]:
    """Moves repositories out of the files, as they are: a backup has none, and of the files beside them alone."""
    parts = {part.name: part for part in at_stake.with_populated(worktree).parts}
    kept: list[str] = []
    for part in now.parts:
        kept += at_stake.put_aside(parts[part.name], _strange(part), _kept(worktree))
    return [os.path.split(path) for path in kept]


def _kept(worktree: Worktree) -> str:
    return f"{worktree.main.common_dir}/{written.BACKUP}/{worktree.worktree_id}-{worktree.created:.6f}"


def _stores(worktree: Worktree) -> list[tuple[str, str]]:
    """Where the stores lie that go with each git directory of a worktree, and where they are kept."""
    names = {part: f"-{part.worktree_id}" if part.name else "" for part in worktree.parts if part.linked}
    return [(f"{part.git_dir}/modules", f"{_kept(worktree)}/modules{name}") for part, name in names.items()]


def _staged(worktree: Worktree) -> None:
    """Renames a worktree, if it is there, to the place where it is removed."""
    # A session that is alive goes on writing: no path that it knows leads to the files any more.
    try:
        with Inside(os.path.dirname(worktree.path)) as around:
            around.move(worktree.main.path.name, worktree.staging.name)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise _unremovable(worktree, [f"{worktree.path}: {error.strerror}"]) from None


def _unremovable(worktree: Worktree, failures: list[str]) -> Refusal:
    return Refusal(
        "worktree-unremovable",
        f"some of {worktree.path} cannot be removed",
        context=in_rows(f"it is at {worktree.staging} now", *failures[:10]),
        hint="paddock worktree repair, once it can be",
    )


def _writing(worktree: Worktree, names: list[str]) -> Refusal:
    return Refusal(
        "session-running",
        f"a session may be writing in {worktree.path}",
        context=", ".join(names[:20]),
        hint=in_rows(
            "wait for its end: paddock exec --list", f"or {_forced(worktree)}: what it writes meanwhile is lost"
        ),
    )


def if_missing(worktree: Worktree, *, unharvested: bool = False) -> list[str]:
    """What to do about a worktree whose directory is missing: nobody knows whether it was moved or deleted."""
    name = quoted(worktree.ticket)
    return [
        *([f"paddock worktree harvest {name} fetches what was committed"] if unharvested else []),
        "if it was moved: paddock worktree repair DIR, with DIR its new directory",
        f"if it is gone for good: paddock worktree remove --force {name}",
    ]


@contextmanager
def _no_session(state: str, worktree: Worktree, part: Part) -> Iterator[None]:
    """Keeps sessions from sharing the private git directory of a part while the block runs."""
    directory = record.directory_of(state, part.worktree_id)
    if not os.path.isdir(directory):
        yield
        return
    descriptor = private_lock.opened(directory)
    try:
        if not private_lock.alone(descriptor, wait=False):
            raise Refusal("worktree-in-use", f"a session is running in {part.path}", hint="paddock exec --list")
        if worktree.state is State.READY:
            swap.dock(directory)
        yield
    finally:
        os.close(descriptor)


_PATIENCE = 10.0
"""Seconds for a git that packs refs."""


def _check_repositories(worktree: Worktree) -> None:
    """Refuses before anything is moved: git could change no ref (git-head-unreadable, git-refs-unreadable,
    git-refs-locked), or a repository would go that nobody has looked at (worktree-obstructed)."""
    deadline = time.monotonic() + _PATIENCE
    for store in dict.fromkeys(os.fspath(part.common_dir) for part in worktree.parts):
        while os.path.lexists(lock := f"{store}/packed-refs.lock"):
            if time.monotonic() > deadline:
                way = f"wait for the git that packs refs; where none is: {joined(('rm', lock))}"
                raise Refusal("git-refs-locked", f"{lock} is there", context="git deletes no ref meanwhile", hint=way)
            time.sleep(0.05)
        if damage.cut_off(store):
            raise Refusal("git-refs-unreadable", f"{store}/packed-refs is damaged",
                          context="a line of it is cut off, and git finds no ref of the repository",
                          hint="restore it, or remove that line: "
                          f"what branches had is in {quoted(store)}/logs/refs/heads")  # fmt: skip
    for path in filter(None, map(at_stake.astray, at_stake.with_populated(worktree).parts)):
        raise Refusal(
            "worktree-obstructed",
            f"another repository is in a git directory of {worktree.path}",
            context=f"{path} would go with it",
            hint=f"move it elsewhere: {joined(('mv', path))} DIR",
        )
    for head in dict.fromkeys(f"{part.common_dir}/HEAD" for part in worktree.parts):
        if os.path.lexists(head) and not damage.is_head(admin_files.head(os.path.dirname(head))):
            raise Refusal("git-head-unreadable", f"{head} points to no commit",
                          context="git does not take its directory for a repository any more",
                          hint=f"have it name a branch: echo ref: refs/heads/BRANCH > {quoted(head)}")  # fmt: skip


def _check_inner(now: Condition) -> None:
    if now.inner:
        ways = []
        for root, store in now.inner:
            git = ("git", "--git-dir", store, "worktree")
            within = beneath(root, now.path)  # else its repository goes with this one
            ways += [f"move or remove each: {joined((*git, 'move', root))} DIR"] if within else []
            ways += [] if within else [f"remove each: {joined((*git, 'remove', root))}"]
        raise Refusal("worktree-obstructed", f"other worktrees are in {now.path}", context=in_rows(*now.others()),
                      hint=in_rows(*ways))  # fmt: skip


def _check_borrowers(worktree: Worktree, now: Condition, state: str) -> None:
    path = {part.name: part.path for part in at_stake.with_populated(worktree).parts}
    kept = [f"{path[part.name]}/{entry}" for part in now.parts for entry in _strange(part)]
    if found := at_stake.borrows(worktree, kept):
        git, borrowed = joined(("git", "--git-dir", found)), f"{found}/objects/info/alternates"
        whole = f"{git} repack -adq && rm {quoted(borrowed)}"
        # No git is to be run outside of a jail on what a jail's command may have configured; others it cannot write.
        if written.agents_tree(found, state):
            whole = joined(("paddock", "run", "--worktree", worktree.path, "--", "sh", "-c", whole))
        raise Refusal("worktree-obstructed", f"{found} would be kept, and has objects that would not",
                      context=f"{borrowed} leads into {worktree.path}",
                      hint=f"make it whole: {whole}")  # fmt: skip


def _strange(part: condition.PartCondition) -> list[str]:
    """Git directories and pointers in the files of a part that are kept as they are."""
    return [*(f"{place}/{NAME}" for place in part.strangers), *part.hidden]


def _check(now: Condition, worktree: Worktree) -> None:
    if now.locked is not None:
        raise Refusal("worktree-locked", f"{now.path} is locked", context=now.locked or "no reason was given",
                      hint=in_rows(f"git worktree unlock {quoted(now.path)}", f"or {_forced(worktree)}"))  # fmt: skip
    if now.in_use:
        raise Refusal("worktree-in-use", f"processes are running in {now.path}",
                      context=", ".join(condition.named_processes(now.in_use[:20])),
                      hint="cd elsewhere, then run the command again" if condition.are_callers(now.in_use)
                      else in_rows("end them (or cd elsewhere)", f"or {_forced(worktree)}"))  # fmt: skip
    stake = now.at_stake()
    if worktree.state is State.MISSING:
        raise Refusal("worktree-missing", f"{now.path} is missing", context=in_rows(*stake),
                      hint=in_rows(*if_missing(worktree, unharvested=now.fetched())))  # fmt: skip
    if stake:
        raise Refusal(
            "worktree-dirty",
            f"{now.path} has work that is nowhere else",
            context=in_rows(*stake),
            hint=in_rows(*_ways(now, worktree)),
        )


def _forced(worktree: Worktree) -> str:
    return f"paddock worktree remove {quoted(worktree.ticket)} --force"


_COMMITTED = ("merge", "cherry-pick", "revert")
"""Operations that `git commit` ends."""


def _ways(now: Condition, worktree: Worktree) -> Iterator[str]:
    """What to do about work that is at stake: whole commands, and at the end the one that removes it all the same."""
    yield from now.opening()
    parts = at_stake.with_populated(worktree).parts
    place = {part.name: os.fspath(part.git_dir if at_stake.is_gone(part) else part.path) for part in parts}
    beside = now.beside()
    for one in beside:
        yield f"to merge them: {one.join}"
        yield f"or to drop them: {one.give_up}"
    for part in now.parts:
        for oid in part.loose:
            switch = ("switch", "-c", "NAME") if oid == part.head else ("branch", "NAME", oid)
            command = joined(("git", "-C", place.get(part.name, now.path), *switch))
            yield f"{command} gives commits on no branch a branch"
        for path in part.broken:
            opened = joined(("chmod", "-R", "u+rwX", path)), joined(("rm", path))
            yield f"if you need nothing of it: {opened[1]}" if os.access(path, os.R_OK) else f"{opened[0]} opens it"
    for name, tip in now.own_stores:
        if name in place and tip:
            push = joined(("git", "-C", place[name], "push", "origin", f"{tip}:refs/heads/NAME"))
            yield f"{push} brings that commit of {cited(name)} to its remote"
    strange = bool(now.docked) or any(part.strangers or part.hidden for part in now.parts)
    if strange:
        yield "fetch or copy from it what you want (run no git in it: the jail's command wrote its configuration)"
    harvest = f"paddock worktree harvest {quoted(next(iter(now.unharvested_in), now.path))}"
    if now.fetched():
        for root in now.unharvested_in:
            yield f"paddock worktree harvest {quoted(root)} fetches what was committed and stashed"
    for word, way in (
        (outstanding.BRANCHES, f"{harvest} --branch NAME fetches a further branch; what is none gets one in a jail: "
                               "paddock run -- git branch NAME REF"),
        (" in progress, ", "what is in progress in a jail ends in one; how, says: paddock run -- git status"),
        (f"staged{outstanding.JAILED}", "what is staged in a jail is committed there: paddock run -- git commit"),
        (outstanding.REPOSITORY, "no harvest fetches a repository in there; in a jail you can fetch from it"),
    ):  # fmt: skip
        if any(word in each for each in now.waiting):
            yield way
    yield from now.lagging()  # first, or a commit would take the submodule back
    for part in now.parts:
        git = joined(("git", "-C", place.get(part.name, now.path)))
        if part.operation not in ("", *_COMMITTED):
            yield f"how the {part.operation} in progress is continued or given up, says: {git} status"
        elif part.modified or part.untracked or part.operation:
            yield f"{git} add -A && {git} commit"
    kept = ["files are kept under refs/paddock/backup"] if len(now.at_stake()) > len(beside) + len(now.waiting) else []
    kept += [f"repositories are moved to .git/{written.BACKUP}"] if strange or now.own_stores else []
    kept += ["the private git directory is moved aside"] if now.waiting else []
    kept += ["kept refs stay"] if beside else []
    yield f"or {_forced(worktree)}: {', '.join(kept)}"
