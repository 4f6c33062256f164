"""What the page knows of live sessions beyond their records: kept while somebody looks, and bounded.

One look at all of them at a time, on a thread, however many tabs are open; nothing is looked at, and little is kept,
once the last tab has closed.
"""

import asyncio
import contextlib
import os
import re
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from launcher.jail.processes import children
from launcher.ledger import ledgers
from launcher.service import log_files
from launcher.service.api.context import Context
from launcher.service.notices import notice_of
from launcher.service.schema import EventKind, Session, SessionState
from launcher.session import answers, state
from launcher.vcs.worktrees.store import labels_of
from policy import asking
from policy.asking import Question
from policy.errors import Refusal

LOOK_SECONDS = 2.0
PATIENCE = 0.04
"""Seconds for which a page waits for a look; what it finds later comes with the stream."""
MOST_POINTS = 60
MOST_KINDS = 300
"""Kinds of denials that are kept of one session; `MOST_KINDS` of a ledger are more than anybody reads."""
MOST_NOTES = 50
MOST_LEDGERS = 50
_STALE_SECONDS = 60.0
_LABEL_SECONDS = 10.0
_LAST_BYTES = 8 << 10
_QUIET_SECONDS = 10.0
_MOST_PROCESSES = 64
_ESCAPES = re.compile(
    r"\x1b(\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(\x07|\x1b\\)?|[ -/]*[0-~])|[\x00-\x08\x0b-\x1f\x7f]"
)
"""What is for a terminal in a line of output; what is left of it is text, whatever it was."""

_READS = frozenset(("n_tty_read", "tty_read", "wait_woken"))
_LOCKS = frozenset(("locks_lock_inode_wait", "flock_lock_inode_wait", "fcntl_setlk", "do_lock_file_wait"))
"""The kernel's functions that a process sleeps in (proc_pid_wchan(5)): reading from a terminal, waiting for a lock."""


class Note(NamedTuple):
    """Something that a person may want to be told of while he does not look.

    Attributes:
        number: grows.
        title, text: what it is.
        address: on the page.
    """

    number: int
    title: str
    text: str
    address: str


@dataclass
class Glance:
    """What was seen of a live session.

    Attributes:
        cpu, memory: at the last looks, in percent of a processor, and bytes.
        last: its last line of output.
        waits: what it waits for, in a few words.
        questions: those that are open.
        denials: by what they have in common (`ledgers.merge`).
        more: kinds of denials that are not kept.
        denied: how often it was refused something.
    """

    cpu: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_POINTS))
    memory: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_POINTS))
    last: str = ""
    waits: str = ""
    questions: list[Question] = field(default_factory=list)
    denials: dict[str, dict[str, Any]] = field(default_factory=dict)
    more: int = 0
    denied: int = 0
    coming: ledgers.Coming | None = None
    sampled: float = 0.0
    written: float = 0.0


