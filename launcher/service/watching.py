"""What the service looks at every few seconds, beside its work: room on disks, its database, its helpers, its logs.

What is wrong becomes a condition of `GET /v1/health`, and is taken back when it is mended. Files are looked at on a
thread: a filesystem that hangs holds up neither the API nor the watchdog.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

import psutil

from launcher.jail.processes import children
from launcher.service import logs
from launcher.service.models import Process, Usage
from launcher.service.states import SessionState
from launcher.service.supervisor import Supervisor
from policy.errors import Refusal

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

    def __init__(self) -> None:
        """Nothing was seen yet."""
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
        """What each session uses now. May run on a thread of its own: it starts nothing.

        Args:
            launchers: process ids of sessions' launchers by the sessions' names.
        """
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
            found[name] = usage
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
    count = threads = memory = reads = writes = 0
    cpu = 0.0
    for process in processes:
        try:
            with process.oneshot():
                times = process.cpu_times()
                memory += process.memory_info().rss
                threads += process.num_threads()
                cpu += times.user + times.system + times.children_user + times.children_system
            count += 1
        except psutil.Error:
            continue  # it has ended meanwhile
        try:
            io = process.io_counters()
            reads, writes = reads + io.read_bytes, writes + io.write_bytes
        except (psutil.Error, OSError):
            continue  # a process that hides (prctl(2), PR_SET_DUMPABLE) tells nothing of that
    return Usage(time=now, processes=count, threads=threads, memory=memory, cpu_seconds=round(cpu, 3), cpu_percent=0.0,
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

LOOK_SECONDS = 5.0
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
                log.error("the service could not look after itself: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

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
        self._conditions.raise_("disk-low", f"there is room for {what} where {path} lies",
                                "free some; paddock stop --forget and shorter keep_seconds or most_log_bytes in"
                                " service.toml take from what the service itself holds", path)  # fmt: skip

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
                log.info("logs of %d ended sessions were removed: all together have %d bytes at most", removed,
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
        """Removes the log of an ended session, and says so in its place; the bytes that are left."""
        directory = self._supervisor.log_of(name)
        for left in logs.forget(directory):
            log.warning("log of %s not removed: %s", name, left)
        bound = self._supervisor.settings.most_log_bytes
        text = f"the log was removed: all logs together have {bound} bytes at most (most_log_bytes in service.toml)"
        line = json.dumps({"time": round(time.time(), 3), "stream": "paddock", "text": text}) + "\n"
        try:
            os.mkdir(directory, 0o700)
            fd = os.open(f"{directory}/{logs.NAME}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
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
