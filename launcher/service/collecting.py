"""What is done now and then, and after a crash: forget old records, remove what belongs to nobody, bring work home."""

import asyncio
import logging
import os
import time
from pathlib import Path

from launcher.jail.remove import remove_tree
from launcher.service import logs
from launcher.service.jobs import Jobs, holds_work, root_of
from launcher.service.recovery import Found
from launcher.service.supervisor import Supervisor
from launcher.service.tickets import TicketRuns
from launcher.session.places import Places
from launcher.vcs.worktrees.naming import worktree_id
from policy.errors import Refusal
from policy.providers.model import DialectName
from policy.providers.registry import load_registry
from policy.providers.strategy import DeclaredStrategy

log = logging.getLogger("paddock.service")

_KEY_SECONDS = 24 * 3_600.0
ORPHAN_SECONDS = 7 * 24 * 3_600.0
"""A worktree that is gone may come back (a disk that is not mounted): its private directories are kept that long."""

_SEEN_GONE = ".gone"


class Collector:
    """Does it, one thing after the other."""

    def __init__(self, supervisor: Supervisor, places: Places, jobs: Jobs, tickets: TicketRuns) -> None:
        """Args: of sessions; of this user; who works with git; ticket runs."""
        self._tickets = tickets
        self._supervisor = supervisor
        self._places = places
        self._jobs = jobs

    async def run(self, found: Found) -> None:
        """Brings home what an earlier life has left, then collects again and again."""
        for common_dir in found.merging:
            await self._tickets.resume(common_dir)
        for root, strict in found.worktrees.items():
            await self.harvest(root, strict=strict)
        while True:
            try:
                self.collect(time.time())
            except (OSError, Refusal) as error:
                log.error("not everything was collected: %s", error)
            await asyncio.sleep(self._supervisor.settings.collect_seconds)

    async def harvest(self, root: str, *, strict: bool) -> None:
        """Takes over the commits that wait in a worktree's private git directory, as its sessions would have."""
        try:
            result = await self._jobs.run("harvest", {"worktree": root, "strict": strict})
        except Refusal as refusal:
            log.warning("harvest of %s: %s (%s)", root, refusal.message, refusal.context)
            return
        if result.get("state") not in (None, "nothing"):
            log.info("harvest of %s: %s", root, result["state"])

    def collect(self, now: float) -> list[str]:
        """Forgets what is too old, and removes private directories of worktrees that have gone; returns which."""
        supervisor = self._supervisor
        store, settings = supervisor.store, supervisor.settings
        for name in store.outdated(settings.most_records, now - settings.keep_seconds):
            supervisor.forget(name)
        store.forget_keys(now - _KEY_SECONDS)
        known = {row["name"] for row in store.listed(limit=1_000_000)}
        for name in _entries(supervisor.logs):
            if name not in known and name not in supervisor.live:
                logs.forget(supervisor.log_of(name))
        return self._collect_private(now)

    def _collect_private(self, now: float) -> list[str]:
        """Removes homes and private git directories whose worktree has been gone for `ORPHAN_SECONDS`.

        A private git directory with commits that were not brought home is never removed.
        """
        removed = []
        top = f"{self._places.state}/worktrees"
        for name in _entries(top):
            directory = f"{top}/{name}"
            root = root_of(self._places.state, name)
            mark = Path(directory, _SEEN_GONE)
            if root is None or (os.path.isdir(root) and worktree_id(root) == name):
                mark.unlink(missing_ok=True)
                continue
            if not mark.exists():
                mark.touch(mode=0o600)
                continue
            if now - mark.stat().st_mtime < ORPHAN_SECONDS or holds_work(self._places.state, name):
                continue
            for failure in remove_tree(directory):
                log.warning("not removed: %s", failure)
            removed.append(name)
        return removed


def _entries(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except FileNotFoundError:
        return []


def declared_credentials(places: Places) -> tuple[str, ...]:
    """Names of the variables that known providers declare as credentials."""
    try:
        registry = load_registry(DialectName.NATIVE, Path(places.config, "providers"), entry_points=False)
    except Refusal as refusal:
        log.warning("providers: %s", refusal.message)
        return ()
    names: set[str] = set()
    for name in registry.names():
        strategy = registry.get_strategy(name)
        if isinstance(strategy, DeclaredStrategy):
            names.update(strategy.spec.credentials.environment)
    return tuple(sorted(names))
