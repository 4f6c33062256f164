"""Agents' sessions beside a merge: none may be at work, and work that has not been harvested is not passed over."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from launcher.vcs.harvest import ending
from launcher.vcs.harvest.outstanding import outstanding
from launcher.vcs.harvest.parts import HarvestResult
from launcher.vcs.quarantine import frozen, lock, swap
from launcher.vcs.quarantine import record as records
from policy.errors import Refusal
from policy.pasted import quoted

Private = Callable[[str], str | None]
"""Where the private git directory of a worktree (its canonical root) is kept; None when it can have none."""

Harvest = Callable[[str], HarvestResult]
"""Harvests a private git directory, with the hand-off rules of its worktree."""


WORKING = "a session is still working there"
"""One answer of `lacking`."""


def nobody_private(root: str) -> str | None:
    """For installations without private git directories: there is none."""
    del root
    return None


def lacking(directory: str | None) -> str:
    """Why the branch of a worktree may lack some of an agent's work; "" when it does not.

    Args:
        directory: of its private git directory, as `Private` gives it.

    Raises:
        Refusal: git-record-damaged.
    """
    if not _known(directory):
        return ""
    assert directory is not None
    descriptor = lock.opened(directory)
    try:
        if not lock.alone(descriptor, wait=False):
            return WORKING
        swap.dock(directory)  # one that has been killed could not, nor could one that ends at this moment
    finally:
        os.close(descriptor)
    return "an agent has left work there that is not harvested" if outstanding(directory, kept=False) else ""


@contextmanager
def at_rest(root: str, private: Private, harvest: Harvest | None = None) -> Iterator[str | None]:
    """Makes sure that no session is at work in a worktree, and that its branch has all of the agent's commits.

    Sessions have ended, and until the end none can start there; or they are frozen.

    Args:
        root: canonical root of the worktree.
        private: see `Private`.
        harvest: for work that is not harvested; None refuses then, because hand-off rules may have held it back.

    Yields:
        its private git directory; None when it has none.

    Raises:
        Refusal: session-running; harvest-due; harvest-kept (the branch has been moved beside the agent); what
            `harvest` refuses.
    """
    directory = private(root)
    if not _known(directory):
        yield None
        return
    assert directory is not None
    if harvest is not None and ending.due(directory):
        result = harvest(directory)
        if result.state == "kept":
            raise Refusal(
                "harvest-kept",
                f"the agent's work in {root} could not be put on its branch",
                context="\n".join(result.notes),
                hint=f"paddock worktree harvest {quoted(root)}, and see what it says",
            )
    with frozen.held(directory) as rest:
        if rest is frozen.Rest.NONE:
            raise _running(root)
        if rest is frozen.Rest.ENDED:
            swap.dock(directory)  # a session that was killed could not
        if harvest is None and outstanding(directory, kept=False):
            raise Refusal(
                "harvest-due",
                f"an agent has left work in {root} that is not harvested",
                context="its branch lacks commits that are still in the private git directory",
                hint=f"paddock worktree harvest {quoted(root)}, and merge again",
            )
        yield directory


@contextmanager
def undisturbed(directories: Iterable[str]) -> Iterator[None]:
    """Keeps sessions from working in worktrees while a run that touches them is finished or taken back.

    Args:
        directories: private git directories.

    Raises:
        Refusal: session-running.
    """
    with ExitStack() as stack:
        for directory in directories:
            record = records.read(directory) if os.path.isdir(directory) else None
            if record is not None and stack.enter_context(frozen.held(directory)) is frozen.Rest.NONE:
                raise _running(record.worktree)
        yield


def _running(root: str) -> Refusal:
    return Refusal(
        "session-running",
        f"a session is still working in {root}",
        context="its branch and files are its own until it has ended, or is frozen",
        hint="wait for its end, and merge again",
    )


def _known(directory: str | None) -> bool:
    return directory is not None and os.path.isdir(directory) and records.read(directory) is not None
