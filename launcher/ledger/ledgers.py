"""Where ledgers are kept, for how long, and reading them.

``<state>/ledgers/<session>.<nanoseconds>.jsonl``: Paddock's state directory is denied to every jail. Names of sessions
may come again, so the time of the start belongs to the name.
"""

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from launcher.lean import os
from launcher.ledger.denial import BRIDGE, KEY, PROXY, SECCOMP, UNRESOLVED, Denial, Process
from policy import promises
from policy.errors import Refusal, printable
from policy.hosts import is_host
from policy.pasted import cited, cited_words
from policy.plan import Plan
from policy.remedy import KEEPS_OUT, REACHES, Remedy, remedy, remedy_by_rule, remedy_for_host, toml

VERSION = 1
SUFFIX = ".jsonl"

KEEP_FILES = 200
KEEP_BYTES = 64 << 20
KEEP_SECONDS = 30 * 24 * 3600

MOST_BYTES = 4 << 20
"""Of one ledger, all writers of its session together; what finds no room is only counted."""
MOST_LINE = 32 << 10
"""Bytes of one line: texts in a longer one are cut. A ledger is full where one more would not fit."""


class Kept(NamedTuple):
    """One ledger on disk."""

    session: str
    started: int  # nanoseconds since the epoch
    path: str


def directory(state: str) -> str:
    """Where ledgers lie below Paddock's state directory."""
    return f"{state}/ledgers"


def path_for(state: str, session: str, started: int) -> str:
    """The file for a session that started at this time, in nanoseconds since the epoch."""
    return f"{directory(state)}/{session}.{started}{SUFFIX}"


def create(path: str) -> int:
    """Makes a ledger (mode 0600) that must not exist yet, and its directory; returns a descriptor for appending.

    Raises:
        OSError: it cannot be made.
    """
    place = os.path.dirname(path)
    if not os.path.isdir(place):
        os.makedirs(place, mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)


def kept(state: str) -> list[Kept]:
    """All ledgers, the newest first."""
    found = []
    try:
        names = os.listdir(directory(state))
    except FileNotFoundError:
        return []
    for name in names:
        session, _, number = name.removesuffix(SUFFIX).rpartition(".")
        if name.endswith(SUFFIX) and session and number.isascii() and number.isdigit():
            found.append(Kept(session, int(number), f"{directory(state)}/{name}"))
    return sorted(found, key=lambda one: -one.started)


def path_of(state: str, session: str) -> str | None:
    """The newest ledger of a session by its name; None when there is none."""
    return next((one.path for one in kept(state) if one.session == session), None)


def prune(state: str, now: float) -> None:
    """Removes ledgers beyond `KEEP_SECONDS`, `KEEP_FILES` and `KEEP_BYTES`.

    Of too many, or too much, whoever has most loses his oldest: no session pushes another one's out by its own.
    """
    found: dict[Kept, int] = {}
    for one in kept(state):
        try:
            found[one] = os.stat(one.path).st_size
        except FileNotFoundError:
            continue  # another launch was quicker
    candidates = list(found)[:0:-1]  # the oldest first, and never the newest: somebody is about to read it
    leaving = [one for one in candidates if one.started < (now - KEEP_SECONDS) * 1e9]
    left = [one for one in candidates if one not in set(leaving)]
    files: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for one in found.keys() - set(leaving):
        files[_owner(one)] = files.get(_owner(one), 0) + 1
        sizes[_owner(one)] = sizes.get(_owner(one), 0) + found[one]
    while left and (sum(files.values()) > KEEP_FILES or sum(sizes.values()) > KEEP_BYTES):
        held = files if sum(files.values()) > KEEP_FILES else sizes
        one = max(left, key=lambda each: held[_owner(each)])  # the first of several: the oldest
        left.remove(one)
        leaving.append(one)
        files[_owner(one)] -= 1
        sizes[_owner(one)] -= found[one]
    for one in leaving:
        try:
            os.unlink(one.path)
        except FileNotFoundError:
            continue


def _owner(one: Kept) -> str:
    """Whose ledger it is: a session of the file tools has one for each jail that was made for it."""
    return one.session.rpartition("-")[0] if one.session.startswith("files-") else one.session


