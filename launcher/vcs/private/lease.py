"""A session's use of a private git directory: checked at its start, and shared as long as the session lives.

On most launches nothing has changed since the last one: then a lock is taken, the record is read, and a few files are
looked at. Everything else is `renew`.

Launch path: `os`, `fcntl`.
"""

from launcher.lean import os
from launcher.vcs.private import lock
from launcher.vcs.private.record import GIT, SWAPPED, SWAPPED_NOW, Record, form_of, read, stamp, unusable
from policy.errors import Refusal
from policy.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.vcs.private.swap import Docked

_ATTEMPTS = 20
_SHOWN = f"{os.path.dirname(__file__)}/copied_settings.py"
"""What is taken over from the user's configuration; another version of it takes over other things."""


_NEEDED = (("HEAD", 0o100000), ("config", 0o100000), ("objects", 0o040000), ("refs", 0o040000))
"""What git needs at least of a private git directory, and its type."""


class Lease:
    """A private git directory in use. `close` ends it; so does the end of every process that has the lock.

    Attributes:
        directory: see `record`.
        record: as it was when the session started.
        warnings: what the user should know.
        docked: what was done with the `.git` files when it ended, where they were swapped and no other session lives.
        mark: of a strict session (`withheld.demand_strictness`); "" for none.
    """

    __slots__ = ("_lock", "directory", "docked", "mark", "record", "warnings")

    def __init__(self, directory: str, record: Record, warnings: tuple[str, ...], descriptor: int) -> None:
        self.directory = directory
        self.record = record
        self.warnings = warnings
        self.docked: tuple[Docked, ...] = ()
        self.mark = ""
        self._lock = descriptor

    def close(self) -> None:
        """Ends the use. To be called when no process of the jail lives any more.

        Refusals: dock-failed, swap-damaged: the use has ended, and `.git` is not what it was.
        """
        try:
            if self.record.form == SWAPPED:
                from launcher.vcs.private import swap

                self.docked = swap.dock_if_last(self._lock, self.directory)
        finally:
            os.close(self._lock)


def take(directory: str, plan: Plan) -> Lease:
    """Makes or renews the private git directory of the plan's worktree where that is needed, and takes a share in it.

    While another session uses it nothing is renewed: that would change files which the other one is using.

    Args:
        directory: canonical; made by the caller.
        plan: with ``git`` private; bound or not.

    Where the plan's jail has no mounts, `.git` leads to the private git directory from now on, for everybody.

    Refusals: state-unusable, git-private-busy, git-record-damaged, what `renew` refuses, and what `swap` does.
    """
    warnings: tuple[str, ...] = ()
    swapped = form_of(plan) == SWAPPED
    for _ in range(_ATTEMPTS):
        try:
            descriptor = lock.opened(directory)
        except OSError as error:
            raise unusable(directory, error) from None
        try:
            if lock.alone(descriptor, wait=False):
                if os.path.lexists(f"{directory}/{SWAPPED_NOW}"):
                    warnings = (*warnings, *_docked(directory))
                warnings = (*warnings, *lock.release(f"{directory}/{GIT}"))
                record = read(directory)
                if record is None or not fits(record, plan) or not unchanged(record) or not whole(directory, record):
                    from launcher.vcs.private import renew

                    said = renew.renew(directory, plan, record)
                    warnings = (*warnings, *said)
                if swapped:
                    _swap(directory)
            lock.together(descriptor)
            # In between somebody else may have had it alone, and harvested, renewed, docked or removed.
            record = read(directory)
            if (
                record is not None
                and fits(record, plan)
                and _is(descriptor, f"{directory}/{lock.LOCK}")
                and os.path.lexists(f"{directory}/{SWAPPED_NOW}") == swapped
            ):
                return Lease(directory, record, warnings, descriptor)
        except BaseException:
            if swapped:
                _abandoned(descriptor, directory)
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise Refusal(
        "git-private-busy",
        f"the private git directory of {plan.worktree} keeps changing",
        context="another session there was started with other submodules or another kind of jail",
        hint="wait until it has ended, or --git readonly",
    )


def _swap(directory: str) -> None:
    from launcher.vcs.private import swap

    record = read(directory)
    assert record is not None
    try:
        swap.swap(directory, record)
    except OSError as error:
        raise unusable(directory, error) from None


def _abandoned(descriptor: int, directory: str) -> None:
    """Docks after a failure. If that fails too, the first error is what is raised, and the next session tries again.

    No command has run yet.
    """
    from launcher.vcs.private import swap

    try:
        swap.dock_if_last(descriptor, directory)
    except Refusal:
        return


def _docked(directory: str) -> tuple[str, ...]:
    """Docks what a killed session has left swapped. Returns what the user should know."""
    from launcher.vcs.private import swap

    return tuple(swap.report_lines(swap.dock(directory)))


def fits(record: Record, plan: Plan) -> bool:
    """Whether a record is about the repositories that the plan names, in the form that its jail needs."""
    return (
        record.worktree == plan.worktree
        and record.form == form_of(plan)
        and tuple((r.name, r.path, r.git_dir, r.common_dir, r.private, r.object_format, r.stores)
                  for r in record.repositories) == plan.repositories
    )  # fmt: skip


def unchanged(record: Record) -> bool:
    """Whether the host's git directories are as they were when the private one was last renewed from them."""
    known = any(path == _SHOWN for path, _ in record.seen)
    return known and all(stamp(path) == (path, seen) for path, seen in record.seen)


def whole(directory: str, record: Record) -> bool:
    """Whether the minimum that git needs is still there, by lstat(2) alone: an agent may have removed any of it."""
    for repository in record.repositories:
        place = f"{directory}/{GIT}/{repository.private}"
        for name, kind in _NEEDED:
            try:
                if os.lstat(f"{place}/{name}").st_mode & 0o170000 != kind:
                    return False
            except OSError:
                return False
    return True


def _is(descriptor: int, path: str) -> bool:
    try:
        ours, there = os.fstat(descriptor), os.lstat(path)
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
