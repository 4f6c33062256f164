"""Locks of a private git directory: Paddock's own, and those that git left there when it was killed.

Sessions share the directory; whoever makes, renews or harvests it has it alone.

flock(2) on ``lock`` in the directory. A lock belongs to the open file description, which the jail's init inherits: it
is held as long as any unjailed process of the session lives, and the kernel releases it after a SIGKILL.

Git's own locks are files `NAME.lock` (lockfile.h), which nobody removes after a SIGKILL. Without a session they only
stop the next one, so whoever has the directory alone removes them.

Launch path: `os`, `fcntl`, the system calls.
"""

import fcntl

from launcher.lean import os
from launcher.safefs import walk

LOCK = "lock"
_SUFFIX = ".lock"
_MOST_ENTRIES = 50_000
_MOST_NAMED = 5
_EVERY, _GIT, _OBJECTS, _MODULES = "every", "git", "objects", "modules"
_BELOW = {
    _GIT: {"refs": _EVERY, "logs": _EVERY, "info": _EVERY, "reftable": _EVERY, "objects": _OBJECTS,
           "modules": _MODULES, "worktrees": _MODULES},
    _OBJECTS: {"info": _EVERY, "pack": _EVERY},
}  # fmt: skip
"""Where git makes locks: the directories to look into, by the kind of the directory that holds them."""


def opened(directory: str) -> int:
    """The lock file of a private git directory, made when it is missing; nothing is locked yet. Close-on-exec.

    Closing the descriptor in every process that has it releases what was locked with it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    mask = os.umask(0o077)
    try:
        return os.open(f"{directory}/{LOCK}", flags, 0o600)
    finally:
        os.umask(mask)


def is_of_another(git_dir: str, directory: str) -> bool:
    """Whether a private git directory is older than the linked worktree that has its place now.

    Git writes ``commondir`` when it makes a worktree and never again, and the lock file is as old as the directory. A
    main checkout has no ``commondir``.

    Args:
        directory: of the private git directory, and of its record.
    """
    try:
        return os.stat(f"{git_dir}/commondir").st_mtime_ns > os.stat(f"{directory}/{LOCK}").st_mtime_ns
    except OSError:
        return False


def alone(descriptor: int, *, wait: bool) -> bool:
    """Takes the lock for this process alone, and returns whether it was taken; with `wait` it always is."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def together(descriptor: int) -> None:
    """Takes the lock beside other sessions, waiting while somebody has it alone.

    Changing from alone to shared releases the lock for a moment (flock(2)): read the directory's state again.
    """
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def release(git_dir: str) -> tuple[str, ...]:
    """Removes git's locks from a private git directory, which the caller has alone.

    Args:
        git_dir: written by an agent, so a lock may be anything: a directory with content is renamed, all else removed.

    Returns:
        What the user should know, in one line; () when there was no lock.
    """
    stale = _stale(git_dir)
    if not stale:
        return ()
    from launcher.safefs.guarded_files import Inside

    removed, failed = [], []
    with Inside(git_dir) as inside:
        for path in stale:
            try:
                inside.clear(path)
                removed.append(path)
            except OSError as error:
                failed.append(f"{path} ({error.strerror})")
    said = []
    if removed:
        said.append(f"removed stale locks of a git that was killed: {_some(removed)}")
    if failed:
        said.append(f"locks of a git that was killed cannot be removed from {git_dir}: {_some(failed)}")
    return ("; ".join(said),)


def _stale(git_dir: str) -> list[str]:
    """Git's locks below a git directory and those of its submodules, as relative paths; few directories are listed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        top = os.open(git_dir, flags)
    except OSError:
        return []  # it is missing, or replaced: `renew` and the harvest say so
    found: list[str] = []
    pending = [("", _GIT)]
    seen = 0
    try:
        while pending and seen < _MOST_ENTRIES:
            path, kind = pending.pop(0)
            entries = _entries(top, path)
            seen += len(entries)
            if kind == _MODULES and any(name == "HEAD" for name, _ in entries):
                kind = _GIT  # a submodule's name may hold slashes, and may end as a lock's does
            for name, is_directory in entries:
                inner = f"{path}/{name}" if path else name
                if kind != _MODULES and name.endswith(_SUFFIX):
                    found.append(inner)
                elif is_directory:
                    below = _BELOW[kind].get(name) if kind in _BELOW else kind
                    if below is not None:
                        pending.append((inner, below))
    finally:
        os.close(top)
    return found


def _entries(top: int, path: str) -> list[tuple[str, bool]]:
    """Names in a directory that can be reached without any link, and whether each is a directory."""
    try:
        here = walk.open_inside(top, path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK)
    except OSError:
        return []
    found = []
    try:
        with os.scandir(here) as entries:
            for entry in entries:
                found.append((entry.name, entry.is_dir(follow_symlinks=False)))
                if len(found) >= _MOST_ENTRIES:
                    break
    finally:
        os.close(here)
    return found


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
