"""Locks between processes: one for each repository, and one for each worktree that is being made or removed.

flock(2) on files in the state directory, which no jail can reach. The kernel lets go of a lock when the last process
that has it open has ended, so what a SIGKILL left behind is known by its free lock. `Git(hold=...)` hands it on to the
git processes: a checkout that goes on alone still counts as work in progress.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

from policy.errors import Refusal


def of_repository(state: str, common_dir: str) -> str:
    """The lock file that names, refs and metadata of a repository are changed under."""
    return f"{state}/locks/repository-{hashlib.sha256(os.fsencode(common_dir)).hexdigest()[:24]}"


def of_worktree(state: str, worktree_id: str) -> str:
    """The lock file of one worktree."""
    return f"{state}/locks/worktree-{worktree_id}"


@contextmanager
def held(path: str) -> Iterator[int]:
    """Holds the lock for the block, waiting for it. Gives its descriptor, for `Git(hold=...)`."""
    descriptor = _taken(path, wait=True)
    assert descriptor is not None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def tried(path: str) -> Iterator[int | None]:
    """Holds the lock for the block if nobody has it, else gives None."""
    descriptor = _taken(path, wait=False)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def forget(path: str) -> None:
    """Removes a lock file that the caller holds: whoever waits for it notices, and makes a new one."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _taken(path: str, *, wait: bool) -> int | None:
    while True:
        try:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Refusal("state-unusable", f"cannot write {path}", context=error.strerror or str(error),
                          hint="make it writable, or point XDG_STATE_HOME elsewhere") from None  # fmt: skip
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        try:
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)  # removed by the one before us
