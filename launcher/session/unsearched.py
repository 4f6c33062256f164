"""Since when nobody has searched a worktree for what sessions made deep inside it (`embedded`): a note for the next.

A walk over the worktree would be most of what a short command takes, and a launcher that is killed walks nowhere. So
each session notes at its start that it has begun, and whoever searches takes the note away, and looks at all that has
changed since it was written. It lies beside the private home, where no jail reaches.

Launch path: `os`.
"""

from launcher.lean import os

NAME = "unsearched"


def note(directory: str, since: int) -> None:
    """Notes that a session has begun, unless an earlier one waits to be looked at.

    Args:
        directory: of the worktree in Paddock's state.
        since: nanoseconds since the epoch.

    Raises:
        OSError: it cannot be written.
    """
    try:
        fd = os.open(f"{directory}/{NAME}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return
    try:
        os.utime(fd, ns=(since, since))
    finally:
        os.close(fd)


def taken(directory: str, since: int) -> int:
    """Since when the worktree has to be searched: `since`, or earlier. The note is gone: the caller searches now.

    Gone before the search, because a session that ends while it goes on writes it again.
    """
    path = f"{directory}/{NAME}"
    try:
        noted: int = os.lstat(path).st_mtime_ns
    except FileNotFoundError:
        return since
    try:
        os.unlink(path)
    except OSError:
        return min(noted, since)  # it stays, and the next one looks once more
    return min(noted, since)
