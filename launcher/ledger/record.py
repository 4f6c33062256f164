"""Writing one session's ledger: a JSON line per kind of denial, with a count, kept after the session has ended.

A line is written when a kind of denial comes first, so that `paddock denials --follow` sees it at once; what repeats
is counted, and the counts follow as further lines of the same key (readers add them up, `launcher.ledger.store`). The
first line of a file says what session it was and who could be heard; the last one what was lost.

Whoever refuses something in a session writes through here: `launcher.session.denials` for what the kernel and the guard
tell, `append` for those who live in a process of their own.
"""

import json
import time
from typing import Any

from launcher.lean import os
from launcher.ledger import store
from launcher.ledger.denial import BRIDGE, PROXY, SECCOMP, Denial
from policy import promises
from policy.errors import printable
from policy.plan import Plan
from policy.remedy import REACHES, Remedy, remedy, remedy_by_rule, remedy_for_host

MOST_KINDS = 2000
"""Kinds of denials that are written down for one session; what comes beyond is only counted."""

_SOCKETS = frozenset({
    "41 of c000003e", "359 of 40000003", "102 of 40000003",
    "198 of c00000b7", "198 of c00000f3", "281 of 40000028",
})  # fmt: skip
"""socket(2), and i386's socketcall(2), by number and AUDIT_ARCH: x86-64, i386 (twice), arm64, riscv64, arm."""

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Ledger:
    """The file of one session. It is made with the first denial; a session without any leaves nothing."""

    def __init__(self, path: str, plan: Plan, facts: dict[str, object]) -> None:
        """Prepares; nothing is written yet.

        Args:
            path: where, from `store.path_for`.
            plan: bound; says what would allow a denial.
            facts: of the session, for the first line.
        """
        self.path = path
        self.facts = facts
        self._plan = plan
        self._fd = -1
        self._counts: dict[tuple[object, ...], tuple[Denial, int]] = {}
        self.total = 0
        self.beyond = 0

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, denial: Denial) -> None:
        """Writes a denial, or counts it when its like is there already."""
        self.total += denial.seen
        key = denial.key
        if not (denial.process.exe or denial.process.comm) and key not in self._counts:
            # The kernel dropped the record that says who asked: one of those who asked for the same before.
            key = next((other for other in self._counts if other[:-1] == key[:-1]), key)
        known = self._counts.get(key)
        if known is not None:
            self._counts[key] = (known[0], known[1] + denial.seen)
        elif len(self._counts) >= MOST_KINDS:
            self.beyond += denial.seen
        else:
            self._counts[key] = (denial, 0)
            self._write(line(denial, answer(denial, self._plan)))

    @property
    def kinds(self) -> list[tuple[Denial, int]]:
        """What was written, in order, each with how often it came in all."""
        return [(denial, denial.seen + more) for denial, more in self._counts.values()]

    def end(self, lost: int, notes: tuple[str, ...]) -> None:
        """Writes the counts of what repeated, and the last line when there is anything to say.

        Args:
            lost: denials that are known to have happened and not known in detail.
            notes: sentences for people.
        """
        now = time.time()
        for denial, more in self._counts.values():
            if more:
                self._write(line(denial._replace(time=now, seen=more), answer(denial, self._plan)))
        if self._fd != -1 or lost or self.beyond:
            self._write({"kind": "end", "time": stamp(now), "lost": lost + self.beyond, "notes": list(notes)})

    def close(self) -> None:
        """Closes the file."""
        if self._fd != -1:
            os.close(self._fd)
            self._fd = -1

    def _write(self, content: dict[str, object]) -> None:
        if self._fd == -1:
            self._fd = _opened(self.path, self.facts)
        _put(self._fd, content)


def facts_of(session: str, plan: Plan) -> dict[str, object]:
    """What the first line of a ledger says of its session; the calling process is the session's launcher."""
    return {"session": session, "worktree": plan.worktree, "command": plan.command,
            "backend": plan.backend, "net": plan.net, "pid": os.getpid()}  # fmt: skip


def append(path: str, plan: Plan, denial: Denial, facts: dict[str, object] | None = None) -> None:
    """Adds one denial to the ledger of a live session, from another process than the session's own launcher.

    Args:
        path: from `store.path_of`; made when it is missing.
        plan: of the session; says what would allow the denial.
        denial: what was refused.
        facts: of the session, for the first line of a ledger that is made here.

    Raises:
        OSError: the ledger cannot be written.
    """
    note(path, facts, line(denial, answer(denial, plan)))


def note(path: str, facts: dict[str, object] | None, content: dict[str, object]) -> None:
    """Adds one line to the ledger of a live session, as `append` does.

    Args:
        path: of the ledger; made when it is missing.
        facts: of the session, for the first line of a ledger that is made here.
        content: the line, with its ``kind``.

    Raises:
        OSError: the ledger cannot be written.
    """
    fd = _opened(path, facts)
    try:
        _put(fd, content)
    finally:
        os.close(fd)


