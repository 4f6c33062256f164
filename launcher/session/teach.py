"""Runs of one command, watched or not, until it is known what it needs."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from launcher.jail.guard import watch
from launcher.session import cache, planning, running, view_denials
from launcher.session.machine import Machine
from launcher.session.places import Places
from policy import promises, remedy, verdict
from policy.derive import canonical_form
from policy.errors import Refusal
from policy.plan import Plan, beneath
from policy.remedy import Line, Missed, Standing

# What a watched command wanted, held against the Plan: what of it the jail did not give.
#
# The watch tells what was wanted, not what came of it. What came of it follows from the Plan, whose arithmetic is
# the kernel's (`policy.verdict`), and from this machine's disk: what would not have worked without a jail either is
# not missed.


Want = tuple[str, str, str, int, str, str]

_OWN = ("/proc", "/dev", "/sys/fs/cgroup")
"""The jail has these of its own, or nobody does."""

_PRIVATE = ("/tmp", "/var/tmp", "/dev/shm")
"""Where namespaces hold the jail, what is made right there is made in directories of its own."""

_SHARED = frozenset({".cache", ".config", ".local", "share", "state"})
"""Directories of all programmes: what a programme makes below is its own."""

_WRITING = frozenset({watch.WRITE, watch.CREATE, watch.MAKE, watch.MAKE_DIRECTORY, watch.REMOVE, watch.CHANGE})


class Wants:
    """Gathers what is told during one run."""

    def __init__(self) -> None:
        self.plan: Plan | None = None
        """Bound; set when the session starts."""
        self.told: list[Want] = []

    def add(self, want: Want) -> None:
        """Takes one."""
        self.told.append(want)

    def missed(self, machine: Machine) -> list[Missed]:
        """What was wanted, would have worked outside, and does not in the jail; each path once per access."""
        if self.plan is None:
            return []
        judge = _Judge(self.plan, machine, {os.path.normpath(subject) for _, subject, *_ in self.told})
        found: dict[tuple[str, str], Missed] = {}
        for want in self.told:
            for missed in judge.judge(want):
                known = found.get((missed.path, missed.access))
                if known is None or (known.seen_only and not missed.seen_only):
                    found[missed.path, missed.access] = missed
        return list(found.values())

    def failed(self) -> frozenset[tuple[str, int]]:
        """Programmes that ended with a status other than 0, and that status: a shell may have hidden it."""
        ends = (subject.partition(" ") for want, subject, *_ in self.told if want == watch.FAIL)
        return frozenset((program, int(status)) for status, _, program in ends)

    def hosts(self) -> list[tuple[str, int]]:
        """Addresses outside of this machine that the command tried to connect to, with ports."""
        found: dict[tuple[str, int], None] = {}
        for want, subject, *_ in self.told:
            if want == watch.CONNECT and not subject.startswith("/"):
                host, _, port = subject.partition(" ")
                if not host.startswith("127.") and host not in ("::1", "0.0.0.0", "::"):
                    found[host, int(port)] = None
        return list(found)


class _Where(NamedTuple):
    path: str
    access: str
    directory: bool


class _Judge:
    def __init__(self, plan: Plan, machine: Machine, subjects: set[str]) -> None:
        self._subjects = subjects
        self._plan = plan
        self._machine = machine
        self._mounts = promises.has_mounts(plan.backend)

    def judge(self, want: Want) -> list[Missed]:
        kind, subject, call, _, comm, program = want
        if not subject.startswith("/") or any(beneath(subject, own) for own in _OWN):
            return []
        path = canonical_form(subject, self._machine)
        if any(beneath(path, own) for own in _OWN):
            return []
        where = self._missing(kind, path)
        if where is None or where.access in verdict.decide(self._plan, where.path).access:
            return []
        if kind == watch.LOOK and (not self._mounts or verdict.is_way(self._plan, where.path)):
            return []
        return [Missed(where.path, where.access, where.directory, os.path.lexists(where.path), kind == watch.LOOK,
                       path, call, comm or os.path.basename(program), _is_public(where.path))]  # fmt: skip

    def _missing(self, kind: str, path: str) -> _Where | None:
        """Which access at which path the call needed; None when it would have failed without a jail too."""
        try:
            found: os.stat_result | None = os.stat(path)
        except (OSError, ValueError):
            found = None
        directory = found is not None and stat.S_ISDIR(found.st_mode)
        if kind not in _WRITING and kind != watch.CONNECT:
            if found is None or not (stat.S_ISREG(found.st_mode) or directory):
                return None
            needs = os.X_OK if kind == watch.EXECUTE else os.R_OK
            if kind != watch.LOOK and not os.access(path, needs):
                return None
            return _Where(path, "x" if kind == watch.EXECUTE else "r", directory)
        if kind in (watch.MAKE, watch.MAKE_DIRECTORY, watch.REMOVE):
            if (found is not None) == (kind != watch.REMOVE):
                return None  # it exists already, or there is nothing to remove
            return self._entry(path, made=kind == watch.MAKE_DIRECTORY)
        if found is not None:
            return _Where(path, "w", directory) if os.access(path, os.W_OK) and not directory else None
        return self._entry(path, made=False) if kind == watch.CREATE else None

    def _entry(self, path: str, *, made: bool) -> _Where | None:
        """Making or removing an entry needs its directory; where that is missing too, the topmost that is."""
        if "w" in verdict.decide(self._plan, path).access:
            return None
        top, parent = path, os.path.dirname(path)
        while not os.path.lexists(parent):
            top, parent = parent, os.path.dirname(parent)
        if not os.access(parent, os.W_OK | os.X_OK) or (self._mounts and parent in _PRIVATE):
            return None
        if "w" in verdict.decide(self._plan, parent).access:
            return None
        while os.path.basename(top) in _SHARED and (below := self._towards(top)):
            top = below
        if top != path or made:
            return _Where(top, "w", True)
        return _Where(parent, "w", True)

    def _towards(self, top: str) -> str:
        """The one directory right below `top` that anything was wanted in; "" when there are several, or none."""
        below = [path[len(top) + 1 :].split("/") for path in self._subjects if beneath(path, top) and path != top]
        names = {parts[0] for parts in below}
        return f"{top}/{names.pop()}" if len(names) == 1 and any(len(parts) > 1 for parts in below) else ""


def _is_public(path: str) -> bool:
    """Whether it is a file that everyone can read: root's jails could open others."""
    try:
        modes = [os.stat(path).st_mode]
        while path != "/":
            path = os.path.dirname(path)
            modes.append(os.stat(path).st_mode)
    except OSError:
        return False
    return stat.S_ISREG(modes[0]) and bool(modes[0] & stat.S_IROTH) and all(mode & stat.S_IXOTH for mode in modes[1:])


