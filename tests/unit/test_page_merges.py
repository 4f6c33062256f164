"""The pages on merges and ticket runs: forecast, order, merge, conflict, roll back, boards."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from launcher.service.api import routes
from launcher.service.page import boards, merging
from launcher.service.ticket_schema import TicketRequest, TicketState, TicketStep
from launcher.vcs.worktrees.models import Worktree
from policy import launch
from tests.support.paged import Paged
from tests.support.repository import Place, committed, git
from tests.unit import test_page_review
from tests.unit.test_page_rendering import ATTACKS
from tests.unit.test_page_review import let_in, worktree

place = test_page_review.place


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Paged]:
    """A page, and a browser that was let in."""
    with let_in(tmp_path) as made:
        yield made


async def sent(browser: Paged, path: str, fields: list[tuple[str, str]]) -> httpx.Response:
    """A form with fields of the same name."""
    body = urlencode(fields)
    kind = {"content-type": "application/x-www-form-urlencoded"}
    return await browser.ask("POST", path, body=body.encode(), headers=kind)


def child(made: Worktree) -> tuple[str, str]:
    """A worktree as the page's form has it: the commit that it shows, and where."""
    return "child", f"{git('rev-parse', 'HEAD', at=Path(made.path))} {made.path}"


def test_a_merge_is_forecast_carried_out_and_taken_back(browser: Paged, place: Place) -> None:
    """Two worktrees that conflict: the matrix says so in their order; the first is merged, the second is named."""
    one, two = (worktree(browser, place, name) for name in ("one", "two"))
    committed(Path(one.path), file="ONE\n")
    committed(Path(two.path), file="TWO\n")
    for name in ("user.name", "user.email"):
        git("config", name, "Somebody", at=place.app)
    before = git("rev-parse", "main", at=place.app)
    fields = [("repository", str(place.app)), child(two), child(one), ("into", "")]

    async def through() -> None:
        shown = (await browser.ask("GET", "/merges")).text
        assert shown.index("<strong>one</strong>") < shown.index("<strong>two</strong>")
        assert shown.count('" checked>') == 0
        await browser.ask("GET", f"/worktrees/{one.worktree_id}")
        assert (await browser.ask("GET", "/merges")).text.count('" checked>') == 1
        forecast = (await sent(browser, "/merges/forecast", fields)).text
        assert forecast.index("<strong>two</strong>") < forecast.index("<strong>one</strong>")
        assert ">1 file<" in forecast
        assert 'agent/two <span class="good">is merged' in forecast
        assert 'agent/one <span class="bad">conflicts</span> with what main is by then' in forecast
        assert "1 file of main would change" in forecast
        assert "<code>M file</code>" in forecast
        assert git("rev-parse", "main", at=place.app) == before
        address = (await sent(browser, "/merges", fields)).headers["location"]
        assert address == "/merges/begun/1"
        begun = browser.app.state.merges.begun[1]
        await begun.task
        text = (await browser.ask("GET", address)).text
        assert "agent/one conflicts" in text
        assert "CONFLICT (content)" in text
        assert begun.total == 2
        run = begun.answer.run.run_id
        assert (place.app / "file").read_text() == "TWO\n"
        text = (await browser.ask("GET", f"/merges?repository={place.app}")).text
        assert f"/merges/runs/{run}?repository=" in text
        assert "rolled-back" in await back(run, 2)
        assert git("rev-parse", "main", at=place.app) == before
        assert 'role="alert"' in await back(run, 3)

    async def back(run: str, number: int) -> str:
        sent_back = await sent(browser, f"/merges/runs/{run}/rollback", [("repository", str(place.app))])
        assert sent_back.headers["location"] == f"/merges/begun/{number}"
        await browser.app.state.merges.begun[number].task
        text = str((await browser.ask("GET", f"/merges/begun/{number}")).text)
        assert 'id="roll-back"' not in text
        return text

    asyncio.run(through())


