"""The user's command is told of what happened: in its environment, a few at a time, and none for ever."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.service import notices
from launcher.service.notices import Notices
from launcher.service.schema import EventKind
from tests.support.paged import Paged, paged

Told = tuple[EventKind, dict[str, object], str]
"""Kind, data and session of an event."""


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Paged]:
    """A service's parts."""
    with paged(tmp_path) as found:
        yield found


def told(made: Paged, line: str, *events: Told, seconds: float = 2.0) -> None:
    """Publishes events while the command of `notify` is `line`, and waits until no command runs."""
    supervisor = made.service.supervisor
    supervisor.settings = supervisor.settings.model_copy(update={"notify": line})

    async def scene() -> None:
        telling = Notices(supervisor, made.places)
        following = asyncio.create_task(telling.run())
        await asyncio.sleep(0.01)
        for kind, data, session in events:
            supervisor.events.publish(kind, data, session)
        deadline = time.monotonic() + seconds
        await asyncio.sleep(0.05)
        while telling._running and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for task in telling._running:
            task.cancel()
        following.cancel()
        await asyncio.gather(following, *telling._running, return_exceptions=True)

    asyncio.run(scene())


ENDED: Told = (EventKind.SESSION, {"state": "failed", "why": "exited, status 1; $(touch x) `id` \" '"}, "one")
CONFLICT: Told = (EventKind.TICKET, {"run": "r", "number": 2, "state": "conflicted"}, "")


def test_the_command_hears_of_ends_and_conflicts_only(made: Paged, tmp_path: Path) -> None:
    """And what it hears is no text of its shell's."""
    program = "import json, os; print(json.dumps({n: v for n, v in os.environ.items() if n.startswith('PADDOCK_')}))"
    line = f'/usr/bin/python3 -c "{program}" >>{tmp_path}/said; pwd >>{tmp_path}/where'
    others: list[Told] = [
        (EventKind.SESSION, {"state": "running", "why": "begun"}, "one"),
        (EventKind.TICKET, {"run": "r", "number": 2, "state": "merged"}, ""),
    ]
    told(made, line, *others, ENDED, CONFLICT)
    lines = [json.loads(each) for each in (tmp_path / "said").read_text().splitlines()]
    said = sorted(lines, key=lambda each: str(each["PADDOCK_NOTICE"]))
    assert [each["PADDOCK_NOTICE"] for each in said] == ["conflict", "session"]
    assert [each["PADDOCK_SUBJECT"] for each in said] == ["r", "one"]
    assert said[1]["PADDOCK_TEXT"] == ENDED[1]["why"]
    assert set((tmp_path / "where").read_text().splitlines()) == {made.places.home}
    assert not (tmp_path / "home/x").exists()


def test_without_a_command_nothing_is_started(made: Paged, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default."""
    monkeypatch.setattr(notices.Notices, "_start", lambda self, notice: pytest.fail("nothing is to be told"))
    told(made, "", ENDED)


def test_commands_are_few_and_end(
    made: Paged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that hangs is ended with what it has started; those beyond the bound are said not to be."""
    monkeypatch.setattr(notices, "_SECONDS", 0.3)
    told(made, f"echo begun >>{tmp_path}/said; sleep 100", *[ENDED] * 7)
    assert (tmp_path / "said").read_text().count("begun") == notices._MOST_COMMANDS
    assert caplog.text.count("commands run already") == 3
    assert caplog.text.count("did not end within") == notices._MOST_COMMANDS
    told(made, "exit 7", ENDED)
    assert "ended with status 7" in caplog.text
