"""Why the last harvest of a worktree left work there: kept beside its private git directory, for who asks later."""

import os

from launcher.vcs.quarantine.record import replace_file

NOTE = "refused"
"""Name of the file."""

_MOST = 4096


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
