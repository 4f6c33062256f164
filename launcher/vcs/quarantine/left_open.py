"""Places of submodules that a session's jail does not close: noted, so that they are looked at when it is killed.

A `.git` that a command has made there is put aside at the session's end (`launcher.vcs.quarantine.planted` says why).
The note lies in the session's directory, whose free lock says that the session is over: who finds it does what the
session could not do any more. Nobody else can tell such a `.git` from one of the user's.

Launch path of sessions with such places: `os`, `fcntl`, `marshal`.
"""

import fcntl
import marshal

from launcher.lean import os
from policy.errors import Refusal
from policy.plan import Place

NOTE = "left-open"
"""Name of the note in a session's directory; `launcher.session.state` has it, too."""

_MOST_BYTES = 64 << 20


def write(directory: str, places: tuple[Place, ...], aside: str) -> None:
    """Notes the places, before the command starts.

    Args:
        directory: of the session, whose lock is held.
        places: without a `.git` now.
        aside: directory of ours for what is put aside.

    Raises:
        OSError: it cannot be written.
    """
    path = f"{directory}/{NOTE}"
    fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        content = marshal.dumps((aside, places), 2)
        while content:
            content = content[os.write(fd, content) :]
    finally:
        os.close(fd)
    os.rename(f"{path}.new", path)


def sweep(state: str) -> list[str]:
    """Looks after the places of dead sessions. Returns what the user should know.

    Args:
        state: Paddock's state directory.
    """
    try:
        names = os.listdir(f"{state}/sessions")
    except OSError:
        return []
    lines: list[str] = []
    for name in names:
        directory = f"{state}/sessions/{name}"
        if os.path.lexists(f"{directory}/{NOTE}"):
            lines += _swept(directory)
    return lines


def _swept(directory: str) -> list[str]:
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return []  # somebody else was quicker
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return finish(directory)
    except BlockingIOError:
        return []  # it lives, or somebody is at it
    finally:
        os.close(fd)


def finish(directory: str) -> list[str]:
    """Puts aside what a dead session's command has made, and drops the note. Returns what the user should know.

    What cannot be put aside stays noted, and is told each time.

    Args:
        directory: of the session; the caller holds its lock.
    """
    path = f"{directory}/{NOTE}"
    try:
        known = _read(path)
    except (EOFError, TypeError, ValueError):  # the machine went down before it was on the disk
        os.unlink(path)
        return ["a session was killed, and which places of submodules it left open is lost: look for a `.git` there"]
    if known is None:
        return []
    from launcher.vcs.quarantine import planted

    aside, places = known
    lines: list[str] = []
    left: list[Place] = []
    for root, git_dir, place in places:
        try:
            where = planted.of_place(root, place, git_dir, aside)
        except Refusal as refusal:
            lines.append(f"{refusal.message}: {refusal.context}; {refusal.hint}")
            left.append((root, git_dir, place))
        else:
            lines += [planted.told(place, where)] if where is not None else ()
    if not left:
        os.unlink(path)
    elif len(left) < len(places):
        write(directory, tuple(left), aside)
    return lines


def _read(path: str) -> tuple[str, tuple[Place, ...]] | None:
    """A note; None when there is none. It appears whole, in a directory that no jail reaches."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        content = os.read(fd, _MOST_BYTES)
    finally:
        os.close(fd)
    aside, places = marshal.loads(content)
    return aside, places
