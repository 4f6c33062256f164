"""The bridge put together over descriptors, without any process: what both sides get, and a judge that fails."""

import json
import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from acp import schema

from launcher import wire
from launcher.bridges.acp import bridge, rulings
from launcher.bridges.acp.client_requests import Place
from launcher.bridges.acp.conversation import Conversation, HostQuestions
from launcher.bridges.acp.rulings import Choices, Decisions, Rules
from launcher.ledger import ledgers
from policy import asking, promises
from policy.asking import Question
from policy.errors import Refusal
from policy.plan import VERSION, Plan


class Ends:
    """A conversation, and the client's and the agent's ends of it."""

    def __init__(self, root: Path, choices: Choices) -> None:
        empty: dict[str, object] = dict.fromkeys(Plan.FIELDS, ())
        empty |= {"version": VERSION, "worktree": str(root), "worktree_id": "w", "cwd": str(root), "net": "none"}
        empty |= {"grants": ((str(root), "rwx", "worktree"),), "backend": promises.NAMESPACES, "command": "agent"}
        self.root = str(root)
        plan = Plan(**empty)
        rules = Rules(plan, choices, Decisions(ledgers.path_for(str(root.parent), "s", 1), plan, {}))
        self.client, ours = socket.socketpair()
        self.agent, theirs = socket.socketpair()
        self.poll = select.poll()
        self.sessions: list[str] = []
        theirs.setblocking(False)
        asks, self.proxy = socket.socketpair()
        self.proxy.settimeout(20)
        self.allowed: list[Question] = []
        questions = HostQuestions(asks.detach(), self.allow)
        self.conversation = Conversation(
            self.poll, _both(ours), _both(theirs), rules, self.connect, self.found, questions
        )

    def allow(self, question: Question) -> str:
        self.allowed.append(question)
        return "" if len(self.allowed) < 2 else "the disk is full"

    def ask(self, question: Question) -> None:
        """The proxy asks."""
        self.proxy.sendall(wire.frame(asking.ASKED, question.packed()))
        self.turn()

    def begin(self, session: str) -> None:
        """A session of the protocol begins."""
        params = {"cwd": self.root, "mcpServers": []}
        line = json.dumps({"jsonrpc": "2.0", "id": 3, "method": "session/new", "params": params})
        self.client.sendall(line.encode() + b"\n")
        self.told(self.agent)
        self.agent.sendall(json.dumps({"jsonrpc": "2.0", "id": 3, "result": {"sessionId": session}}).encode() + b"\n")
        self.told(self.client)

    def said(self) -> tuple[bytes, bytes]:
        """What the proxy is told next."""
        self.turn()
        return wire.receive(self.proxy.fileno(), [], deadline=None)

    def connect(self) -> socket.socket:
        raise Refusal("session-unknown", "there is no live session s")

    def found(self, session: str, place: Place) -> None:
        self.sessions.append(session)

    def turn(self) -> None:
        while events := self.poll.poll(0):
            for fd, mask in events:
                assert self.conversation.serve(fd, mask)

    def told(self, end: socket.socket) -> list[dict[str, object]]:
        self.turn()
        return [json.loads(line) for line in end.recv(1 << 20).splitlines()]


def _both(end: socket.socket) -> tuple[int, int]:
    fd = end.detach()
    return fd, os.dup(fd)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    root = tmp_path.resolve() / "worktree"
    root.mkdir()
    made = Ends(root, Choices(files="jail"))
    yield made
    made.conversation.close()
    made.client.close()
    made.agent.close()
    made.proxy.close()


def test_a_session_begins(ends: Ends, tmp_path: Path) -> None:
    """The request goes one way, the reply the other, and its id is told."""
    params = {"cwd": str(tmp_path.resolve() / "worktree"), "mcpServers": []}
    ends.client.sendall(
        json.dumps({"jsonrpc": "2.0", "id": 3, "method": "session/new", "params": params}).encode() + b"\n"
    )
    assert ends.told(ends.agent)[0]["method"] == "session/new"
    ends.agent.sendall(b'{"jsonrpc":"2.0","id":3,"result":{"sessionId":"mine"}}\n')
    assert ends.told(ends.client) == [{"jsonrpc": "2.0", "id": 3, "result": {"sessionId": "mine"}}]
    assert ends.sessions == ["mine"]


