"""Agents' sessions beside a merge: none may be at work, and work that has not been harvested is not passed over."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from launcher.vcs.harvest import tips
from launcher.vcs.harvest.outstanding import outstanding
from launcher.vcs.harvest.parts import HarvestResult
from launcher.vcs.quarantine import frozen, lock, swap, writers
from launcher.vcs.quarantine import record as records
from launcher.vcs.worktrees.naming import worktree_id
from policy.errors import Refusal
from policy.pasted import quoted

Harvest = Callable[[str], HarvestResult]
"""Harvests a private git directory, with the hand-off rules of its worktree."""


WORKING = "a session is still working there"
"""One answer of `lacking`."""


def private_of(state: str, root: str) -> str | None:
    """The private git directory of a worktree; None when it has none.

    Args:
        state: Paddock's state directory.
        root: canonical root of the worktree.

    Raises:
        Refusal: git-record-damaged.
    """
    directory = records.directory_of(state, worktree_id(root))
    return directory if os.path.isdir(directory) and records.read(directory) is not None else None


def lacking(state: str, root: str) -> str:
    """Why the branch of a worktree may lack some of an agent's work; "" when it does not.

    Args:
        state: Paddock's state directory.
        root: canonical root of the worktree.

    Raises:
        Refusal: git-record-damaged.
    """
    if writers.live(state, root):
        return WORKING
    directory = private_of(state, root)
    if directory is None:
        return ""
    descriptor = lock.opened(directory)
    try:
        if not lock.alone(descriptor, wait=False):
            return WORKING
        swap.dock(directory)  # one that has been killed could not, nor could one that ends at this moment
    finally:
        os.close(descriptor)
    return "an agent has left work there that is not harvested" if outstanding(directory, kept=False) else ""


@contextmanager
def at_rest(state: str, root: str, harvest: Harvest | None = None, *, own: bool = False) -> Iterator[str | None]:
    """Makes sure that no session is at work in a worktree, and that its branch has all of the agent's commits.

    Sessions have ended, and until the end none can start there; or they are frozen.

    Args:
        state: Paddock's state directory.
        root: canonical root of the worktree.
        harvest: for work that is not harvested; None refuses then, because hand-off rules may have held it back.
        own: sessions that were granted it beside a worktree of their own do not count.

    Yields:
        its private git directory; None when it has none.

    Raises:
        Refusal: session-running; harvest-due; harvest-kept (the branch has been moved beside the agent); what
            `harvest` refuses.
    """
    directory = private_of(state, root)
    if directory is not None and harvest is not None and tips.harvest_due(directory):
        result = harvest(directory)
        if result.state == "kept":
            raise Refusal(
                "harvest-kept",
                f"the agent's work in {root} could not be put on its branch",
                context="\n".join(result.notes),
                hint=f"paddock worktree harvest {quoted(root)}, and see what it says",
            )
    with writers.excluded(state, [root], own=own), ExitStack() as stack:
        if directory is not None:
            rest = stack.enter_context(frozen.held(directory))
            if rest is frozen.Rest.NONE:
                raise writers.running(root)
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
def undisturbed(state: str, roots: Iterable[str], directories: Iterable[str]) -> Iterator[None]:
    """Keeps sessions from working in worktrees while a run that touches them is finished or taken back.

    Args:
        state: Paddock's state directory.
        roots: of the worktrees, and of submodules in them.
        directories: private git directories of agents whose worktrees have moved since.

    Raises:
        Refusal: session-running.
    """
    known = list(roots)
    private = [found for root in known if (found := private_of(state, root)) is not None]
    with writers.excluded(state, known), ExitStack() as stack:
        for directory in dict.fromkeys(map(os.path.realpath, (*private, *directories))):
            record = records.read(directory) if os.path.isdir(directory) else None
            if record is not None and stack.enter_context(frozen.held(directory)) is frozen.Rest.NONE:
                raise writers.running(record.worktree)
        yield
