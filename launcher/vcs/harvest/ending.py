"""The end of a session with a private git directory: harvest, if there is anything to harvest.

Most sessions end without a commit, and then it costs the reading of a few files and no process.

Launch path: `os`, the system calls and the record.
"""

from launcher.lean import os
from launcher.vcs.harvest import tips
from launcher.vcs.quarantine import record as records
from policy.errors import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from launcher.vcs.harvest.parts import HarvestResult

JOURNAL = "journal"


def due(directory: str) -> bool:
    """Whether a harvest has anything to do; what is unusual counts as something. No process is started.

    Args:
        directory: of the worktree's private git directory.

    Raises:
        Refusal: git-record-damaged.
    """
    record = records.read(directory)
    if record is None:
        return False
    if os.path.lexists(f"{directory}/{records.HARVEST}/{JOURNAL}"):
        return True
    try:
        return not tips.unchanged(directory, record)
    except (Refusal, OSError):
        return True


def after_session(directory: str, **options: "Any") -> "HarvestResult | None":  # noqa: ANN401  # passed on
    """Harvests, when that is due. For the session that ends, after it has let go of its lock.

    Args:
        directory: of the worktree's private git directory.
        options: of `harvest.harvest`.

    Returns:
        The result; None when there was nothing to do. `busy`: another session lives, and will harvest when it ends.

    Raises:
        Refusal: the work could not be taken over; it stays where it is.
    """
    if not due(directory):
        return None
    from launcher.vcs.harvest import harvest

    return harvest.harvest(directory, **options)
