"""The watchdog: ends a jail that has used too much, where no limit of the kernel's does.

It looks ten times a second, more often at first, when half of a limit is used and when use grows, and never for more
than a tenth of the time. So it contains: what is used between two looks is over the limit. It runs in the launcher's
own loop, and ending a jail is SIGKILL for its first process, with which all others end: no need to stop them before.

At a terminal a command that stops itself stops the launcher too, as job control wants. So before that the watchdog
stops everything else inside: what runs is watched.

Launch path of the limits that need it: see launcher/session/limits.py.
"""

import time

from launcher.jail import processes, syscalls
from launcher.lean import os
from launcher.session.disk_use import DiskUse
from launcher.session.usage import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
else:
    import _signal

INTERVAL = 0.1
NEAR_INTERVAL = 0.02
MOST_INTERVAL = 1.0
_NEAR, _GROWTH, _EASE = 0.5, 0.05, 1.25
_SHARE = 9  # seconds of rest for each second of looking
PAUSE_TIMEOUT = 2.0
"""Seconds after which `pause` gives up on a jail that makes processes faster than they can be stopped."""

_PARENT, _STARTED = 1, 19  # fields of /proc/PID/stat behind the name, counted from the state


class Watchdog:
    """Watches one jail. `ended` names the limit that was passed, "" as long as none was."""

    def __init__(
        self, limits: dict[str, int], paths: tuple[str, ...], *, scratch: bool, time_used: "Callable[[], float | None]"
    ) -> None:
        """Prepares; `attach` begins.

        Args:
            limits: what to watch, out of memory (bytes), disk (bytes), cpu_time (seconds), processes (tasks).
            paths: directories whose use counts for "disk".
            scratch: the jail has a private /tmp, which takes memory.
            time_used: seconds of processor time by a better reading than /proc; None when there is none.
        """
        self._limits = limits
        self._scratch = scratch
        self._time_used = time_used
        self._disk = DiskUse(paths, limits["disk"]) if "disk" in limits else None
        self._usage: Usage | None = None
        self._first = 0
        self._next = 0.0
        self._interval = NEAR_INTERVAL
        self._before = 0.0
        self._stopped: list[tuple[int, list[str]]] = []
        self.ended = ""

    def attach(self, first: int) -> None:
        """Begins to watch what is below the process `first`, a child of this one that has not been reaped."""
        self._first = first
        self._usage = Usage(first, scratch=self._scratch)

    def look(self) -> float:
        """Looks, if it is time. Returns the seconds until the next time, 0 when the jail is to be ended."""
        now = time.monotonic()
        if now < self._next:
            return self._next - now
        shares = self._shares()
        for name, share in shares.items():
            if share > 1:
                self.ended = name
                return 0.0
        most = max(shares.values(), default=0.0)
        if most > _NEAR or most - self._before > _GROWTH:
            self._interval = NEAR_INTERVAL
        else:
            self._interval = min(INTERVAL, self._interval * _EASE)
        self._before = most
        ended = time.monotonic()
        rest = min(MOST_INTERVAL, max(self._interval, _SHARE * (ended - now)))
        self._next = ended + rest
        return rest

    def _shares(self) -> dict[str, float]:
        """For each limit the share of it that is in use."""
        usage = self._usage
        assert usage is not None, "attach comes first"
        usage.look()
        shares: dict[str, float] = {}
        for name, limit in self._limits.items():
            if name == "memory":
                shares[name] = usage.memory(limit) / limit
            elif name == "processes":
                shares[name] = usage.tasks / limit
            elif name == "cpu_time":
                shares[name] = max(self._time_used() or 0.0, usage.processor_time) / limit
            elif self._disk is not None:
                shares[name] = self._disk.share(usage.pids, NEAR_INTERVAL / 2)
        return shares

    def pause(self) -> None:
        """Stops everything inside that runs, until no more comes up: nobody will be looking for a while."""
        known: set[int] = set()
        deadline = time.monotonic() + PAUSE_TIMEOUT
        while time.monotonic() < deadline:
            below = processes.descendants(self._first)
            fresh = [pid for pid in below if pid not in known]
            if not fresh:
                return
            known.update(fresh)
            parents = {self._first, *below}
            for pid in fresh:
                fields = _fields(pid)
                if fields and fields[0] not in "TtZX" and _send(pid, fields, parents, _signal.SIGSTOP):
                    self._stopped.append((pid, fields))

    def resume(self) -> None:
        """Continues what `pause` stopped."""
        for pid, fields in self._stopped:
            _send(pid, fields, {self._first, *processes.descendants(self._first)}, _signal.SIGCONT)
        self._stopped = []


def _fields(pid: int) -> list[str]:
    """/proc/PID/stat from the state on; [] when the process has gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _send(pid: int, before: list[str], parents: set[int], signal: int) -> bool:
    """Signals a process of the jail, whose number may have gone to somebody else since `before` was read."""
    try:
        pidfd = syscalls.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        now = _fields(pid)
        # The same start, and still below: nobody outside has become a child of the jail's.
        if not now or now[_STARTED] != before[_STARTED] or int(now[_PARENT]) not in parents:
            return False
        _signal.pidfd_send_signal(pidfd, signal)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True
