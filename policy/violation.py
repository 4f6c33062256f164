"""What the path validator answers: operations, reasons, and the result with its JSON forms.

Sources: contracts.md section 4 and "Error Response Format", data-model.md (SandboxValidationResult).
"""

import json
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, InstanceOf, PlainSerializer, model_validator

from policy.errors import printable

ERROR_TYPE = "SANDBOX_VIOLATION"
FALLBACK_JSON = '{"error":true,"message":"Sandbox violation"}'


class Operation(StrEnum):
    """What a tool wants to do with a path."""

    READ = "READ"
    LIST = "LIST"
    EXECUTE = "EXECUTE"
    WRITE = "WRITE"
    """Create, truncate or overwrite a file; symbolic links are followed, as open(2) does."""
    EDIT = "EDIT"
    """Change a file in place; judged like WRITE (whether it exists is the tool's own error)."""
    DELETE = "DELETE"
    """Remove a directory entry; a symbolic link at the end is the thing removed, not followed."""
    MOVE = "MOVE"
    """Either end of a rename; like DELETE it acts on the entry."""
    MKDIR = "MKDIR"
    """Create a directory; acts on the entry."""

    @property
    def mutates(self) -> bool:
        """Whether anything on the disk changes."""
        return self not in _READING

    @property
    def entry(self) -> bool:
        """Whether the name in its directory is meant, and not what a symbolic link of that name leads to."""
        return self in _ENTRY


_READING = frozenset({Operation.READ, Operation.LIST, Operation.EXECUTE})
_ENTRY = frozenset({Operation.DELETE, Operation.MOVE, Operation.MKDIR})


class Reason(StrEnum):
    """Why a path was refused. A closed set: stable ids for scripts and tests."""

    OUTSIDE = "outside"
    UNGRANTED_SUBMODULE = "ungranted-submodule"
    DENIED = "denied"
    READ_ONLY = "read-only"
    UNPOPULATED_SUBMODULE = "unpopulated-submodule"
    FROZEN = "frozen"
    ROOT_ITSELF = "root-itself"
    ROOT_MISSING = "root-missing"
    ROOT_REPLACED = "root-replaced"
    TRAVERSAL = "traversal"
    SYMLINK_LOOP = "symlink-loop"
    UNREACHABLE = "unreachable"
    NUL = "nul"
    TOO_LONG = "too-long"
    EMPTY = "empty"
    UNENCODABLE = "unencodable"
    UNKNOWN_OPERATION = "unknown-operation"


OUTSIDE_MESSAGE = "Access denied: path is outside worktree sandbox"

_MESSAGES = {
    # Word for word what contracts.md section 5 gives; path and boundary stand in the JSON beside it.
    Reason.OUTSIDE: OUTSIDE_MESSAGE,
    Reason.UNGRANTED_SUBMODULE: "Access denied: {path} is in submodule {detail}, which is not granted to this agent"
    " (worktree {root})",
    Reason.DENIED: "Access denied: {path} is in {detail}, which is denied inside worktree {root}",
    Reason.READ_ONLY: "Access denied: {path} is in {detail}, which is read-only inside worktree {root}",
    Reason.UNPOPULATED_SUBMODULE: "Access denied: {path} is in {detail}, a submodule that is not"
    " populated: it is read-only until `git submodule update --init`, outside, has populated it (worktree {root})",
    Reason.FROZEN: "Access denied: {path}: the directory {detail} contains an exception of worktree {root}, so it"
    " cannot be listed or changed itself; existing files beside the exception can be used by name",
    Reason.ROOT_ITSELF: "Access denied: {path} is the root of worktree {root} itself; only what is in it can"
    " be changed",
    Reason.ROOT_MISSING: "Access denied: worktree {root} no longer exists, so {path} cannot be checked",
    Reason.ROOT_REPLACED: "Access denied: worktree {root} is no longer a directory of its own (now a symbolic link"
    " or a file), so {path} cannot be checked",
    Reason.TRAVERSAL: "Access denied: {path} goes up ('..') from something that is not an existing directory, so it"
    " cannot be checked against worktree {root}",
    Reason.SYMLINK_LOOP: "Access denied: {path} goes through too many symbolic links to be checked against"
    " worktree {root}",
    Reason.UNREACHABLE: "Access denied: {path} cannot be checked against worktree {root}: {detail}",
    Reason.NUL: "Access denied: {path} contains a NUL character (worktree {root})",
    Reason.TOO_LONG: "Access denied: {path} is longer than the system allows (worktree {root})",
    Reason.EMPTY: "Access denied: the path is empty; give a path inside worktree {root}",
    Reason.UNENCODABLE: "Access denied: {path} cannot be a file name (worktree {root})",
    Reason.UNKNOWN_OPERATION: "Access denied: unknown operation {detail} on {path} (worktree {root})",
}