def lines(path: str) -> Iterator[dict[str, Any]]:
    """The lines of a file of JSON objects that are whole; one that is just being written is left out."""
    try:
        file = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115  # closed below; the error is ours
    except FileNotFoundError:
        return
    except OSError as error:
        raise Refusal("ledger-unreadable", f"cannot read {path}", context=error.strerror or str(error)) from None
    with file:
        for text in file:
            content = decoded(text)
            if content is not None:
                yield content


def decoded(text: str) -> dict[str, Any] | None:
    """One line's object, None when it is no whole one."""
    if not text.endswith("\n"):
        return None
    try:
        content = json.loads(text)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


class Contents(NamedTuple):
    """A whole ledger.

    Attributes:
        facts: of the session.
        denials: with their counts added up.
        end: what was said at the end.
        decisions: what a bridge let pass (`launcher.bridges.acp.rulings.Decisions`), and people (`read_answers`).
        full: there may have been more, for which it had no room.
    """

    facts: dict[str, Any]
    denials: list[dict[str, Any]]
    end: dict[str, Any]
    decisions: list[dict[str, Any]]
    full: bool = False


def read(path: str) -> Contents:
    """A ledger, with lines that mean the same put together.

    Refusals: ledger-unreadable.
    """
    facts: dict[str, Any] = {}
    end: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {}
    decisions: list[dict[str, Any]] = []
    for content in lines(path):
        kind = content.pop("kind", "")
        if kind == "session":
            facts = content
        elif kind == "end":
            end = content
        elif kind == "denial":
            merge(found, content)
        elif kind == "decision":
            decisions.append(content)
    return Contents(facts, list(found.values()), end, decisions, _is_full(path))


def merge(found: dict[str, dict[str, Any]], content: dict[str, Any]) -> None:
    """Adds one denial's line to those of the same key."""
    process = content.get("process") or {}
    who = process.get("exe") or process.get("comm")
    subject = [content.get(name) for name in ("layer", "operation", "rights", "path", "host", "port", "target")]
    key = json.dumps([*subject, who])
    known = found.setdefault(key, content | {"count": 0, "last": content.get("time")})
    known["count"] += content.get("count", 1)
    known["last"] = content.get("time")


# What the proxy refused, from the log of decisions that it writes in the session's directory.


PROXY_LOG = "egress.jsonl"

_DENIED = "deny"
_LOST = "lost"
_ASKED = "asked: "


def read_proxy_log(path: str) -> tuple[list[Denial], int]:
    """The refusals in a log of decisions, in order, and how many decisions are not in it for want of room."""
    found, lost = [], 0
    for content in lines(path):
        denial = of_decision(content)
        if denial is not None:
            found.append(denial)
        elif content.get("operation") == _LOST and isinstance(content.get("count"), int):
            lost += content["count"]
    return found, lost


def read_answers(path: str) -> list[dict[str, Any]]:
    """What people have allowed, of a log of decisions (`policy.asking`): once for each host, port and answer."""
    found: dict[tuple[object, ...], dict[str, Any]] = {}
    for content in lines(path):
        rule = content.get("rule")
        if isinstance(rule, str) and rule.startswith(_ASKED) and len(found) < MOST_KINDS:
            where = f"{content.get('host')}:{content.get('port')}"
            found.setdefault((where, rule), {
                "time": stamp(_seconds(content.get("time"))), "method": "connect", "subject": where,
                "verdict": "allowed", "detail": rule,
            })  # fmt: skip
    return list(found.values())


def of_decision(content: dict[str, Any]) -> Denial | None:
    """The denial that one line of the log tells of (`launcher.egress.log`); None when it tells of something else."""
    if content.get("decision") != _DENIED:
        return None
    port, rule, asked = content.get("port"), content.get("rule"), content.get("process")
    return Denial(
        _seconds(content.get("time")),
        PROXY,
        str(content.get("operation") or "connect"),
        host=str(content.get("host") or ""),
        port=port if isinstance(port, int) else 0,
        target=str(content.get("reason") or ""),
        rights=(str(rule),) if rule else (),
        process=_process(asked) if isinstance(asked, dict) else Process(),
        hint=str(content.get("suggestion") or ""),
    )


def _process(content: dict[str, Any]) -> Process:
    pid = content.get("pid")
    names = (str(content.get(name) or "") for name in ("comm", "exe"))
    return Process(pid if isinstance(pid, int) else 0, *names)


def _seconds(value: object) -> float:
    if isinstance(value, int | float):
        return float(value)
    try:
        return datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return time.time()


