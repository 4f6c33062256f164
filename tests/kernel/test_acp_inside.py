"""Terminals and files that the bridge serves in the jail, in the place of the editor."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from acp import schema

from tests.kernel.conftest import ROOT_BY_LANDLOCK
from tests.support.acp_editor import PlainEditor as Editor
from tests.support.acp_editor import peak, request
from tests.support.paddock import Paddock

REPLIES: dict[str, type[schema.BaseModel]] = {
    "output": schema.TerminalOutputResponse,
    "wait_for_exit": schema.WaitForTerminalExitResponse,
    "kill": schema.KillTerminalResponse,
    "release": schema.ReleaseTerminalResponse,
}


@pytest.fixture(scope="module")
def editor(file_paddock: Paddock) -> Iterator[Editor]:
    """One that lives as long as the tests of this file: each leaves nothing unread, and has files of its own."""
    with Editor(file_paddock, own_default=True) as made:
        yield made


def created(editor: Editor, command: str, *args: str, **more: object) -> str:
    """The id of a new terminal."""
    told = editor.answer(request("terminal/create", 1, sessionId="s", command=command, args=list(args), **more))
    name = told["result"]["terminalId"]
    assert isinstance(name, str)
    return name


def asked(editor: Editor, method: str, terminal: str) -> dict[str, Any]:
    told = editor.answer(request(f"terminal/{method}", 2, sessionId="s", terminalId=terminal))
    assert told["id"] == 2
    found = told["result"]
    assert isinstance(found, dict)
    REPLIES[method].model_validate(found)
    return found


@ROOT_BY_LANDLOCK
def test_a_terminal_runs_in_the_jail(paddock: Paddock, backend: dict[str, str]) -> None:
    """It writes in the worktree and not beside it, reads no secret, and its output and status are told; one that still
    runs ends with the editor (the fixtures look for what is left).
    """
    with Editor(paddock, env=backend) as editor:
        _runs_in_the_jail(paddock, editor)
        created(editor, "trap '' TERM HUP INT; while :; do sleep 1; done")
        assert editor.end()[0] == 0


def _runs_in_the_jail(paddock: Paddock, editor: Editor) -> None:
    beside = paddock.place / "beside"
    beside.write_text("secret")
    paddock.who.give(beside)
    line = f"pwd; echo new >made; echo x >{beside}; cat {beside}; echo $GIVEN; exit 3"
    terminal = created(editor, line, env=[{"name": "GIVEN", "value": "given"}])
    assert asked(editor, "wait_for_exit", terminal) == {"exitCode": 3, "signal": None}
    told = asked(editor, "output", terminal)
    assert told["exitStatus"] == {"exitCode": 3, "signal": None}
    assert told["output"].splitlines()[0] == str(paddock.worktree)
    assert told["output"].splitlines()[-1] == "given"
    assert "secret" not in told["output"]
    assert (paddock.worktree / "made").read_text() == "new\n"
    assert beside.read_text() == "secret"
    assert asked(editor, "release", terminal) == {}
    gone = editor.answer(request("terminal/output", sessionId="s", terminalId=terminal))
    assert gone["error"]["code"] == -32602


def test_a_terminal_starts_inside_the_worktree(editor: Editor) -> None:
    """With arguments it is executed as it is; a directory outside, or a link to one, is refused."""
    below = editor.paddock.worktree / "below"
    below.mkdir()
    (editor.paddock.worktree / "link").symlink_to("/usr")
    editor.paddock.who.give(below)
    terminal = created(editor, "/bin/sh", "-c", "pwd; echo $#", "sh", "a b", cwd=str(below))
    asked(editor, "wait_for_exit", terminal)
    assert asked(editor, "output", terminal)["output"] == f"{below}\n1\n"
    for cwd in ("/", "/usr", str(editor.paddock.worktree / "link"), "relative"):
        told = editor.answer(request("terminal/create", sessionId="s", command="pwd", cwd=cwd))
        assert "error" in told, cwd


def test_a_command_that_is_not_there_ends_at_once(editor: Editor) -> None:
    """With the status that a shell gives it."""
    terminal = created(editor, "/no/such", "x")
    assert asked(editor, "wait_for_exit", terminal) == {"exitCode": 127, "signal": None}


def test_a_terminal_is_killed_and_can_still_be_read(editor: Editor) -> None:
    """Whoever waits for it is told; what it had started below it ends with it."""
    terminal = created(editor, "echo begun; sleep 1000 & sleep 1000")
    waiting = request("terminal/wait_for_exit", 7, sessionId="s", terminalId=terminal)
    editor.say(waiting)
    while asked(editor, "output", terminal)["output"] != "begun\n":
        pass
    killing = request("terminal/kill", 8, sessionId="s", terminalId=terminal)
    first = editor.answer(killing)
    second = json.loads(editor.got())
    assert {first["id"]: first["result"], second["id"]: second["result"]} == {
        7: {"exitCode": None, "signal": "SIGKILL"},
        8: {},
    }
    assert asked(editor, "output", terminal)["output"] == "begun\n"


def test_no_more_output_is_kept_than_was_asked_for(editor: Editor) -> None:
    """The end of it, from a whole character on."""
    terminal = created(editor, "/usr/bin/printf", "%s", "€" * 100, outputByteLimit=10)
    asked(editor, "wait_for_exit", terminal)
    told = asked(editor, "output", terminal)
    assert (told["output"], told["truncated"]) == ("€€€", True)


def test_terminals_belong_to_their_session(editor: Editor) -> None:
    """Another session's id is none."""
    terminal = created(editor, "true")
    told = editor.answer(request("terminal/output", sessionId="other", terminalId=terminal))
    assert told["error"]["code"] == -32602


