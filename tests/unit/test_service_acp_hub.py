"""One agent, many editors: who is shown what, who may write, what waits; lists stand for both sides."""

import json
from typing import Any

import pytest

from launcher.service.shim import editors
from launcher.service.shim.editors import NO_WRITER, NOT_FOUND, History, Hub

Message = dict[str, Any]


class Editor:
    """A client; keeps what it is sent."""

    def __init__(self, hub: Hub, *, take: bool = False) -> None:
        self.hub = hub
        self.got: list[Message] = []
        self._number = 0
        hub.attach(self, take=take)

    def send(self, line: bytes) -> None:
        """What the hub says."""
        assert line.endswith(b"\n")
        self.got.append(json.loads(line))

    def ask(self, method: str, **params: object) -> int:
        """Sends a request; its number, which every editor counts for itself."""
        self._number += 1
        self.hub.from_client(self, encoded({"id": self._number, "method": method, "params": params}))
        return self._number

    def say(self, message: Message) -> None:
        """Sends anything."""
        self.hub.from_client(self, encoded(message))

    def answer(self, number: int) -> Message:
        """The answer to a request."""
        (found,) = [each for each in self.got if each.get("id") == number and "method" not in each]
        return found

    def told(self, method: str) -> list[Message]:
        """Notifications and requests of a method, their parameters."""
        return [each["params"] for each in self.got if each.get("method") == method]

    def texts(self) -> list[str]:
        """The text of all updates."""
        return [params["update"]["content"]["text"] for params in self.told("session/update")]


class Scene:
    """A hub, and an agent that the test speaks for."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.deaf = False
        self.hub = Hub(self._to_agent)

    def _to_agent(self, line: bytes) -> bool:
        if not self.deaf:
            self.sent.append(json.loads(line))
        return not self.deaf

    def agent(self, **message: object) -> None:
        """The agent says something."""
        self.hub.from_agent(encoded(message))

    def result(self, value: object) -> None:
        """The agent answers the last request."""
        self.agent(id=self.sent[-1]["id"], result=value)

    def update(self, session: str, text: str) -> None:
        """The agent says a piece of a message."""
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        self.agent(method="session/update", params={"sessionId": session, "update": update})

    def editor(self, session: str | None = "s", *, loads: bool = False) -> Editor:
        """A first editor, which has greeted the agent and opened a session."""
        editor = Editor(self.hub)
        editor.ask("initialize", protocolVersion=1)
        self.result({"protocolVersion": 1, "agentCapabilities": {"loadSession": loads}})
        if session is not None:
            editor.ask("session/new", cwd="/w", mcpServers=[])
            self.result({"sessionId": session, "modes": {"currentModeId": "ask", "availableModes": []}})
        return editor


def encoded(message: object) -> bytes:
    """A line."""
    assert isinstance(message, dict)
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


@pytest.fixture
def scene() -> Scene:
    """Nobody is there yet."""
    return Scene()


def test_the_agent_is_greeted_once_and_every_editor_is_answered(scene: Scene) -> None:
    """Later editors, and those that come while the first greeting is under way, get the agent's own answer."""
    first, second = Editor(scene.hub), Editor(scene.hub)
    first.ask("initialize", protocolVersion=1)
    second.ask("initialize", protocolVersion=1)
    scene.result({"protocolVersion": 1, "agentCapabilities": {"promptCapabilities": {"image": True}}})
    third = Editor(scene.hub)
    third.ask("initialize", protocolVersion=1)
    assert [each["method"] for each in scene.sent] == ["initialize"]
    answers = [editor.answer(1)["result"] for editor in (first, second, third)]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0]["agentCapabilities"] == {"promptCapabilities": {"image": True}, "loadSession": True}


def test_a_failed_greeting_can_be_tried_again(scene: Scene) -> None:
    """An agent that refuses `initialize` is asked again by the next one."""
    editor = Editor(scene.hub)
    editor.ask("initialize")
    scene.agent(id=scene.sent[-1]["id"], error={"code": -32603, "message": "not yet"})
    assert editor.answer(1)["error"]["message"] == "not yet"
    editor.ask("initialize")
    assert len(scene.sent) == 2


def test_editors_count_their_requests_for_themselves(scene: Scene) -> None:
    """Equal numbers of two editors do not meet at the agent, and each answer finds its own."""
    first = scene.editor()
    second = Editor(scene.hub)
    mine, theirs = first.ask("session/list"), second.ask("session/list")
    one, two = (each["id"] for each in scene.sent[-2:])
    assert one != two
    scene.agent(id=two, result={"of": "second"})
    scene.agent(id=one, result={"of": "first"})
    assert first.answer(mine)["result"] == {"of": "first"}
    assert second.answer(theirs)["result"] == {"of": "second"}


