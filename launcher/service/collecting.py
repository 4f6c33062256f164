"""What is done now and then, and after a crash: forget old records, remove what belongs to nobody, bring work home."""

import asyncio
import logging
import os
import time
from pathlib import Path

from launcher.service import logs
from launcher.service.jobs import Jobs
from launcher.service.recovery import Found
from launcher.service.supervisor import Supervisor
from launcher.service.tickets import TicketRuns
from launcher.session.places import Places
from policy.errors import Refusal
from policy.providers.model import DialectName
from policy.providers.registry import load_registry
from policy.providers.strategy import DeclaredStrategy

log = logging.getLogger("paddock.service")

_KEY_SECONDS = 24 * 3_600.0


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
                await self.collect_private()
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

    def collect(self, now: float) -> None:
        """Forgets what is too old: sessions with their logs, keys, contexts, ticket runs; logs of nobody."""
        supervisor = self._supervisor
        store, settings = supervisor.store, supervisor.settings
        for name in store.outdated(settings.most_records, now - settings.keep_seconds):
            supervisor.forget(name)
        store.forget_keys(now - _KEY_SECONDS)
        known = {row["name"] for row in store.listed(limit=1_000_000)}
        for name in _entries(supervisor.logs):
            if name not in known and name not in supervisor.live:
                logs.forget(supervisor.log_of(name))
        with store.database.transaction() as connection:
            connection.execute("DELETE FROM context WHERE used < ?", (now - settings.keep_seconds,))
            connection.execute("DELETE FROM ticket_run WHERE ended < ?", (now - settings.keep_seconds,))

    async def collect_private(self) -> None:
        """Removes homes and private git directories of worktrees that have been gone for long.

        By a job: a home may hold a hundred thousand files.
        """
        rows = self._supervisor.store.listed(limit=1_000_000)
        roots = {row["worktree_id"]: row["worktree"] for row in rows if row["worktree_id"]}
        for name in (await self._jobs.run("collect", {"roots": roots}))["removed"]:
            log.info("private directories of %s were removed: its worktree has gone", name)


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
