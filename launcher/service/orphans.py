"""Private homes and git directories of worktrees that have gone, which nobody will ever ask for again."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from launcher.jail.remove import remove_tree
from launcher.vcs.harvest.outstanding import outstanding
from launcher.vcs.quarantine import record
from launcher.vcs.worktrees.naming import worktree_id
from policy.errors import Refusal

PATIENCE = 7 * 24 * 3_600.0
"""Seconds. A worktree that is gone may come back (a disk that is not mounted)."""

_MARK = ".gone"
"""File whose age says since when a worktree has been missing."""


def remove(state: str, roots: Mapping[str, str]) -> list[str]:
    """Removes what belongs to worktrees that have been gone for `PATIENCE`; returns their ids.

    A directory of which nobody can tell where its worktree was stays, and so does one with commits that were not
    brought home: those are in no other place.

    Args:
        state: Paddock's state directory.
        roots: roots of worktrees by their ids, as sessions have noted them.
    """
    removed = []
    top = f"{state}/worktrees"
    for name in sorted(os.listdir(top)) if os.path.isdir(top) else ():
        directory = f"{top}/{name}"
        root = _root_of(state, name) or roots.get(name)
        mark = Path(directory, _MARK)
        if name.startswith(".") or root is None:
            continue
        if os.path.isdir(root) and worktree_id(root) == name:
            mark.unlink(missing_ok=True)
        elif not mark.exists():
            mark.touch(mode=0o600)
        elif time.time() - mark.stat().st_mtime < PATIENCE or _holds_work(state, name):
            continue
        elif not remove_tree(directory):
            removed.append(name)
    return removed


def _root_of(state: str, identifier: str) -> str | None:
    """Root of the worktree that a private git directory belongs to; None when there is none, or no telling."""
    try:
        found = record.read(record.directory_of(state, identifier))
    except Refusal:
        return None
    return None if found is None else found.worktree


def _holds_work(state: str, identifier: str) -> bool:
    """Whether commits wait in a private git directory that are nowhere else; what cannot be read counts as some."""
    try:
        return outstanding(record.directory_of(state, identifier))
    except (Refusal, OSError):
        return True
