"""Why work was left in a private git directory, and what a later harvest has to respect: kept beside it.

A session with a strict hand-off is remembered from its start until its work has been taken over, whatever kills it, so
that nobody hands over by himself what it would have refused. A user who harvests by hand, or whose next session is not
strict, has decided otherwise.
"""

import os

from launcher.vcs.quarantine.record import STRICT, replace_file

NOTE = "refused"
"""Name of the file."""

_MOST = 4096
_HELD = b"held"


def note(directory: str, reason: str) -> None:
    """Keeps the reason; with none forgets it, because a harvest has taken the work over (OSError).

    Args:
        directory: of the worktree (`record.directory_of`).
        reason: in one line.
    """
    path = f"{directory}/{NOTE}"
    if reason:
        replace_file(path, reason.encode("utf-8", "surrogateescape")[:_MOST])
    elif os.path.lexists(path):
        os.unlink(path)


def why(directory: str) -> str:
    """The reason in one line, "" when there is none."""
    try:
        with open(f"{directory}/{NOTE}", "rb") as stream:
            return stream.read(_MOST).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""


def demand_strictness(directory: str, *, held: bool = False) -> None:
    """Notes that a strict session is at work there; or that it is over, and has refused to hand over (OSError).

    Args:
        directory: of the worktree (`record.directory_of`).
        held: for what is in the worktree, which a harvest of commits does not see.
    """
    replace_file(f"{directory}/{STRICT}", _HELD if held else b"")


def is_strict(directory: str) -> bool:
    """Whether a strict session left what waits there."""
    return os.path.lexists(f"{directory}/{STRICT}")


def is_held(directory: str) -> bool:
    """Whether a strict session has refused to hand over what waits there, for files that no commit has."""
    try:
        with open(f"{directory}/{STRICT}", "rb") as stream:
            return stream.read(_MOST) == _HELD
    except FileNotFoundError:
        return False


def forget_strictness(directory: str) -> None:
    """For when nothing of a strict session waits any more (OSError)."""
    try:
        os.unlink(f"{directory}/{STRICT}")
    except FileNotFoundError:
        return
