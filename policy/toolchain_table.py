"""The table of known toolchains (`toolchains.toml`): its format and its loader."""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from policy.errors import Refusal

TABLE_FILE = Path(__file__).with_name("toolchains.toml")


def _below(pattern: str) -> str:
    parts = pattern.split("/")
    if pattern != "." and (not all(parts) or {".", ".."} & set(parts) or "\0" in pattern):
        raise ValueError("must be relative, without empty, . or .. components")
    return pattern


def _placed(path: str) -> str:
    if not path.startswith(("/", "~/")) or ".." in path.split("/") or path.rstrip("/") in {"", "~"}:
        raise ValueError("must start with / or ~/, name something below it and hold no ..")
    return path.rstrip("/")


Pattern = Annotated[str, AfterValidator(_below)]
Place = Annotated[str, AfterValidator(_placed)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Toolchain(_Frozen):
    """One kind of installation. Patterns are relative to its root; ``*`` stands for part of one component."""

    name: str
    """Short name, shown in `paddock explain`."""
    variables: list[Variable] = []
    """Variables whose value is a root, when it bears the markers."""
    active_variables: list[Variable] = []
    """Those of them that select the toolchain even when PATH does not lead there, and that pass through."""
    roots: list[Place] = []
    """Where it is usually installed."""
    anywhere: bool = False
    """Whether any ancestor of a reached programme that bears the markers is a root."""
    shared_prefix: bool = False
    """Whether a directory of `ToolchainTable.shared_prefixes` may be such a root."""
    markers: list[str] = Field(min_length=1)
    """Patterns that must all exist; ``a|b`` means either. A root without them is never granted."""
    touched_by: list[Pattern] = ["."]
    """The parts of the root that select it when PATH or a link leads there."""
    grants: list[Pattern] = Field(min_length=1)
    """What is granted, read and execute."""
    excluded: list[Pattern] = []
    """What stays closed below the grants: files that may hold credentials."""
    follow: list[Pattern] = []
    """Links and programmes that may lead on to further installations."""
    brings: list[str] = []
    """Toolchains that this one runs, selected at their roots as well."""
    set: dict[Variable, str] = {}
    """Variables to set; ``${root}`` and ``${home}`` (the private home) may be used."""
    passed: list[Variable] = Field(default=[], alias="pass")
    """Plain variables that pass through."""
    pass_paths: list[Variable] = []
    """Variables that hold one path, and pass through when it can be reached in the jail."""
    seeds: list[Pattern] = []
    """Plain files in the home directory that it needs in the private home: versions, never credentials."""
    notes: list[str] = []
    """What people should know when it is found."""


class ToolchainTable(_Frozen):
    """All of `toolchains.toml`."""

    schema_version: Literal[1] = Field(alias="schema")
    """Version of the format."""
    system: list[Place]
    """Trees that every plan grants anyway."""
    followed: list[Place]
    """System directories whose links are followed."""
    worktree_interpreters: list[Pattern]
    """Links in the worktree that lead to interpreters."""
    credentials: list[Pattern]
    """Below the home directory; never granted."""
    programmes_inside: list[Pattern]
    """Below the home directory: parts of `credentials` that hold programmes after all."""
    shared_prefixes: list[Place]
    """Directories that are no toolchain's own."""
    credential_names: list[str]
    """File names that are never granted one by one."""
    toolchain: list[Toolchain]
    """The toolchains, the more particular first."""


def load_table(path: Path = TABLE_FILE) -> ToolchainTable:
    """Reads the table.

    Raises:
        Refusal: `toolchains-invalid`, with the file and what is wrong in it.
    """
    try:
        return ToolchainTable.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise Refusal("toolchains-invalid", f"{path} is not a table of toolchains", context=str(error)) from error
