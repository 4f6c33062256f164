"""The tools and their arguments: what clients are shown, and what every call is checked against (contracts section 5).

The models are strict: a number in quotation marks is a mistake of the caller's and is told, not repaired.
"""

import json
import os
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, ClassVar, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from launcher import wire
from policy.errors import printable
from policy.violation import ERROR_TYPE, Operation, SandboxValidationResult, escaped

# What a tool answers: a text, or an error in the specified JSON. Never an exception (FR-014).

MOST_TEXT = 256 << 10
"""Bytes of text in one answer (a character that is no ASCII counts as many as its UTF-8 has)."""


class ErrorType(StrEnum):
    """Why a tool did not do its work. A closed set: names for programmes."""

    SANDBOX_VIOLATION = ERROR_TYPE
    """The path is not this session's to use, or not in this way."""
    WORKTREE_UNRESOLVED = "WORKTREE_UNRESOLVED"
    """The request names no session, or none whose worktree is known (story 5, scenario 2)."""
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    UNKNOWN_TOOL = "UNKNOWN_TOOL"
    NOT_FOUND = "NOT_FOUND"
    NOT_A_FILE = "NOT_A_FILE"
    """A directory, FIFO, socket or device where a regular file is needed."""
    NOT_A_DIRECTORY = "NOT_A_DIRECTORY"
    ACCESS_DENIED = "ACCESS_DENIED"
    """The kernel refused: the jail, or the file's own rights."""
    BINARY_FILE = "BINARY_FILE"
    TOO_LARGE = "TOO_LARGE"
    NO_MATCH = "NO_MATCH"
    """The text to be replaced is not in the file."""
    NOT_UNIQUE = "NOT_UNIQUE"
    """It is there more than once, and not all were meant."""
    CHANGED = "CHANGED"
    """Somebody else changed the file meanwhile."""
    BUSY = "BUSY"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    """The client has left, or waits no more."""
    IO_ERROR = "IO_ERROR"
    WORKER_FAILED = "WORKER_FAILED"
    """The session's worker could not be started, or has ended, or talks nonsense."""


class Answer(NamedTuple):
    """One answer.

    Attributes:
        text: what was asked for, unchanged; or the error's JSON.
        note: what the reader should know about it (where it goes on, how it was decoded), or empty.
        failed: the text is an error.
    """

    text: str
    note: str = ""
    failed: bool = False


