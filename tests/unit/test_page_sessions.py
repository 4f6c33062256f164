"""What the pages on sessions, denials and health show, and what their forms do: the control API's own functions."""

import asyncio
import gc
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from launcher.service import log_files
from launcher.service.page import attached, denied, live, overview, watcher
from launcher.service.page.admission import Visit
from launcher.service.page.live import Tabs
from launcher.service.page.rendering import macros
from launcher.service.page.watcher import Glance, fold
from launcher.service.schema import EventKind, Outcome, Reason, SessionDetails, SessionState
from launcher.session.places import AUDIT_SOCKET
from policy.asking import Question
from policy.errors import Refusal
from tests.support.paged import Paged, paged
from tests.unit.test_page_rendering import ATTACKS


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Paged]:
    """A page, and a browser that was let in."""
    with paged(tmp_path) as made:
        yield made


def log(browser: Paged, name: str, *lines: str, stream: str = "stdout") -> None:
    """A session's log."""
    directory = browser.service.supervisor.log_of(name)
    os.makedirs(directory, exist_ok=True)
    with open(f"{directory}/{log_files.NAME}", "a", encoding="utf-8") as file:
        file.writelines(json.dumps({"time": time.time(), "stream": stream, "text": line}) + "\n" for line in lines)


def denial(**fields: Any) -> dict[str, Any]:  # noqa: ANN401  # as a ledger has them
    """A line of a ledger."""
    return {
        "time": "2026-11-26T12:00:00.000Z", "layer": "proxy", "operation": "connect", "path": None, "host": "a.example",
        "port": 443, "target": None, "rights": [], "process": {"comm": "curl", "exe": "/usr/bin/curl", "pid": 7},
        "count": 1, "allow": {"flag": "--allow-domain a.example", "toml": "", "note": ""}, "risk": "reaches a.example",
        **fields,
    }  # fmt: skip


def test_the_overview_shows_live_sessions_or_all(browser: Paged) -> None:
    """Each with its state, age and command."""
    browser.session("running", "claude", "-p")
    browser.session("over", "true", state=SessionState.ENDED)
    live_only, all_of_them = browser.get("/").text, browser.get("/?all=1").text
    assert "/sessions/running" in live_only
    assert "/sessions/over" not in live_only
    assert "/sessions/over" in all_of_them
    assert "claude -p" in live_only


def test_who_has_just_failed_is_shown_with_the_live_ones(browser: Paged) -> None:
    """For ten minutes, with how it ended."""
    outcome = Outcome(reason=Reason.EXITED, status=7).model_dump_json()
    for name, ago in (("lately", 500), ("before", 700)):
        browser.session(name)
        browser.service.store.move(
            name, SessionState.FAILED, "as the test says", checked=False, outcome=outcome, ended=time.time() - ago
        )
    assert "status 7" in browser.get("/").text
    assert "/sessions/before" not in browser.get("/").text
    assert browser.get("/?all=1").text.count("status 7") == 2


def test_the_last_line_is_that_of_any_session(browser: Paged) -> None:
    """Also of one at a terminal, where each line ends with a carriage return, and of one that waits for nothing."""
    watching = watcher.Watcher(browser.service.context)
    for name, lines in {"tty": ("first\r", "50%\r100%\r", "\r"), "pipe": ("first", "100%", "")}.items():
        log(browser, name, *lines)
        assert watching._last_line(name, Glance())[0] == "100%"


def test_a_sessions_own_page_shows_its_output_and_history(browser: Paged) -> None:
    """As text, whatever the agent wrote."""
    browser.session("one", "sh", state=SessionState.FAILED)
    directory = browser.service.supervisor.log_of("one")
    os.makedirs(directory)
    writer = log_files.LogWriter(directory, log_files.Redactor(()), most_bytes=64 << 20, files=2)
    for _ in range(1_000):
        writer.write("stdout", b"x" * 10_000)
    writer.write("stdout", b"\n\xff\n")
    writer.write("stdout", "\n".join((*ATTACKS, "\x1b[31mred\x1b[0m \u202etxt", "")).encode())
    writer.close()
    text = browser.get("/sessions/one").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<img" not in text
    assert r"\x1b[31mred\x1b[0m \u202etxt" in text
    assert "x" * 100 in text
    assert len(text) < 200_000
    assert "as the test says" in text
    assert 'action="/sessions/one/forget"' in text


