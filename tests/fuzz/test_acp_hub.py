"""Editors and an agent that do anything in any order: the hub keeps its promises to both sides."""

import json
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.service.shim.editors import Hub

METHODS = ("initialize", "session/new", "session/load", "session/prompt", "session/cancel", "session/list", "x/y")
SESSIONS = ("a", "b")
IDS = st.sampled_from([0, 1, "x"])
PARAMS = st.fixed_dictionaries(
    {}, optional={"sessionId": st.sampled_from(SESSIONS), "prompt": st.just([{"type": "text", "text": "t"}])}
)
REQUEST = st.fixed_dictionaries({"id": IDS, "method": st.sampled_from(METHODS), "params": PARAMS})
NOTIFICATION = st.fixed_dictionaries({"method": st.sampled_from(METHODS), "params": PARAMS})
ASKED = st.fixed_dictionaries(
    {"id": IDS, "method": st.sampled_from(["session/request_permission", "fs/read_text_file"]), "params": PARAMS}
)
UPDATE = st.fixed_dictionaries({"method": st.just("session/update"), "params": PARAMS})
RESULT = st.sampled_from([{"sessionId": "a"}, {"sessionId": "b"}, {}, {"agentCapabilities": {"loadSession": True}}, 7])
ANSWER = st.fixed_dictionaries({"id": st.integers(1, 8), "result": RESULT})
REPLY = st.fixed_dictionaries({"id": IDS, "result": RESULT})
FAILURE = st.fixed_dictionaries({"id": st.integers(1, 8), "error": st.just({"code": 1, "message": "no"})})
RAW = st.sampled_from(
    [b"", b"{", b"[]\n", b'{"id":1,"id":1}\n', b"\xff\n", b'{"method":7}\n', b'{"id":true,"method":"x"}\n']
)

STEP = st.one_of(
    st.tuples(st.just("come"), st.booleans()),
    st.tuples(st.just("go"), st.integers(0, 3)),
    st.tuples(st.just("client"), st.integers(0, 1), st.one_of(REQUEST, NOTIFICATION, REPLY, REPLY, RAW)),
    st.tuples(st.just("agent"), st.one_of(ANSWER, FAILURE, ASKED, UPDATE, RAW)),
)


class Editor:
    """Counts its requests and the answers to them."""

    def __init__(self) -> None:
        self.here = True
        self.open: Counter[Any] = Counter()

    def send(self, line: bytes) -> None:
        """Nothing comes after it has gone, and no answer that it has not asked for."""
        assert self.here
        assert line.count(b"\n") == 1
        message = json.loads(line)
        if "method" not in message and message["id"] is not None:
            self.open[message["id"]] -= 1
            assert self.open[message["id"]] >= 0, "an answer to nothing"


class Agent:
    """Counts what it has asked for, and what it was asked."""

    def __init__(self) -> None:
        self.numbers: set[Any] = set()
        self.open: Counter[Any] = Counter()
        self.deaf = False

    def take(self, line: bytes) -> bool:
        """Each request has a number of its own; each answer is to something that it has asked."""
        assert line.count(b"\n") == 1
        message = json.loads(line)
        if "method" in message and "id" in message:
            assert message["id"] not in self.numbers
            self.numbers.add(message["id"])
        elif "method" not in message:
            self.open[message["id"]] -= 1
            assert self.open[message["id"]] >= 0, "an answer to nothing"
        return not self.deaf


def encoded(message: object) -> bytes:
    """A line."""
    return message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, min_size=30, max_size=60), st.booleans())
def test_nobody_gets_what_he_has_not_asked_for(steps: list[tuple[Any, ...]], deaf: bool) -> None:
    """Requests to the agent have numbers of their own, every answer has its question, one client writes at most."""
    agent = Agent()
    agent.deaf = deaf
    hub = Hub(agent.take)
    editors = [Editor()]
    hub.attach(editors[0])
    for kind, *rest in steps:
        here = [editor for editor in editors if editor.here]
        if kind == "come":
            editors.append(Editor())
            hub.attach(editors[-1], take=rest[0])
        elif kind == "go" and here:
            gone = here[rest[0] % len(here)]
            hub.detach(gone)
            gone.here = False
        elif kind == "client" and here:
            editor, message = here[rest[0] % len(here)], rest[1]
            if isinstance(message, dict) and "method" in message and "id" in message:
                editor.open[message["id"]] += 1
            hub.from_client(editor, encoded(message))
        elif kind == "agent":
            (message,) = rest
            if isinstance(message, dict) and "method" in message and "id" in message:
                agent.open[message["id"]] += 1
            hub.from_agent(encoded(message))
        assert hub.writer is None or (isinstance(hub.writer, Editor) and hub.writer.here)
        assert hub.clients == sum(editor.here for editor in editors)
