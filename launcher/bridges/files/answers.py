"""What a tool answers: a text, or an error in the specified JSON. Never an exception (FR-014)."""

import json
from enum import StrEnum
from typing import NamedTuple

from policy.errors import printable
from policy.violation import ERROR_TYPE, SandboxValidationResult, escaped

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
        kind: why.
        message: in words, with what the caller can do about it.
        note: what else there is to see.
    """

    def __init__(self, kind: ErrorType, message: str, note: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.note = note


class PathDenied(Exception):
    """A path that the session may not use in this way, on the same way.

    Args:
        verdict: the validator's denial.
    """

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
        kind: why.
        message: in words.
        path: as it was given.
        root: the session's worktree, where it is known.
        operation: what was asked for.
        note: what else there is to see, outside of the JSON.
    """
    facts = {"attemptedPath": path, "sandboxRoot": root, "operation": operation, "message": printable(message)}
    texts = {key: escaped(value) for key, value in facts.items()}
    return Answer(json.dumps({"error": True, "errorType": kind.value, **texts}), note, failed=True)