def test_a_jail_that_is_not_there_is_told(ends: Ends, tmp_path: Path) -> None:
    """Terminals and files that cannot be served fail, and nothing of them reaches the client."""
    path = str(tmp_path.resolve() / "worktree" / "x")
    for method, params in (
        ("terminal/create", {"sessionId": "s", "command": "true"}),
        ("fs/read_text_file", {"sessionId": "s", "path": path}),
        ("fs/write_text_file", {"sessionId": "s", "path": path, "content": "x"}),
    ):
        ends.agent.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n")
        (told,) = ends.told(ends.agent)
        assert "no live session" in json.dumps(told["error"])
    ends.client.setblocking(False)
    with pytest.raises(BlockingIOError):
        ends.client.recv(1)


def test_a_judge_that_fails_refuses(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line goes nowhere, which is said, and the next one is carried."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("made up")

    monkeypatch.setattr(rulings.Judge, "file", fail)
    asked = {"jsonrpc": "2.0", "id": 1, "method": "fs/read_text_file", "params": {"sessionId": "s", "path": "/x"}}
    ends.agent.sendall(json.dumps(asked).encode() + b"\n")
    (told,) = ends.told(ends.agent)
    assert "could not check" in json.dumps(told["error"])
    ends.agent.sendall(b'{"method":"_next"}\n')
    assert ends.told(ends.client) == [{"method": "_next"}]
    assert "ZeroDivisionError('made up')" in capsys.readouterr().err


QUESTION = Question(7, "files.example.org", 443, "curl")


def selected(number: object, option: object) -> bytes:
    """A client's answer."""
    outcome = {"outcome": "selected", "optionId": option}
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": {"outcome": outcome}}).encode() + b"\n"


@pytest.mark.parametrize("word", asking.ANSWERS)
def test_a_refused_host_is_a_permission_that_the_client_is_asked_for(ends: Ends, word: str) -> None:
    """In the session that began last; the agent sees neither the request nor the answer."""
    ends.begin("old")
    ends.begin("mine")
    ends.ask(QUESTION)
    (asked,) = ends.told(ends.client)
    assert asked["method"] == "session/request_permission"
    params = schema.RequestPermissionRequest.model_validate(asked["params"])
    assert params.session_id == "mine"
    assert "files.example.org:443" in str(params.tool_call.title)
    kinds = {option.option_id: option.kind for option in params.options}
    assert kinds == {"no": "reject_once", "once": "allow_once", "session": "allow_always", "always": "allow_always"}
    ends.client.sendall(selected(asked["id"], word) + b'{"method":"_next"}\n')
    assert ends.told(ends.agent) == [{"method": "_next"}]
    assert ends.said() == (asking.ANSWER, asking.answer(7, word))
    assert ends.allowed == ([QUESTION] if word == "always" else [])


@pytest.mark.parametrize(
    "reply",
    [
        {"result": {"outcome": {"outcome": "cancelled"}}},
        {"result": {"outcome": {"outcome": "selected", "optionId": "yes"}}},
        {"result": {"outcome": {"outcome": "selected", "optionId": ["session"]}}},
        {"result": {"outcome": "session"}},
        {"result": "session"},
        {"error": {"code": -32601, "message": "session"}},
        {},
    ],
)
def test_whatever_else_a_client_replies_is_no_answer(ends: Ends, reply: dict[str, object]) -> None:
    """It does not know the method, or its user has closed the question."""
    ends.begin("mine")
    ends.ask(QUESTION)
    number = ends.told(ends.client)[0]["id"]
    ends.client.sendall(json.dumps({"jsonrpc": "2.0", "id": number, **reply}).encode() + b"\n")
    assert ends.said() == (asking.PASS, b"7")


def test_an_agent_can_answer_nothing(ends: Ends) -> None:
    """Nor ask in Paddock's name for more than an answer to itself; who asks before there is a session asks nobody."""
    ends.ask(QUESTION)
    assert ends.said() == (asking.PASS, b"7")
    ends.begin("mine")
    ends.ask(QUESTION._replace(number=8))
    (asked,) = ends.told(ends.client)
    number = asked["id"]
    ends.agent.sendall(selected(number, "session"))  # even if it knew the id
    assert ends.told(ends.client)[0]["id"] == number
    own = {"jsonrpc": "2.0", "id": "paddock-1", "method": "session/request_permission", "params": asked["params"]}
    ends.agent.sendall(json.dumps(own).encode() + b"\n")
    assert ends.told(ends.client) == [own]
    ends.client.sendall(selected("paddock-1", "session"))
    assert ends.told(ends.agent)[0]["id"] == "paddock-1"
    ends.client.sendall(selected(number, "no"))
    assert ends.said() == (asking.ANSWER, b"8 no")
    ends.client.sendall(selected(number, "session") + b'{"method":"_next"}\n')  # a second answer is nobody's
    assert ends.told(ends.agent) == [{"method": "_next"}]
    ends.ask(QUESTION._replace(number=9))
    ends.client.sendall(selected(ends.told(ends.client)[0]["id"], "no"))
    assert ends.said() == (asking.ANSWER, b"9 no")  # nor has the proxy heard it


def test_what_cannot_be_written_holds_for_the_session_of_the_editor_too(
    ends: Ends, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which is said."""
    ends.begin("mine")
    for number, word in ((1, "always"), (2, "session")):
        ends.ask(QUESTION._replace(number=number))
        ends.client.sendall(selected(ends.told(ends.client)[0]["id"], "always"))
        assert ends.said() == (asking.ANSWER, asking.answer(number, word))
    assert "for this session only: the disk is full" in capsys.readouterr().err
    ends.proxy.sendall(wire.frame(asking.ASKED, b"1 x\x1b[2J 443 curl"))
    ends.turn()
    assert ends.proxy.recv(1) == b""  # a proxy that says something else is not heard any more


# An event that takes too long


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[bridge.Watch, int]]:
    """What watches the time, and the client's end of what is read from it."""
    monkeypatch.setattr(bridge, "LOOK_SECONDS", 0.02)
    before = signal.getsignal(signal.SIGPROF)
    reader, writer = os.pipe()
    yield bridge.Watch(reader), writer
    signal.signal(signal.SIGPROF, before)
    os.close(reader)


def computing() -> None:
    """Work without an end, which takes whatever is raised in it for a message that cannot be read."""
    while True:
        with suppress(Exception):
            while True:
                sum(range(1000))


def test_an_event_that_takes_too_long_is_left(
    client: tuple[bridge.Watch, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later, while nobody asks for an end; and the next one has all the time again."""
    watch, writer = client
    looks = 0

    def pending() -> set[int]:
        nonlocal looks
        looks += 1
        return set()

    monkeypatch.setattr(signal, "sigpending", pending)
    for number in (1, 2):
        assert not watch.handles(computing)
        assert looks == number * (bridge.MOST_LOOKS - 1)
        assert watch.handles(lambda: sum(range(1000)))
        assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
    os.close(writer)


def test_an_event_has_less_time_when_the_client_has_gone(
    client: tuple[bridge.Watch, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when what it has said last is not read yet."""
    watch, writer = client
    monkeypatch.setattr(bridge, "MOST_LOOKS", 1 << 30)
    os.write(writer, b"last\n")
    os.close(writer)
    assert not watch.handles(computing)
    assert watch.handles(lambda: None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_an_event_has_less_time_when_a_signal_waits(
    client: tuple[bridge.Watch, int], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """One that asks for the end; it is read by nobody meanwhile."""
    watch, writer = client
    monkeypatch.setattr(bridge, "MOST_LOOKS", 1 << 30)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        signal.raise_signal(number)
        assert not watch.handles(computing)
        assert signal.sigwait([number]) == number
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(writer)
