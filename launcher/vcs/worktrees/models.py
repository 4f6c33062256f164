"""What Paddock knows of a worktree. The models are what the store keeps and what `--json` prints.

Sources: plan.md MF-005 to MF-008, spec.md FR-005 to FR-007. `policy.sandbox_context` has the part that a jail needs.
"""

import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from policy.documents import plain
from policy.errors import Refusal
from policy.launch import Boundaries, worktree_id

if TYPE_CHECKING:
    from policy.sandbox_context import WorktreeSandboxContext


class State(StrEnum):
    """Where a worktree is in its life. What is neither ready nor missing is finished or undone by the next command."""

    CREATING = "creating"
    READY = "ready"
    REMOVING = "removing"
    MISSING = "missing"


class Part(NamedTuple):
    """One linked worktree: that of the main repository, or of one submodule in it.

    Attributes:
        name: empty for the main one, else the submodule's name; a nested one is ``outer/inner``.
        worktree_id: stable id, from its path.
        path: root of its files.
        common_dir: the repository's git directory: objects, refs, config.
        git_dir: its own git directory, below ``<common_dir>/worktrees``.
        branch: its branch, without ``refs/heads/``; None with a detached HEAD.
        branch_made: whether the branch was made with it.
        base: the commit it started from.
    """

    name: str
    worktree_id: str
    path: Path
    common_dir: Path
    git_dir: Path
    branch: str | None
    branch_made: bool
    base: str

    @property
    def linked(self) -> bool:
        """Whether it is a linked worktree. An adopted one's submodule may be a repository below its git directory."""
        return self.git_dir.parent == self.common_dir / "worktrees"

    @property
    def ref(self) -> str | None:
        """The branch in full; None with a detached HEAD."""
        return None if self.branch is None else f"refs/heads/{self.branch}"


class Unpopulated(NamedTuple):
    """A submodule whose directory is left empty, and why.

    Attributes:
        name: as in `Part`.
        worktree_id: the id it would have.
        path: its directory.
        why: ``not granted``, or what is in the way.
    """

    name: str
    worktree_id: str
    path: Path
    why: str


class Worktree(NamedTuple):
    """A worktree with its submodules.

    Attributes:
        ticket: what it was made for; its directory's name when it was adopted.
        main: the worktree itself.
        created: seconds since the epoch.
        state: see `State`.
        staging: directory in which it grows (or vanishes) beside its own place.
        submodules: its submodule worktrees, each behind the one that it is nested in.
        unpopulated: submodules that were left out.
        parent_worktree_id: id of the worktree it was made from.
        parent_path: root of that worktree.
        adopted: whether it was there before Paddock knew of it.
    """

    ticket: str
    main: Part
    created: float
    state: State
    staging: Path
    submodules: tuple[Part, ...] = ()
    unpopulated: tuple[Unpopulated, ...] = ()
    parent_worktree_id: str | None = None
    parent_path: Path | None = None
    adopted: bool = False

    @property
    def worktree_id(self) -> str:
        """Id of the main part."""
        return self.main.worktree_id

    @property
    def path(self) -> str:
        """Root, as text."""
        return os.fspath(self.main.path)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The worktree itself and its submodules, outermost first."""
        return (self.main, *self.submodules)

    def with_state(self, state: State) -> "Worktree":
        """A copy in another state."""
        return self._replace(state=state)

    def document(self) -> dict[str, Any]:
        """It as JSON: what is kept of it, and the context that an agent in it works in."""
        kept = plain(self)
        del kept["staging"]
        return {"worktree_id": self.worktree_id, **kept, "context": self.context().model_dump(mode="json")}

    def context(self) -> "WorktreeSandboxContext":
        """The boundaries of an agent that works here: `submodule_worktree_ids` names all submodules, granted or not."""
        granted = tuple((part.name, os.fspath(part.path)) for part in self.submodules)
        ungranted = tuple((left.name, os.fspath(left.path)) for left in self.unpopulated)
        return context_of(Boundaries(self.path, self.worktree_id, granted, ungranted), self.parent_worktree_id)


def context_of(boundaries: Boundaries, parent: str | None = None) -> "WorktreeSandboxContext":
    """The boundaries of a worktree, made from the worktree with the id `parent`, as the specification's model."""
    from policy.sandbox_context import MainWorktreeContext, SubmoduleWorktreeContext, WorktreeSandboxContext  # pydantic

    def submodule(name: str, path: str, *, granted: bool) -> SubmoduleWorktreeContext:
        return SubmoduleWorktreeContext(
            submodule_name=name, worktree_id=worktree_id(path), worktree_path=Path(path),
            main_worktree_id=boundaries.worktree_id, granted=granted,
        )  # fmt: skip

    inside = tuple(submodule(name, path, granted=True) for name, path in boundaries.granted)
    outside = tuple(submodule(name, path, granted=False) for name, path in boundaries.ungranted)
    return WorktreeSandboxContext(
        main_worktree=MainWorktreeContext(
            worktree_id=boundaries.worktree_id,
            worktree_path=Path(boundaries.root),
            submodule_worktree_ids=tuple(one.worktree_id for one in (*inside, *outside)),
            parent_worktree_id=parent,
        ),
        submodule_worktrees=inside,
        ungranted_submodules=outside,
        freeze_root=boundaries.freeze_root,
    )


