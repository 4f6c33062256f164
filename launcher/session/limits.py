"""Limits that take more than rlimits: how each is held in this session, and what became of it.

A control group where this user may make one; else rlimits for single processes and the watchdog for all together. An
ordinary user's number of processes, open files and file size need nothing of this: rlimits hold them, and a session
with no other limit never loads this module.

Launch path of the limits that need it: see launcher/jail/syscalls.py.
"""

from launcher.jail import cgroup, hygiene
from launcher.lean import os
from launcher.session import state
from launcher.session.watchdog import Watchdog
from policy import promises
from policy.plan import Plan

Facts = tuple[tuple[str, str, str], ...]

_UNITS = ((1 << 40, "T", "TiB"), (1 << 30, "G", "GiB"), (1 << 20, "M", "MiB"), (1 << 10, "K", "KiB"))
_CONTROLLERS = {"memory": cgroup.MEMORY, "processes": cgroup.PIDS, "cpu_time": cgroup.CPU}
_AROUND = "watchdog: ends the jail when exceeded, checked every 0.02 to 1 s"


class Limits:
    """The limits of one session, from before its jail to after it.

    Attributes:
        plan: what the jail is to be started with; its limits are the ones that rlimits and mounts hold.
        watch: for `terminal.supervise`; None when the kernel holds everything by itself.
        passed: the limit for which processes were ended, as `told` found it; "" for none.
    """

    def __init__(self, plan: Plan, directory: str, paths: tuple[str, ...], *, uid: int) -> None:
        """Chooses the means and makes the control groups. `close` must follow.

        Args:
            plan: bound.
            directory: the session's own, which no jail reaches.
            paths: the private home and the private temp directories.
            uid: user id in the initial user namespace.
        """
        self._limits = dict(plan.limits)
        self.passed = ""
        self._group: cgroup.Cgroup | None = None
        self._home = paths[0]
        self._record = f"{directory}/{state.CGROUPS}"
        self._facts: dict[str, tuple[str, str]] = {}
        namespaces = promises.has_mounts(plan.backend)
        wanted: list[str] = [name for name in ("memory", "cpu_time") if name in self._limits]
        count = self._limits.get("processes")
        if count is not None and uid == 0 and (wanted or count < hygiene.FAR):
            wanted.append("processes")
        why = self._make_group(wanted)
        rlimits = dict(self._limits)
        watched: dict[str, int] = {}
        for name in wanted:
            version = self._group.version(_CONTROLLERS[name]) if self._group else 0
            if (
                name == "processes"
                and count is not None
                and count >= hygiene.FAR
                and plan.backend == promises.NAMESPACES
                and not version
            ):
                continue  # the PID namespace holds it
            if version and name != "cpu_time":
                self._held(name, f"control group (version {version}) of all processes together")
            else:
                watched[name] = self._limits[name]
                self._held(name, _watched(name, version, namespaces=namespaces, why=why))
        if "processes" in self._facts:
            del rlimits["processes"]  # Linux exempts root from it
        elif count is not None and count < hygiene.FAR and uid != 0 and not namespaces:
            others = _tasks_of(uid)
            rlimits["processes"] = count + others
            self._held("processes", f"RLIMIT_NPROC: on top of the {others} that this user had outside at the start")
        if "cpu_time" in rlimits:
            rlimits["cpu_time"] += 1  # so that it is the watchdog that ends the jail, and can say why
        if "disk" in self._limits:
            watched["disk"] = self._limits["disk"]
            scratch, temp = ("/dev/shm: size of its tmpfs; ", "/tmp and /var/tmp") if namespaces else ("", "TMPDIR")
            walked = "; not seen: files that are moved about while it walks, or mapped without a name and nowhere open"
            self._held("disk", f"{scratch}private home, {temp}: {_AROUND}{walked}")
        self.plan = plan.replace(limits=tuple(rlimits.items()))
        self.watch = Watchdog(watched, paths, scratch=namespaces, time_used=self._time_used) if watched else None

    def _make_group(self, wanted: list[str]) -> str:
        """Makes the control groups for `wanted`, as far as it is possible; returns why not."""
        controllers = [_CONTROLLERS[name] for name in wanted]
        where = cgroup.places(cgroup.content("/proc/self/cgroup"), cgroup.content("/proc/self/mountinfo"), controllers)
        # Processor time alone is not worth it: the watchdog has to look at it either way.
        if not where.keys() - {cgroup.CPU}:
            return "this user has no control group to use" if controllers else ""
        values = {_CONTROLLERS[name]: self._limits[name] for name in wanted if name != "cpu_time"}
        try:
            bounds = {name: value for name, value in values.items() if name in where}
            self._group = cgroup.make(where, bounds, self._record)
        except OSError as error:
            return f"control group: {error.strerror}"
        return "this user has no control group to use"

    def enter(self) -> None:
        """In each command's process, before anything of the command runs: goes into the control groups."""
        if self._group is not None:
            self._group.enter()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What a process that is to call `enter` later must keep."""
        return self._group.descriptors if self._group is not None else ()

    def facts(self, reported: Facts) -> Facts:
        """What the jail reported, with these limits' own facts in place of the rlimits' below them."""
        own = tuple((f"limit {name}", *fact) for name, fact in sorted(self._facts.items()))
        names = {name for name, *_ in own}
        return (*(fact for fact in reported if fact[0] not in names), *own)

    def report_lines(self) -> list[str]:
        """What the user should be told at the end; asked before `close`."""
        lines = []
        name = self.watch.ended if self.watch is not None else ""
        if name:
            lines.append(f"the jail was ended: it used more than {self._words(name)}")
            self.passed = name
        if self._group is not None:
            if ended := self._group.ended_for_memory():
                what = "a process" if ended == 1 else f"{ended} processes"
                lines.append(f"the kernel ended {what} of the jail: it used more than {self._words('memory')}")
                self.passed = self.passed or "memory"
            if refused := self._group.refused_processes():
                times = "once" if refused == 1 else f"{refused} times"
                lines.append(f"the jail was denied new processes {times}: it used {self._words('processes')}")
        return lines

    def close(self) -> list[str]:
        """Removes the control groups. Returns what could not be removed."""
        if self._group is None:
            return []
        self._group.close()
        failures = cgroup.remove(self._group.paths)
        self._group = None
        return failures

    def _time_used(self) -> float | None:
        return self._group.processor_time() if self._group is not None else None

    def _held(self, name: str, how: str) -> None:
        self._facts[name] = ("held", f"{self._limits[name]}: {how}")

    def _words(self, name: str) -> str:
        """The limit for a sentence, and the option that set it: ``512 MiB of memory (--limit memory=512M)``."""
        value = self._limits[name]
        text, long = str(value), f"{value} bytes"
        for unit, letter, word in _UNITS:
            if name in ("memory", "disk") and value % unit == 0:
                text, long = f"{value // unit}{letter}", f"{value // unit} {word}"
                break
        amount = {
            "memory": f"{long} of memory",
            "disk": f"{long} of disk in its private home ({self._home}) and temp directories",
            "cpu_time": f"{value} second{'' if value == 1 else 's'} of processor time",
            "processes": f"{value} {'process or thread' if value == 1 else 'processes and threads'}",
        }[name]
        return f"{amount} (--limit {name}={text})"


def _watched(name: str, version: int, *, namespaces: bool, why: str) -> str:
    if name == "memory":
        shared = "" if namespaces else ", files in /dev/shm"
        return (
            f"RLIMIT_DATA: private memory of each process; {_AROUND}: all together, with shared memory and memory "
            f"files; not seen: detached System V segments, nameless files that are mapped and nowhere open, or held by "
            f"a call under way, and what sockets and pipes hold{shared} ({why})"
        )
    if name == "cpu_time":
        seen = f", counted by a control group (version {version})" if version else ""
        unseen = "" if version else ", but for processes of a moment that nobody waits for"
        return f"RLIMIT_CPU: each process, one second later; {_AROUND}: all together{seen}{unseen}"
    return f"{_AROUND} ({why})"


def _tasks_of(uid: int) -> int:
    """How many processes and threads this user has, which the kernel counts together with the jail's."""
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}").st_uid == uid:
                count += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            continue  # it has ended
    return count
