"""What Paddock knows of a worktree. The models are what the store keeps and what `--json` prints.

Sources: plan.md MF-005 to MF-008, spec.md FR-005 to FR-007. `policy.sandbox_context` has the part that a jail needs.
"""

import os
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from policy.sandbox_context import (
    AbsolutePath,
    MainWorktreeContext,
    Name,
    SubmoduleWorktreeContext,
    WorktreeSandboxContext,
)


class State(StrEnum):
    """Where a worktree is in its life. What is neither ready nor missing is finished or undone by the next command."""

    CREATING = "creating"
    READY = "ready"
    REMOVING = "removing"
    MISSING = "missing"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Part(_Frozen):
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
    worktree_id: Name
    path: AbsolutePath
    common_dir: AbsolutePath
    git_dir: AbsolutePath
    branch: Name | None
    branch_made: bool
    base: Name

    @property
    def linked(self) -> bool:
        """Whether it is a linked worktree. An adopted one's submodule may be a repository below its git directory."""
        return self.git_dir.parent == self.common_dir / "worktrees"

    @property
    def ref(self) -> str | None:
        """The branch in full; None with a detached HEAD."""
        return None if self.branch is None else f"refs/heads/{self.branch}"


class Unpopulated(_Frozen):
    """A submodule whose directory is left empty, and why.

    Attributes:
        name: as in `Part`.
        worktree_id: the id it would have.
        path: its directory.
        why: ``not granted``, or what is in the way.
    """

    name: Name
    worktree_id: Name
    path: AbsolutePath
    why: str


class Worktree(_Frozen):
    """A worktree with its submodules.

    Attributes:
        ticket: what it was made for; its directory's name when it was adopted.
        main: the worktree itself.
        submodules: its submodule worktrees, each behind the one that it is nested in.
        unpopulated: submodules that were left out.
        parent_worktree_id: id of the worktree it was made from.
        parent_path: root of that worktree.
        created: seconds since the epoch.
        adopted: whether it was there before Paddock knew of it.
        state: see `State`.
        staging: directory in which it grows (or vanishes) beside its own place.
    """

    ticket: Name
    main: Part
    submodules: tuple[Part, ...] = ()
    unpopulated: tuple[Unpopulated, ...] = ()
    parent_worktree_id: Name | None = None
    parent_path: AbsolutePath | None = None
    created: float
    adopted: bool = False
    state: State
    staging: AbsolutePath

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
        return self.model_copy(update={"state": state})

    def context(self) -> WorktreeSandboxContext:
        """The boundaries of an agent that works here: `submodule_worktree_ids` names all submodules, granted or not."""
        granted = tuple(
            SubmoduleWorktreeContext(
                submodule_name=part.name,
                worktree_id=part.worktree_id,
                worktree_path=part.path,
                main_worktree_id=self.worktree_id,
            )
            for part in self.submodules
        )
        ungranted = tuple(
            SubmoduleWorktreeContext(
                submodule_name=left.name,
                worktree_id=left.worktree_id,
                worktree_path=left.path,
                main_worktree_id=self.worktree_id,
                granted=False,
            )
            for left in self.unpopulated
        )
        return WorktreeSandboxContext(
            main_worktree=MainWorktreeContext(
                worktree_id=self.worktree_id,
                worktree_path=self.main.path,
                submodule_worktree_ids=tuple(submodule.worktree_id for submodule in (*granted, *ungranted)),
                parent_worktree_id=self.parent_worktree_id,
            ),
            submodule_worktrees=granted,
            ungranted_submodules=ungranted,
        )
