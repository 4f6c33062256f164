"""Events: told in their order, once, to those who want them, after a pause and a restart, too; and conditions."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from launcher.service import event_log
from launcher.service.database import Database
from launcher.service.event_log import Counters, Events
from launcher.service.schema import Event, EventKind, Outcome, Reason, SessionState


def never() -> None:
    raise AssertionError("nobody is to be hung up on")


async def told(source: Events, since: int | None, *, kinds: tuple[EventKind, ...] = (),
               sessions: tuple[str, ...] = ()) -> list[Event]:  # fmt: skip
    """What there is to tell at this moment, without the service's own beginnings and ends."""
    found = source.follow(since, kinds, sessions, never, live=False)
    return [event async for event in found if event is not None and event.kind is not EventKind.SERVICE]


def life(path: Path, scene: Callable[[Events], Awaitable[None]], *, killed: bool = False) -> None:
    """One life of the service: its events from the opening of the database to its end."""

    async def lived() -> None:
        database = Database(str(path))
        source = Events(database)
        await scene(source)
        if not killed:
            source.close()
        database.close()

    asyncio.run(lived())


def test_ids_grow_over_restarts_and_kills_and_the_loss_of_the_database(tmp_path: Path) -> None:
    """Nobody who comes back with an id is told the same twice, or takes a new event for an old one."""
    ids: list[int] = []

    async def scene(source: Events) -> None:
        for number in range(3):
            source.publish(EventKind.TICKET, {"number": number})
        ids.extend(event.id for event in await told(source, ids[-1] if ids else 0) if event.kind != "missed")

    path = tmp_path / "service.db"
    for killed in (False, True, True, False):
        life(path, scene, killed=killed)
    path.unlink()
    life(path, scene)
    assert ids == sorted(set(ids))
    assert len(ids) == 15


def test_who_comes_back_is_told_what_happened_meanwhile(tmp_path: Path) -> None:
    """From the record of an earlier life and from memory, without a gap; what is gone is said to be."""
    path = tmp_path / "service.db"
    first: list[Event] = []

    async def before(source: Events) -> None:
        for number in range(event_log._PAGE * 2 + 7):
            source.publish(EventKind.SESSION, {"number": number}, f"s{number % 2}")
        first.extend(await told(source, 0))

    async def after(source: Events) -> None:
        source.publish(EventKind.HARVEST, {}, "s1")
        again = await told(source, first[2].id)
        assert [event.id for event in again[:-1]] == [event.id for event in first[3:]]
        assert again[-1].kind is EventKind.HARVEST
        assert [event.data for event in again[:2]] == [{"number": 3}, {"number": 4}]
        only = await told(source, first[2].id, kinds=(EventKind.SESSION,), sessions=("s1",))
        assert {(event.kind, event.session) for event in only} == {(EventKind.SESSION, "s1")}
        assert await told(source, again[-1].id) == []
        for gone in (1, first[0].id - 2, first[-1].id + 2, again[-1].id + 99):
            assert (await told(source, gone))[0].kind is EventKind.MISSED, gone
        assert await told(source, None) == []

    life(path, before)
    assert [event.data["number"] for event in first] == list(range(event_log._PAGE * 2 + 7))
    life(path, after)


def test_the_record_and_the_memory_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest events stay; a large one is told without its content; who does not read is hung up on."""
    monkeypatch.setattr(event_log, "_MOST_KEPT", 50)
    monkeypatch.setattr(event_log, "_MOST_QUEUED", 20)

    async def scene(source: Events) -> None:
        hung_up: list[bool] = []
        deaf = source.follow(None, (), (), functools.partial(hung_up.append, True))
        reader = source.follow(None, (), (), never)
        hearing = asyncio.ensure_future(anext(reader))
        waiting = asyncio.ensure_future(anext(deaf))
        await asyncio.sleep(0)
        for number in range(200):
            source.publish(EventKind.TICKET, {"number": number, "much": "x" * 40_000 * (number == 199)})
            if number == 0:
                await waiting  # it has taken one event, and takes no more
            event = await hearing
            assert event is not None
            assert event.data.get("number", 199) == number
            hearing = asyncio.ensure_future(anext(reader))
            await asyncio.sleep(0)
        assert event is not None
        assert "omitted" in event.data
        assert hung_up == [True]
        with pytest.raises(StopAsyncIteration):
            await anext(deaf)
        source._write()
        assert len(source._page(0)) == 50
        source.close()
        last = await hearing
        assert last is not None
        assert last.kind is EventKind.SERVICE
        with pytest.raises(StopAsyncIteration):
            await anext(reader)

    life(tmp_path / "service.db", scene)


def test_a_session_that_moves_tells_of_its_harvest_and_its_denials(tmp_path: Path) -> None:
    """A strict hand-off that is refused is a refused harvest, which degrades the service until one is made."""
    refusal = {"errorType": "handoff-strict", "message": "m", "context": "", "hint": "h", "exitCode": 125}
    refused = Outcome(reason=Reason.REFUSED, status=125, refusal=refusal, denials=3)
    well = Outcome(reason=Reason.EXITED, status=0, harvest={"state": "harvested"})
    counters = Counters()

    async def scene(source: Events) -> None:
        conditions = source._database.conditions
        for outcome, after in ((refused, SessionState.FAILED), (well, SessionState.ENDED)):
            counters.count(outcome)
            source.moved("a", after, "x", outcome, "/w")
            assert conditions.names() == (["harvest-refused"] if outcome is refused else [])
        kinds = [event.kind for event in await told(source, 0)]
        assert kinds == ["session", "denials", "harvest", "condition", "session", "harvest", "condition"]

    life(tmp_path / "service.db", scene)
    assert counters.harvests == {"refused": 1, "harvested": 1}
    assert counters.refusals == {"handoff-strict": 1}
