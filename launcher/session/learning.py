"""What a watched command wanted, held against the Plan: what of it the jail did not give.

The watch tells what was wanted, not what came of it. What came of it follows from the Plan, whose arithmetic is the
kernel's (`policy.verdict`), and from this machine's disk: what would not have worked without a jail either is not
missed.
"""

import os
import stat
from typing import NamedTuple

from launcher.jail.watch import calls
from launcher.session.machine import Machine
from policy import promises, verdict
from policy.derive import canonical_form
from policy.plan import Plan, beneath
from policy.proposal import Missed

Want = tuple[str, str, str, int, str, str]

_OWN = ("/proc", "/dev", "/sys/fs/cgroup")
"""The jail has these of its own, or nobody does."""

_PRIVATE = ("/tmp", "/var/tmp", "/dev/shm")
"""Where namespaces hold the jail, what is made right there is made in directories of its own."""

_SHARED = frozenset({".cache", ".config", ".local", "share", "state"})
"""Directories of all programmes: what a programme makes below is its own."""

_WRITING = frozenset({calls.WRITE, calls.CREATE, calls.MAKE, calls.MAKE_DIRECTORY, calls.REMOVE, calls.CHANGE})


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

    def hosts(self) -> list[tuple[str, int]]:
        """Addresses outside of this machine that the command tried to connect to, with ports."""
        found: dict[tuple[str, int], None] = {}
        for want, subject, *_ in self.told:
            if want == calls.CONNECT and not subject.startswith("/"):
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
        if kind == calls.LOOK and (not self._mounts or self._shown(where.path)):
            return []
        return [Missed(where.path, where.access, where.directory, os.path.lexists(where.path), kind == calls.LOOK,
                       path, call, comm or os.path.basename(program))]  # fmt: skip

    def _shown(self, path: str) -> bool:
        """Whether the view has a directory of its own there, on the way to something that is granted."""
        return any(beneath(grant, path) for grant, _, _ in self._plan.grants) or any(
            beneath(link, path) for link, _ in self._plan.links
        )

    def _missing(self, kind: str, path: str) -> _Where | None:
        """Which access at which path the call needed; None when it would have failed without a jail too."""
        try:
            found: os.stat_result | None = os.stat(path)
        except (OSError, ValueError):
            found = None
        directory = found is not None and stat.S_ISDIR(found.st_mode)
        if kind not in _WRITING and kind != calls.CONNECT:
            if found is None or not (stat.S_ISREG(found.st_mode) or directory):
                return None
            needs = os.X_OK if kind == calls.EXECUTE else os.R_OK
            if kind != calls.LOOK and not os.access(path, needs):
                return None
            return _Where(path, "x" if kind == calls.EXECUTE else "r", directory)
        if kind in (calls.MAKE, calls.MAKE_DIRECTORY, calls.REMOVE):
            if (found is not None) == (kind != calls.REMOVE):
                return None  # it exists already, or there is nothing to remove
            return self._entry(path, made=kind == calls.MAKE_DIRECTORY)
        if found is not None:
            return _Where(path, "w", directory) if os.access(path, os.W_OK) and not directory else None
        return self._entry(path, made=False) if kind == calls.CREATE else None

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
