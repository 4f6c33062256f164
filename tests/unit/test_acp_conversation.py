"""The bridge put together over descriptors, without any process: what both sides get, and a judge that fails."""

import json
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.bridges.acp import rulings
from launcher.bridges.acp.bridge import Conversation
from launcher.bridges.acp.client_requests import Place
from launcher.bridges.acp.rulings import Choices, Decisions, Rules
from launcher.ledger import ledgers
from policy import promises
from policy.errors import Refusal
from policy.plan import VERSION, Plan


class Ends:
    """A conversation, and the client's and the agent's ends of it."""

    def __init__(self, root: Path, choices: Choices) -> None:
        empty: dict[str, object] = dict.fromkeys(Plan.FIELDS, ())
        empty |= {"version": VERSION, "worktree": str(root), "worktree_id": "w", "cwd": str(root), "net": "none"}
        empty |= {"grants": ((str(root), "rwx", "worktree"),), "backend": promises.NAMESPACES, "command": "agent"}
        plan = Plan(**empty)
        rules = Rules(plan, choices, Decisions(ledgers.path_for(str(root.parent), "s", 1), plan, {}))
        self.client, ours = socket.socketpair()
        self.agent, theirs = socket.socketpair()
        self.poll = select.poll()
        self.sessions: list[str] = []
        theirs.setblocking(False)
        self.conversation = Conversation(self.poll, _both(ours), _both(theirs), rules, self.connect, self.found)

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