_MOST_NAMES = 5_000
"""So many names are looked at in a directory that is to be granted for a few."""


def is_clean(directory: str, plan: Plan, outside: remedy.Outside) -> bool:
    """Whether nothing is withheld that a directory contains, as far as all of it can be seen."""
    unseen: list[OSError] = []
    walked = os.walk(directory, onerror=unseen.append)
    paths = (f"{parent}/{name}" for parent, inner, files in walked for name in (*inner, *files))
    for number, path in enumerate(paths, 1):
        if number > _MOST_NAMES or remedy.withheld(path, "read", plan, outside):
            return False
    return not unseen


Options = dict[str, str | list[str] | bool]

MOST_RUNS = 24


class Lesson(NamedTuple):
    """What was learned.

    Attributes:
        status: exit status of the last run that counts.
        lines: all grants, proposed or not.
        hosts: addresses that were wanted.
        runs: how often the command ran.
        tried: the proposed grants were tried.
        failed: programmes that failed in that run, with their statuses.
    """

    status: int
    lines: list[Line]
    hosts: list[tuple[str, int]]
    runs: int
    tried: bool
    failed: frozenset[tuple[str, int]]


class Teacher:
    """One command with its launch options."""

    def __init__(self, options: Options, command: list[str], cwd: str, places: Places, given: dict[str, str]) -> None:
        """Takes what `launcher.verbs.run.launch` takes; nothing runs yet."""
        self._options = options
        self._command = command
        self._cwd = cwd
        self._places = places
        self._given = given
        self._runs = 0

    def once(self) -> Lesson:
        """One watched run."""
        status, wants, lines = self._watched([])
        if status == 0:
            # What it did without, it does not need.
            lines = [line._replace(standing=Standing.OPTIONAL) if line.standing is Standing.PROPOSED else line
                     for line in lines]  # fmt: skip
        elif not any(line.standing is Standing.PROPOSED for line in lines):
            # It failed, and asked for nothing else: what it did not find may be what it needs.
            lines = [line._replace(standing=Standing.PROPOSED) if line.standing is Standing.OPTIONAL else line
                     for line in lines]  # fmt: skip
        return Lesson(status, lines, wants.hosts(), self._runs, tried=False, failed=wants.failed())

    def by_trying(self) -> Lesson:
        """Watched runs with ever more grants until nothing fails, then runs without each one of them.

        The command's own status is not all: `cat X | tee log` and `make || true` end well whatever becomes of cat and
        make. Some programmes fail in every run (`grep -q`); what makes no difference to them is not needed.
        """
        chosen: list[Line] = []
        best: tuple[list[Line], frozenset[tuple[str, int]]] | None = None
        denied: dict[tuple[str, str], Line] = {}
        while True:
            status, wants, lines = self._watched(chosen)
            denied |= {(line.key, line.path): line for line in lines}
            failed = wants.failed()
            if status == 0 and (best is None or failed < best[1]):
                best = chosen, failed
            if (status == 0 and not failed) or self._runs >= MOST_RUNS:
                break
            more = self._more(chosen, lines, well=status == 0)
            if not more:
                break
            chosen = _without_covered([*chosen, *more])
        if best is not None:
            status, failed = 0, best[1]
            chosen = self._needed(best[0], failed)
        lines = [line._replace(standing=Standing.PROPOSED) for line in chosen]
        others = [line for line in denied.values() if line.standing is Standing.WITHHELD or not _covered(line, chosen)]
        wanted = {line.standing for line in others if not line.tried}
        unmet = Standing.PROPOSED if Standing.PROPOSED in wanted else Standing.OPTIONAL
        for line in others:
            if line.standing is Standing.WITHHELD:
                lines.append(line)
            elif (status != 0 or failed) and not line.tried and line.standing is unmet:
                lines.append(line._replace(standing=Standing.UNTRIED))
            elif best is not None and line.standing is Standing.PROPOSED:
                lines.append(line._replace(standing=Standing.OPTIONAL))
        lines.sort(key=lambda line: (line.key != "write", line.path))
        return Lesson(status, lines, wants.hosts(), self._runs, tried=True, failed=failed)

    def _more(self, chosen: list[Line], lines: list[Line], *, well: bool) -> list[Line]:
        """What to try besides after a run with `chosen` that missed `lines`.

        Args:
            chosen: grants of that run.
            lines: what it missed.
            well: the command itself ended well, so that what is hardly needed is not worth a try.
        """
        known = {(line.key, line.path) for line in chosen}
        new = [line for line in lines if line.tried and (line.key, line.path) not in known]
        # What is hardly needed comes in only when there is nothing better to try.
        better = [line for line in new if line.standing is Standing.PROPOSED]
        return better if better or well else new

    def _needed(self, chosen: list[Line], failed: frozenset[tuple[str, int]]) -> list[Line]:
        """Leaves out halves, then single grants, as long as the command succeeds and nothing but `failed` fails."""
        size = len(chosen)
        while size and chosen:
            at = 0
            while at < len(chosen) and self._runs < MOST_RUNS:
                fewer = chosen[:at] + chosen[at + size :]
                status, wants, _ = self._watched(fewer)
                if status == 0 and wants.failed() <= failed:
                    chosen = fewer
                else:
                    at += size
            size = 0 if size == 1 else (size + 1) // 2
        return chosen

    def _watched(self, granted: list[Line]) -> tuple[int, Wants, list[Line]]:
        wants = Wants()
        status, planned = self._run(granted, wants)
        plan, outside = wants.plan or planned.plan, view_denials.outside(self._places, planned.machine)
        missed = wants.missed(planned.machine)
        lines = remedy.propose(missed, plan, outside, lambda directory: is_clean(directory, plan, outside))
        return status, wants, lines

    def _run(self, lines: list[Line], wants: Wants) -> tuple[int, planning.Planned]:
        self._runs += 1
        options = dict(self._options)
        for line in lines:
            before = options.get(line.flag, [])
            options[line.flag] = [*(before if isinstance(before, list) else []), line.path]
        planned = planning.make(options, self._command, self._cwd, self._places)
        planning.prepare(planned, self._places)
        plan = planned.plan if self._runs == 1 else planned.plan.replace(warnings=())
        if plan.backend == promises.BUBBLEWRAP:
            raise Refusal(
                "learn-needs-landlock",
                "a command cannot be watched under bubblewrap",
                hint="Linux 5.13 or newer with Landlock; or find a path in the command's errors: paddock why PATH",
            )
        filter_program = planning.filter_program(plan, planned.support, planned.machine, watch=True)
        entry = cache.Entry(plan, planned.support.to_data(), filter_program)
        with _output_to_errors():
            status = running.run(
                entry,
                tuple(self._command[1:]),
                self._places,
                given=self._given,
                name=None,
                report=None,
                verbose="--verbose" in self._options,
                quiet=True,
                wants=wants,
            )
        return status, planned


@contextmanager
def _output_to_errors() -> Iterator[None]:
    """Standard output is for the proposal: what the command prints goes where its errors go."""
    before = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(before, 1)
        os.close(before)


def _covered(line: Line, chosen: list[Line]) -> bool:
    """Whether one of the chosen grants, which are for reading, opens what `line` would."""
    return line.key == "read" and any(beneath(line.path, other.path) for other in chosen)


def _without_covered(lines: list[Line]) -> list[Line]:
    """Without grants that another one has grown to cover."""
    return [
        line for line in lines
        if not any(other.path != line.path and beneath(line.path, other.path) for other in lines)
    ]  # fmt: skip
