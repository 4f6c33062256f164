"""Making store and disk agree again: after a crash, a move or removal by git, or the loss of the store.

Git's own files are the truth. What a dead process began is finished where the files are in their place, and undone
where they are not.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.safefs.guarded_files import Inside
from launcher.vcs import written
from launcher.vcs.disk import Present
from launcher.vcs.git import Git, GitFailed, in_gits_words
from launcher.vcs.private import lock, planted, pointer, record, swap
from launcher.vcs.worktrees import admin_files, at_stake, condition, models, module_stores
from launcher.vcs.worktrees.creation import Creation
from launcher.vcs.worktrees.models import Part, State, Step, Worktree
from launcher.vcs.worktrees.removal import Removal, if_missing
from launcher.vcs.worktrees.store import WorktreeRepository
from policy import launch
from policy.documents import read
from policy.errors import Refusal
from policy.plan import beneath

# Worktrees that git has forgotten (`git worktree prune`, `git gc`) while work of theirs is still somewhere else.
#
# Commits that no harvest took over are in the private git directory, and kept ones in refs; neither is git's to
# prune. Both are found by the worktree's git directory, so that is made again: a small one, without anything that
# was staged.


def can_be_restored(worktree: Worktree) -> bool:
    """Whether the repository is still there."""
    return os.path.isdir(worktree.main.common_dir / "objects")


def restore_pruned(worktree: Worktree, state: str) -> None:
    """Recreates the missing git directories of a worktree, on the branch of its last session.

    May be repeated after a crash. The repository's lock is held.
    """
    for part in filter(lambda part: part.linked, worktree.parts):
        if admin_files.points_to(os.fspath(part.git_dir)) is not None or not os.path.isdir(part.common_dir / "objects"):
            continue
        admin_files.restore(
            part, worktree.worktree_id, _head(worktree, os.fspath(part.git_dir), state) or _of_part(part)
        )
        # So that git in it is content, should the files come back: nothing is staged. A branch may be gone by now.
        Git(os.fspath(part.git_dir)).run("read-tree", "HEAD", ok=(0, 128))
    admin_files.record(worktree)
    for part in worktree.parts:
        admin_files.unlock(part)


def holds_kept_work(worktree: Worktree) -> bool:
    """Whether a harvest has kept commits in refs that nobody has joined."""
    return any(
        at_stake.beside(Git(os.fspath(part.common_dir)), part, worktree, None)
        for part in worktree.parts
        if os.path.isdir(part.common_dir / "objects")
    )


def _head(worktree: Worktree, git_dir: str, state: str) -> str:
    """What HEAD was for the last session, as the record of its private git directory says; empty without one."""
    try:
        known = record.read(record.directory_of(state, worktree.worktree_id))
    except Refusal:
        return ""  # damaged: it stays where it is, and who wants to use it is told so
    for repository in known.repositories if known is not None else ():
        if repository.git_dir == git_dir:
            return f"ref: {repository.branch}" if repository.branch else repository.base or ""
    return ""


def _of_part(part: Part) -> str:
    return f"ref: {part.ref}" if part.ref else part.base


@contextmanager
def stand_in(directory: str, known: record.Record) -> Iterator[None]:
    """Provides a git directory while the work of a worktree is harvested that git has pruned and Paddock never made.

    Refusals: worktree-replaced: git has made another worktree with that git directory.
    """
    own = known.repositories[0]
    if lock.is_of_another(own.git_dir, directory):
        raise Refusal(
            "worktree-replaced",
            f"git has made another worktree at {known.worktree}",
            context=f"the previous one's work is in {directory}",
            hint="paddock run there moves it aside, and says where",
        )
    if known.kind != "linked" or os.path.isdir(own.git_dir) or not os.path.isdir(f"{own.common_dir}/objects"):
        yield
        return
    owner = os.path.basename(directory)
    part = Part(
        name="", worktree_id=owner, path=Path(known.worktree), common_dir=Path(own.common_dir),
        git_dir=Path(own.git_dir), branch=None, branch_made=False, base=own.base or "0" * 40,
    )  # fmt: skip
    admin_files.restore(part, owner, f"ref: {own.branch}" if own.branch else own.base or "")
    try:
        yield
    finally:
        admin_files.discard(part, owner)


class Recovery:
    """Repairs what is known of a repository's worktrees."""

    def __init__(self, store: WorktreeRepository, state: str, creation: Creation, removal: Removal, step: Step) -> None:
        self._store = store
        self._state = state
        self._creation = creation
        self._removal = removal
        self._step = step

    def settle(self, common_dir: str) -> list[str]:
        """Finishes or undoes what dead processes left, and finds what the store does not know or knows wrongly.

        Cheap when there is nothing to do; every command of the service begins with it. Returns what was done.
        """
        swap.originals(self._state)
        looked_after = planted.sweep(self._state)
        known = self._store.of(common_dir)
        unknown = self._unknown(common_dir, known)
        damaged = module_stores.damaged(common_dir)
        if not (unknown or damaged) and all(self._is_well(row) or self._is_busy(row) for row in known):
            return looked_after
        with self._store.repository_lock(common_dir):
            self._step("mend")
            done = looked_after + module_stores.mend(common_dir)  # first: git does not even start in such a submodule
            done += [line for row in self._store.of(common_dir) for line in self._settled(row)]
            for before, worktree in self._unknown(common_dir, self._store.of(common_dir)):
                self._step("found")
                if before.main.common_dir == worktree.main.common_dir:
                    self._store.save(worktree)
                else:
                    self._follow(before, worktree)
                done.append(f"found {worktree.path} again")
            return done

    def missing(self, common_dir: str) -> list[str]:
        """Worktrees whose files are not there, each with what to do about it.

        Not given up as `git worktree prune` does: a file system that is not mounted looks the same, and what was moved
        needs its git directory, index and the agent's commits to be known again.
        """
        rows = [row for row in self._store.of(common_dir) if row.state is State.MISSING]
        return [f"{row.path} is missing; {'; '.join(if_missing(row))}" for row in rows]

    def follow(self, common_dir: str, root: str, git_dir: str) -> list[str]:
        """Takes note that the worktree of `git_dir` is at `root` now, where the user has moved it.

        The pointer at `root` is not to be trusted, so it only counts for a known worktree that is nowhere else.
        """
        with self._store.repository_lock(common_dir):
            for row in self._store.of(common_dir):
                if os.fspath(row.main.git_dir) == git_dir and row.state is State.MISSING and row.path != root:
                    self._step("repoint")
                    admin_files.repoint(git_dir, f"{root}/.git")
                    return self._rekeyed(row, root)
        return []

    def _settled(self, row: Worktree) -> list[str]:
        with self._store.worktree_lock(row.worktree_id) as own:
            if own is None:
                return []  # somebody is at it
            if row.state is State.CREATING:
                if _is_in_place(row):
                    self._creation.finish(row)
                    return [f"finished {row.path}"]
                self._creation.undo(row)
                return [f"undid {row.path}, which was half made"]
            if row.state is State.REMOVING:
                if _is_in_place(row):
                    self._removal.keep(row)
                    return [f"kept {row.path}, which was half removed"]
                try:
                    aside = self._removal.resume(row)
                except GitFailed as failure:  # there may be a lock: no reason for other worktrees not to be looked at
                    why, *_ = (*in_gits_words(failure.err), failure.message)
                    return [f"could not finish the removal of {row.path}: {why}"]
                kept = f"; commits that were not harvested are kept: {aside}" if aside else ""
                return [f"finished the removal of {row.path}{kept}"]
            return self._compared(row)

    def _compared(self, row: Worktree) -> list[str]:
        git_dir = os.fspath(row.main.git_dir)
        entry = admin_files.points_to(git_dir)
        if entry is None:
            return self._pruned(row)
        root = os.path.dirname(entry)
        if not self._is_the_same(row):
            self._removal.replaced(row)
            return [f"forgot {row.path}: git has made another worktree there"]
        if root != row.path and _leads_to(git_dir, entry):
            return self._rekeyed(row, root)
        if root != row.path and _leads_to(git_dir, f"{row.path}/.git"):
            self._step("mend")
            admin_files.repoint(git_dir, f"{row.path}/.git")
            return [f"repaired {git_dir}/gitdir, which named {entry}", *self._compared(row)]
        there = self._is_there(row)
        wanted = State.READY if there else State.MISSING
        if row.state is not wanted:
            now = row.with_state(wanted)
            locks = not there and condition.alone(now)
            for part in filter(lambda part: part.linked, row.parts):
                admin_files.lock(part, row.worktree_id) if locks else admin_files.unlock(part)
            self._step("state")
            self._store.save(now)
            return [f"{row.path} is there again" if there else f"{row.path} is missing"]
        return []

    def _pruned(self, row: Worktree) -> list[str]:
        """Forgets a worktree that git has pruned, or restores it where the agent's commits are nowhere else."""
        private = record.directory_of(self._state, row.worktree_id)
        if can_be_restored(row) and (os.path.isdir(private) or holds_kept_work(row)):
            self._step("restore")
            missing = row.with_state(State.READY if self._is_there(row) else State.MISSING)
            restore_pruned(missing, self._state)
            # Asked only now: what is unusual counts as work, and a git directory that is gone is unusual.
            if self._removal.waiting(row) or holds_kept_work(row):
                self._step("state")
                self._store.save(missing)
                return [f"git has forgotten {row.path}, which has work that is nowhere else: it is registered again"]
        self._step("forget")
        waiting = self._removal.waiting(row)
        kept = f"; commits that were not harvested may be in {waiting}" if waiting else ""
        self._store.forget(row.worktree_id)
        for part in row.parts:
            admin_files.discard(part, row.worktree_id)
        return [f"forgot {row.path}: git no longer knows it{kept}"]

    def _rekeyed(self, row: Worktree, root: str) -> list[str]:
        self._follow(row, _moved(row, root).with_state(State.READY))
        return [f"{row.path} is at {root} now"]

    def _follow(self, row: Worktree, now: Worktree) -> None:
        """Updates everything that depends on places: submodules' pointers, ids, private state, the record."""
        admin_files.note_place(os.fspath(now.main.git_dir), row.path)
        for part in now.parts:
            admin_files.unlock(part)
        for old, new in zip(row.submodules, now.submodules, strict=True):
            if new.linked and os.path.isdir(new.git_dir) and not os.path.lexists(f"{old.path}/.git"):
                admin_files.repoint(os.fspath(new.git_dir), f"{new.path}/.git")
        module_stores.follow(now.parts, row.path, now.path)
        source, target = (f"{self._state}/worktrees/{name}" for name in (row.worktree_id, now.worktree_id))
        if os.path.isdir(source) and not os.path.lexists(target):
            self._step("home")
            os.rename(source, target)
        self._step("private")
        _follow_private(self._state, row, now)
        self._step("record")
        written.follow(self._state, row.path, now.path)
        admin_files.record(now)
        self._store.save(now)
        self._step("forget")
        if row.worktree_id != now.worktree_id:
            self._store.forget(row.worktree_id)

    def _is_busy(self, row: Worktree) -> bool:
        """Whether a process creates or removes it now. Only these states are asked: each answer takes a lock."""
        if row.state not in (State.CREATING, State.REMOVING):
            return False
        with self._store.worktree_lock(row.worktree_id) as own:
            return own is None

    def _is_well(self, row: Worktree) -> bool:
        if row.state is not State.READY:
            return False
        entry = f"{row.path}/.git"
        pointed = admin_files.points_to(os.fspath(row.main.git_dir)) == entry
        return pointed and self._is_there(row) and self._is_the_same(row)

    def _is_the_same(self, row: Worktree) -> bool:
        """Whether the git directory still holds Paddock's note; git may have made another worktree there."""
        return os.path.lexists(f"{row.main.git_dir}/{admin_files.RECORD}")

    def _is_there(self, row: Worktree) -> bool:
        """Whether the worktree has a `.git`; one that is swapped now may have been removed by a command in its jail."""
        if os.path.lexists(f"{row.path}/.git"):
            return True
        return swap.is_swapped(record.directory_of(self._state, row.worktree_id)) and os.path.isdir(row.path)

    def _unknown(self, common_dir: str, known: list[Worktree]) -> list[tuple[Worktree, Worktree]]:
        """Worktrees that are noted in git's own directories, but not in the store: as they are noted, and as they are.

        A note may name a repository that was moved since. It is followed once the worktree's `.git` leads to where that
        is now (`git worktree repair`): not from a copy, and not by the word of a command that could write the note.
        """
        directories = {os.fspath(row.main.git_dir) for row in known}
        found: list[tuple[Worktree, Worktree]] = []
        for git_dir in admin_files.linked(common_dir):
            if git_dir in directories:
                continue
            content = Present().read(f"{git_dir}/{admin_files.RECORD}", 1 << 20)
            if content is None:
                continue
            try:
                noted = read(Worktree, content)
            except ValueError:
                continue  # of another version, or damaged: `adopt` makes a new one
            entry = admin_files.points_to(git_dir)
            if entry is None:
                continue
            root = os.path.dirname(entry)
            now = _moved(noted, root) if root != noted.path and _leads_to(git_dir, entry) else noted
            now = now.with_state(State.READY if os.path.lexists(f"{now.path}/.git") else State.MISSING)
            if os.fspath(noted.main.git_dir) != git_dir:
                now = _of_moved_repository(now, common_dir)
                is_copy = os.path.lexists(noted.main.common_dir) or os.fspath(now.main.git_dir) != git_dir
                if is_copy or not _is_in_place(now) or written.agents_tree(git_dir, self._state):
                    continue
            found.append((noted, now))
        return found