def escaped(text: str) -> str:
    """`text` with bytes that are not UTF-8 (surrogateescape) as `\\xNN`, and other surrogates as `\\uNNNN`."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def message_for(reason: Reason, path: str, root: str, detail: str = "") -> str:
    """The sentence for people and models: what was tried, and which boundary holds (SC-005).

    Control characters are made visible and long paths are cut, because paths come from agents.
    """
    return _MESSAGES[reason].format(path=_shown(path), root=_shown(root), detail=_shown(detail))


def _shown(text: str) -> str:
    text = printable(escaped(text))
    return text if len(text) <= 1024 else text[:1000] + f"... ({len(text)} characters)"


_Text = Annotated[
    # Only the type is checked: pydantic's own `str` refuses names that are not UTF-8.
    InstanceOf[str] | None,
    PlainSerializer(lambda text: None if text is None else escaped(text), when_used="json"),
]


class SandboxValidationResult(BaseModel):
    """The verdict about one path.

    Attributes:
        allowed: whether the operation may go on.
        reason: id of the reason; required for a denial, absent otherwise.
        normalized_path: the canonical path that was judged, when it could be determined.
        attempted_path: the path as it was given.
        sandbox_root: the boundary it was held against.
        operation: the operation's name.
        message: the reason in words.

    A verdict is about the moment: a tool that acts on an allowed path should open `normalized_path` with
    O_NOFOLLOW; the kernel jail is what holds against a process that swaps links in between.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    allowed: bool
    reason: Reason | None = None
    normalized_path: _Text = None
    attempted_path: _Text = None
    sandbox_root: _Text = None
    operation: _Text = None
    message: _Text = None

    @classmethod
    def allow(
        cls,
        *,
        attempted_path: str | None = None,
        sandbox_root: str | None = None,
        operation: str | None = None,
        normalized_path: str | None = None,
    ) -> Self:
        """An allowing verdict; all facts are optional (contracts section 4 leaves them empty)."""
        return cls(
            allowed=True,
            attempted_path=attempted_path,
            sandbox_root=sandbox_root,
            operation=operation,
            normalized_path=normalized_path,
        )

    @classmethod
    def deny(
        cls,
        attempted_path: str,
        sandbox_root: str,
        operation: str,
        message: str | None = None,
        *,
        reason: Reason = Reason.OUTSIDE,
        normalized_path: str | None = None,
        detail: str = "",
    ) -> Self:
        """A denying verdict.

        Args:
            attempted_path: the path as it was given.
            sandbox_root: the boundary.
            operation: the operation's name.
            message: in words; composed from the reason when absent.
            reason: why.
            normalized_path: the canonical path, when known.
            detail: what the reason's sentence names besides path and root (a directory, an error text).
        """
        return cls(
            allowed=False,
            reason=reason,
            normalized_path=normalized_path,
            attempted_path=attempted_path,
            sandbox_root=sandbox_root,
            operation=operation,
            message=message if message is not None else message_for(reason, attempted_path, sandbox_root, detail),
        )

    @model_validator(mode="after")
    def _reason_when_denied(self) -> Self:
        if self.allowed is (self.reason is not None):
            raise ValueError("reason is required when allowed is false, and must be absent when it is true")
        return self

    def to_error_json(self) -> str:
        """The error response of contracts.md: its six keys, in its order. Bytes that are not UTF-8 are escaped.

        Raises:
            ValueError: the verdict allows, so there is no error to report.
        """
        return self._json(())

    def to_detail_json(self) -> str:
        """As `to_error_json`, with `reason` and `normalizedPath` of the data model behind the six keys."""
        return self._json((("reason", self.reason), ("normalizedPath", self.normalized_path)))

    def _json(self, more: tuple[tuple[str, str | None], ...]) -> str:
        if self.allowed:
            raise ValueError("an allowed path has no error response")
        facts: tuple[tuple[str, str | None], ...] = (
            ("attemptedPath", self.attempted_path),
            ("sandboxRoot", self.sandbox_root),
            ("operation", self.operation),
            ("message", self.message),
            *more,
        )
        try:
            texts = {key: None if value is None else escaped(value) for key, value in facts}
            return json.dumps({"error": True, "errorType": ERROR_TYPE, **texts})
        except (AttributeError, TypeError, ValueError):  # model_construct() lets any object in
            return FALLBACK_JSON