# Reading a ledger while its session writes it.

_LOOK = 0.2
"""Seconds between two looks at the files."""

_TICK = 1_000_000_000
"""Nanoseconds in which a directory may change twice and have the same time (timestamps are those of a tick)."""
_BEGAN = "writes"
"""File in a session's directory that is written once, when it begins (`launcher.session.state.WRITES`)."""


def so_far(state: str, session: str) -> Contents | None:
    """What the ledger of a live session would hold if it ended now; None when it has ended meanwhile.

    Refusals: ledger-unreadable.
    """
    log = f"{state}/sessions/{session}/{PROXY_LOG}"
    refused: dict[str, dict[str, Any]] = {}
    for denial in read_proxy_log(log)[0]:
        merge(refused, proxied(denial))
    answers = read_answers(log)
    path = _current(state, session, time.time_ns())
    contents = read(path) if path is not None else Contents({}, [], {}, [])
    if not os.path.exists(f"{state}/sessions/{session}"):
        return None
    if contents.end:  # it is about to end, and the proxy's lines are in its ledger
        return contents
    denials, decisions = [*contents.denials, *refused.values()], [*contents.decisions, *answers]
    return contents._replace(denials=denials, end={}, decisions=decisions)


def follow(state: str, session: str, lives: Callable[[], bool], show: Callable[[dict[str, Any]], None]) -> None:
    """Shows the denials of a live session, those that are there and those that come, until it has ended."""
    coming = Coming(state, session)
    while True:
        # Asked before the files are read: what a session wrote before it ended is not missed.
        going_on = lives()
        for content in coming.new():
            show(content)
        if not going_on:
            return
        time.sleep(_LOOK)


class Coming:
    """The denials of a live session as they come, of its ledger and of its proxy's log.

    The proxy's come into the ledger at the session's end; until then its own log has them.
    """

    def __init__(self, state: str, session: str) -> None:
        """Args: Paddock's state directory; the session's name."""
        self._state, self._session = state, session
        self._log = Tail(f"{state}/sessions/{session}/{PROXY_LOG}")
        self._ledger: Tail | None = None
        self._started = time.time_ns()
        self._changed = -1

    def new(self) -> Iterator[dict[str, Any]]:
        """Those that have come since, as lines of the ledger."""
        for content in self._log.new():
            denial = of_decision(content)
            if denial is not None:
                yield proxied(denial)
        if self._ledger is None:
            self._look()
        for content in self._ledger.new() if self._ledger is not None else ():
            if content.pop("kind", "") == "denial" and not (self._log.at and content.get("layer") == PROXY):
                yield content

    def _look(self) -> None:
        try:
            changed = os.stat(directory(self._state)).st_mtime_ns
        except FileNotFoundError:
            return
        if changed != self._changed and (path := _current(self._state, self._session, self._started)) is not None:
            self._ledger = Tail(path)
        if time.time_ns() - changed > _TICK:
            self._changed = changed


def proxied(denial: Denial) -> dict[str, Any]:
    """A line as the ledger will have it, as far as the proxy's own words go."""
    option = denial.hint.startswith("--")
    content = line(denial, Remedy(flag=denial.hint if option else "", note="" if option else denial.hint))
    content.pop("kind")
    return content


def _current(state: str, session: str, now: int) -> str | None:
    """The live session's own ledger: an earlier session may have had its name."""
    path = path_of(state, session)
    if path is None or int(path.removesuffix(SUFFIX).rpartition(".")[2]) > now:
        return path
    try:
        began = os.stat(f"{state}/sessions/{session}/{_BEGAN}").st_mtime_ns
        return path if os.stat(path).st_mtime_ns >= began else None
    except FileNotFoundError:
        return None


class Tail:
    """What is new in a file of JSON lines."""

    def __init__(self, path: str) -> None:
        """Args: of the file, which need not be there yet."""
        self._path = path
        self.at = 0
        """Where the next line starts; 0 as long as there was none."""

    def new(self) -> Iterator[dict[str, Any]]:
        """The whole lines that have come since; none when the file is not there."""
        try:
            file = open(self._path, "rb")  # noqa: SIM115  # closed below; the error is expected
        except FileNotFoundError:
            return
        with file:
            file.seek(self.at)
            for text in file:
                if not text.endswith(b"\n"):
                    return
                self.at += len(text)
                content = decoded(text.decode(errors="replace"))
                if content is not None:
                    yield content