def _follow_private(state: str, old: Worktree, new: Worktree) -> None:
    """Moves the private git directory of a worktree that has moved: commits may wait in it.

    The record is written first. Killed before the rename, it says where the worktree is now, under its old id.
    """
    source, target = (record.directory_of(state, row.worktree_id) for row in (old, new))
    if not os.path.isdir(source) or (source != target and os.path.lexists(target)):
        return
    known = record.read(source)
    if known is not None:
        stores = [os.fspath(row.main.common_dir) for row in (old, new)]

        def there(path: str) -> str:
            for was, now in ((old.path, new.path), stores):
                if beneath(path, was):
                    return now + path[len(was) :]
            return path

        repositories = tuple(
            record.Repository(one.name, there(one.path), there(one.git_dir), there(one.common_dir), one.private,
                              one.branch, one.base, one.object_format, tuple(map(there, one.stores)))
            for one in known.repositories
        )  # fmt: skip
        record.write(source, record.Record(new.path, known.kind, known.form, repositories))
    os.rename(source, target)


def _is_in_place(worktree: Worktree) -> bool:
    """Whether the files are where they belong, and name the git directory that is known of them."""
    return _leads_to(os.fspath(worktree.main.git_dir), f"{worktree.path}/.git")


def _leads_to(git_dir: str, entry: str) -> bool:
    """Whether a `.git` file leads to a worktree's git directory. What names another one is damaged."""
    git_dir, (root, name) = os.path.realpath(git_dir), os.path.split(entry)
    try:
        with Inside(root) as inside:
            return name == pointer.NAME and pointer.target(inside.read(name, pointer.MOST_BYTES), root) == git_dir
    except OSError:
        return False


