"""Why the last harvest of a worktree left work there: kept beside its private git directory, for who asks later."""

import os

_FILE = "refused"
_MOST = 4096


def note(directory: str, reason: str) -> None:
    """Keeps the reason; with none forgets it, because a harvest has taken the work over.

    Args:
        directory: of the worktree's private git directory.
        reason: in one line.
    """
    path = f"{directory}/{_FILE}"
    if not reason:
        if os.path.lexists(path):
            os.unlink(path)
        return
    new = f"{path}.{os.getpid()}"
    content = reason.encode("utf-8", "surrogateescape")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(content[:_MOST])
    os.replace(new, path)


def why(directory: str) -> str:
    """The reason in one line, "" when there is none."""
    try:
        with open(f"{directory}/{_FILE}", "rb") as stream:
            return stream.read(_MOST).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""