def _opened(path: str, facts: dict[str, object] | None) -> int:
    """A ledger for appending, made when it is missing: whoever in a session is first to refuse something makes it."""
    for _ in range(2):
        try:
            return os.open(path, _FLAGS)
        except FileNotFoundError:
            try:
                fd = store.create(path)
            except FileExistsError:
                continue  # another process of the session was quicker
        if facts is not None:
            _put(fd, {"kind": "session", "version": store.VERSION, "time": stamp(time.time()), **facts})
        return fd
    return os.open(path, _FLAGS)


def line(denial: Denial, found: Remedy) -> dict[str, object]:
    """The ledger's line for a denial: what, who, where, and what would allow it at which risk."""
    return {
        "kind": "denial",
        "time": stamp(denial.time),
        "layer": denial.layer,
        "operation": denial.operation,
        "path": denial.path or None,
        "host": denial.host or None,
        "port": denial.port or None,
        "target": denial.target or None,
        "rights": list(denial.rights),
        "process": denial.process._asdict(),
        "count": denial.seen,
        "allow": {"flag": found.flag, "toml": found.toml, "note": found.note},
        "risk": found.risk,
    }


def answer(denial: Denial, plan: Plan) -> Remedy:
    """What would allow it. The decision's own code says so (`policy.remedy`)."""
    if denial.hint and (denial.layer == BRIDGE or denial.harmless):
        return Remedy(note=denial.hint)
    if denial.path.startswith("/"):
        return remedy(plan, denial.path, denial.wanted)
    if denial.host:
        # What the proxy refused came by the proxy, whatever the host: a rule is enough.
        found = (remedy_by_rule if denial.layer == PROXY else remedy_for_host)(plan, denial.host, denial.port)
        # The proxy knows more than the name: where it leads, and which rule forbids it.
        return Remedy(note=denial.hint, risk=found.risk) if denial.hint not in found.flag else found
    if denial.layer == SECCOMP and denial.target in _SOCKETS and plan.net == "none":
        note = "if it was for the internet: --net proxy --allow-domain HOST[:PORT], or --net open"
        return Remedy(note=note, risk=REACHES)
    return Remedy(note="no option allows it: it would reach outside of the jail")


def stamp(seconds: float) -> str:
    """A time in RFC 3339's form, UTC, with milliseconds."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds * 1000) % 1000:03d}Z"


def _put(fd: int, content: dict[str, object]) -> None:
    # One write of one line: with O_APPEND nobody's line ends up in another's.
    os.write(fd, json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode() + b"\n")


# Denials in words, for people.


def one_line(found: Denial, seen: int, plan: Plan) -> str:
    """One kind of denial, and what would allow it."""
    remedy = answer(found, plan)
    who = found.process.comm or found.process.exe
    about = subject(found.path, found.host, found.port, found.target)
    times = f" ({seen} times)" if seen > 1 else ""
    fix = f": {remedy.flag or remedy.note}" + (f" ({remedy.note})" if remedy.flag and remedy.note else "")
    return f"{f'{who}: ' if who else ''}{found.operation} {about}{times}{fix}"


def subject(path: str | None, host: str | None, port: int | None, target: str | None) -> str:
    """What it was about."""
    if host:
        return f"{host}:{port}" if port else host
    return path or target or (f"port {port}" if port else "")


def paragraph(content: dict[str, Any]) -> list[str]:
    """A denial of a ledger (`store.read`), with all that is known of it."""
    process = content.get("process") or {}
    what = subject(content.get("path"), content.get("host"), content.get("port"), content.get("target"))
    times = f", {content['count']} times" if content.get("count", 1) > 1 else ""
    rights = f" ({', '.join(content['rights'])})" if content.get("rights") else ""
    lines = [f"{content.get('operation')} {what}"]
    lines.append(f"  refused by  {content.get('layer')}{rights}, {content.get('time')}{times}")
    if content.get("host") and content.get("target"):
        lines.append(f"  because     {content['target']}")
    if any(process.values()):
        lines.append(f"  asked for   {process.get('comm') or '?'}, process {process.get('pid')}, {process.get('exe')}")
    allow = content.get("allow") or {}
    if allow.get("flag"):
        lines.append(f"  to allow it {allow['flag']}")
        lines += [f"              {line}" for line in str(allow.get("toml", "")).splitlines()]
    if allow.get("note"):
        lines.append(f"  note        {allow['note']}")
    if content.get("risk"):
        lines.append(f"  risk        {content['risk']}")
    return [printable(line) for line in lines]


def decision(content: dict[str, Any]) -> str:
    """What a bridge let pass (`store.read`), in a line."""
    detail = f" ({content['detail']})" if content.get("detail") else ""
    return printable(f"{content.get('verdict')} {content.get('method')} {content.get('subject')}{detail}")


def missing_kinds(backend: str, *, heard: bool) -> list[str]:
    """Kinds of denials that a session's ledger cannot hold.

    Args:
        backend: of the session.
        heard: the kernel's audit was proven to be heard.
    """
    notes = []
    if backend != promises.BUBBLEWRAP and not heard:
        notes.append(
            "what Landlock and the system call filter refuse: needs CAP_AUDIT_READ, and audit on (auditctl -e 1)"
        )
    if promises.has_mounts(backend):
        notes.append("files that the jail does not show or shows read-only: `paddock learn` watches for them")
    return notes