def _of_moved_repository(worktree: Worktree, common_dir: str) -> Worktree:
    """`worktree` with its repository at another place."""
    old, new = worktree.main.common_dir, Path(common_dir)

    def there(path: Path) -> Path:
        return new / path.relative_to(old) if path.is_relative_to(old) else path

    def of_part(part: Part) -> Part:
        return part._replace(common_dir=there(part.common_dir), git_dir=there(part.git_dir))

    now = worktree._replace(main=of_part(worktree.main), submodules=tuple(map(of_part, worktree.submodules)))
    if worktree.parent_path == old.parent and old.name == ".git":
        parent = launch.worktree_id(os.fspath(new.parent))
        now = now._replace(parent_path=new.parent, parent_worktree_id=parent)
    return now


def _moved(worktree: Worktree, path: str) -> Worktree:
    """`worktree` at another place, with the ids that belong to it."""
    old = worktree.path

    def there(part: Part) -> Part:
        place = os.path.normpath(os.path.join(path, os.path.relpath(part.path, old)))
        return part._replace(path=Path(place), worktree_id=launch.worktree_id(place))

    return worktree._replace(
        main=there(worktree.main),
        submodules=tuple(map(there, worktree.submodules)),
        unpopulated=tuple(
            left._replace(path=place, worktree_id=launch.worktree_id(os.fspath(place)))
            for left in worktree.unpopulated
            for place in (Path(path, left.path.relative_to(old)),)
        ),
        staging=Path(models.staging(path)),
    )
