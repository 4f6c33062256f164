"""`paddock attach --provider`: the agent lives in the service, in its jail, while editors are killed and come back."""

import json
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.support import served
from tests.support.features import need
from tests.support.served import PATIENCE, Served

AGENT = Path(__file__).parents[1] / "support/programs/acp_living_agent.py"
COMMAND = ("/usr/bin/python3", "-I", "-S", "agent.py")


class Editor:
    """`paddock attach --provider` and the editor's end of it. A context manager: at its end it is killed."""

    def __init__(self, service: Served, *options: str) -> None:
        paddock = service.paddock
        words = paddock.words("attach", "--provider", "claude-code", *options, "--", *COMMAND)
        self.process = paddock.who.start(words, cwd=paddock.worktree, env=service.env)
        self.seen: list[dict[str, Any]] = []
        self._number = 0
        self._rest = b""

    def __enter__(self) -> "Editor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL: the editor's machine has lost its power, or so."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass

    def send(self, **message: object) -> None:
        """Writes a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, method: str, **params: object) -> int:
        """Sends a request; its number."""
        self._number += 1
        self.send(id=self._number, method=method, params=params)
        return self._number

    def prompt(self, text: str) -> int:
        """Sends a prompt."""
        return self.ask("session/prompt", sessionId="s1", prompt=[{"type": "text", "text": text}])

    def until(self, **wanted: object) -> dict[str, Any]:
        """Reads on until a message has these members; all that was read is in `seen`."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE
        while True:
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                message = json.loads(line)
                self.seen.append(message)
                if all(message.get(name) == value for name, value in wanted.items()):
                    assert isinstance(message, dict)
                    return message
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"never came: {wanted}; {self.seen}"
            data = self.process.stdout.read1(65536)  # type: ignore[attr-defined]  # a BufferedReader
            assert data, f"{wanted}: the stream ended: {self.seen} {self.said()!r}"
            self._rest += data

    def answer(self, method: str, **params: object) -> Any:  # noqa: ANN401  # JSON
        """Sends a request and returns its answer."""
        return self.until(id=self.ask(method, **params))

    def said(self) -> str:
        """What is on standard error; ends the editor."""
        assert self.process.stderr is not None
        self.process.kill()
        return self.process.stderr.read().decode()

    def texts(self) -> list[str]:
        """The text of all updates that were read."""
        updates = [each["params"]["update"] for each in self.seen if each.get("method") == "session/update"]
        return [update["content"]["text"] for update in updates]

    def greet(self) -> "Editor":
        """Begins as every editor does."""
        capabilities = {"fs": {"readTextFile": True, "writeTextFile": True}}
        assert "result" in self.answer("initialize", protocolVersion=1, clientCapabilities=capabilities)
        return self

    def open(self) -> "Editor":
        """A new session of the protocol."""
        self.greet()
        root = str(Path(f"/proc/{self.process.pid}/cwd").readlink())
        assert self.answer("session/new", cwd=root, mcpServers=[])["result"]["sessionId"] == "s1"
        return self

    def load(self) -> "Editor":
        """The session that was there before."""
        self.greet()
        root = str(Path(f"/proc/{self.process.pid}/cwd").readlink())
        assert "result" in self.answer("session/load", sessionId="s1", cwd=root, mcpServers=[])
        return self


@pytest.fixture(scope="module")
def running() -> Iterator[Served]:
    """A service that runs."""
    need("landlock")
    need("userns")
    with served.started(stdin_seconds=0.2, term_seconds=0.5) as service:
        yield service


@pytest.fixture
def service(running: Served) -> Iterator[Served]:
    """The same with a repository of one test, which may kill it; no session of another one, nor its settings."""
    for found in served.lent(running):
        yield prepared(found)
    for session in live(running):
        running.post(f"/v1/sessions/{session['name']}/stop", {"term_seconds": 0, "wait": PATIENCE})
    assert live(running) == []


def prepared(service: Served) -> Served:
    """Puts the agent's programme into the worktree."""
    agent = service.paddock.worktree / "agent.py"
    agent.write_text(AGENT.read_text())
    service.paddock.who.give(agent)
    return service


def live(service: Served) -> list[Any]:
    """The sessions that live."""
    found: list[Any] = service.get("/v1/sessions?live=true").json["sessions"]
    return found