def test_a_terminals_output_is_rendered_in_a_confined_process(browser: Paged) -> None:
    """What stands on the screen at the end, without its colours."""
    browser.session("tty", "vi", stdin="terminal", state=SessionState.ENDED)
    log(browser, "tty", "24 80 new", stream="terminal")
    log(browser, "tty", "\x1b[2J\x1b[Hfirst\x1b[31m <b>red</b>\x1b[0m", "\x1b]0;title\x07second\rSECOND")
    text = browser.get("/sessions/tty").text
    assert "first &lt;b&gt;red&lt;/b&gt;\nSECOND" in text
    assert "title" not in text.partition('id="output"')[2]


@pytest.mark.parametrize("path", ["/sessions/none", "/sessions/..%2Fx", "/sessions/%3Cb%3E", "/worktrees/none/x", "/x"])
def test_what_is_not_there_is_said_to_be(browser: Paged, path: str) -> None:
    """In a page of the same form; what was asked for is not shown as anything but text."""
    answer = browser.get(path)
    assert answer.status_code in (404, 422)
    assert "<b>" not in answer.text
    assert "Refused" in answer.text


def test_forms_do_what_the_api_does_and_refuse_as_it_does(browser: Paged) -> None:
    """A session that is over cannot be stopped or sent a signal; it can be forgotten, once."""
    browser.session("over", state=SessionState.ENDED)
    browser.session("live")
    assert browser.post("/sessions/over/signal", {"signal": "SIGTERM"}).status_code == 409
    answer = browser.post("/sessions/over/signal", {"signal": "SIGSTOP<b>"})
    assert "signal-unknown" in answer.text
    assert "<b>" not in answer.text
    assert browser.post("/sessions/live/forget").status_code == 409
    assert browser.post("/sessions/over/forget").headers["location"] == "/?all=1"
    assert browser.post("/sessions/over/forget").status_code == 404
    assert browser.post("/sessions/none/stop").status_code == 404
    refused = browser.service.supervisor.counters.refusals
    assert refused["session-over"] == 1
    assert refused["session-unknown"] == 2


def test_an_answer_is_one_of_four_words(browser: Paged) -> None:
    """And names the host and port of a question of a live session's."""
    browser.session("one")
    asked = {"answer": "once", "host": "b.example", "port": "443"}
    for wrong in ({"answer": "yes"}, {"port": ""}, {"port": "x"}, {"port": "0"}, {"port": "65536"}):
        assert browser.post("/sessions/one/questions/1", asked | wrong).status_code == 400
    assert browser.post("/sessions/one/questions/1", {"answer": "once"}).status_code == 400
    assert browser.post("/sessions/one/questions/x", asked).status_code == 404
    assert browser.post("/sessions/one/questions/1", asked).status_code in (404, 409, 422)


def test_denials_of_several_sessions_are_put_together(browser: Paged) -> None:
    """By what they have in common; each with what would allow it, and the risk."""
    for name in ("a", "b"):
        browser.session(name, state=SessionState.ENDED)
        browser.denials(name, denial(), denial(), denial(host=f"<b>{name}</b>"))
    assert "a.example" not in browser.get("/denials").text
    for _ in range(2):  # read, and known
        text = browser.get("/denials?ended=1").text
        assert text.count("a.example:443") == 1
        assert 'data-label="times">4<' in text
        assert "&#39;&lt;b&gt;a&lt;/b&gt;&#39;:443" in text
        assert 'data-copy="--allow-domain a.example"' in text
        assert "risk: reaches a.example" in text


