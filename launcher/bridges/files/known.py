"""The sessions of a server that stands alone: those it was given a directory for, and live ones by their names."""

import os
import threading
import time
from collections.abc import Mapping

from launcher.session import exec_client, known_as, planning
from launcher.session.machine import Machine
from launcher.session.places import Places
from launcher.vcs import checkout
from policy.errors import Refusal
from policy.worktree import WorktreeSandboxContext

FRESH = 1.0
"""Seconds for which what a live session said of itself is believed."""


class KnownSessions:
    """Boundaries by session id. Safe to share between threads.

    Args:
        places: Paddock's own directories.
        directories: worktrees by id; "" for an id that names a live session.
        submodules: names of those that are granted; none means all.
        freeze_root: see `WorktreeSandboxContext`.
    """

    def __init__(
        self,
        places: Places,
        directories: Mapping[str, str],
        *,
        submodules: tuple[str, ...] = (),
        freeze_root: bool = False,
    ) -> None:
        self._places = places
        self._directories = dict(directories)
        self._submodules = list(submodules)
        self._freeze_root = freeze_root
        self._lock = threading.Lock()
        self._contexts: dict[str, WorktreeSandboxContext] = {}
        self._asked: dict[str, tuple[float, str]] = {}
        self._seen: set[str] = set()

    def find(self, session_id: str) -> WorktreeSandboxContext | None:
        """The session's boundaries, None when it is unknown or does not run.

        Raises:
            Refusal: its directory is missing, is no worktree, or lacks a submodule that was asked for.
        """
        directory = self._directories.get(session_id)
        if directory is None:
            return None
        if not directory:
            directory = self._of_live(session_id)
            if not directory:
                return None
        with self._lock:
            known = self._contexts.get(directory)
        if known is None:
            if not os.path.isdir(directory):  # made later, it counts from then on
                raise Refusal("worktree-missing", f"there is no directory {directory} (yet)")
            found = checkout.find(directory, Machine(os.environ), exact=True)
            known = planning.context_of(found, self._submodules, self._freeze_root)
            with self._lock:
                known = self._contexts.setdefault(directory, known)
        return known

    def ended(self, session_id: str) -> bool:
        """Whether it was there before: such a one is never taken for an unknown one."""
        return session_id in self._seen

    def live(self, session_id: str) -> str | None:
        """The name of the running session that the id stands for."""
        return known_as.resolved(self._places, session_id) if self._directories.get(session_id) == "" else None

    def _of_live(self, name: str) -> str:
        """The worktree of a running session, "" when it does not run."""
        now = time.monotonic()
        with self._lock:
            asked, directory = self._asked.get(name, (-FRESH, ""))
        if now - asked < FRESH:
            return directory
        try:
            said = exec_client.about(self._places, known_as.resolved(self._places, name))
        except Refusal:
            said = None
        directory = said[0] if said else ""
        with self._lock:
            self._asked[name] = now, directory
            if directory:
                self._seen.add(name)
        return directory