# Names: ids from paths, directories and branches from tickets.

_LONGEST = 80


def slug(ticket: str) -> str:
    """A ticket as one name for a directory or a branch: letters, digits, ``.``, ``_`` and ``-``.

    Refusals: ticket-name (nothing is left of it, it is longer than 80 characters, or it is a path with dots in it).
    """
    if {".", ".."} & set(ticket.split("/")):
        raise Refusal(
            "ticket-name",
            f"{ticket[: _LONGEST + 20]!r} is a path, not a ticket",
            context="'.' and '..' would be dropped, which gives another name than you meant",
            hint="paddock worktree add PROJ-17",
        )
    text = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in ticket)
    while "--" in text or ".." in text:
        text = text.replace("--", "-").replace("..", ".")
    text = text.strip("-.")
    if text.endswith(".lock"):
        text = text.removesuffix(".lock") + "-lock"  # git-check-ref-format(1)
    if not text or len(text) > _LONGEST:
        raise Refusal(
            "ticket-name",
            f"no name can be derived from the ticket {ticket[: _LONGEST + 20]!r}",
            context=f"letters, digits, '.', '_' and '-' are kept, and 1 to {_LONGEST} characters must be left",
            hint="paddock worktree add PROJ-17",
        )
    return text


def sibling(parent: str, common_dir: str, ticket: str) -> str:
    """The directory of a ticket's worktree: beside the parent worktree (FR-006), ``<repository>-<ticket>``."""
    base = os.path.basename(common_dir)
    if base == ".git":
        base = os.path.basename(os.path.dirname(common_dir))
    return os.path.join(os.path.dirname(parent), f"{base.removesuffix('.git') or 'worktree'}-{ticket}")


def staging(path: str) -> str:
    """A name beside `path`, of nobody else, in which it grows or vanishes."""
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)[:100]}.paddock-{os.urandom(6).hex()}")


Step = Callable[[str], None]
"""Called with a word before each change on the disk; tests kill the process there."""

Say = Callable[[str], None]
"""Takes a line about what is going on, for long work."""

Unharvested = Callable[[Path], bool | tuple[str, ...]]
"""What the worktree with this root has in a private git directory that was not brought home, in words; or whether."""


def quiet(_: str) -> None:
    """A `Step` or `Say` for nobody."""


class Options(NamedTuple):
    """How a worktree is to be made.

    Attributes:
        branch: its branch; one that exists is taken up where it is. None: ``agent/<ticket>``, which must be new.
        start: the commit to start from, for a new branch. None: the parent's HEAD.
        path: its directory. None: beside the parent.
        submodules: names of the ones to populate. None: all.
        copy: patterns of untracked files to copy from the parent.
        sparse: directories to check out, in cone mode. None: as the parent does.
        filters: names of `filter` drivers, of the repository's or the user's configuration, that may run (``lfs``).
        workers: processes that write files. None: as many as there are processors, 8 at most.
    """

    branch: str | None = None
    start: str | None = None
    path: str | None = None
    submodules: tuple[str, ...] | None = None
    copy: tuple[str, ...] = ()
    sparse: tuple[str, ...] | None = None
    filters: tuple[str, ...] = ()
    workers: int | None = None

    def settings(self) -> tuple[tuple[str, str], ...]:
        """Git configuration of the checkout. Two workers are quicker than one, even on one processor: they overlap."""
        workers = self.workers if self.workers is not None else min(8, max(2, len(os.sched_getaffinity(0))))
        return (("checkout.workers", str(workers)), ("checkout.thresholdForParallelism", "50"))


class Removed(NamedTuple):
    """What became of a worktree.

    Attributes:
        worktree: as it was.
        backups: (git directory, ref) of each backup; for submodules with stores of their own, where those are now.
        branches_deleted: (git directory, branch) whose commits others have too.
        branches_kept: (git directory, branch) with commits of their own, or not made by Paddock.
        set_aside: where commits that were not harvested are kept; empty when there were none.
        refs_kept: (git directory, ref) of each ref with work of the agent's that nobody has joined.
        stashes: (git directory, ref) of each stash of the agent's that harvests have taken over.
        ignored: files that git ignored, which are gone, in words.
    """

    worktree: Worktree
    backups: list[tuple[str, str]]
    branches_deleted: list[tuple[str, str]]
    branches_kept: list[tuple[str, str]]
    set_aside: str
    refs_kept: list[tuple[str, str]]
    stashes: list[tuple[str, str]]
    ignored: list[str]

    def lines(self) -> list[str]:
        """Where everything of it is now, for people."""
        return [
            *(f"its work is kept: {ref} in {where}" for where, ref in self.backups),
            *(f"commits of the agent that are not merged stay in {ref} in {where}" for where, ref in self.refs_kept),
            *(f"a stash of the agent stays in {ref} in {where}" for where, ref in self.stashes),
            *(f"deleted branch {branch} in {where}" for where, branch in self.branches_deleted),
            *(f"kept branch {branch} in {where}" for where, branch in self.branches_kept),
            *(f"removed with it, as git ignored it: {text}" for text in self.ignored),
            *([kept_aside(self.set_aside)] if self.set_aside else []),
        ]


def kept_aside(place: str) -> str:
    """Where a private git directory was put, in words."""
    return f"the private git directory with commits that were not harvested is kept: {place}"