# Writing one session's ledger. A line is written when a kind of denial comes first, so that `paddock denials --follow`
# sees it at once; what repeats is counted, and the counts follow as further lines of the same key, to be added up. The
# first line of a file says what session it was and which layers could be heard, the last one what was lost.

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
            path: where, from `path_for`.
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
        elif self._write(line(denial, answer(denial, self._plan))):
            self._counts[key] = (denial, 0)
        else:
            self.beyond += denial.seen

    def note(self, content: dict[str, Any]) -> None:
        """Writes a line of another kind."""
        self._write(content)

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
            if more and not self._write(line(denial._replace(time=now, seen=more), answer(denial, self._plan))):
                lost += more
        if self._fd != -1 or lost or self.beyond:
            self._write({"kind": _END, "time": stamp(now), "lost": lost + self.beyond, "notes": list(notes)})

    def close(self) -> None:
        """Closes the file."""
        if self._fd != -1:
            os.close(self._fd)
            self._fd = -1

    def _write(self, content: dict[str, object]) -> bool:
        if self._fd == -1:
            self._fd = _opened(self.path, self.facts)
        return _put(self._fd, content)


def facts_of(session: str, plan: Plan) -> dict[str, object]:
    """What the first line of a ledger says of its session; the calling process is the session's launcher."""
    return {"session": session, "worktree": plan.worktree, "command": plan.command,
            "backend": plan.backend, "net": plan.net, "pid": os.getpid()}  # fmt: skip


def append(path: str, plan: Plan, denial: Denial, facts: dict[str, object] | None = None) -> bool:
    """Adds one denial to the ledger of a live session, from another process than the session's own launcher.

    Returns whether it was written: a ledger can be full.

    Args:
        path: from `path_of`; made when it is missing.
        plan: of the session; says what would allow the denial.
        facts: of the session, for the first line of a ledger that is made here.

    Raises:
        OSError: the ledger cannot be written.
    """
    return note(path, facts, line(denial, answer(denial, plan)))


def note(path: str, facts: dict[str, object] | None, content: dict[str, object]) -> bool:
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
        return _put(fd, content)
    finally:
        os.close(fd)


def _opened(path: str, facts: dict[str, object] | None) -> int:
    """A ledger for appending, made when it is missing: whoever in a session is first to refuse something makes it."""
    for _ in range(2):
        try:
            return os.open(path, _FLAGS)
        except FileNotFoundError:
            prune(os.path.dirname(os.path.dirname(path)), time.time())
            try:
                fd = create(path)
            except FileExistsError:
                continue  # another process of the session was quicker
        if facts is not None:
            _put(fd, {"kind": "session", "version": VERSION, "time": stamp(time.time()), **facts})
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
        if len(denial.path) >= PATH_MAX:  # it may be the beginning of what was asked for
            return Remedy(note="no option allows it: no path can be so long")
        return remedy(plan, denial.path, denial.wanted)
    if denial.operation == KEY:
        return KEEPS_OUT.get(denial.hint) or Remedy(note=denial.hint)
    if denial.host:
        # What the proxy refused came by the proxy, whatever the host: a rule is enough.
        found = (remedy_by_rule if denial.layer == PROXY else remedy_for_host)(plan, denial.host, denial.port)
        # The proxy knows more than the name: where it leads, and which rule forbids it.
        if denial.hint.startswith("--allow-domain ") and denial.hint not in found.flag:
            # Of an address that the name led to: both are needed, and one rule may be there already.
            rule = denial.hint.removeprefix("--allow-domain ").strip("'")
            return found._replace(flag=denial.hint, toml=toml("network", "allow_domains", rule), note="")
        return Remedy(note=denial.hint, risk=found.risk) if denial.hint not in found.flag else found
    if denial.layer == SECCOMP and denial.target in _SOCKETS and plan.net == "none":
        note = "if it was for the internet: --net proxy --allow-domain HOST[:PORT], or --net open"
        return Remedy(note=note, risk=REACHES)
    return Remedy(note="no option allows it: it would reach outside of the jail")