def test_denials_that_nobody_could_read_are_counted(browser: Paged) -> None:
    """Whatever is in a ledger: kinds without end, fields of other types, markup and escapes."""
    browser.session("many", state=SessionState.ENDED)
    odd = [denial(host=attack, allow={"flag": attack, "note": attack}, risk=attack) for attack in ATTACKS]
    odd += [denial(process=None), denial(allow=None), denial(path="<b>", rights=["<b>"], time=7)]
    browser.denials("many", *odd, *(denial(host=f"h{number}.example") for number in range(watcher.MOST_KINDS)))
    text = browser.get("/denials?ended=1").text
    assert "further kinds" in text
    assert "<b>" not in text
    assert "<script>alert" not in text


@pytest.mark.parametrize("attack", ATTACKS)
def test_tickets_branches_and_lines_are_text(browser: Paged, attack: str) -> None:
    """Whatever a worktree is called, and whatever was written last."""
    glance = Glance(last=attack, waits=attack, denied=1)
    browser.session("one")
    session = SessionDetails(**dict(browser.service.supervisor.session("one")))
    row = {
        "session": session, "glance": glance, "ticket": attack, "branch": attack, "waits": attack, "age": 1.0,
    }  # fmt: skip
    parts = macros("sessions.html", Visit("host"))
    own = {"tr", "td", "a", "code", "span", "br", "dl", "dt", "dd", "p", "strong", "pre"}
    for html in map(str, (parts.row(row), parts.facts(row), parts.state(row), parts.output(attack))):
        assert set(re.findall(r"<(\w+)", html)) <= own
        assert not re.search(r"<[^>]*\s(on\w+|src\w*)=", html)


def test_what_a_glance_keeps_is_bounded() -> None:
    """Kinds, points and notes, however many come."""
    glance = Glance()
    for number in range(5 * watcher.MOST_KINDS):
        fold(glance, denial(host=f"h{number}.example"))
        fold(glance, denial(host="h0.example"))
        glance.cpu.append(number)
    assert len(glance.denials) == watcher.MOST_KINDS
    assert glance.more == 4 * watcher.MOST_KINDS
    assert glance.denied == 10 * watcher.MOST_KINDS
    assert len(glance.cpu) == watcher.MOST_POINTS


def test_the_service_is_seen_and_what_is_wrong_with_it(browser: Paged) -> None:
    """By the same function as GET /v1/health."""
    browser.service.conditions.changed = lambda condition, raised: None
    browser.service.conditions.raise_("disk-low", "only <b>7</b> MiB free", "free some")
    text = browser.get("/health").text
    assert "degraded" in text
    assert "only &lt;b&gt;7&lt;/b&gt; MiB free" in text


def test_a_sessions_own_page_has_its_questions_and_denials(browser: Paged) -> None:
    """Live or ended; the answer leads back to it, and the navigation counts what is open everywhere."""
    browser.session("over", state=SessionState.ENDED)
    browser.denials("over", denial())
    browser.session("asks")
    watching = browser.app.state.tabs.watcher
    question = Question(3, "b.example", 443)
    watching.glances["asks"] = Glance(questions=[question], denials={"x": denial(host="c.example")})
    watching._looked = time.monotonic()
    assert "a.example:443" in browser.get("/sessions/over").text
    text = browser.get("/sessions/asks").text
    assert "c.example:443" in text
    assert 'action="/sessions/asks/questions/3"' in text
    assert text.count('name="host" value="b.example"') == text.count('name="port" value="443"') == 4
    assert 'name="back" value="1"' in text
    assert "asked about again for 5 min" in text
    for path in ("/health", "/worktrees/none"):
        assert '<strong class="warn" title="a question waits">(1)</strong>' in browser.get(path).text
    watching._looked -= 100
    assert "a question waits" not in browser.get("/worktrees/none").text


