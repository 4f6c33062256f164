"""Trees that jails of this user were given to write, now or in former sessions.

What a link in one of them leads to may be the choice of an agent: a directory that was shared with one session, and in
which another one is granted something by name. So such a link grants nothing (`policy.ingredients.asked_for`). The
record is one file of canonical paths, each ended by a NUL, in the user's state directory, which no jail can reach.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.session import guarded_files
from launcher.session.places import Places, made, unusable
from policy import promises
from policy.errors import Refusal
from policy.plan import Plan, beneath

NAME = "written"
MOST = 4000
"""Paths from which on those are left out, at the next record, that are no directories any more."""
_LARGEST = 32 << 20


def path_of(places: Places) -> str:
    """Where the record is."""
    return os.path.join(places.state, NAME)


def trees(places: Places) -> tuple[str, ...]:
    """Canonical paths of all trees on record, oldest first.

    Refusals: state-not-ours (the record could be somebody else's), and those of `guarded_files.read`.
    """
    path = path_of(places)
    content = guarded_files.read(path, follow=False, limit=_LARGEST)
    if content is None:
        return ()
    if content.owner != os.geteuid() or content.mode & 0o077:
        raise Refusal(
            "state-not-ours",
            f"{path} is not a private file of this user",
            context=f"owner {content.owner}, mode {content.mode:04o}; expected owner {os.geteuid()}, mode 0600",
            hint="remove it; what agents left in directories that were shared with them is then the user's to check",
        )
    return tuple(dict.fromkeys(os.fsdecode(part) for part in content.data.split(b"\0") if part.startswith(b"/")))


def granted(plan: Plan) -> tuple[str, ...]:
    """The trees on the disk that a Plan lets its command write."""
    found = [plan.worktree]
    for path, access, source in plan.grants:
        own = source == promises.OWN_TMP or path.startswith("@") or beneath(path, "/dev")
        if "w" in access and not own and not beneath(path, plan.worktree) and os.path.isdir(path):
            found.append(path)
    return tuple(found)


def remember(places: Places, plan: Plan) -> None:
    """Puts what a Plan grants on record, before anything runs with it.

    Refusals: state-unusable, and those of `trees`.
    """
    wanted = granted(plan)
    if set(wanted) <= set(trees(places)):
        return
    with _locked(places) as path:
        known = trees(places)
        added = tuple(each for each in wanted if each not in known)
        try:
            if len(known) + len(added) > MOST:
                kept = (*filter(os.path.isdir, known), *added)
                guarded_files.replace(path, _packed(kept), 0o600)
            elif added:
                _append(path, _packed(added))
        except OSError as error:
            raise unusable(path, error) from None


def _packed(paths: tuple[str, ...]) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


def _append(path: str, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        # A NUL in front, too: the last entry may have been cut short by a power failure.
        file.write(b"\0" + data)
        os.fsync(file.fileno())


@contextmanager
def _locked(places: Places) -> Iterator[str]:
    """The record's path, while no other launch changes it (flock(2))."""
    path = os.path.join(made(places.state), NAME)
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise unusable(f"{path}.lock", error) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path
    finally:
        os.close(lock)
