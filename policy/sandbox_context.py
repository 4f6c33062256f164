"""Who works where: the worktree of one agent, its submodules, and what is excepted from them.

The models are plain facts without any look at the disk: whether a path exists or is a symbolic link is the
concern of `policy.sandbox`, each time it is asked. All are frozen and refuse unknown fields.

Sources: data-model.md (WorktreeSandboxContext, SubmoduleWorktreeContext), contracts.md section 7, and the
reading of their differences in SPEC-NOTES.
"""

from collections import Counter
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    model_validator,
)

from policy.documents import absolute_path, label, path_to_json


def _plain_name(value: object) -> object:
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("a NUL character cannot be part of a name or an id")
        return label(value)
    return value


AbsolutePath = Annotated[
    Path, PlainValidator(absolute_path, json_schema_input_type=str), PlainSerializer(path_to_json, when_used="json")
]
Name = Annotated[str, BeforeValidator(_plain_name), StringConstraints(min_length=1, max_length=4096)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MainWorktreeContext(_Frozen):
    """The worktree that holds an agent.

    Attributes:
        worktree_id: stable id.
        worktree_path: its root directory.
        submodule_worktree_ids: ids of all its submodule worktrees, granted or not.
        parent_worktree_id: the worktree this one was made from, when there is one.
    """

    worktree_id: Name
    worktree_path: AbsolutePath
    submodule_worktree_ids: tuple[Name, ...] = ()
    parent_worktree_id: Name | None = None


class SubmoduleWorktreeContext(_Frozen):
    """One submodule's worktree, below a main worktree.

    Attributes:
        submodule_name: its name in `.gitmodules`.
        worktree_id: stable id of its own.
        worktree_path: its root directory.
        main_worktree_id: id of the main worktree it lies in (of the outermost one, for a nested submodule).
        granted: whether the agent may use it.
    """

    submodule_name: Name
    worktree_id: Name
    worktree_path: AbsolutePath
    main_worktree_id: Name
    granted: bool = True

    @property
    def parent_worktree_id(self) -> str:
        """The data model's name for `main_worktree_id`."""
        return self.main_worktree_id


class WorktreeSandboxContext(_Frozen):
    """The boundaries of one agent.

    Attributes:
        main_worktree: the worktree itself.
        submodule_worktrees: submodules the agent may use.
        ungranted_submodules: submodules it may not, though they lie below the main worktree.
        denied_paths: paths the agent may neither read nor write; they may also lie outside the worktree.
        read_only_paths: paths of the worktree, its root perhaps, that may be read and never written (a main
            checkout's `.git`).
        writable_paths: paths below those that may be written all the same.
        unpopulated_submodules: places of submodules in which there is nothing yet; read-only.
        freeze_root: the exceptions are kept by granting their siblings one by one, as Landlock must where
            nothing can be mounted over them: see `policy.sandbox`.
    """

    main_worktree: MainWorktreeContext
    submodule_worktrees: tuple[SubmoduleWorktreeContext, ...] = ()
    ungranted_submodules: tuple[SubmoduleWorktreeContext, ...] = ()
    denied_paths: tuple[AbsolutePath, ...] = ()
    read_only_paths: tuple[AbsolutePath, ...] = ()
    writable_paths: tuple[AbsolutePath, ...] = ()
    unpopulated_submodules: tuple[AbsolutePath, ...] = ()
    freeze_root: bool = False

    @property
    def main_worktree_id(self) -> str:
        """Id of the main worktree (data model)."""
        return self.main_worktree.worktree_id

    @property
    def main_worktree_path(self) -> Path:
        """Root of the main worktree (data model)."""
        return self.main_worktree.worktree_path

    @property
    def worktree_id(self) -> str:
        """Id of the main worktree (contracts section 7)."""
        return self.main_worktree.worktree_id

    @property
    def worktree_path(self) -> Path:
        """Root of the main worktree (contracts section 7)."""
        return self.main_worktree.worktree_path

    @property
    def submodule_paths(self) -> tuple[Path, ...]:
        """Roots of the granted submodules (contracts section 7)."""
        return tuple(submodule.worktree_path for submodule in self.submodule_worktrees)

    @property
    def parent_worktree_id(self) -> str | None:
        """The worktree that the main worktree was made from (contracts section 7)."""
        return self.main_worktree.parent_worktree_id

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        main = self.main_worktree
        submodules = self.submodule_worktrees + self.ungranted_submodules
        for submodule in submodules:
            name, path = submodule.submodule_name, submodule.worktree_path
            if not _strictly_inside(path, main.worktree_path):
                raise ValueError(f"submodule {name!r} at {path} is not inside the main worktree {main.worktree_path}")
            if submodule.main_worktree_id != main.worktree_id:
                raise ValueError(
                    f"submodule {name!r} belongs to worktree {submodule.main_worktree_id!r}, "
                    f"but the main worktree here is {main.worktree_id!r}"
                )
        for expected, listed, field in (
            (True, self.submodule_worktrees, "submodule_worktrees"),
            (False, self.ungranted_submodules, "ungranted_submodules"),
        ):
            for submodule in listed:
                if submodule.granted is not expected:
                    raise ValueError(
                        f"submodule {submodule.submodule_name!r} has granted={submodule.granted} "
                        f"and cannot be listed in {field}"
                    )
        _refuse_doubles("submodule name", [submodule.submodule_name for submodule in submodules])
        _refuse_doubles("submodule path", [str(submodule.worktree_path) for submodule in submodules])
        ids = [submodule.worktree_id for submodule in submodules]
        _refuse_doubles("worktree id", [main.worktree_id, *ids])
        _refuse_doubles("entry of submodule_worktree_ids", list(main.submodule_worktree_ids))
        if set(ids) != set(main.submodule_worktree_ids):
            missing = sorted(set(ids) - set(main.submodule_worktree_ids))
            unknown = sorted(set(main.submodule_worktree_ids) - set(ids))
            raise ValueError(
                "main_worktree.submodule_worktree_ids does not match the submodules: "
                f"missing there {missing}, unknown here {unknown}"
            )
        for kind, paths in (("read-only", self.unpopulated_submodules), ("writable", self.writable_paths)):
            for path in paths:
                if not _strictly_inside(path, main.worktree_path):
                    raise ValueError(f"{kind} path {path} is not inside the main worktree {main.worktree_path}")
        for path in self.read_only_paths:
            if not path.is_relative_to(main.worktree_path):
                raise ValueError(f"read-only path {path} is not inside the main worktree {main.worktree_path}")
        return self


def _strictly_inside(path: Path, root: Path) -> bool:
    return path != root and path.is_relative_to(root)


def _refuse_doubles(what: str, values: list[str]) -> None:
    doubles = sorted(value for value, count in Counter(values).items() if count > 1)
    if doubles:
        raise ValueError(f"{what} used more than once: {doubles}")