def stamp(seconds: float) -> str:
    """A time in RFC 3339's form, UTC, with milliseconds."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds * 1000) % 1000:03d}Z"


PATH_MAX = 4096
"""Of Linux, with the byte that ends a path."""

_END = "end"
_MOST_TEXT, _MOST_ITEMS = 100, 5


def _put(fd: int, content: dict[str, object]) -> bool:
    """Writes a line, unless the ledger is full: whether it did. The last line has room always."""
    data = _packed(content)
    if len(data) > MOST_LINE:
        allow = {"flag": "", "toml": "", "note": "too long to be shown whole"}
        data = _packed({name: allow if name == "allow" else _cut(value) for name, value in content.items()})
    if content["kind"] != _END and os.fstat(fd).st_size > MOST_BYTES - MOST_LINE:
        return False
    # One write of one line: with O_APPEND nobody's line ends up in another's.
    os.write(fd, data)
    return True


def _packed(content: dict[str, object]) -> bytes:
    return json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _cut(value: object) -> object:
    if isinstance(value, dict):
        return {name: _cut(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(each) for each in value[:_MOST_ITEMS]]
    return f"{value[:_MOST_TEXT]}..." if isinstance(value, str) and len(value) > _MOST_TEXT else value


def _is_full(path: str) -> bool:
    try:
        return os.stat(path).st_size > MOST_BYTES - MOST_LINE
    except FileNotFoundError:
        return False


# Denials in words, for people.


def one_line(found: Denial, seen: int, plan: Plan) -> str:
    """One kind of denial, and what would allow it."""
    remedy = answer(found, plan)
    who = cited(found.process.comm or found.process.exe) if any(found.process[1:]) else ""
    about = subject(found.path, found.host, found.port, found.target)
    times = f" ({seen} times)" if seen > 1 else ""
    fix = f": {remedy.flag or remedy.note}" + (f" ({remedy.note})" if remedy.flag and remedy.note else "")
    return f"{f'{who}: ' if who else ''}{cited_words(found.operation)} {about}{times}{fix}"


def subject(path: str | None, host: str | None, port: int | None, target: str | None) -> str:
    """What it was about, in the form in which it can stand among Paddock's words: clients choose all of it."""
    if host:
        return (host if is_host(host) else cited(host)) + (f":{port}" if port else "")
    if path:
        return cited(path)
    return cited_words(target) if target else f"port {port}" if port else ""


def paragraph(content: dict[str, Any]) -> list[str]:
    """A denial of a ledger (`read`), with all that is known of it."""
    process = content.get("process") or {}
    what = subject(content.get("path"), content.get("host"), content.get("port"), content.get("target"))
    when = f"{content.get('time')}" + (f", {content['count']} times" if content.get("count", 1) > 1 else "")
    named = map(str if content.get("layer") == PROXY else cited, content.get("rights") or ())  # a rule, or a method
    rights = f" ({text})" if (text := ", ".join(named)) else ""
    verb = "failed in" if content.get("operation") == UNRESOLVED else "denied by"
    lines = [
        f"{cited_words(str(content.get('operation')))} {what}",
        f"  {verb}   {content.get('layer')}{rights}, {when}",
    ]
    if content.get("host") and content.get("target"):
        because = content["target"]
        lines.append(f"  because     {because if content.get('layer') == PROXY else cited_words(because)}")
    if any(process.values()):
        comm, exe = (cited(str(process.get(name) or "?")) for name in ("comm", "exe"))
        lines.append(f"  by          {comm} (pid {process.get('pid')}), {exe}")
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
    """What a bridge let pass (`read`), in a line."""
    method, about, detail = (str(content.get(name) or "") for name in ("method", "subject", "detail"))
    host, _, port = about.rpartition(":")
    about = about if is_host(host) and port.isdigit() else cited(about)
    detail = f" ({detail if detail.startswith(_ASKED) else cited_words(detail)})" if detail else ""
    return printable(f"{content.get('verdict')} {cited(method)} {about}{detail}")


def missing_kinds(backend: str, *, heard: bool) -> list[str]:
    """Kinds of denials that a session's ledger cannot hold.

    Args:
        backend: of the session.
        heard: the kernel's audit was proven to be heard.
    """
    notes = []
    if backend != promises.BUBBLEWRAP and not heard:
        notes.append(
            "denials by Landlock and the system call filter: needs CAP_AUDIT_READ, and audit on (auditctl -e 1)"
        )
    if promises.has_mounts(backend):
        notes.append("files that the jail does not show or shows read-only: `paddock learn` watches for them")
    return notes
