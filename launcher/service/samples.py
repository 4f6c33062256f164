"""What sessions use: one look at all processes of the machine for all sessions, by psutil."""

import logging
import time
from collections.abc import Mapping

import psutil

from launcher.service.models import Process, Usage

log = logging.getLogger("paddock.service")

_OWN = 2
"""Generations of Paddock's own above a command: the launcher and the jail's init."""


class Sampler:
    """Looks now and then.

    Attributes:
        usage: of each session, at the last look.
    """

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self.usage: dict[str, Usage] = {}

    def look(self, launchers: Mapping[str, int]) -> dict[str, Usage]:
        """What each session uses now. May run on a thread of its own: it starts nothing.

        Args:
            launchers: process ids of sessions' launchers by the sessions' names.
        """
        children: dict[int, list[psutil.Process]] = {}
        for process in psutil.process_iter(["ppid"]):
            children.setdefault(process.info["ppid"] or 0, []).append(process)
        now = time.time()
        found = {}
        for name, pid in launchers.items():
            usage = _sum(now, _commands(pid, children))
            before = self.usage.get(name)
            if before is not None and now > before.time:
                spent = max(0.0, usage.cpu_seconds - before.cpu_seconds)
                usage = usage.model_copy(update={"cpu_percent": round(100 * spent / (now - before.time), 1)})
            found[name] = usage
        return found


def _commands(pid: int, children: Mapping[int, list[psutil.Process]]) -> list[psutil.Process]:
    """The processes of a session without Paddock's own above the command."""
    found: list[psutil.Process] = []
    level = [(process, 1) for process in children.get(pid, ())]
    while level:
        process, depth = level.pop()
        if depth >= _OWN:
            found.append(process)
        level += [(child, depth + 1) for child in children.get(process.pid, ())]
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


def tree(launcher: int) -> list[Process]:
    """The processes of a session, its launcher first, parents before children."""
    try:
        top = psutil.Process(launcher)
        processes = [top, *top.children(recursive=True)]
    except psutil.Error:
        return []
    found = []
    for process in processes:
        try:
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