def test_what_is_not_recorded_is_said(browser: Paged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither the service hears the kernel's audit nor a launcher could."""
    said = "Landlock alone denies is not recorded"
    for usable in (False, True):
        monkeypatch.setattr(denied, "describe_audit", lambda usable=usable: ("audit", True, usable, "", ""))
        assert (said in browser.get("/denials").text) is not usable
    monkeypatch.setattr(denied, "describe_audit", lambda: ("audit", True, False, "", ""))
    Path(browser.places.runtime, AUDIT_SOCKET).touch()
    assert said not in browser.get("/denials").text


def test_only_the_browser_that_attached_may_type(browser: Paged) -> None:
    """Another session's, or a request without its token, reaches no terminal; nor does one that is not attached."""

    class Shim:
        written = b""

        def write(self, data: bytes) -> None:
            self.written += data

        async def drain(self) -> None:
            return

    own, shim = browser.cookie, Shim()
    visit = browser.admissions.visit(own, browser.admissions.host)
    assert visit is not None
    attached._open["number"] = attached.Attachment(visit, "one", shim)  # type: ignore[arg-type]  # as far as it is used
    try:
        assert (
            asyncio.run(browser.ask("POST", "/attachments/number?rows=9&columns=20", body=b"a\x1b")).status_code == 204
        )
        assert shim.written == b"W\x04\x00\x00\x00\x09\x00\x14\x00" + b"I\x02\x00\x00\x00a\x1b"
        too_long = asyncio.run(browser.ask("POST", "/attachments/number", body=b"a" * (attached.MOST_TYPED + 1)))
        assert too_long.status_code == 413
        assert asyncio.run(browser.ask("POST", "/attachments/other", body=b"a")).status_code == 409
        without = asyncio.run(browser.ask("POST", "/attachments/number", body=b"a", headers={"x-csrf": ""}))
        assert without.status_code == 403
        browser.enter()
        assert asyncio.run(browser.ask("POST", "/attachments/number", body=b"a")).status_code == 409
        assert shim.written.count(b"I") == 1
    finally:
        attached._open.clear()


def test_a_session_that_is_over_cannot_be_attached_to(browser: Paged) -> None:
    """And is refused as the API does."""
    browser.session("over", state=SessionState.ENDED)
    answer = browser.post("/sessions/over/attach", {"mode": "write"})
    assert answer.status_code == 409
    assert "session-over" in answer.text


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 101 Switching Protocols\r\n\r\n"], ids=["waits", "let in"])
def test_a_browser_that_leaves_while_it_is_let_in_leaves_nothing(
    browser: Paged, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    """The shim sees the end of its connection at once: it would have a writer until the session ends."""

    async def scene() -> None:
        shims: list[socket.socket] = []

        async def attach(_name: str, _query: str, _ahead: bytes, descriptor: int) -> None:
            shims.append(socket.socket(fileno=os.dup(descriptor)))
            shims[0].sendall(answer)

        async def leaving(scope: Scope, receive: Receive, _send: Send) -> None:
            whole = False

            async def heard() -> Message:
                nonlocal whole
                if whole:
                    return {"type": "http.disconnect"}
                message = await receive()
                whole = not message.get("more_body")
                return message

            async def nobody_takes_it(_message: object) -> None:
                await asyncio.Event().wait()

            await gate(scope, heard, nobody_takes_it)

        gate = browser.gate
        monkeypatch.setattr(browser, "gate", leaving)
        monkeypatch.setattr(browser.service.supervisor, "attach", attach)
        waiting = asyncio.create_task(browser.ask("POST", "/sessions/one/attach", form={"mode": "read"}))
        while not shims:
            await asyncio.sleep(0.01)
        if not answer:
            waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(0)
        gc.collect()
        with shims[0] as shim:
            shim.setblocking(False)
            async with asyncio.timeout(10):
                assert await asyncio.get_running_loop().sock_recv(shim, 1) == b""
        assert browser.app.state.tabs.number == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    browser.session("one")
    asyncio.run(scene())


def streamed(browser: Paged, make: live.Make, rounds: int) -> list[dict[str, str]]:
    """The fragments of so many looks."""

    async def read() -> list[dict[str, str]]:
        tabs = Tabs(browser.service.context)
        looks = 0

        async def counted() -> Any:  # noqa: ANN401  # see `live.Make`
            nonlocal looks
            looks += 1
            if looks == rounds:
                tabs.closing.set()
            return await make()

        lines = [line async for line in live._sent(tabs, Visit("host"), counted, 0.001)]
        assert tabs.number == 0
        sent = [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
        return [each for each in sent if each["id"] != "asked"]

    return asyncio.run(read())


def test_a_stream_sends_what_has_changed(browser: Paged) -> None:
    """Once, and nothing while nothing does: a tab that is open for long grows nothing."""
    texts = iter([{"a": "1", "b": "1"}, {"a": "1", "b": "2"}, *[{"a": "1", "b": "2"}] * 1_000, {"a": "1", "b": "3"}])

    async def make() -> dict[str, str]:
        return next(texts)

    sent = streamed(browser, make, 1_003)
    assert [(each["id"], each["html"]) for each in sent] == [("a", "1"), ("b", "1"), ("b", "2"), ("b", "3")]


def test_a_stream_ends_with_its_session_and_says_when_there_is_nothing_more(browser: Paged) -> None:
    """A session that was forgotten, a browser that has left."""

    async def scene() -> list[bytes]:
        tabs = Tabs(browser.service.context)

        async def make() -> dict[str, str]:
            raise Refusal("session-unknown", "it was forgotten")

        gone = [line async for line in live._sent(tabs, Visit("host"), make, 0.001)]
        visit = Visit("host")
        visit.end()
        assert [line async for line in live._sent(tabs, visit, make, 0.001)] == [b"retry: 3000\n\n"]
        return gone

    assert asyncio.run(scene())[-1].startswith(b"event: gone")


def test_there_are_few_streams(browser: Paged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens tabs without end is refused, and the service's other followers are not."""
    browser.app.state.tabs.number = live.MOST_TABS
    assert browser.get("/live/sessions").status_code == 429


def test_notes_come_of_events(browser: Paged) -> None:
    """Of a session's end and of a merge that conflicts; those of before are not told again."""

    async def scene() -> list[watcher.Note]:
        watching = watcher.Watcher(browser.service.context)
        events = browser.service.supervisor.events
        events.publish(EventKind.SESSION, {"state": "ended", "why": "before"}, "old")
        watching.hear()
        await asyncio.sleep(0.01)
        events.publish(EventKind.SESSION, {"state": "running", "why": "begun"}, "one")
        events.publish(EventKind.SESSION, {"state": "failed", "why": "exited, status 1"}, "one")
        events.publish(EventKind.TICKET, {"run": "r", "number": 3, "state": "conflicted"}, "")
        await asyncio.sleep(0.01)
        watching.stop()
        return list(watching.notes)

    ended, conflict = asyncio.run(scene())
    assert (ended.title, ended.text, ended.address) == (
        "a session has failed", "one: exited, status 1", "/sessions/one",
    )  # fmt: skip
    assert conflict.title == "a merge conflicts"


def test_the_end_of_a_log_is_read_whole_lines_only(tmp_path: Path) -> None:
    """Of a large one no more than there is room for, with its terminal's size before it."""
    (tmp_path / log_files.NAME).write_text(
        '{"stream": "terminal", "text": "40 100"}\n'
        + "".join(f'{{"stream": "stdout", "text": "{number}"}}\n' for number in range(99))
        + '{"stream": "std'
    )  # fmt: skip
    whole, some = log_files.latest(str(tmp_path), 1 << 20), log_files.latest(str(tmp_path), 200)
    assert len(whole) == 100
    assert some[0]["text"] == "40 100"
    assert [each["text"] for each in some[1:]] == [str(number) for number in range(100 - len(some), 99)]
    assert 2 < len(some) < 8
    assert log_files.latest(str(tmp_path / "none"), 100) == []


def test_a_service_without_a_page_has_no_templates_loaded() -> None:
    """What renders the page is loaded with the first look at it."""
    program = "import sys; from launcher.service import daemon; print({'jinja2'} & {*sys.modules})"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"


def test_every_route_that_changes_something_is_a_post(browser: Paged) -> None:
    """A GET changes nothing, so a link, an image or a prefetch does not either."""
    methods = {route.path: route.methods for each in (overview, denied) for route in each.router.routes}
    assert all(found <= {"GET", "POST"} and len(found) == 1 for found in methods.values())
    words = ("stop", "signal", "forget", "leave", "questions")
    assert all(found == {"POST"} for path, found in methods.items() if any(word in path for word in words))
