"""What git could not decide: one conflict, its kind and its sides (git-merge-tree(1), "Conflicted file info")."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints

from policy.worktree import Name


def _label(value: object) -> object:
    """Bytes that are not UTF-8 become `\\xNN`: results are read by people, programmes and language models as text."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return value


Text = Annotated[str, BeforeValidator(_label)]
TreePath = Annotated[Text, StringConstraints(min_length=1)]
ObjectId = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]


class Frozen(BaseModel):
    """A model that never changes and refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ConflictKind(StrEnum):
    """Kinds of conflict: git's own names (merge-ort), and one for those it may learn later."""

    CONTENTS = "contents"
    ADD_ADD = "add/add"
    BINARY = "binary"
    MODIFY_DELETE = "modify/delete"
    RENAME_RENAME = "rename/rename"
    RENAME_DELETE = "rename/delete"
    RENAME_COLLIDES = "rename involved in collision"
    FILE_DIRECTORY = "file/directory"
    DISTINCT_MODES = "distinct modes"
    DISTINCT_TYPES = "distinct types"
    DIRECTORY_RENAME_SUGGESTED = "directory rename suggested"
    DIRECTORY_RENAME_FILE_IN_WAY = "file in way of directory rename"
    DIRECTORY_RENAME_COLLISION = "directory rename collision"
    DIRECTORY_RENAME_SPLIT = "directory rename unclear split"
    SUBMODULE = "submodule"
    OTHER = "other"  # a kind that this version of Paddock does not know; the message has git's words


class ConflictStage(Frozen):
    """One side of a conflict, as git-ls-files(1) --unmerged shows it.

    Attributes:
        stage: 1 common ancestor, 2 ours (the target), 3 theirs (the source).
        mode: octal file mode, six digits; ``120000`` is a symbolic link, ``160000`` a submodule.
        object_id: blob, or commit of a submodule.
        path: where that side has it; differs from the conflict's path after renames.
    """

    stage: Literal[1, 2, 3]
    mode: Annotated[str, StringConstraints(pattern=r"^[0-7]{6}$")]
    object_id: ObjectId
    path: TreePath


class MergeConflict(Frozen):
    """One thing git could not decide.

    Attributes:
        path: the file, relative to the root of the main worktree (inside submodules too).
        kind: what clashes.
        stages: the sides that exist; empty where the conflict has none of its own (a failed check).
        message: git's own words, or the last lines of a failed check.
        other_paths: further paths involved (the other names of a rename).
        submodule: name of the submodule it lies in.
    """

    path: TreePath
    kind: ConflictKind
    stages: tuple[ConflictStage, ...] = ()
    message: Text = ""
    other_paths: tuple[TreePath, ...] = ()
    submodule: Name | None = None