def test_a_tool_call_shows_text_in_the_place_of_a_terminal(editor: Editor) -> None:
    """The editor does not know the jail's terminals: it gets their output, and again when the command has ended."""
    terminal = created(editor, "echo from the jail; read line || exit 4")
    content = [{"type": "terminal", "terminalId": terminal}, {"type": "terminal", "terminalId": "the editor's own"}]
    update = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "t", "content": content}
    asked(editor, "wait_for_exit", terminal)
    editor.say({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}})
    told = editor.read()["params"]["update"]
    assert told["toolCallId"] == "c"
    assert told["content"][1] == content[1]
    text = told["content"][0]["content"]["text"]
    assert "from the jail" in text
    assert "exit status 4" in text


def test_one_message_of_the_agent_fills_no_memory(user_paddock: Paddock) -> None:
    """A terminal that it names thousands of times takes little more than one: the memory is the bridge's, which no
    limit of the jail's holds.
    """
    with Editor(user_paddock, apart=True) as editor:
        terminal = created(editor, "head -c 1048576 /dev/zero | tr '\\0' a")
        asked(editor, "wait_for_exit", terminal)
        item = {"type": "terminal", "terminalId": terminal}
        update = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "t", "content": [item]}
        sent = {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}}
        editor.say(sent)
        (told,) = editor.read()["params"]["update"]["content"]
        assert "aaaa" in told["content"]["text"]
        before = peak(editor.process.pid)
        update["content"] = [item] * 8000
        editor.say(sent)
        content = editor.read()["params"]["update"]["content"]
        assert len(content) == 8000
        assert content[0] == told
        assert sum("aaaa" in each["content"]["text"] for each in content) < 8
        assert peak(editor.process.pid) - before < 64 << 10


def test_the_end_of_a_terminal_is_shown(editor: Editor) -> None:
    """A tool call that was told while it ran is told again."""
    fifo = editor.paddock.worktree / "fifo"
    terminal = created(editor, "mkfifo fifo; echo [begun]; cat fifo; echo done")
    while asked(editor, "output", terminal)["output"] != "[begun]\n":
        pass
    update = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "t",
              "content": [{"type": "terminal", "terminalId": terminal}]}  # fmt: skip
    editor.say({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}})
    assert "[begun]" in editor.line().decode()
    fifo.write_text("end\n")
    told = editor.read()["params"]
    schema.SessionNotification.model_validate(told)
    assert told["update"]["sessionUpdate"] == "tool_call_update"
    assert "end\ndone" in told["update"]["content"][0]["content"]["text"]


