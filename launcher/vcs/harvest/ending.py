"""The end of a session with a private git directory: harvest, if there is anything to harvest.

Most sessions end without a commit, and then it costs the reading of a few files and no process.

Launch path: `os`, the system calls and the record.
"""

from launcher.lean import os
from launcher.vcs.harvest import tips
from launcher.vcs.quarantine import record as records
from policy.errors import Refusal

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