class Watcher:
    """Looks at live sessions for all open tabs.

    Attributes:
        glances: of live sessions, by their names.
        places: ticket and branch of worktrees, by their roots.
        notes: the newest that somebody may want to be told of.
    """

    def __init__(self, context: Context) -> None:
        """Args: of the service."""
        self._context = context
        self.glances: dict[str, Glance] = {}
        self.places: dict[str, tuple[str, str]] = {}
        self.notes: deque[Note] = deque(maxlen=MOST_NOTES)
        self.number = 0
        self._looked = -_STALE_SECONDS
        self._labelled = -_LABEL_SECONDS
        self._roots: set[str] = set()
        self._looking: asyncio.Task[None] | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._resting: asyncio.TimerHandle | None = None

    async def look(self, roots: Iterable[str] = ()) -> None:
        """Looks, unless somebody has just now; returns after `PATIENCE`, whether all has been seen or not.

        Args:
            roots: of worktrees whose ticket and branch are wanted, beside those of live sessions.
        """
        self._roots |= set(roots)
        if time.monotonic() - self._looked >= LOOK_SECONDS and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look(), name="page")
        if self._looking is not None and not self._looking.done():
            await asyncio.wait([self._looking], timeout=PATIENCE)

    def hear(self) -> None:
        """Somebody looks: listens to the service's events from now on, for notes."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        if self._hearing is None or self._hearing.done():
            self._hearing = asyncio.create_task(self._hear(), name="page notes")

    def rest(self) -> None:
        """Nobody looks any more; between two pages that is so for a moment."""
        self._resting = asyncio.get_running_loop().call_later(_STALE_SECONDS, self.stop)

    def stop(self) -> None:
        """Looks no more, and keeps nothing."""
        for waiting in (self._looking, self._hearing, self._resting):
            if waiting is not None:
                waiting.cancel()
        self.glances.clear()
        self.places.clear()
        self._roots.clear()

    @property
    def asked(self) -> int:
        """How many questions are open, as far as was seen lately."""
        if time.monotonic() - self._looked > _STALE_SECONDS:
            return 0
        return sum(len(glance.questions) for glance in self.glances.values())

    def glance(self, name: str) -> Glance:
        """What was seen of a session; nothing of one that was not."""
        return self.glances.get(name, _NOTHING)

    async def _look(self) -> None:
        supervisor = self._context.supervisor
        if time.monotonic() - self._looked > _STALE_SECONDS:
            self.glances.clear()
        live = {name: each.about for name, each in supervisor.live.items()}
        self.glances = {name: self.glances.get(name) or Glance() for name in live}
        usage = self._context.sampler.usage
        for name, glance in self.glances.items():
            used = usage.get(name)
            if used is not None and used.time != glance.sampled:
                glance.sampled = used.time
                glance.cpu.append(used.cpu_percent)
                glance.memory.append(used.memory)
        roots = self._roots | {about["worktree"] for about in live.values() if about["worktree"]}
        asked = {name: glance.questions for name, glance in self.glances.items()}
        await asyncio.to_thread(self._look_at_files, dict(self.glances), live, roots)
        self._looked = time.monotonic()
        number = self.asked
        for name, glance in self.glances.items():
            for each in glance.questions:
                if each not in asked.get(name, ()):
                    title = "a question waits" if number == 1 else f"{number} questions wait"
                    self._note(title, f"{name}: {each.where}", "/denials")

    def _look_at_files(self, glances: Mapping[str, Glance], live: Mapping[str, Any], roots: set[str]) -> None:
        if time.monotonic() - self._labelled > _LABEL_SECONDS or not roots <= self.places.keys():
            self.places = labels_of(self._context.places.state, roots)
            self._labelled = time.monotonic()
        for name, glance in glances.items():
            about = live[name]
            with contextlib.suppress(OSError, Refusal):  # it ends just now
                self._read_denials(name, glance)
                glance.last, glance.written = self._last_line(name, glance)
                glance.questions = self._questions(name)
                glance.waits = self._waits_for(about, glance)

    def _read_denials(self, name: str, glance: Glance) -> None:
        if glance.coming is None:
            glance.coming = ledgers.Coming(self._context.places.state, name)
        for content in glance.coming.new():
            fold(glance, content)

    def _last_line(self, name: str, glance: Glance) -> tuple[str, float]:
        directory = self._context.supervisor.log_of(name)
        try:
            changed = os.stat(f"{directory}/{log_files.NAME}").st_mtime
        except FileNotFoundError:  # it has written nothing yet
            return "", 0.0
        if changed == glance.written:
            return glance.last, changed
        for line in reversed(log_files.latest(directory, _LAST_BYTES)):
            if line.get("stream") in ("stdout", "stderr"):
                # At a terminal each line ends with a carriage return; one before that has been written over.
                text = _ESCAPES.sub("", str(line.get("text", "")).rstrip("\r").rpartition("\r")[2])
                if text.strip():
                    return text[:500], changed
        return glance.last, changed

    def _questions(self, name: str) -> list[Question]:
        if not os.path.exists(f"{self._context.places.state}/sessions/{name}/{state.QUESTIONS}"):
            return []
        with answers.Client(self._context.places, name) as client:
            return list(client.questions)

    def _waits_for(self, about: Mapping[str, Any], glance: Glance) -> str:
        if glance.questions:
            return "an answer: " + ", ".join(each.where for each in glance.questions[:3])
        if about["state"] == SessionState.CREATED:
            return "a free slot, or a client"
        if about.get("frozen"):
            return "you: it is frozen"
        if about["state"] != SessionState.RUNNING or not about["pid"]:
            return ""
        found = set(_sleeping(about["pid"]))
        if found & _LOCKS:
            return "a lock"
        at_terminal = about["stdin"] == "terminal"
        if at_terminal and found & _READS:
            return "input"
        is_quiet = glance.written and time.time() - glance.written > _QUIET_SECONDS and sum(list(glance.cpu)[-2:]) <= 1
        return "input, perhaps: it is quiet" if is_quiet and at_terminal else ""

    async def _hear(self) -> None:
        events = self._context.supervisor.events.follow(None, (EventKind.SESSION, EventKind.TICKET), (), lambda: None)
        async for event in events:
            if event is not None and (notice := notice_of(event)) is not None:
                self._note(notice.title, f"{notice.subject}: {notice.text}", notice.address)

    def _note(self, title: str, text: str, address: str) -> None:
        self.number += 1
        self.notes.append(Note(self.number, title, text, address))


_NOTHING = Glance()


def fold(glance: Glance, content: dict[str, Any]) -> None:
    """Adds a denial to those of the same kind, as far as there is room for kinds."""
    before = len(glance.denials)
    count = content.get("count", 1)
    glance.denied += count if isinstance(count, int) else 1
    ledgers.merge(glance.denials, content)
    if len(glance.denials) > MOST_KINDS and len(glance.denials) > before:
        glance.denials.popitem()
        glance.more += 1


_known: OrderedDict[str, tuple[int, int, Glance]] = OrderedDict()
"""What ended sessions' ledgers say, by their path: inode and size when they were read."""