class ToolFailed(Exception):
    """Work that cannot be done, on its way to the one place where it becomes an `Answer`.

    Args:
        message: in words, with what the caller can do about it.
        note: what else there is to see.
    """

    def __init__(self, kind: ErrorType, message: str, note: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.note = note


class PathDenied(Exception):
    """A path that the session may not use in this way, on the same way."""

    def __init__(self, verdict: SandboxValidationResult) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


def denied(verdict: SandboxValidationResult) -> Answer:
    """The answer for a path that the validator refuses: the six keys of the contract."""
    return Answer(verdict.to_error_json(), failed=True)


def error(
    kind: ErrorType, message: str, *, path: str = "", root: str = "", operation: str = "", note: str = ""
) -> Answer:
    """The answer for anything else that went wrong, with the same six keys.

    Args:
        root: the session's worktree, where it is known.
        note: what else there is to see, outside of the JSON.
    """
    facts = {"attemptedPath": path, "sandboxRoot": root, "operation": operation, "message": printable(message)}
    texts = {key: escaped(value) for key, value in facts.items()}
    return Answer(json.dumps({"error": True, "errorType": kind.value, **texts}), note, failed=True)


MOST_CONTENT = 8 << 20
"""Bytes of a file that is written or edited."""


def _writable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the text cannot be written as UTF-8: {error.reason}") from None
    return text


Text = Annotated[str, AfterValidator(_writable)]
PathText = Annotated[Text, StringConstraints(max_length=8192)]


class Call(BaseModel):
    """One call of a tool.

    Attributes:
        tool: its name.
        operation: what the validator is asked for.
        reads_only: nothing on the disk changes by it.
        place: the argument that is its path.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tool: ClassVar[str]
    operation: ClassVar[Operation]
    reads_only: ClassVar[bool] = True
    place: ClassVar[str] = "directory"

    @property
    def path(self) -> str:
        """The path it is about, as it was given."""
        given: str = getattr(self, self.place)
        return given


class Read(Call):
    """Read a text file. The text comes back unchanged, without line numbers."""

    tool: ClassVar[str] = "read"
    operation: ClassVar[Operation] = Operation.READ
    place: ClassVar[str] = "file_path"

    file_path: PathText = Field(description="File to read; relative paths start at the worktree's root.")
    offset: int = Field(default=1, ge=1, description="First line to return, counted from 1.")
    limit: int | None = Field(default=None, ge=1, description="Most lines to return; by default as many as fit.")


class Write(Call):
    """Write a whole text file in one step: readers see the old content or the new. Missing directories are made."""

    tool: ClassVar[str] = "write"
    operation: ClassVar[Operation] = Operation.WRITE
    reads_only: ClassVar[bool] = False
    place: ClassVar[str] = "file_path"

    file_path: PathText = Field(description="File to create or replace.")
    content: Text = Field(description="Its whole new content.")


class Edit(Call):
    """Replace a piece of a text file by another one, in one step. Everything else of the file stays as it is."""

    tool: ClassVar[str] = "edit"
    operation: ClassVar[Operation] = Operation.EDIT
    reads_only: ClassVar[bool] = False
    place: ClassVar[str] = "file_path"

    file_path: PathText = Field(description="File to change.")
    old_string: Text = Field(
        min_length=1, description="The exact text to replace, including line ends and indentation."
    )
    new_string: Text = Field(description="The text to replace it with.")
    replace_all: bool = Field(
        default=False, description="Replace every occurrence; otherwise there must be exactly one."
    )


class List(Call):
    """List a directory, sorted. Directories end with /, symbolic links with @, pipes with | and sockets with =."""

    tool: ClassVar[str] = "list"
    operation: ClassVar[Operation] = Operation.LIST

    directory: PathText = Field(default=".", description="Directory to list (default: the worktree's root).")


class Glob(Call):
    """Find files by name. `**` stands for any directories; symbolic links are not followed, .git is left out."""

    tool: ClassVar[str] = "glob"
    operation: ClassVar[Operation] = Operation.LIST

    pattern: Annotated[Text, StringConstraints(min_length=1, max_length=1024)] = Field(
        description="Pattern for the path below the directory, such as src/**/*.py."
    )
    directory: PathText = Field(default=".", description="Directory to search (default: the worktree's root).")


class Grep(Call):
    """Search text files for a regular expression (Python's). Answers PATH:LINE:TEXT; leaves out .git and binaries."""

    tool: ClassVar[str] = "grep"
    operation: ClassVar[Operation] = Operation.READ
    place: ClassVar[str] = "target"

    pattern: Annotated[Text, StringConstraints(min_length=1, max_length=4096)] = Field(
        description="Regular expression, matched against each line."
    )
    target: PathText = Field(default=".", description="File or directory to search (default: the worktree's root).")
    glob: Annotated[Text, StringConstraints(max_length=1024)] | None = Field(
        default=None, description="Search only files whose path below the directory, or name, matches this pattern."
    )
    ignore_case: bool = Field(default=False, description="Ignore case.")
    limit: int = Field(default=200, ge=1, le=2000, description="Most lines to return.")


class Shell(Call):
    """Run a command line of sh(1) in the session's jail. Answers its exit status, then what it wrote."""

    tool: ClassVar[str] = "shell"
    operation: ClassVar[Operation] = Operation.EXECUTE
    reads_only: ClassVar[bool] = False

    command: Annotated[Text, StringConstraints(min_length=1, max_length=128 << 10)] = Field(
        description="The command line for sh -c."
    )
    directory: PathText = Field(default=".", description="Directory to start in (default: the worktree's root).")
    timeout_seconds: float = Field(default=120, gt=0, le=600, description="The command is ended after this time.")


CALLS: dict[str, type[Call]] = {kind.tool: kind for kind in (Read, Write, Edit, List, Glob, Grep, Shell)}
"""All tools by name, in the order in which clients are shown them."""

PLACES = frozenset(kind.place for kind in CALLS.values())


# Messages between router and worker: JSON in frames (`launcher.wire`), over pipes.
#
# The worker works in a jail together with whatever the agent has left there, so the router takes its bytes for
# anybody's: the length is bounded before a byte is read, and what comes is held against a model before it is
# believed.

MOST_REQUEST = 96 << 20
"""Bytes: two texts of 8 MiB whose characters JSON may each write as six."""

MOST_REPLY = 8 * MOST_TEXT
_JSON = b"J"
_BLOCK = 1 << 16


class Hello(BaseModel):
    """The worker's first words."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ready: bool
    pid: int


class Request(BaseModel):
    """One call for the worker. `sweep`: only remove what an earlier worker left behind at this call's place."""

    model_config = ConfigDict(extra="forbid", strict=True)

    number: int
    tool: str
    arguments: dict[str, object]
    sweep: bool = False


class Reply(BaseModel):
    """What the worker says to a request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    number: int
    text: str = Field(max_length=MOST_REPLY)
    note: str = Field(max_length=2000)
    failed: bool

    @property
    def answer(self) -> Answer:
        """The answer that it holds."""
        return Answer(self.text, self.note, self.failed)


def packed(message: BaseModel) -> bytes:
    """The bytes of one message."""
    return wire.frame(_JSON, message.model_dump_json().encode())


def received(fd: int) -> Iterator[bytes]:
    """What the router sends, message by message, until it closes the pipe."""
    decoder = wire.Decoder(MOST_REQUEST)
    while data := os.read(fd, _BLOCK):
        for _, payload in decoder.feed(data):
            yield payload