def test_only_what_was_shown_is_merged(browser: Paged, place: Place) -> None:
    """A branch that has moved since is not, nor are those with it; the page says which, and whether it was reviewed."""
    one, two = (worktree(browser, place, name) for name in ("one", "two"))
    committed(Path(one.path), file="ONE\n")
    committed(Path(two.path), **{"other": "TWO\n", ".envrc": "x\n"})
    for name in ("user.name", "user.email"):
        git("config", name, "Somebody", at=place.app)
    before = git("rev-parse", "main", at=place.app)

    async def through() -> None:
        assert (await browser.ask("GET", "/merges")).text.count("not reviewed") == 2
        await browser.ask("GET", f"/worktrees/{two.worktree_id}")
        shown = (await browser.ask("GET", "/merges")).text
        assert shown.count('<span class="good">reviewed') == 1
        values = re.findall(r'name="child" value="([0-9a-f]{40} [^"]+)"', shown)
        assert len(values) == 2
        committed(Path(two.path), other="EVIL\n")
        shown = (await browser.ask("GET", "/merges")).text
        assert "moved since you reviewed it" in shown
        assert '" checked>' not in shown
        fields = [("repository", str(place.app)), *(("child", each) for each in values)]
        assert "has moved since it was shown" in await merged(fields, 1)
        shown = (await browser.ask("GET", "/merges")).text
        assert re.search(
            r'<a href="/merges/begun/1">merge of app-one, app-two</a>: <span class="bad">[^<]* has moved', shown
        )
        assert git("rev-parse", "main", at=place.app) == before
        forecast = (await sent(browser, "/merges/forecast", fields)).text  # of what is there now, as the form is
        assert '<code>.envrc</code> <span class="bad">a shell or its environment manager runs it' in forecast
        fields[1:] = [("child", each) for each in re.findall(r'value="([0-9a-f]{40} [^"]+)" checked', forecast)]
        assert "has moved since it was shown" not in await merged(fields, 2)
        assert (place.app / "other").read_text() == "EVIL\n"

    async def merged(fields: list[tuple[str, str]], number: int) -> str:
        await sent(browser, "/merges", fields)
        await browser.app.state.merges.begun[number].task
        return str((await browser.ask("GET", f"/merges/begun/{number}")).text)

    asyncio.run(through())


def test_a_merge_that_is_refused_says_so(browser: Paged, place: Place) -> None:
    """In the place of its progress; a form without anything to merge is refused at once, and one without its token."""

    async def through() -> None:
        fields = [("repository", str(place.app)), ("child", "0 <b>nothing")]
        address = (await sent(browser, "/merges", fields)).headers["location"]
        await browser.app.state.merges.begun[1].task
        text = (await browser.ask("GET", address)).text
        assert "child-unknown" in text
        assert "<b>nothing" not in text
        assert (await sent(browser, "/merges", fields[:1])).status_code >= 400
        assert (await sent(browser, "/merges", [("repository", "relative"), *fields[1:]])).status_code >= 400
        assert (await browser.ask("GET", "/merges/begun/7")).status_code == 422
        assert (await browser.ask("GET", f"/merges/runs/none?repository={place.app}")).status_code == 422
        body = urlencode(fields).encode()
        for path in ("/merges", "/merges/forecast", "/merges/runs/x/rollback", "/tickets/x/stop", "/tickets/x/resume"):
            refused = await browser.ask("POST", path, body=body, headers={"x-csrf": "wrong"})
            assert refused.status_code == 403

    asyncio.run(through())
    assert browser.service.supervisor.counters.refusals["child-unknown"] == 1


def test_hostile_names_are_text_on_the_merge_pages(browser: Paged, place: Place) -> None:
    """Branches may hold markup; files and git's own words about them do."""
    one, two = (worktree(browser, place, name) for name in ("one", "two"))
    name = "<img src=x onerror=alert(1)>\x1b[31m\u202e"
    for each, text in ((one, "1\n"), (two, "2\n")):
        git("switch", "-qc", f"<script>alert({text[0]})<", at=Path(each.path))
        (Path(each.path) / name).write_text(text)
        git("add", "-A", at=Path(each.path))
        git("commit", "-qm", "x", at=Path(each.path))
    fields = [("repository", str(place.app)), child(one), child(two)]

    async def through() -> str:
        text = (await sent(browser, "/merges/forecast", fields)).text
        address = (await sent(browser, "/merges", fields)).headers["location"]
        await browser.app.state.merges.begun[1].task
        return text + (await browser.ask("GET", address)).text + (await browser.ask("GET", "/merges")).text

    text = asyncio.run(through())
    assert not [each for each in ("<img", "<script>alert", "\x1b", "\u202e") if each in text]
    assert "&lt;script&gt;alert(1)&lt;" in text
    assert r"&lt;img src=x onerror=alert(1)&gt;\x1b[31m\u202e" in text


def test_a_forecast_is_laid_out_in_its_order() -> None:
    """Each child meets the trunk and those before it; what it conflicts with is named."""

    def cell(source: str, into: str, *, clean: bool = True) -> dict[str, Any]:
        return {"source": source, "into": into, "clean": clean, "conflicts": [], "error": None}

    found = merging.matrix({
        "target": "main",
        "children": [cell("a", "main"), cell("b", "main", clean=False), cell("c", "main")],
        "pairs": [cell("b", "a"), cell("c", "a", clean=False), cell("c", "b")],
    })  # fmt: skip
    assert [[each and each["into"] for each in row["cells"]] for row in found["rows"]] == [
        ["main", None, None, None], ["main", "a", None, None], ["main", "a", "b", None],
    ]  # fmt: skip
    assert len(found["conflicts"]) == 2


