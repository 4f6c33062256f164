"""What the service looks at every few seconds, beside its work: room on disks, its database, its helpers, its logs.

What is wrong becomes a condition of `GET /v1/health`, and is taken back when it is mended. Files are looked at on a
thread: a filesystem that hangs holds up neither the API nor the watchdog.
"""

import asyncio
import contextlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from launcher.jail.processes import children, threads
from launcher.safefs.remove import remove_tree
from launcher.service import log_files
from launcher.service.instance import Directories
from launcher.service.jobs import Jobs
from launcher.service.schema import Process, SessionState, Usage
from launcher.service.shims import Groups, Shim
from launcher.service.supervisor import Live, Supervisor
from launcher.service.tables import session_of
from launcher.service.ticket_runs import TicketRuns
from launcher.session import key_sources, state
from launcher.session.places import Places
from policy.errors import Refusal
from policy.providers.model import DialectName
from policy.providers.registry import DeclaredStrategy, load_registry

# What sessions use: one look at all processes of the machine for all sessions, by psutil.
#
# That reads some hundred files, so it is done on a thread; and so is what clients ask for, for each session's own
# processes.


_OWN = 2
"""Generations of Paddock's own above a command: the launcher and the jail's init."""


class Sampler:
    """Looks now and then.

    Attributes:
        usage: of each session, at the last look.
        free: bytes of room where the service's directories lie, by what they are for.
        logs: bytes of all sessions' logs.
    """

    def __init__(self, sessions: str) -> None:
        """Nothing was seen yet. `sessions`: where their directories are."""
        self._sessions = sessions
        self.usage: dict[str, Usage] = {}
        self.free: dict[str, int] = {}
        self.logs = 0
        self._threads = ThreadPoolExecutor(2, "samples")  # so many requests at most read /proc at the same time
        self._descriptors = (-1.0, 0)

    async def tree(self, launcher: int) -> list[Process]:
        """The processes of a session, its launcher first, parents before children."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, _tree, launcher)

    async def descriptors(self) -> int:
        """How many descriptors this process has open, as of a second ago at most."""
        counted, number = self._descriptors
        if time.monotonic() - counted > 1:
            number = await asyncio.to_thread(lambda: len(os.listdir("/proc/self/fd")) - 1)
            self._descriptors = (time.monotonic(), number)
        return number

    def look(self, launchers: Mapping[str, int]) -> dict[str, Usage]:
        """Measures what each session uses. It may run on another thread, because it starts no process."""
        below: dict[int, list[psutil.Process]] = {}
        for process in psutil.process_iter(["ppid"]):
            below.setdefault(process.info["ppid"] or 0, []).append(process)
        now = time.time()
        found = {}
        for name, pid in launchers.items():
            usage = _sum(now, _commands(pid, below))
            before = self.usage.get(name)
            if before is not None and now > before.time:
                spent = max(0.0, usage.cpu_seconds - before.cpu_seconds)
                usage = usage.model_copy(update={"cpu_percent": round(100 * spent / (now - before.time), 1)})
            counts = key_sources.usage(f"{self._sessions}/{name}")
            used = {"tokens": counts.input + counts.output, "token_budget": counts.budget}
            found[name] = usage.model_copy(update=used) if any(used.values()) else usage
        return found


def _commands(pid: int, below: Mapping[int, list[psutil.Process]]) -> list[psutil.Process]:
    """The processes of a session without Paddock's own above the command."""
    found: list[psutil.Process] = []
    level = [(process, 1) for process in below.get(pid, ())]
    while level:
        process, depth = level.pop()
        if depth >= _OWN:
            found.append(process)
        level += [(child, depth + 1) for child in below.get(process.pid, ())]
    return found