def of_ledger(path: str) -> Glance | None:
    """What a ledger of an ended session says, read once; None where it is gone."""
    try:
        about = os.stat(path)
    except FileNotFoundError:
        return None
    inode, size, glance = _known.pop(path, (0, 0, Glance()))
    if (inode, size) != (about.st_ino, about.st_size):
        glance = Glance()
        for content in ledgers.lines(path):
            if content.pop("kind", "") == "denial":
                fold(glance, content)
    _known[path] = (about.st_ino, about.st_size, glance)
    if len(_known) > MOST_LEDGERS:
        _known.popitem(last=False)
    return glance


def together(found: Mapping[str, Glance]) -> list[dict[str, Any]]:
    """Denials that mean the same in several sessions, in one; the latest first."""
    rows: dict[str, dict[str, Any]] = {}
    for session, glance in found.items():
        for key, content in tuple(glance.denials.items()):
            row = rows.setdefault(key, {**content, "count": 0, "sessions": [], "subject": subject(content)})
            row["count"] += content["count"]
            row["last"] = max(str(row.get("last")), str(content.get("last")))
            row["sessions"].append(session)
            # The proxy's own log names no risk; its ledger will, at the session's end.
            row["risk"] = row.get("risk") or (asking.RISK if content.get("host") else "")
    return sorted(rows.values(), key=lambda row: str(row["last"]), reverse=True)


def subject(content: Mapping[str, Any]) -> str:
    """What a denial was about."""
    return ledgers.subject(content.get("path"), content.get("host"), content.get("port"), content.get("target"))


def _sleeping(launcher: int) -> Iterable[str]:
    """The kernel's functions that the processes of a session sleep in."""
    pids = [launcher]
    for pid in pids:
        with contextlib.suppress(OSError):
            if len(pids) < _MOST_PROCESSES:
                pids += children(pid)  # a list may grow while it is walked
            with open(f"/proc/{pid}/wchan", encoding="ascii", errors="replace") as file:
                yield file.read(100)


def waits_for(session: Session, glance: Glance) -> str:
    """What a session waits for, live or not."""
    if session.state is SessionState.UNHARVESTED:
        return "the harvest of its commits"
    return glance.waits