def test_an_editor_that_comes_back_is_shown_everything(scene: Scene) -> None:
    """Killed in the middle of a turn, it is followed by one that sees all: its words, the agent's, what came since."""
    first = scene.editor()
    first.ask("session/prompt", sessionId="s", prompt=[{"type": "text", "text": "do it"}])
    scene.update("s", "on it")
    scene.hub.detach(first)
    scene.update("s", "still on it")
    second = Editor(scene.hub)
    second.ask("initialize")
    number = second.ask("session/load", sessionId="s", cwd="/w", mcpServers=[])
    assert [each["method"] for each in scene.sent] == ["initialize", "session/new", "session/prompt"]
    assert second.texts() == ["do it", "on it", "still on it"]
    assert second.got[-1] == second.answer(number), "the answer comes when everything was shown"
    result = second.answer(number)["result"]
    assert result["modes"]["currentModeId"] == "ask"
    assert result["_meta"]["paddock"] == {"missing": 0, "running": True}
    scene.update("s", "done")
    assert second.texts()[-1] == "done"
    scene.result({"stopReason": "end_turn"})
    assert not scene.hub.busy
    assert "stopReason" not in str(second.got), "nobody is left who has asked for this turn"


def test_a_mode_that_was_changed_is_shown_as_it_is_now(scene: Scene) -> None:
    """Agents do not announce what an editor has changed itself; who comes later sees it all the same."""
    first = scene.editor()
    first.ask("session/set_mode", sessionId="s", modeId="code")
    scene.result({})
    second = Editor(scene.hub)
    number = second.ask("session/load", sessionId="s")
    assert second.answer(number)["result"]["modes"]["currentModeId"] == "code"


def test_only_one_writes(scene: Scene) -> None:
    """A second editor sees the session live, and is refused when it would write; the agent hears nothing of it."""
    first = scene.editor()
    second = Editor(scene.hub)
    second.ask("session/load", sessionId="s")
    before = len(scene.sent)
    number = second.ask("session/prompt", sessionId="s", prompt=[])
    second.say({"method": "session/cancel", "params": {"sessionId": "s"}})
    assert second.answer(number)["error"]["code"] == NO_WRITER
    assert len(scene.sent) == before
    first.ask("session/prompt", sessionId="s", prompt=[{"type": "text", "text": "hello"}])
    scene.update("s", "hi")
    assert second.texts() == ["hello", "hi"]
    assert first.texts() == ["hi"], "its own words are not repeated to it"


def test_the_place_of_the_writer_can_be_inherited_and_taken(scene: Scene) -> None:
    """When the writer has gone, whoever writes next is it; `take` does not wait for that."""
    first = scene.editor()
    second, third = Editor(scene.hub), Editor(scene.hub)
    scene.hub.detach(first)
    assert scene.hub.writer is None
    third.ask("session/prompt", sessionId="s", prompt=[])
    assert scene.hub.writer is third
    number = second.ask("session/prompt", sessionId="s", prompt=[])
    assert second.answer(number)["error"]["code"] == NO_WRITER
    fourth = Editor(scene.hub, take=True)
    number = third.ask("session/prompt", sessionId="s", prompt=[])
    assert third.answer(number)["error"]["code"] == NO_WRITER
    assert scene.hub.writer is fourth


def test_a_permission_waits_for_the_next_editor(scene: Scene) -> None:
    """Asked while nobody is there, or left unanswered, it is put before whoever loads the session, once."""
    first = scene.editor()
    scene.agent(id=7, method="session/request_permission", params={"sessionId": "s", "options": []})
    assert len(first.told("session/request_permission")) == 1
    scene.hub.detach(first)
    scene.agent(id=8, method="session/request_permission", params={"sessionId": "s", "options": []})
    assert [each for each in scene.sent if each.get("id") in (7, 8)] == []
    second = Editor(scene.hub)
    second.ask("initialize")
    assert second.told("session/request_permission") == [], "it does not know the session yet"
    second.ask("session/load", sessionId="s")
    assert [each["id"] for each in second.got if each.get("method")] == [7, 8]
    chosen = {"outcome": {"outcome": "selected", "optionId": "yes"}}
    second.say({"id": 7, "result": chosen})
    second.say({"id": 7, "result": chosen})
    assert [each for each in scene.sent if each.get("id") == 7] == [{"jsonrpc": "2.0", "id": 7, "result": chosen}]


def test_an_answer_counts_from_the_one_who_was_asked(scene: Scene) -> None:
    """Another editor cannot grant a permission that was put before the writer."""
    scene.editor()
    second = Editor(scene.hub)
    second.ask("session/load", sessionId="s")
    scene.agent(id=7, method="session/request_permission", params={"sessionId": "s", "options": []})
    before = len(scene.sent)
    second.say({"id": 7, "result": {"outcome": {"outcome": "selected", "optionId": "yes"}}})
    assert len(scene.sent) == before
    assert second.told("session/request_permission") == []