def _sum(now: float, processes: list[psutil.Process]) -> Usage:
    count = tasks = memory = reads = writes = 0
    cpu = 0.0
    for process in processes:
        try:
            with process.oneshot():
                times = process.cpu_times()
                memory += process.memory_info().rss
                tasks += len(threads(process.pid))
                cpu += times.user + times.system + times.children_user + times.children_system
            count += 1
        except psutil.Error:
            continue  # it has ended meanwhile
        try:
            io = process.io_counters()
            reads, writes = reads + io.read_bytes, writes + io.write_bytes
        except (psutil.Error, OSError):
            continue  # a process that hides (prctl(2), PR_SET_DUMPABLE) tells nothing of that
    return Usage(time=now, processes=count, threads=tasks, memory=memory, cpu_seconds=round(cpu, 3), cpu_percent=0.0,
                 read_bytes=reads, written_bytes=writes)  # fmt: skip


def _tree(launcher: int) -> list[Process]:
    found = []
    pids = [launcher]
    for pid in pids:
        try:
            process = psutil.Process(pid)
            pids += children(pid)  # a list may grow while it is walked
            with process.oneshot():
                times = process.cpu_times()
                found.append(
                    Process(
                        pid=process.pid,
                        parent=process.ppid(),
                        name=process.name(),
                        status=str(process.status()),
                        memory=process.memory_info().rss,
                        cpu_seconds=round(times.user + times.system, 3),
                    )
                )
        except psutil.Error:
            continue  # it has ended meanwhile
    return found


log = logging.getLogger("paddock.service")

_LOOK_SECONDS = (1.0, 5.0)
"""At least, at most: as often as samples are taken. What is missing at two looks is taken to be missing for good."""
_LEAST_INODES = 1_000
_SHARE = 10
"""Of a small filesystem (a runtime directory is one in memory), one in so many bytes is enough."""

_NOTE_BYTES = 1_024
"""A log that is not larger holds hardly more than the note that the log was removed."""


