"""What is done now and then, and after a crash: forget old records, remove what belongs to nobody, bring work home."""

import asyncio
import contextlib
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from launcher.service import logs
from launcher.service.jobs import Jobs
from launcher.service.states import SessionState
from launcher.service.supervisor import Supervisor
from launcher.service.tickets import TicketRuns
from launcher.session.places import Places
from policy.errors import Refusal
from policy.providers.model import DialectName
from policy.providers.registry import load_registry
from policy.providers.strategy import DeclaredStrategy

log = logging.getLogger("paddock.service")

_KEY_SECONDS = 24 * 3_600.0
_MOST_HARVEST_PAUSE = 3_600.0
_MOST_MOVES = 1_000
"""Of a session, from state to state."""


class Collector:
    """Does it, one thing after the other."""

    def __init__(self, supervisor: Supervisor, places: Places, jobs: Jobs, tickets: TicketRuns) -> None:
        """Args: of sessions; of this user; who works with git; ticket runs."""
        self._tickets = tickets
        self._supervisor = supervisor
        self._places = places
        self._jobs = jobs
        self._woken = asyncio.Event()
        self._next = 0.0
        self._refused: dict[str, tuple[float, float]] = {}
        self.waiting: dict[str, dict[str, Any] | None] = {}
        """Roots of worktrees whose commits wait, with the refusal of the last harvest."""
        self.kept_refs = 0
        """Refs of merges and backups that are kept in repositories, as of the last collection."""

    async def run(self, merging: list[str]) -> None:
        """Brings home what an earlier life has left, then collects again and again."""
        for common_dir in merging:
            await self._tickets.finish_merge(common_dir)
        while True:
            self._woken.clear()
            try:
                await self.harvest()
                if time.monotonic() >= self._next:
                    self._next = time.monotonic() + self._supervisor.settings.collect_seconds
                    self.collect(time.time())
                    await self.collect_private()
            except (OSError, Refusal) as error:
                log.error("not everything was collected: %s", error)
            pause = min(self._supervisor.settings.collect_seconds, self._supervisor.settings.harvest_seconds)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), pause)

    def wake(self) -> None:
        """Has commits that wait brought home now."""
        self._woken.set()

    async def harvest(self) -> None:
        """Takes over the commits that wait in private git directories, as the sessions that made them would have.

        What waits is asked of the directories themselves, so nothing is forgotten with a service or a database.
        """
        now = time.monotonic()
        later = [directory for directory, (again, _) in self._refused.items() if again > now]
        found = (await self._jobs.run("harvest.waiting", {"later": later}))["worktrees"]
        waiting = {each["directory"] for each in found if each["state"] in ("refused", "busy", "later")}
        self._refused = {name: known for name, known in self._refused.items() if name in waiting}
        for each in found:
            if each["refusal"] is not None:
                self._on_refused(each, now)
            elif each["state"] not in ("busy", "later"):
                self._harvested(each["worktree"], {"state": each["state"]})
                log.info("harvest of %s: %s", each["worktree"], each["state"])
        self.waiting = {each["worktree"]: each["refusal"] for each in found if each["directory"] in waiting}
        self._settle()

    def _on_refused(self, result: dict[str, Any], now: float) -> None:
        """Says why, once, and tries again later and later."""
        refusal, directory = result["refusal"], result["directory"]
        _, pause = self._refused.get(directory, (0.0, self._supervisor.settings.harvest_seconds / 2))
        if directory not in self._refused:
            self._harvested(result["worktree"], refusal)
        pause = min(2 * pause, _MOST_HARVEST_PAUSE)
        self._refused[directory] = (now + pause, pause)

    def _harvested(self, worktree: str, told: dict[str, Any]) -> None:
        self._supervisor.counters.harvested(told)
        self._supervisor.events.harvested(worktree, told)

    def _settle(self) -> None:
        """Moves sessions on whose commits have come home."""
        store = self._supervisor.store
        for row in store.listed(states=(SessionState.UNHARVESTED,), limit=1_000_000):
            if row["worktree"] not in self.waiting:
                outcome = json.loads(row["outcome"] or "{}")
                well = outcome.get("reason") in ("stopped", "service-stopped", "idle") or outcome.get("status") == 0
                after = SessionState.ENDED if well else SessionState.FAILED
                store.move(row["name"], after, why := "its commits were taken over")
                self._supervisor.events.moved(row["name"], after, why)

    def collect(self, now: float) -> None:
        """Forgets what is too old: sessions with their logs, keys, contexts, ticket runs; logs of nobody."""
        supervisor = self._supervisor
        store, settings = supervisor.store, supervisor.settings
        for name in store.outdated(settings.most_records, now - settings.keep_seconds):
            supervisor.forget(name)
        store.forget_keys(now - _KEY_SECONDS)
        store.forget_moves(_MOST_MOVES)
        known = {row["name"] for row in store.listed(limit=1_000_000)}
        for name in _entries(supervisor.logs):
            # After a damaged database, which begins anew, logs are all that is known of sessions.
            unknown = name not in known and name not in supervisor.live
            if unknown and _changed(supervisor.log_of(name)) < now - settings.keep_seconds:
                logs.forget(supervisor.log_of(name))
        self._tickets.forget(settings.most_ticket_records, now - settings.keep_seconds, settings.most_contexts)

    def _bounds(self) -> dict[str, float]:
        settings = self._supervisor.settings
        return {"days": settings.merge_days, "most": settings.most_merges, "lost_days": settings.lost_days}

    async def collect_private(self) -> None:
        """Removes homes and private git directories of worktrees that have been gone for long.

        By a job: a home may hold a hundred thousand files.
        """
        rows = self._supervisor.store.listed(limit=1_000_000)
        roots = {row["worktree_id"]: row["worktree"] for row in rows if row["worktree_id"]}
        done = await self._jobs.run("collect", {"roots": roots, "bounds": self._bounds()})
        self.kept_refs = done["kept"]
        for name in done["removed"]:
            log.info("private directories of %s were removed: its worktree has gone", name)
        for each in done["pruned"]:
            log.log(logging.WARNING if each.get("lost") else logging.INFO, "removed for its age: %s", json.dumps(each))
        for line in done["notes"]:
            log.warning("%s", line)


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0


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
