"""The specification's worktree service: worktrees for agents, created, listed, inspected, adopted, repaired, removed.

The host creates worktrees, never an agent: a jail holds it to its own (SPEC-NOTES, FR-005 to FR-009).
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.vcs import checkout, jailed_git, worktree_words, written
from launcher.vcs.checkout import Checkout
from launcher.vcs.disk import Present
from launcher.vcs.git import Git
from launcher.vcs.git_config import UserConfig
from launcher.vcs.private import lock as private_lock
from launcher.vcs.private import record, swap
from launcher.vcs.worktrees import admin_files, at_stake, condition, damage, models, request
from launcher.vcs.worktrees.condition import Condition
from launcher.vcs.worktrees.creation import Creation
from launcher.vcs.worktrees.models import (
    Options,
    Part,
    Removed,
    Say,
    State,
    Step,
    Unharvested,
    Worktree,
    kept_aside,
    quiet,
)
from launcher.vcs.worktrees.recovery import Recovery
from launcher.vcs.worktrees.removal import Removal
from launcher.vcs.worktrees.store import WorktreeRepository, root_of
from policy import launch
from policy.errors import Refusal, printable
from policy.launch import Boundaries
from policy.pasted import cited, quoted
from policy.plan import beneath

if TYPE_CHECKING:
    from policy.sandbox_context import WorktreeSandboxContext

NOBODY = UserConfig()
"""A user without a git configuration."""


def nothing_waits(_: Path) -> bool:
    """The `Unharvested` of worktrees without private git directories."""
    return False


class WorktreeService:
    """Worktrees of one user. May be used by several threads and processes at once.

    Attributes:
        store: where they are kept.

    Args:
        state: Paddock's state directory, private (`launcher.session.places`).
        unharvested: tells whether commits wait in a worktree's private git directory.
        user: what he ignores, and filters that may be asked for.
        say: takes a line on what is going on.
        warn: takes a line that the user has to see.
        step: called before each change on the disk, for tests that stop there.
    """

    def __init__(
        self,
        state: str,
        *,
        unharvested: Unharvested = nothing_waits,
        user: UserConfig = NOBODY,
        say: Say = quiet,
        warn: Say = quiet,
        step: Step = quiet,
    ) -> None:
        self._user = user
        self._say = say
        self._warn = warn
        self._state = state
        self._unharvested = unharvested
        self.store = WorktreeRepository(state)
        self._creation = Creation(self.store, state, user, step, say)
        self._removal = Removal(self.store, state, unharvested, user, step, say, warn)
        self._recovery = Recovery(self.store, state, self._creation, self._removal, step)

    @jailed_git.many()
    def add(self, parent: str | Path, ticket: str, options: Options | None = None) -> Worktree:
        """Makes a worktree for a ticket, beside the worktree that holds `parent` unless told where.

        Refusals: see `request.propose`, `creation`, `GitFailed`; what was begun is undone.
        """
        found = self._found(parent)
        self.settle(found.common_dir)
        self._make_room(found, ticket, options or Options())
        return self._creation.add(found, ticket, options or Options())

    def of_repository(self, start: str | Path) -> list[Worktree]:
        """All worktrees of the repository that `start` lies in, after a look at the disk."""
        found = self._found(start)
        self.settle(found.common_dir)
        return self.store.of(found.common_dir)

    def everywhere(self) -> list[Worktree]:
        """All worktrees of all repositories, after a look at the disk."""
        for common_dir in sorted({os.fspath(row.main.common_dir) for row in self.store.all()}):
            self.settle(common_dir)
        return self.store.all()

    def find(self, start: str | Path, name: str) -> Worktree:
        """One worktree, by its id, ticket, branch or directory.

        Refusals: worktree-unknown, and those of `worktree_words.meant` and `store.root_of`.
        """
        rows = self.of_repository(start)
        by_root = {row.path: row for row in rows}
        root = worktree_words.meant(name, os.getcwd(), by_root.__contains__, str, lambda: root_of(name, rows))
        if root is not None:
            return by_root[root]
        raise Refusal(
            "worktree-unknown",
            f"Paddock knows no worktree {name} of this repository",
            context="known: " + (", ".join(printable(row.ticket) for row in rows) or "none"),
            hint="paddock worktree list; paddock worktree adopt DIR registers one that git made",
        )

    def status(self, worktree: Worktree) -> Condition:
        """How a worktree is, and what in it would be lost."""
        return condition.look(worktree, self._unharvested, self._user, self._state)

    def statuses(self, worktrees: Sequence[Worktree]) -> list[Condition]:
        """`status` of each, with as many threads as there are processors, and one helper for the jails of each."""
        threads = max(1, min(len(worktrees), os.cpu_count() or 1))

        def share(number: int) -> list[Condition]:
            with jailed_git.many():
                return [self.status(worktree) for worktree in worktrees[number::threads]]

        if threads == 1:
            return share(0)
        from concurrent.futures import ThreadPoolExecutor  # brings logging: a tenth of what such a verb imports

        with ThreadPoolExecutor(threads) as pool:
            shares = list(pool.map(share, range(threads)))
        return [shares[number % threads][number // threads] for number in range(len(worktrees))]

    @jailed_git.many()
    def remove(self, worktree: Worktree, *, force: bool = False, keep_branch: bool = False) -> Removed:
        """Removes a worktree; see `Removal.remove`.

        Refusals: its own; removal-failed: something could not be written or read. What was done stays done.
        """
        try:
            return self._removal.remove(worktree, force=force, keep_branch=keep_branch)
        except OSError as error:
            raise Refusal(
                "removal-failed",
                f"{worktree.path} could not be removed, or not the whole of it",
                context=str(error),
                hint="fix that (a disk may be full), and remove it again: what was kept stays kept",
            ) from error

    def adopt(self, root: str | Path, ticket: str | None = None) -> Worktree:
        """Takes on a linked worktree that git made. Its branch is never deleted with it.

        Args:
            ticket: what it is for; its directory's name by default.

        Refusals: adopt-main, worktree-exists, what `checkout.find` refuses.
        """
        found = checkout.find(os.path.abspath(root), self._disk(), exact=True)
        if found.kind != "linked" or "/modules/" in found.common_dir:
            raise Refusal(
                "adopt-main",
                f"{found.root} is {'a main checkout' if found.kind == 'main' else 'a submodule'}, "
                "not a linked worktree",
                context="it does not own its git directory, so it cannot be removed or harvested",
                hint="paddock worktree add TICKET makes one beside it",
            )
        self.settle(found.common_dir)
        with self.store.repository_lock(found.common_dir):
            if self.store.at(found.root) is not None:
                raise Refusal("worktree-exists", f"Paddock already knows {found.root}", hint="paddock worktree list")
            worktree_id = launch.worktree_id(found.root)
            if private_lock.is_of_another(found.git_dir, record.directory_of(self._state, worktree_id)):
                self._clear(found.root)
            parts = [self._part(found.root, found.git_dir, "")]
            for module in found.submodules:
                if beneath(module.git_dir, found.root):
                    self._warn(
                        f"submodule {cited(module.name)} contains its own git directory, where agents can write it: it "
                        "is not part of the worktree; `git submodule absorbgitdirs` moves it to its usual place, if it "
                        "is yours"
                    )
                else:
                    parts.append(self._part(module.path, module.git_dir, module.name))
            worktree = Worktree(
                ticket=ticket if ticket is not None else os.path.basename(found.root),
                main=parts[0],
                submodules=tuple(parts[1:]),
                created=time.time(),
                adopted=True,
                state=State.READY,
                staging=Path(models.staging(found.root)),
            )
            admin_files.record(worktree)
            self.store.save(worktree)
        return worktree

    def repair(self, start: str | Path) -> list[str]:
        """Finishes, undoes and finds again what needs it; returns what was done and what is missing, one line each.

        Args:
            start: inside a worktree of the repository; also one that was moved by hand, which is then known again.

        Refusals: worktree-moved, git-pointer-invalid and those of `checkout.find`.
        """
        here = os.path.realpath(start)
        try:
            found = self._found(here)
        except Refusal as refusal:
            moved = self._moved_here(here)
            if moved is None:
                raise refusal from None
            common_dir, git_dir = moved
            done = self._recovery.settle(common_dir) + self._recovery.follow(common_dir, here, git_dir)
            elsewhere = [row for row in self.store.of(common_dir) if os.fspath(row.main.git_dir) == git_dir]
            if any(row.path != here for row in elsewhere):
                raise _is_elsewhere(elsewhere[0], here) from None
            found = self._found(here)
            return done + self._repaired(found.common_dir)
        return self._repaired(found.common_dir)

    def _repaired(self, common_dir: str) -> list[str]:
        done = self._recovery.settle(common_dir)
        for row in self.store.of(common_dir):
            if row.state in (State.READY, State.MISSING):
                with self.store.repository_lock(common_dir):
                    done += [line for part in row.parts for line in damage.mend(part)]
            try:
                for docked in self.restore_pointers(row, done.append):
                    aside = f"; what was there is now in {docked.aside}" if docked.aside else ""
                    done.append(f"restored {docked.path}/.git{aside}")
            except Refusal as refusal:
                done.append(f"submodules of {row.path} have lost their .git: {refusal.message}; {refusal.hint}")
        return done + self._recovery.missing(common_dir)

    def restore_pointers(self, row: Worktree, say: Callable[[str], None]) -> list[swap.Docked]:
        """Puts back the `.git` of submodules that have lost it; see `at_stake.restore_pointers`."""
        return at_stake.restore_pointers(row, self._state, say) if row.state is State.READY else []

    def settle(self, common_dir: str) -> None:
        """Finishes, undoes and finds again what needs it in a repository, as every command does first."""
        for line in self._recovery.settle(common_dir):
            self._say(line)

    def _make_room(self, parent: Checkout, ticket: str, options: Options) -> None:
        """Gives up what Paddock has of an earlier worktree where a new one will be, and warns where that is kept."""
        path = request.place(parent, options.path, models.slug(ticket))
        row = self.store.at(path)
        if row is None and not os.path.isdir(record.directory_of(self._state, launch.worktree_id(path))):
            return
        request.propose(Git.open(parent.root), parent, ticket, options)  # or nothing is given up
        if row is None:
            self._clear(path)
        elif row.state is State.MISSING:
            reason = admin_files.lock_reason(os.fspath(row.main.git_dir))
            if reason is not None:
                raise Refusal("worktree-locked", f"the worktree that was at {path} is missing, and locked",
                              context=reason or "no reason was given",
                              hint="name another --path; or paddock worktree remove --force gives it up")  # fmt: skip
            done = self._removal.remove(row, force=True, keep_branch=True)
            self._warn("; ".join((f"the worktree that was at {path} is forgotten", *done.lines())))

    def _clear(self, path: str) -> None:
        aside = at_stake.clear_earlier(self._state, path, launch.worktree_id(path), self._unharvested)
        if aside:
            self._warn(f"there was an earlier worktree at {path}; {kept_aside(aside)}")

    def _moved_here(self, root: str) -> tuple[str, str] | None:
        """(common directory, git directory) of a known worktree that the `.git` file in `root` names, if it does."""
        text = os.fsdecode(Present().read(f"{root}/.git", 8192) or b"").rstrip("\n")
        git_dir = os.path.normpath(text.removeprefix("gitdir: "))
        for row in self.store.all():
            if text.startswith("gitdir: ") and os.fspath(row.main.git_dir) == git_dir:
                self._refuse_agents_place(row, root)
                return os.fspath(row.main.common_dir), git_dir
            directory = record.directory_of(self._state, row.worktree_id)
            if git_dir == f"{directory}/{record.GIT}" and row.path != root:
                self._refuse_agents_place(row, root)
                for line in swap.report_lines(
                    swap.follow(directory, root)
                ):  # it was moved while a session in it was alive
                    self._say(line)
                return os.fspath(row.main.common_dir), os.fspath(row.main.git_dir)
        return None

    def _refuse_agents_place(self, row: Worktree, root: str) -> None:
        """Refuses to take `root` for a worktree on the word of a `.git` that an agent of another one may have written.

        The root of a tree on record may be a former place to which the worktree has come back.
        """
        if row.path == root:
            return
        if os.path.lexists(f"{row.path}/.git"):
            raise _is_elsewhere(row, root)
        common_dir, git_dir = os.fspath(row.main.common_dir), os.fspath(row.main.git_dir)
        places = {row.path, *admin_files.places(git_dir)}
        # The root itself is on record where sessions have been in the worktree; not where another's tree was moved.
        own = root if root in places or not places.isdisjoint(written.former(self._state, root)) else ""
        tree = written.of_sessions(root, self._state) or next(
            (tree for tree in written.trees(self._state, root) if tree != own and beneath(root, tree)), ""
        )
        others = (each for each in admin_files.linked(common_dir) if each != git_dir)
        if self.store.at(root) or any(admin_files.points_to(each) == f"{root}/.git" for each in others):
            why = "another worktree is there"
            dock = f"paddock worktree dock {quoted(root)}"
            hint = f"if an agent has replaced its .git: {dock}; if that one was moved, too, repair it first"
        elif tree:
            why = f"agents could write {tree}"
            git = f"git -C {quoted(common_dir)} worktree repair {quoted(root)}"
            hint = f"if you have moved it there, move it out of {tree} and repair it again; or look at it, then: {git}"
        else:
            return
        raise Refusal(
            "worktree-moved",
            f"{root} cannot be taken for {row.path}: {why}",
            context=f"its .git points to the git directory of {row.path}; an agent may have written it",
            hint=hint,
        )

    def _found(self, start: str | Path) -> Checkout:
        return checkout.find(os.path.abspath(start), self._disk(), exact=False)

    def _disk(self) -> Present:
        """The disk with what `.git` files truly are where a session without mounts lives."""
        return Present(swap.originals(self._state))

    def _part(self, root: str, git_dir: str, name: str) -> Part:
        git = Git(git_dir)
        base = git.text("rev-parse", "--verify", "HEAD")
        return Part(
            name=name, worktree_id=launch.worktree_id(root), path=Path(root), common_dir=Path(git.common_dir),
            git_dir=Path(git_dir), branch=admin_files.branch(git_dir), branch_made=False, base=base,
        )  # fmt: skip


def _is_elsewhere(row: Worktree, root: str) -> Refusal:
    return Refusal(
        "worktree-moved",
        f"{root} cannot be taken for {row.path}, which is there",
        context="its .git points to the git directory of that worktree: it is a copy, or an agent wrote it",
        hint=f"remove the .git of a copy; if this is the true one, move {row.path} away, then repair again",
    )


# Worktrees by id and context, as the workflow asks for them (`launcher.workflow.worktrees.WorktreeService`).


def context_of_checkout(found: Checkout) -> "WorktreeSandboxContext":
    """The context of a worktree with all its populated submodules granted.

    The ids are those that a launch there has, and those of the worktrees that the service makes.
    """
    granted = tuple((one.name, one.path) for one in found.submodules)
    return models.context_of(Boundaries(found.root, launch.worktree_id(found.root), granted))


_MOST_NAMES = 1000
_BUSY_SECONDS, _BUSY_PAUSE = 5.0, 0.02
"""How long worktrees are waited for that somebody is at, and between two looks."""


class ChildWorktrees:
    """Makes and discards the worktrees of a workflow's agents.

    Args:
        workers: processes that write the files of one; None: as many as are quickest where one is made at a time.
    """

    def __init__(self, service: WorktreeService, workers: int | None = None) -> None:
        self._service = service
        self.workers = workers

    def open_trunk(self, root: str | Path) -> "WorktreeSandboxContext":
        """Notes a worktree that the user works in, so that its id means something, and gives its context."""
        found = checkout.find(os.path.abspath(root), Present(), exact=True)
        self._service.store.note_trunk(launch.worktree_id(found.root), found.root)
        return self._known(found.root) or context_of_checkout(found)

    def worktree_context(self, worktree_id: str) -> "WorktreeSandboxContext | None":
        """The boundaries of a worktree with all its submodules; None when it is unknown or no longer exists."""
        row = self._service.store.get(worktree_id)
        path = row.path if row is not None else self._service.store.trunk(worktree_id)
        if path is None:
            return None
        try:
            found = checkout.find(path, Present(), exact=True)
        except Refusal:
            return None
        if launch.worktree_id(found.root) != worktree_id:
            return None
        return context_of_checkout(found) if row is None else self._known(path)

    def made_since(self, common_dir: str, since: float) -> list[Worktree]:
        """The worktrees of a repository that were made since a time (seconds since the epoch) and are ready.

        Those that a killed process has begun are finished or undone before, once its last git has ended.
        """
        until = time.monotonic() + _BUSY_SECONDS
        while True:
            rows = [row for row in self._service.store.of(common_dir) if row.created >= since]
            passing = any(row.state in (State.CREATING, State.REMOVING) for row in rows)
            if not passing or time.monotonic() > until:
                return [row for row in rows if row.state is State.READY]
            self._service.settle(common_dir)
            time.sleep(_BUSY_PAUSE)

    def create_child(self, parent: "WorktreeSandboxContext", name: str) -> "WorktreeSandboxContext":
        """Makes a worktree on a branch of its own beside the parent's (FR-006), with the submodules granted there."""
        granted = tuple(submodule.submodule_name for submodule in parent.submodule_worktrees)
        options = Options(submodules=granted if parent.ungranted_submodules else None, workers=self.workers)
        wanted = models.slug(name[:60])
        for number in range(1, _MOST_NAMES):
            ticket = wanted if number == 1 else f"{wanted}-{number}"
            try:
                return self._service.add(parent.main_worktree_path, ticket, options).context()
            except Refusal as refusal:
                if refusal.reference not in ("worktree-exists", "branch-exists", "worktree-busy"):
                    raise
        raise Refusal("worktree-exists", f"there are {_MOST_NAMES} worktrees named after {name}",
                      hint="paddock worktree list; paddock worktree remove NAME")  # fmt: skip

    def discard_child(self, worktree_id: str) -> None:
        """Removes a worktree that nobody has worked in; one that is gone already is no error.

        Refusals: worktree-dirty (there are changes or commits), and those of `WorktreeService.remove`.
        """
        row = self._service.store.get(worktree_id)
        if row is None:
            return
        ahead = [part for part in self._service.status(row).parts if part.ahead]
        if ahead:
            raise Refusal(
                "worktree-dirty",
                f"{row.path} has commits that were made there",
                context=", ".join(f"{part.ahead} on {part.branch or 'no branch'}" for part in ahead),
                hint=f"merge them; paddock worktree remove {worktree_id} keeps the branch",
            )
        self._service.remove(row)

    def _known(self, path: str) -> "WorktreeSandboxContext | None":
        row = self._service.store.at(path)
        return row.context() if row is not None and row.state is State.READY else None