def test_the_agent_survives_its_editor(service: Served) -> None:
    """Killed in the middle of a turn, the editor finds agent and conversation again, and the turn's end, too. What the
    agent has asked one is put before the next, whose answer the agent gets.
    """
    with Editor(service) as first:
        first.open()
        first.prompt("who")
        first.until(method="session/update")
        first.prompt("wait go")
        first.until(method="session/update")
    with Editor(service) as second:
        second.load()
        assert second.texts() == ["who", first.texts()[0], "wait go", "waiting"]
        (service.paddock.worktree / "go").touch()
        assert second.until(method="session/update")["params"]["update"]["content"]["text"] == "woke"
        number = second.prompt("who")
        second.until(id=number)
        assert second.texts()[-1] == first.texts()[0], "it is the same process"
        second.prompt("ask")
        asked = second.until(method="session/request_permission")
    with Editor(service) as third:
        third.load()
        again = third.until(method="session/request_permission")
        assert again == asked
        third.send(id=again["id"], result={"outcome": {"outcome": "selected", "optionId": "yes"}})
        chosen = third.until(method="session/update")["params"]["update"]["content"]["text"]
        assert json.loads(chosen.removeprefix("chosen: "))["outcome"]["optionId"] == "yes"
    (session,) = live(service)
    assert session["backend"] == "landlock+namespaces"
    assert session["bridge"] == "acp"


def test_agent_and_editor_live_through_a_killed_service(service: Served) -> None:
    """A turn under way goes on, a question is still asked, and the conversation is there for the next editor."""
    with Editor(service) as first:
        first.open()
        first.prompt("who")
        who = first.until(method="session/update")["params"]["update"]["content"]["text"]
        first.prompt("wait go")
        first.until(method="session/update")
        service.kill()
        (service.paddock.worktree / "go").touch()
        assert first.until(method="session/update")["params"]["update"]["content"]["text"] == "woke"
        service.start()
        first.prompt("ask")
        asked = first.until(method="session/request_permission")
    service.kill()
    service.start()
    with Editor(service) as second:
        second.load()
        assert second.texts()[:4] == ["who", who, "wait go", "waiting"]
        assert second.until(method="session/request_permission") == asked
        second.send(id=asked["id"], result={"outcome": {"outcome": "selected", "optionId": "yes"}})
        number = second.prompt("who")
        second.until(id=number)
        assert second.texts().count(who) == 2, "it is the same process"  # before or after the answer to the question
    assert len(live(service)) == 1


def test_an_agent_that_nobody_needs_is_ended(service: Served) -> None:
    """Not while it works on a turn, however long no editor is there; some time after it is done."""
    service.settings(agent_idle_seconds=1)
    service.reload()
    with Editor(service) as first:
        first.open()
        first.prompt("wait go")
        first.until(method="session/update")
    (session,) = live(service)
    time.sleep(3)  # longer than a shim takes to look twice, which it does in half a second more than the patience
    assert len(live(service)) == 1
    (service.paddock.worktree / "go").touch()
    assert service.over(session["name"])["outcome"]["reason"] == "idle"
    service.settings()
    service.reload()


def test_an_editor_that_is_gone_and_a_bridge_that_does_not_answer_hold_up_nobody(service: Served) -> None:
    """Of an editor that is gone before it is answered: the agent works on, and the service does not lose its session.

    The bridge is killed when the session's own end is done, commits brought home and all: it alone is left then.
    """
    with Editor(service) as editor:
        editor.open()
        (session,) = live(service)
        with service.behind(session) as shim:
            gone = service.attaching(session["name"], "mode=acp")
            assert len(live(service)) == 1  # the service has passed it on by now
            gone.close()
            shim.resume()
            editor.until(id=editor.prompt("say hello"))
        os.kill(session["pid"], signal.SIGSTOP)
        service.post(f"/v1/sessions/{session['name']}/stop", {"wait": PATIENCE})
        over = service.get(f"/v1/sessions/{session['name']}").json
        assert over["state"] == "ended"
        assert over["outcome"]["reason"] == "stopped"


def test_many_see_the_same_and_one_writes(service: Served) -> None:
    """The second looks on, is refused when it writes, and may with --take; the first is refused from then on.

    A plain client may look on, and not write between an agent's lines. `paddock acp --supervised` is the same as
    `paddock attach`: its editor may go, and the agent is found.
    """
    paddock = service.paddock
    with Editor(service) as first:
        first.open()
        with Editor(service) as second:
            second.load()
            first.until(id=first.prompt("say hello"))
            while second.texts() != ["say hello", "hello"]:
                second.until(method="session/update")
            assert "another client writes" in second.until(id=second.prompt("say mine"))["error"]["message"]
            with Editor(service, "--take") as third:
                third.load()
                assert third.texts() == ["say hello", "hello"]
                assert "result" in third.until(id=third.prompt("say third"))
                assert "another client writes" in first.until(id=first.prompt("say first"))["error"]["message"]
                name = live(service)[0]["name"]
                refused = service.cli("attach", "--read", "--provider", "claude-code")
                assert refused.returncode == 125
                with service.connect() as raw:
                    request = f"GET /v1/sessions/{name}/attach?mode=write HTTP/1.1\r\nhost: x\r\n"
                    raw.sendall(f"{request}connection: upgrade\r\nupgrade: paddock-stream\r\n\r\n".encode())
                    assert b"session-acp" in raw.recv(65536)
                words = paddock.words("acp", "--supervised", "--provider", "claude-code", "--", *COMMAND)
                ended = paddock.who.run(words, cwd=paddock.worktree, env=service.env, stdin="")
                assert ended.returncode == 0, ended.stderr
                third.until(id=third.prompt("say still here"))
                assert third.texts()[-1] == "still here"
            assert len(live(service)) == 1


