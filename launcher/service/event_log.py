"""The service's events: streamed as they happen, and replayed to clients that reconnect.

Events have ids that only grow, over restarts and over the loss of the database. They are held in memory until they are
written down, some at a time; the newest `_MOST_KEPT` stay written. A killed service loses what it had not written yet.
"""

import asyncio
import json
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from launcher.service.database import Database
from launcher.service.schema import Condition, Event, EventKind, Outcome, SessionState
from policy.errors import Refusal

# What the service counts since its start, for its metrics.


_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Histogram:
    """How long something took: counts per bucket, since the service's start."""

    def __init__(self) -> None:
        """Empty."""
        self._counts = [0] * len(_BUCKETS)
        self.number = 0
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Counts one."""
        self.number += 1
        self.sum += seconds
        for place, bound in enumerate(_BUCKETS):
            if seconds <= bound:
                self._counts[place] += 1

    def lines(self, name: str, text: str) -> list[str]:
        """In the text format."""
        lines = [f"# HELP {name} {text}", f"# TYPE {name} histogram"]
        lines += [
            f'{name}_bucket{{le="{bound:g}"}} {count}' for bound, count in zip(_BUCKETS, self._counts, strict=True)
        ]
        return [*lines, f'{name}_bucket{{le="+Inf"}} {self.number}', f"{name}_sum {self.sum!r}",
                f"{name}_count {self.number}"]  # fmt: skip


class Counters:
    """Of one supervisor."""

    def __init__(self) -> None:
        """All at zero."""
        self.created = 0
        self.denials = 0
        self.ended: Counter[str] = Counter()
        self.harvests: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.spawn = Histogram()

    def count(self, outcome: Outcome) -> None:
        """One attempt has ended."""
        self.ended[str(outcome.reason)] += 1
        self.denials += outcome.denials
        harvest = harvest_of(outcome)
        if harvest is not None:
            self.harvested(harvest)
        if outcome.refusal is not None and outcome.refusal is not harvest:
            self.refused(outcome.refusal)

    def harvested(self, harvest: Mapping[str, Any]) -> None:
        """Counts a harvest that ended, by its result or Refusal."""
        self.harvests[result_of(harvest)] += 1
        if "errorType" in harvest:
            self.refused(harvest)

    def refused(self, refusal: Mapping[str, Any]) -> None:
        """A request, a session or a harvest was refused, with the fields of `Refusal.as_dict`."""
        self.refusals[str(refusal["errorType"])] += 1


def harvest_of(outcome: Outcome) -> dict[str, Any] | None:
    """What became of the commits of an attempt; None when there was nothing to harvest.

    A strict hand-off that is refused is the refusal of the whole session.
    """
    if outcome.refusal is not None and outcome.refusal.get("errorType") == "handoff-strict":
        return outcome.refusal
    return outcome.harvest


def result_of(harvest: Mapping[str, Any]) -> str:
    """A harvest's result in one word."""
    return "refused" if "errorType" in harvest else str(harvest.get("state") or "nothing")


log = logging.getLogger("paddock.service")

_MOST_KEPT = 10_000
_MOST_UNWRITTEN = 10_000
_MOST_QUEUED = 1_000
_GAP = 1_000
"""For a clock that was set back: so many ids an earlier life may have given away without writing them down."""

_MOST_BYTES = 32 << 10
_WRITE_SECONDS = 0.25
_PAGE = 500
_HEARTBEAT_SECONDS = 15.0

_GRAVE = frozenset({SessionState.FAILED, SessionState.LOST, SessionState.UNHARVESTED})


class Subscriber:
    """A client that listens: what it has not taken yet, and how to hang up on it."""

    def __init__(self, kinds: frozenset[EventKind], sessions: frozenset[str], hang_up: Callable[[], None]) -> None:
        """Args: kinds and sessions that it wants, all when empty; called when it takes nothing for too long."""
        self._kinds = kinds
        self._sessions = sessions
        self.hang_up = hang_up
        self.queue: deque[Event] = deque()
        self.woken = asyncio.Event()

    def wants(self, event: Event) -> bool:
        """Whether it wants to hear of this."""
        return (not self._kinds or event.kind in self._kinds) and (
            not self._sessions or event.session in self._sessions
        )