class Watch:
    """Looks after one service."""

    def __init__(self, supervisor: Supervisor, sampler: Sampler, directories: Mapping[str, str]) -> None:
        """Args: of sessions; gets the figures; what the service writes into, by what it is for ("state" ...)."""
        self._supervisor = supervisor
        self._sampler = sampler
        self._directories = dict(directories)
        self._conditions = supervisor.store.database.conditions
        self._ended_logs: dict[str, int] = {}
        self._short_of_helpers = 0

    async def run(self) -> None:
        """Looks again and again."""
        while True:
            try:
                await self.look()
            except (OSError, Refusal) as error:
                log.error("the service's upkeep failed: %s", error)
            least, most = _LOOK_SECONDS
            await asyncio.sleep(min(most, max(least, self._supervisor.settings.sample_seconds)))

    async def look(self) -> None:
        """Looks once."""
        self._supervisor.store.database.probe()
        self._look_for_helpers()
        self._look_for_lost()
        for reason in self._conditions.listed():
            if reason.id == "harvest-refused" and not await asyncio.to_thread(os.path.isdir, reason.subject):
                self._conditions.clear(reason.id, reason.subject)  # nothing can be harvested there any more
        for name, path in self._directories.items():
            await self._look_for_room(name, path)
        await self.bound_logs()

    async def _look_for_room(self, name: str, path: str) -> None:
        found = await asyncio.to_thread(os.statvfs, path)
        free, whole = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        self._sampler.free[name] = free
        least = self._supervisor.settings.least_free_bytes
        if name != "state":
            least = min(least, whole // _SHARE)
        few = found.f_files and found.f_favail < min(_LEAST_INODES, found.f_files // _SHARE)
        if free >= least and not few:
            self._conditions.clear("disk-low", path)
            return
        what = f"{found.f_favail} files" if free >= least else f"{free >> 20} MiB"
        self._conditions.raise_("disk-low", f"only {what} free at {path}",
                                "free some; paddock stop --forget and a lower keep_seconds or most_log_bytes in"
                                " service.toml reduce what the service itself keeps", path)  # fmt: skip

    def _look_for_helpers(self) -> None:
        """Starts helpers that are missing; what stays missing from look to look cannot be started."""
        pool = self._supervisor.pool
        self._short_of_helpers = self._short_of_helpers + 1 if not len(pool) and pool.size else 0
        if self._short_of_helpers:
            pool.fill()
        if self._short_of_helpers > 1:
            self._conditions.raise_("helpers-missing", "no helper can be started, so sessions start slowly or never",
                                    "the service's log says what the machine is short of: processes, descriptors,"
                                    " memory")  # fmt: skip
        else:
            self._conditions.clear("helpers-missing")

    def _look_for_lost(self) -> None:
        """Sessions whose processes were killed, until they are forgotten."""
        if not (lost := self._supervisor.store.counts()[SessionState.LOST]):
            self._conditions.clear("sessions-lost")
            return
        what = f"{lost} session{'' if lost == 1 else 's'} lost: their processes were killed"
        hint = "paddock ps --all names them; commits are harvested; paddock stop --forget NAME acknowledges one"
        self._conditions.raise_("sessions-lost", what, hint)

    async def bound_logs(self) -> None:
        """Removes logs of ended sessions, those that ended first first, until all together are within their bound.

        Those of live sessions are bounded by their rotation, and are counted, too.
        """
        supervisor = self._supervisor
        live = frozenset(supervisor.live)
        sizes = await asyncio.to_thread(self._measured, live)
        excess = sum(sizes.values()) - supervisor.settings.most_log_bytes
        if excess > 0:
            removed = 0
            for name in reversed(supervisor.store.outdated(0, 0.0)):
                size = sizes.get(name, 0)
                if excess <= 0:
                    break
                # Looked at again, and removed without a pause in between: a name may be used again.
                if size <= _NOTE_BYTES or name in supervisor.live:
                    continue
                left = self._removed(name)
                self._ended_logs[name] = sizes[name] = left
                excess -= size - left
                removed += 1
                await asyncio.sleep(0)
            if removed:
                log.info("logs of %d ended sessions were removed: together they may have at most %d bytes", removed,
                         supervisor.settings.most_log_bytes)  # fmt: skip
        self._sampler.logs = sum(sizes.values())

    def _measured(self, live: Collection[str]) -> dict[str, int]:
        """Bytes of each session's log. Those of ended sessions do not change any more."""
        found = {}
        try:
            names = os.listdir(self._supervisor.logs)
        except FileNotFoundError:
            names = []
        for name in names:
            size = self._ended_logs.get(name) if name not in live else None
            found[name] = _bytes(f"{self._supervisor.logs}/{name}") if size is None else size
        self._ended_logs = {name: size for name, size in found.items() if name not in live}
        return found

    def _removed(self, name: str) -> int:
        directory = self._supervisor.log_of(name)
        for left in remove_tree(directory):
            log.warning("log of %s not removed: %s", name, left)
        bound = self._supervisor.settings.most_log_bytes
        text = f"the log was removed: all logs together may have at most {bound} bytes (most_log_bytes in service.toml)"
        line = json.dumps({"time": round(time.time(), 3), "stream": "paddock", "text": text}) + "\n"
        try:
            os.mkdir(directory, 0o700)
            fd = os.open(f"{directory}/{log_files.NAME}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, line.encode())
            finally:
                os.close(fd)
        except OSError as error:
            log.warning("log of %s: %s", name, error)
        return _bytes(directory)


def _bytes(directory: str) -> int:
    total = 0
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                total += entry.stat(follow_symlinks=False).st_size
    except OSError:
        return total  # it is being removed
    return total


# What is done now and then, and after a crash: forget old records, remove what belongs to nobody, bring work home.

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
        """Harvests what an earlier service did not, then collects at intervals."""
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
                log.error("not everything was cleaned up: %s", error)
            pause = min(self._supervisor.settings.collect_seconds, self._supervisor.settings.harvest_seconds)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), pause)

    def wake(self) -> None:
        """Starts the next harvest of waiting commits now."""
        self._woken.set()

    async def harvest(self) -> None:
        """Takes over the commits that wait in private git directories, as the sessions that made them would have.

        What waits is asked of the directories themselves, so nothing is forgotten with a service or a database.
        """
        now = time.monotonic()
        later = [directory for directory, (again, _) in self._refused.items() if again > now]
        before = self._unharvested()
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
        self._settle(before)

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

    def _unharvested(self) -> set[tuple[str, float]]:
        """Sessions whose commits waited when they ended: names, and when that was."""
        rows = self._supervisor.store.listed(states=(SessionState.UNHARVESTED,), limit=1_000_000)
        return {(row["name"], row["ended"]) for row in rows}

    def _settle(self, looked_at: set[tuple[str, float]]) -> None:
        """Moves sessions on whose commits were harvested.

        Args:
            looked_at: those that had ended before the look at what waits began; of others it says nothing.
        """
        store = self._supervisor.store
        for row in store.listed(states=(SessionState.UNHARVESTED,), limit=1_000_000):
            if (row["name"], row["ended"]) in looked_at and row["worktree"] not in self.waiting:
                outcome = json.loads(row["outcome"] or "{}")
                well = outcome.get("reason") in ("stopped", "service-stopped", "idle") or outcome.get("status") == 0
                after = SessionState.ENDED if well else SessionState.FAILED
                store.move(row["name"], after, why := "its commits were harvested")
                self._supervisor.events.moved(row["name"], after, why)

    def collect(self, now: float) -> None:
        """Forgets what is too old: sessions with logs, keys and contexts, ticket runs, and logs without a session."""
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
                remove_tree(supervisor.log_of(name))
        self._tickets.records.forget(settings.most_ticket_records, now - settings.keep_seconds, settings.most_contexts)

    async def unneeded(self) -> dict[str, Any]:
        """What `collect_private` would remove now (`launcher.service.job.unneeded`)."""
        return await self._jobs.run("unneeded", self._bounds())

    def _bounds(self) -> dict[str, Any]:
        settings = self._supervisor.settings
        rows = self._supervisor.store.listed(limit=1_000_000)
        return {
            "roots": {row["worktree_id"]: row["worktree"] for row in rows if row["worktree_id"]},
            "bounds": {"days": settings.merge_days, "most": settings.most_merges, "lost_days": settings.lost_days},
            "gone_days": settings.gone_days,
        }

    async def collect_private(self) -> None:
        """Removes homes and private git directories of worktrees that have long been missing.

        By a job: a home may hold a hundred thousand files.
        """
        done = await self._jobs.run("collect", self._bounds())
        self.kept_refs = done["kept"]
        for each in done["gone"]:
            log.info("removed %s, %d bytes with its git directory: %s", each["name"], each["size"], each["why"],
                     extra={"fields": each})  # fmt: skip
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


# What a service finds of its earlier life: sessions that go on, that ended meanwhile, and that are lost.
#
# Sessions belong to their shims, so a service that was killed, restarted or upgraded has taken none with it. A shim
# is found by its directory below the runtime directory: one that answers is adopted, one that is over has left its
# end there, and what is neither was killed, or died with the machine; but as long as its directory is locked, it is
# only just starting, and is asked again. All else is put right before the first request is served, except harvests and
# merges, which take their time (`collecting`).

_WHY = "its processes were killed while no service was running"


class Recovery:
    """Accounts for every session of the earlier life: `run` before the first request, `again` for what had to wait.

    Attributes:
        adopted: names of sessions that go on.
        over: names of sessions that came to their end while there was no service.
        lost: names of sessions whose processes were killed.
        later: sessions that could not be asked yet, and why.
    """

    def __init__(self, supervisor: Supervisor, own: Directories, groups: Groups, places: Places) -> None:
        """Args: of this life, adopts sessions; the service's directories; of this life; of this user."""
        self._supervisor = supervisor
        self._own = own
        self._groups = groups
        self._places = places
        self.adopted: list[str] = []
        self.over: list[str] = []
        self.lost: list[str] = []
        self.later: dict[str, str] = {}

    def run(self) -> None:
        """Accounts for all."""
        store = self._supervisor.store
        for name in self._own.known_sessions():
            self._take_over(name)
        known = {*self._supervisor.live, *self.later}
        for row in store.listed(live=True, limit=1_000_000):
            if row["name"] not in known:
                self._take_over(row["name"])
        self._sweep()
        state.sweep(self._places)
        if self.adopted or self.over:
            log.info("sessions of an earlier service: %d continue, %d have ended", len(self.adopted), len(self.over))
        if self.lost:
            log.warning("%d sessions were lost since an earlier service ended", len(self.lost))

    def again(self) -> None:
        """Asks those that could not be asked before. To be called now and then."""
        if not self.later:
            return
        for name in list(self.later):
            self._take_over(name)
        self._sweep()

    def _sweep(self) -> None:
        """Ends unneeded control groups of an earlier service, once the needed ones are known."""
        rows = self._supervisor.store.listed(live=True, limit=1_000_000)
        waiting = {row["cgroup"] for row in rows if row["name"] in self.later}
        if "" not in waiting:  # a service that is killed may not have written yet where its newest session lives
            kept = {live.shim.group for live in self._supervisor.live.values() if live.shim is not None}
            self._groups.sweep(kept | waiting)

    def _take_over(self, name: str) -> None:
        try:
            if not self._find(name):
                self._lose(self._supervisor.store.required(name))
            self.later.pop(name, None)
        except (OSError, Refusal) as error:
            why = error.message if isinstance(error, Refusal) else error.strerror or str(error)
            if self.later.get(name) != why:
                log.warning("session %s does not answer now: %s", name, why)
            self.later[name] = why

    def _find(self, name: str) -> bool:
        """Adopts a session or records its end; False when no process answers for it."""
        store, directory = self._supervisor.store, f"{self._own.sessions}/{name}"
        record = self._own.of_session(name)
        if store.row(name) is None and record is not None:  # the database was damaged, and has begun anew
            store.restore(name, record["request"], record["client_uid"], record["created"])
        row = store.row(name)
        if row is None or SessionState(row["state"]).final:
            remove_tree(directory)
            return True
        live = self._live(row)
        held = state.is_locked(directory)  # before the look: what is not, does not change any more
        if (end := self._own.end(name)) is not None:
            self._supervisor.live[name] = live
            self._supervisor.heard(live, end["about"], end["moves"])
            self.over.append(name)
            return True
        try:
            shim = Shim.join(directory)
        except (ConnectionRefusedError, FileNotFoundError) as error:
            if held:
                self._supervisor.live[name] = live  # can be stopped, as one that waits for its turn
                raise OSError(error.errno, "it is just starting") from None
            if isinstance(error, FileNotFoundError) and name in state.live_sessions(self._places):
                raise OSError(error.errno, "its directory is missing, so it is about to end by itself") from None
            return False
        shim.group = self._groups.of(shim.pid) or row["cgroup"]
        self._supervisor.adopt(live, shim)
        self.adopted.append(name)
        return True

    def _lose(self, row: sqlite3.Row) -> None:
        name = row["name"]
        if row["cgroup"]:
            self._groups.kill(row["cgroup"])
        self._supervisor.lose(self._live(row), _WHY)
        self.lost.append(name)

    def _live(self, row: sqlite3.Row) -> Live:
        if (known := self._supervisor.live.get(row["name"])) is not None:
            return known
        live = Live(row["name"], f"{self._own.sessions}/{row['name']}", session_of(row).model_dump(mode="json"))
        live.moves = row["moves"]
        return live