def test_what_the_editor_is_asked_for_is_policed_in_the_service(service: Served) -> None:
    """A file of the worktree comes from the editor; one outside is refused before any editor hears of it.

    A prompt with a picture is one line of several megabytes, longer than what may wait for an agent that is slow: such
    ones pass both ways.
    """
    secret = service.paddock.who.home / "secret"
    secret.write_text("x")
    service.paddock.who.give(secret)
    inside = service.paddock.worktree / "agent.py"
    with Editor(service, "--fs", "editor") as editor:
        editor.open()
        number = editor.prompt(f"read {inside}")
        asked = editor.until(method="fs/read_text_file")
        assert asked["params"]["path"] == str(inside)
        editor.send(id=asked["id"], result={"content": "what the editor has in its buffer"})
        editor.until(id=number)
        assert "what the editor has in its buffer" in editor.texts()[-1]
        editor.until(id=editor.prompt(f"read {secret}"))
        assert "error" in json.loads(editor.texts()[-1].removeprefix("read: "))
        assert [each["params"]["path"] for each in editor.seen if each.get("method") == "fs/read_text_file"] == [
            str(inside)
        ]
        text = "x" * (6 << 20)
        assert "result" in editor.until(id=editor.prompt(f"say {text}"))
        assert editor.texts()[-1] == text
    name = live(service)[0]["name"]
    assert str(secret) in service.cli("denials", name).stdout


def test_an_agent_that_ends_takes_its_editors_along_and_the_next_gets_another(service: Served) -> None:
    """Its exit status is the editor's; attaching again starts a new one."""
    with Editor(service) as first:
        first.open()
        first.prompt("end 7")
        assert first.process.wait(PATIENCE) == 7
    assert live(service) == []
    with Editor(service) as second:
        second.open()
        assert len(live(service)) == 1


def test_an_agent_that_cannot_start_is_one_clear_error(service: Served) -> None:
    """A programme that is not there, and a directory that is no worktree, are told as `paddock acp` tells them."""
    ended = service.cli("attach", "--provider", "claude-code", "--", "no-such-programme")
    assert ended.returncode != 0
    assert "no-such-programme" in ended.stderr
    assert service.cli("attach", "--provider", "nobody", "--", "true").returncode == 125
    ended = service.cli("attach", "--provider", "claude-code", "--new", "--", "sh", "-c", "exit 3")
    assert (ended.returncode, "paddock logs" in ended.stderr) == (3, True), ended
    ended = service.cli("attach", "--provider", "claude-code", "--", "cat")
    assert (ended.returncode, "before an editor" in ended.stderr) == (0, True), ended
    runner = service.paddock.place / "npx"
    runner.write_text("#!/bin/sh\nexit 1\n")
    runner.chmod(0o755)
    ended = service.cli(
        "attach", "--provider", "claude-code", "--ro", str(runner), "--", str(runner), "-y", "some-agent"
    )
    assert (ended.returncode, "--allow-domain @node" in ended.stderr) == (1, True), ended
    refused = service.cli("attach", "--provider", "claude-code", "--session", "mine", "--", "true")
    assert refused.returncode == 125
    assert "[usage]" in refused.stderr


def test_a_plain_session_can_be_joined_too(service: Served) -> None:
    """What is typed goes to its standard input, its output comes back, its status is the client's."""
    service.create("sh", "-c", 'echo begun; read line; echo "got $line"; exit 3', name="talk", stdin="pipe")
    joined = service.cli("attach", "talk", stdin="hello\n")
    assert (joined.stdout, joined.returncode) == ("begun\ngot hello\n", 3), joined.stderr
    service.create("sleep", "1000", name="quiet")
    looking = service.paddock.who.start(
        service.paddock.words("attach", "quiet"), cwd=service.paddock.place, env=service.env
    )
    deadline = time.monotonic() + PATIENCE
    while service.get("/v1/sessions/quiet").json["attached"] != 1:
        assert looking.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert service.post("/v1/sessions/quiet/stop", {}).status in (200, 202)
    looking.communicate(timeout=PATIENCE)
    assert looking.returncode == 143
    assert "[session-over]" in service.cli("attach", "quiet").stderr
    assert "[session-unknown]" in service.cli("attach", "nobody").stderr
