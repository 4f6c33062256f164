"""What sessions use: one look at all processes of the machine for all sessions, by psutil.

That reads some hundred files, so it is done on a thread; and so is what clients ask for, for each session's own
processes.
"""

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import psutil

from launcher.jail.processes import children
from launcher.service.models import Process, Usage

log = logging.getLogger("paddock.service")

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