class Events:
    """The events of one service. Used from its one thread."""

    def __init__(self, database: Database) -> None:
        """Goes on behind what the database knows."""
        self._database = database
        self._unwritten: deque[Event] = deque(maxlen=_MOST_UNWRITTEN)
        self._subscribers: set[Subscriber] = set()
        self._writing: asyncio.TimerHandle | None = None
        self._ended = False
        # Microseconds grow faster than events: behind what was told and not written yet, or was lost with the database.
        self._before = self._span()[1]
        self._newest = self._begin = max(self._before + _GAP, int(time.time() * 1_000_000))
        database.conditions.changed = self._condition
        # Written at once: the next life begins behind it, however this one ends.
        self._unwritten.append(self._made(EventKind.SERVICE, {"state": "begins"}, ""))
        self._write()

    def publish(self, kind: EventKind, data: Mapping[str, Any], session: str = "") -> None:
        """Sends an event to everybody who listens; of data, too much is left out."""
        if len(json.dumps(data)) > _MOST_BYTES:
            data = {"omitted": f"more than {_MOST_BYTES} bytes"}
        event = self._made(kind, data, session)
        self._unwritten.append(event)
        for each in [each for each in self._subscribers if each.wants(event)]:
            each.queue.append(event)
            each.woken.set()
            if len(each.queue) > _MOST_QUEUED:
                log.warning("a client that follows events does not read them, and is disconnected")
                self._subscribers.discard(each)
                each.queue.clear()
                each.hang_up()
        self._write_soon()

    def _made(self, kind: EventKind, data: Mapping[str, Any], session: str) -> Event:
        self._newest += 1
        return Event(id=self._newest, time=round(time.time(), 3), kind=kind, session=session, data=dict(data))

    def moved(
        self, name: str, after: SessionState, why: str, outcome: Outcome | None = None, worktree: str = ""
    ) -> None:
        """A session has moved on: a line in the log, and events."""
        fields = {"session": name, "state": str(after)}
        level = logging.WARNING if after in _GRAVE else logging.INFO
        log.log(level, "session %s is %s: %s", name, after, why, extra={"fields": fields})
        data = {"state": str(after), "why": why}
        if outcome is not None:
            data |= outcome.model_dump(mode="json", include={"reason", "status", "signal", "limit", "refusal"})
        self.publish(EventKind.SESSION, data, name)
        if outcome is not None and outcome.denials:
            self.publish(EventKind.DENIALS, {"number": outcome.denials}, name)
        if outcome is not None and (harvest := harvest_of(outcome)) is not None:
            self.harvested(worktree, harvest, name)

    def harvested(self, worktree: str, harvest: Mapping[str, Any], session: str = "") -> None:
        """Commits of a worktree were taken over or refused; refused ones leave the service degraded.

        `session` is the one at whose end it happened; "" when the service harvested by itself.
        """
        conditions = self._database.conditions
        refused = "errorType" in harvest
        if not (refused and not session and conditions.raised("harvest-refused", worktree)):  # tried again in vain
            self.publish(EventKind.HARVEST, {"worktree": worktree, **harvest, "result": result_of(harvest)}, session)
        if not refused:
            conditions.clear("harvest-refused", worktree)
            return
        log.warning("harvest of %s: %s", worktree, harvest["message"], extra={"fields": {"session": session}})
        conditions.raise_("harvest-refused", f"commits of {worktree} are not harvested: {harvest['message']}",
                          str(harvest.get("hint") or f"paddock worktree harvest {worktree}"), worktree)  # fmt: skip

    def _condition(self, condition: Condition, raised: bool) -> None:  # as `Conditions.changed`
        self.publish(EventKind.CONDITION, {**condition.model_dump(mode="json"), "raised": raised})

    # Writing

    def _write_soon(self) -> None:
        if self._writing is None and self._unwritten and not self._ended:
            self._writing = asyncio.get_running_loop().call_later(_WRITE_SECONDS, self._write)

    def _write(self) -> None:
        """Writes what is held. What the database does not take waits for the next event: that it takes some is one."""
        self._writing = None
        held = list(self._unwritten)
        try:
            with self._database.transaction() as connection:
                connection.executemany(
                    "INSERT INTO event VALUES (?, ?, ?, ?, ?)",
                    ((each.id, each.time, each.kind, each.session, json.dumps(each.data)) for each in held),
                )
                connection.execute(
                    "DELETE FROM event WHERE id <= (SELECT id FROM event ORDER BY id DESC LIMIT 1 OFFSET ?)",
                    (_MOST_KEPT,),
                )
        except Refusal as refusal:
            log.debug("events are not recorded: %s", refusal.message)
            return
        while self._unwritten and self._unwritten[0].id <= held[-1].id:
            self._unwritten.popleft()

    def close(self) -> None:
        """Writes the pending events, and ends all streams."""
        self.publish(EventKind.SERVICE, {"state": "ends"})
        if self._writing is not None:
            self._writing.cancel()
        self._ended = True
        self._write()
        for each in self._subscribers:
            each.woken.set()

    # Listening

    def _span(self) -> tuple[int, int]:
        """The ids of the oldest and the newest event that are written down; 0 and 0 without any."""
        row = self._database.rows("SELECT min(id) AS oldest, max(id) AS newest FROM event")[0]
        return row["oldest"] or 0, row["newest"] or 0

    async def follow(
        self, since: int | None, kinds: Iterable[EventKind], sessions: Iterable[str], hang_up: Callable[[], None],
        *, live: bool = True,
    ) -> AsyncIterator[Event | None]:  # fmt: skip
        """Events as they happen; None now and then while there is none.

        Those after the id `since` come first; None asks for new ones only, and without `live` nothing follows them.
        `hang_up` ends the connection of a client that does not read. Empty `kinds` and `sessions` mean all.
        """
        subscriber = Subscriber(frozenset(kinds), frozenset(sessions), hang_up)
        if since is not None:
            if (lost := self._missed(since)) is not None:
                yield lost
            since = min(since, self._newest)
            while page := self._page(since):
                since = page[-1].id
                for event in filter(subscriber.wants, page):
                    yield event
        # Nothing is awaited in between: no event is missed or told twice.
        unwritten = [each for each in self._unwritten if since is not None and each.id > since]
        self._subscribers.add(subscriber)
        try:
            for event in filter(subscriber.wants, unwritten):
                yield event
            while True:
                while subscriber.queue:
                    yield subscriber.queue.popleft()
                if self._ended or not live or subscriber not in self._subscribers:
                    return
                subscriber.woken.clear()
                try:
                    await asyncio.wait_for(subscriber.woken.wait(), _HEARTBEAT_SECONDS)
                except TimeoutError:
                    yield None
        finally:
            self._subscribers.discard(subscriber)

    def _page(self, since: int) -> list[Event]:
        rows = self._database.rows("SELECT * FROM event WHERE id > ? ORDER BY id LIMIT ?", since, _PAGE)
        return [Event.model_validate({**dict(row), "data": json.loads(row["data"])}) for row in rows]

    def _missed(self, since: int) -> Event | None:
        """Says that events behind `since` are not there any more; None when they are all there."""
        oldest, _ = self._span()
        never_written = self._before < since <= self._begin
        if since == 0 or (oldest <= since <= self._newest and not never_written):
            return None
        return Event(id=max(0, oldest - 1), time=round(time.time(), 3), kind=EventKind.MISSED, data={"since": since})
