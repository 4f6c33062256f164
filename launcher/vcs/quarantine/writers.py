"""Which live sessions can write a tree, whatever their git mode; and keeping new ones from it for a while.

Each session's directory has a record of what its jail may write (`launcher.session.state`), and a lock that is held as
long as any process of ours lives. Whoever is to be alone in a tree leaves a hold first and looks for sessions then; a
session leaves its record first and looks for holds then. So at least one of them sees the other.

A session that starts beside a hold comes here: standard library only.
"""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from launcher.vcs.quarantine import frozen
from policy.errors import Refusal
from policy.plan import beneath

WRITES = "writes"
HOLDS = "holds"
"""`launcher.session.state` has both names, too."""

_OWN, _ALL = b"own", b"all"


class Writer(NamedTuple):
    """A live session that can write a tree, and is not frozen.

    Attributes:
        name: of the session.
        worktree: its own; "" when nobody knows, because an older Paddock has started it.
    """

    name: str
    worktree: str


def live(state: str, root: str, *, own: bool = False) -> list[Writer]:
    """The sessions that could write something in a tree now, or replace it.

    Args:
        state: Paddock's state directory.
        root: canonical root of the tree.
        own: only those whose own worktree it is, lies in, or holds; not those that were granted it beside theirs.
    """
    try:
        names = sorted(os.listdir(f"{state}/sessions"))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        if name.startswith("."):
            continue  # not begun, or ended
        try:
            descriptor = os.open(f"{state}/sessions/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            trees = _recorded(descriptor)
            concerned = trees is None or _meet([root], trees[:1] if own else trees)
            if concerned and _lives(descriptor) and not frozen.stands_still(os.fstat(descriptor).st_ino):
                found.append(Writer(name, trees[0] if trees else ""))
        finally:
            os.close(descriptor)
    return found


@contextmanager
def excluded(state: str, roots: Iterable[str], *, own: bool = False) -> Iterator[None]:
    """Makes sure that no session can write these trees, and that none begins to; see `live`.

    Raises:
        Refusal: session-running.
    """
    wanted = list(roots)
    if not wanted:
        yield
        return
    holds = f"{state}/{HOLDS}"
    os.makedirs(holds, 0o700, exist_ok=True)
    _sweep(holds)
    name = os.urandom(8).hex()
    descriptor = os.open(f"{holds}/.{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(b"".join(part + b"\0" for part in (_OWN if own else _ALL, *map(os.fsencode, wanted))))
        os.rename(f"{holds}/.{name}", f"{holds}/{name}")
        for root in wanted:
            if writers := live(state, root, own=own):
                raise running(root, writers)
        yield
    finally:
        for path in (f"{holds}/.{name}", f"{holds}/{name}"):
            with suppress(FileNotFoundError):
                os.unlink(path)
        os.close(descriptor)


def wait(state: str, holds: Iterable[str], writes: tuple[str, ...], say: Callable[[str], None]) -> None:
    """Waits until none of these holds is about what a session may write.

    Args:
        state: Paddock's state directory.
        holds: names of files.
        writes: of the session, its own worktree first.
        say: told once for each hold that there is something to wait for.
    """
    for name in holds:
        if name.startswith("."):
            continue  # whoever makes it has not looked for sessions yet
        try:
            descriptor = os.open(f"{state}/{HOLDS}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            with open(descriptor, "rb", closefd=False) as file:
                kind, *roots = file.read().split(b"\0")[:-1]
            trees = [os.fsdecode(root) for root in roots]
            # Exactly: the check of a merge is a session, too, and its scratch worktree may lie in the tree (TMPDIR).
            if not (set(writes[:1]) & set(trees) if kind == _OWN else _meet(trees, writes)):
                continue
            if _lives(descriptor):
                say(f"waiting until a merge in {trees[0]} has ended")
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)


def _sweep(holds: str) -> None:
    """Removes holds of processes that were killed."""
    for name in os.listdir(holds):
        path = f"{holds}/{name}"
        if name.startswith("."):
            continue  # its lock comes next
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if not _lives(descriptor):
                os.unlink(path)
        except FileNotFoundError:
            continue  # somebody else was quicker
        finally:
            os.close(descriptor)


def running(root: str, writers: Iterable[Writer] = ()) -> Refusal:
    """The Refusal for a tree that a session can write."""
    names = [f"session {each.name}" + (f" of {each.worktree}" if each.worktree != root else "") for each in writers]
    return Refusal(
        "session-running",
        f"a session is still working in {root}",
        context="; ".join([*names, "its branch and files are its own until it has ended, or is frozen"]),
        hint="wait for its end, and merge again",
    )


def _recorded(directory: int) -> list[str] | None:
    try:
        descriptor = os.open(WRITES, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        return [os.fsdecode(path) for path in file.read().split(b"\0")[:-1]]


def _meet(roots: Iterable[str], trees: Iterable[str]) -> bool:
    known = list(trees)
    return any(beneath(root, tree) or beneath(tree, root) for root in roots for tree in known)


def _lives(descriptor: int) -> bool:
    """Whether somebody holds the lock of what is open here. Shared: who asks at the same time is not taken for him."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False
