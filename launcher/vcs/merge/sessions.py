"""Agents' sessions beside a merge: work that is still in a private git directory is fetched, live ones are kept out."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from launcher.vcs.harvest import harvest
from launcher.vcs.quarantine import lock, record
from policy.errors import Refusal

Private = Callable[[str], str | None]
"""Where the private git directory of a worktree (its canonical root) is kept; None when it can have none."""


def nobody_private(root: str) -> str | None:
    """For installations without private git directories: there is none."""
    del root
    return None


def gather(root: str, private: Private) -> str:
    """Harvests what an agent has committed in a worktree.

    Returns:
        "", or why its branch may lack some of its work.

    Raises:
        Refusal: what `harvest` refuses.
    """
    directory = private(root)
    if directory is None or not os.path.isdir(directory) or record.read(directory) is None:
        return ""
    result = harvest.harvest(directory)
    if result.state == "busy":
        return f"a session is still working in {root}: only what its branch has is merged"
    if result.state == "kept":
        return f"the agent's work in {root} is not all on its branch: " + "; ".join(result.notes)
    return ""


@contextmanager
def ended(root: str, private: Private) -> Iterator[None]:
    """Makes sure that no session works in a worktree, and that its branch has all of the agent's commits.

    Until the end no session can start there.

    Args:
        root: canonical root of the worktree.
        private: see `Private`.

    Raises:
        Refusal: session-running; harvest-kept (the branch has been moved beside the agent); what `harvest` refuses.
    """
    directory = private(root)
    if directory is None or not os.path.isdir(directory) or record.read(directory) is None:
        yield
        return
    result = harvest.harvest(directory)
    if result.state == "kept":
        raise Refusal(
            "harvest-kept",
            f"the agent's work in {root} could not be put on its branch",
            context="\n".join(result.notes),
            hint="paddock worktree harvest, and see what it says",
        )
    descriptor = lock.opened(directory)
    try:
        if result.state == "busy" or not lock.alone(descriptor, wait=False):
            raise Refusal(
                "session-running",
                f"a session is still working in {root}",
                context="its branch and files are its own until it has ended",
                hint="wait for its end, and merge again",
            )
        yield
    finally:
        os.close(descriptor)