def test_only_so_many_merges_are_kept(browser: Paged) -> None:
    """The newest that are over; those that go on stay."""
    kept = merging.Merges()
    for number in range(1, 101):
        kept.begun[number] = merging.Merging(number, "/nowhere", "", answer=None if number == 1 else True)  # type: ignore[arg-type]

    async def begin() -> None:
        kept.numbers = iter([101])  # type: ignore[assignment]
        body = merging._asked(b"repository=/nowhere&child=0+x")
        context = browser.service.context
        begun = kept.begin(context, body.repository, "", lambda merging: routes.merge(context, body, merging.step))
        assert begun.task is not None
        await begun.task

    asyncio.run(begin())
    assert len(kept.begun) == merging.MOST_KEPT + 2
    assert 1 in kept.begun


def run(browser: Paged, name: str, result: dict[str, Any] | None = None, **steps: TicketStep) -> None:
    """A ticket run on record, with its tickets in these steps, failed where it has a result; nothing works on it."""
    request = TicketRequest.model_validate(
        {"name": name, "repository": "/srv/x", "tickets": [{"ticket": each, "command": ["true"]} for each in steps]}
    )
    records = browser.service.context.tickets.records
    records.insert(name, request.model_dump(mode="json"), 0, None, "")

    async def move() -> None:
        for number, state in enumerate(steps.values(), 1):
            records.step(name, number, state)
        if result is not None:
            records.move(name, TicketState.FAILED, result)

    asyncio.run(move())


def test_runs_are_boards(browser: Paged) -> None:
    """Each step has its column; a run that failed can be resumed, one that goes on stopped."""
    assert {state for _, states in boards.COLUMNS for state in states} == set(TicketStep)
    run(browser, "nightly", first=TicketStep.RUNNING, second=TicketStep.CONFLICTED, third=TicketStep.MERGED)
    text = browser.get("/tickets").text
    for column, ticket in (("running", "first"), ("conflict", "second"), ("merged", "third")):
        assert ticket in text.partition(f'aria-label="{column}"')[2].partition("</section>")[0]
    text = browser.get("/tickets/nightly").text
    assert 'action="/tickets/nightly/stop"' in text
    assert browser.get("/tickets/none").status_code == 404
    assert browser.post("/tickets/none/stop").status_code == 404


def test_a_card_leads_to_what_there_is_of_its_ticket(browser: Paged, tmp_path: Path) -> None:
    """Why it failed, its review while its worktree is there, its merge; who resumes needs the run's environment."""
    agent = {"status": 0, "refusal": None, "reason": "exited", "state": "ended", "why": ""}
    agents = [{**agent, "ticket": "good", "session_id": "1"},
              {**agent, "ticket": "bad", "session_id": "2", "status": 7, "why": "it <b>could</b> not"}]  # fmt: skip
    descriptor = {"run_id": "run-1", "main_worktree_merge_result": {"commit_id": "c" * 40}}
    merged = [{"agent_result_id": "1", "merge_descriptor": descriptor}]
    result = {"trunk": "/srv/x", "agents": agents, "aggregation": {"merged": merged}}
    run(browser, "nightly", result, good=TicketStep.MERGED, bad=TicketStep.FAILED)
    records = browser.service.context.tickets.records
    (tmp_path / "bad").mkdir()
    with browser.database.transaction() as connection:
        for ticket in ("good", "bad"):
            connection.execute("UPDATE ticket SET worktree = ? WHERE ticket = ?", (f"{tmp_path}/{ticket}", ticket))
        row = {**json.loads(records.row("nightly")["request"]), "environment": ["TOKEN"]}
        connection.execute("UPDATE ticket_run SET request = ? WHERE name = 'nightly'", (json.dumps(row),))
    text = browser.get("/tickets/nightly").text
    good, bad = (
        text.partition(f'aria-label="{column}"')[2].partition("</section>")[0] for column in ("merged", "failed")
    )
    assert "merged as cccccccccccc" in good
    assert 'href="/merges/runs/run-1?repository=%2Fsrv%2Fx"' in good
    assert "review" not in good
    assert "failed (7): it &lt;b&gt;could&lt;/b&gt; not" in bad
    assert f'href="/worktrees/{launch.worktree_id(f"{tmp_path}/bad")}"' in bad
    assert 'data-copy="paddock tickets resume nightly"' in text
    assert 'action="/tickets/nightly/resume"' not in text


def test_what_a_run_came_to_is_text(browser: Paged) -> None:
    """Whatever agents wrote into it."""
    refusal = {"message": "".join(ATTACKS), "context": "", "hint": "\x1b[31m"}
    agent = {"ticket": "only", "session_id": "s", "status": 1, "refusal": None, "reason": "exited", "state": "failed",
             "why": "".join(ATTACKS)}  # fmt: skip
    run(browser, "nightly", {"refusal": refusal, "agents": [agent]}, only=TicketStep.FAILED)
    text = browser.get("/tickets/nightly").text
    assert "failed (1): &lt;" in text
    assert "<script>alert" not in text
    assert "<iframe" not in text
    assert r"\x1b[31m" in text
    assert 'action="/tickets/nightly/resume"' in text