def test_files_are_read_and_written_in_the_jail(editor: Editor) -> None:
    """Nothing reaches the editor, and what is refused is refused by the bridge already."""
    worktree = editor.paddock.worktree
    text = "one\ntwo €\nthree"
    told = editor.answer(request("fs/write_text_file", sessionId="s", path=str(worktree / "new"), content=text))
    assert told["result"] == {}
    assert (worktree / "new").read_text() == text
    for more, wanted in (({}, text), ({"line": 2}, "two €\nthree"), ({"line": 2, "limit": 1}, "two €\n")):
        told = editor.answer(request("fs/read_text_file", sessionId="s", path=str(worktree / "new"), **more))
        assert told["result"] == {"content": wanted}
    told = editor.answer(request("fs/write_text_file", sessionId="s", path=str(worktree / "new"), content=""))
    assert (worktree / "new").read_text() == ""
    told = editor.answer(request("fs/read_text_file", sessionId="s", path=str(worktree / "absent")))
    assert told["result"] == {"content": ""}  # as in an editor's new buffer
    told = editor.answer(request("fs/read_text_file", sessionId="s", path="/etc/shadow"))
    assert told["error"]["data"]["errorType"] == "SANDBOX_VIOLATION"


def test_a_large_file_crosses_whole(editor: Editor) -> None:
    """Larger than any pipe."""
    path = editor.paddock.worktree / "large"
    text = "0123456789abcde\n" * 65536
    told = editor.answer(request("fs/write_text_file", sessionId="s", path=str(path), content=text))
    assert told["result"] == {}
    assert path.read_text() == text
    told = editor.answer(request("fs/read_text_file", sessionId="s", path=str(path)))
    assert told["result"]["content"] == text


def test_a_link_that_is_put_there_meanwhile_leads_nowhere(user_paddock: Paddock) -> None:
    """The race against the check is lost in the jail: of a link that comes and goes, no write ever leaves."""
    beside = user_paddock.place / "beside"
    beside.mkdir()
    (beside / "file").write_text("secret")
    user_paddock.who.give(beside)
    swap = "import os, sys; os.mkdir('d'); os.symlink(sys.argv[1], 'l')\nwhile True:\n" + "".join(
        f"    os.rename({old!r}, {new!r})\n" for old, new in ("de", "ld", "dl", "ed")
    )
    with Editor(user_paddock, "--fs", "jail") as editor:
        created(editor, "/usr/bin/python3", "-c", swap, str(beside))
        for number in range(20):
            path = str(user_paddock.worktree / "d" / "file")
            editor.answer(request("fs/write_text_file", number, sessionId="s", path=path, content="evil"))
            told = editor.answer(request("fs/read_text_file", number, sessionId="s", path=path))
            assert "secret" not in json.dumps(told)
    assert [path.name for path in beside.iterdir()] == ["file"]
    assert Path(beside / "file").read_text() == "secret"


def test_a_session_of_the_protocol_is_known_to_tools(user_paddock: Paddock) -> None:
    """File tools that are given the agent's own id find the session, and its worktree, as long as it lives."""
    with Editor(user_paddock, "--session", "review") as editor:
        editor.send(request("session/new", 5, cwd=str(user_paddock.worktree), mcpServers=[]))
        assert json.loads(editor.got())["id"] == 5
        editor.say({"jsonrpc": "2.0", "id": 5, "result": {"sessionId": "0199-made-by-the-agent"}})
        assert editor.read()["result"]["sessionId"] == "0199-made-by-the-agent"
        place = user_paddock.state / "sessions" / "review" / "known-as"
        assert len(list(place.iterdir())) == 1
    assert not place.exists()