def test_files_are_refused_while_no_editor_is_there(scene: Scene) -> None:
    """A request for a programme is answered at once, so that the agent goes on with means of its own."""
    first = scene.editor()
    scene.agent(id=7, method="fs/read_text_file", params={"sessionId": "s", "path": "/w/f"})
    assert len(first.told("fs/read_text_file")) == 1
    scene.hub.detach(first)
    scene.agent(id=8, method="fs/read_text_file", params={"sessionId": "s", "path": "/w/f"})
    assert [(each["id"], "error" in each) for each in scene.sent[-2:]] == [(7, True), (8, True)]


def test_a_session_from_before_is_loaded_by_the_agent_and_shown_to_who_asked(scene: Scene) -> None:
    """What the agent shows of an old session goes to the one who loads it, and is known from then on."""
    scene.editor(session=None, loads=True)
    writer = scene.hub.writer
    assert isinstance(writer, Editor)
    other = Editor(scene.hub)
    writer.ask("session/load", sessionId="old", cwd="/w")
    scene.update("old", "long ago")
    assert other.texts() == []
    scene.result({"modes": None})
    assert writer.texts() == ["long ago"]
    other.ask("session/load", sessionId="old")
    assert other.texts() == ["long ago"]
    assert [each["method"] for each in scene.sent] == ["initialize", "session/load"]


def test_an_unknown_session_is_not_invented(scene: Scene) -> None:
    """An agent that cannot load sessions is not asked to, and one that fails leaves nothing behind."""
    editor = scene.editor(session=None)
    number = editor.ask("session/load", sessionId="gone")
    assert editor.answer(number)["error"]["code"] == NOT_FOUND
    able = Scene()
    editor = able.editor(session=None, loads=True)
    number = editor.ask("session/load", sessionId="gone")
    able.agent(id=able.sent[-1]["id"], error={"code": NOT_FOUND, "message": "gone"})
    assert editor.answer(number)["error"]["message"] == "gone"
    editor.ask("session/load", sessionId="gone")
    assert able.sent[-1]["method"] == "session/load", "it was not taken for open"


def test_a_deaf_agent_is_told_of(scene: Scene) -> None:
    """Requests to an agent that reads no more are answered with an error, and nothing waits for them."""
    editor = scene.editor()
    scene.deaf = True
    number = editor.ask("session/prompt", sessionId="s", prompt=[])
    assert "does not read" in editor.answer(number)["error"]["message"]
    assert not scene.hub.busy


@pytest.mark.parametrize(
    "line",
    [b"nonsense\n", b"[]\n", b"7\n", b'{"id":1,"id":2,"method":"x"}\n', b'{"id":1.5,"method":"x"}\n', b"\xff\n",
     b'{"id":null,"method":"session/prompt","params":{}}\n', b'{"jsonrpc":"2.0","id":99,"result":{}}\n'],
)  # fmt: skip
def test_nonsense_changes_nothing(line: bytes, scene: Scene) -> None:
    """Whoever says it, the hub goes on; an editor gets at most an error, the agent nothing."""
    editor = scene.editor()
    before = len(scene.sent)
    scene.hub.from_agent(line)
    scene.hub.from_client(editor, line)
    assert len(scene.sent) == before
    assert all("error" in each for each in editor.got[2:])
    editor.ask("session/prompt", sessionId="s", prompt=[])
    assert scene.sent[-1]["method"] == "session/prompt"


def test_what_waits_for_an_answer_is_bounded_in_bytes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question too many is refused to the agent at once; the others wait for an editor, and make room."""
    monkeypatch.setattr(editors, "_MOST_ASKED_BYTES", 1_000)
    for number in (900, 901, 902):
        scene.agent(id=number, method="session/request_permission", params={"sessionId": "s", "title": "x" * 300})
    (refused,) = scene.sent
    assert (refused["id"], refused["error"]["code"]) == (902, -32603)
    scene.agent(id=903, method="session/request_permission", params={"title": "short"})
    assert len(scene.sent) == 1


def test_histories_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long session forgets its beginning and says how much; many sessions cost the oldest idle one its history."""
    history = History(most=1_000)
    for number in range(100):
        history.add(b"%099d\n" % number)
    assert len(history.lines) == 10
    assert history.loaded()["_meta"]["paddock"]["missing"] == 90
    monkeypatch.setattr(editors, "MOST_SESSIONS", 3)
    scene = Scene()
    editor = scene.editor("a")
    for name in "bcd":
        editor.ask("session/new", cwd="/w")
        scene.result({"sessionId": name})
    for number in range(50):
        scene.update(f"never opened {number}", "x")
    assert sorted(scene.hub._sessions) == ["b", "c", "d"]
