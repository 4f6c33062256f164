"""`paddock acp`: what an agent asks its editor for is held to the jail; everything else passes."""

import json
import random
import signal
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from tests.kernel.conftest import ROOT_BY_LANDLOCK
from tests.support.acp_editor import ANSWER_SECONDS as PATIENCE
from tests.support.acp_editor import PlainEditor as Editor
from tests.support.acp_editor import peak, request
from tests.support.paddock import Paddock


def outside(paddock: Paddock, text: str = "secret") -> Path:
    """A file beside the worktree, which the editor may read and write and the jail may not."""
    path = paddock.place / "outside"
    path.write_text(text)
    paddock.who.give(path)
    return path


@ROOT_BY_LANDLOCK
def test_the_editor_opens_for_the_agent_what_the_jail_holds(paddock: Paddock, backend: dict[str, str]) -> None:
    """Outside, by name, by `..` or by a link, whoever made it, nothing is read or written; inside all is, but `.git`
    and protected hand-off files, which host tools obey; what `--ro` lets the jail read is read and not written.
    """
    root, beside, granted = paddock.worktree, outside(paddock), paddock.place / "granted"
    granted.write_text("data")
    (root / "link").symlink_to(beside)
    (root / ".envrc").write_text("export A=1\n")
    paddock.who.give(paddock.place)
    kept = {path: path.read_text() for path in (beside, granted, root / ".envrc", root / ".git")}
    with Editor(paddock, "--ro", granted, env=backend) as editor:
        for name, target in (("out", str(beside)), ("in", "file")):
            editor.send(request("_run", argv=["ln", "-s", target, name]))
            assert editor.read()["result"]["status"] == 0

        def told(verb: str, path: object, **more: str) -> dict[str, Any]:
            return editor.answer(request(f"fs/{verb}_text_file", sessionId="s", path=str(path), **more))

        for path in (beside, root / "link", f"{root}/../outside", "/etc/shadow"):
            read = told("read", path)
            assert "secret" not in json.dumps(read)
            assert read["error"]["data"]["errorType"] == "SANDBOX_VIOLATION", path
        assert told("read", root / "file")["result"] == {"content": "content\n"}
        assert told("read", granted)["result"] == {"content": "data"}
        for path in (root / "out", *kept):
            assert "error" in told("write", path, content="gitdir: /tmp/evil"), path
        refused = told("write", beside, content="gone")
        written = {name: told("write", root / name, content=name) for name in ("new", "in", "envrc")}
    assert {path: path.read_text() for path in kept} == kept
    assert written == {name: {"jsonrpc": "2.0", "id": 1, "result": {}} for name in written}
    assert {name: (root / name).read_text() for name in ("new", "file", "envrc")} == {
        "new": "new", "file": "in", "envrc": "envrc",
    }  # fmt: skip
    assert refused["error"]["data"] == {
        "error": True,
        "errorType": "SANDBOX_VIOLATION",
        "attemptedPath": str(beside),
        "sandboxRoot": str(root),
        "operation": "WRITE",
        "message": "Access denied: path is outside worktree sandbox",
    }


def test_what_was_refused_is_in_the_ledger(user_paddock: Paddock) -> None:
    """`paddock denials` names the method, the path, and what would allow it."""
    beside = outside(user_paddock)
    with Editor(user_paddock, "--session", "review") as editor:
        editor.answer(request("fs/write_text_file", sessionId="s", path=str(beside), content="gone"))
        path = str(user_paddock.worktree / "new")
        editor.answer(request("fs/write_text_file", sessionId="s", path=path, content="new"))
    lines = [json.loads(line) for line in user_paddock.call("denials", "review", "--json").stdout.splitlines()]
    mine = [line for line in lines if line["layer"] == "bridge"]
    assert [(line["rights"], line["path"]) for line in mine] == [(["fs/write_text_file"], str(beside))]
    assert mine[0]["allow"]["flag"] == f"--rw {beside}"
    shown = user_paddock.call("denials", "review", "--decisions").stdout
    assert f"allowed fs/write_text_file {user_paddock.worktree}/new\n" in shown
    assert "allowed" not in user_paddock.call("denials", "review").stdout


def test_what_is_chosen_for_terminals_and_sessions(user_paddock: Paddock) -> None:
    """With `--terminals strip` none is offered, and a request for one never reaches the editor; with `--cwd map` a
    session's directory outside becomes the worktree.
    """
    with Editor(user_paddock, "--terminals", "strip", "--cwd", "map") as editor:
        editor.send(request("initialize", protocolVersion=1, clientCapabilities={"terminal": True, "fs": {}}))
        assert json.loads(editor.got())["params"]["clientCapabilities"] == {"terminal": False, "fs": {}}
        told = editor.answer(request("terminal/create", "t", sessionId="s", command="touch", args=["/tmp/x"]))
        assert (told["id"], told["error"]["code"]) == ("t", -32601)
        editor.send(request("session/new", cwd=str(user_paddock.main), mcpServers=[]))
        assert json.loads(editor.got())["params"]["cwd"] == str(user_paddock.worktree)


UNKNOWN = (
    b'{"jsonrpc":"2.0","id":7,"method":"craft/drainMidTurnQueue","params":{ "a" : 1.0, "b":"\xe2\x82\xac" }}\n',
    b'{"method":"_vendor/thing","jsonrpc":"2.0"}\r\n',
    b'{"jsonrpc":"2.0","id":12345678901234567890123,"result":null,"_more":[[],{}]}\n',
)
NOISE = (b"no JSON at all\n", b"\n", b'{"jsonrpc":"2.0","id":1,"id":2,"result":null}\n')


def test_what_is_unknown_passes_with_its_meaning(user_paddock: Paddock) -> None:
    """Extensions and odd spacing reach the other side, written anew, in order; what is no message does not, and neither
    does a session outside of the worktree, which is refused with a hint.
    """
    with Editor(user_paddock) as editor:
        editor.send(request("session/new", cwd=str(user_paddock.main), mcpServers=[]))
        refused = editor.read()
        assert "--cwd map" in refused["error"]["data"]["hint"]
        editor.send(request("session/new", cwd=str(user_paddock.worktree), mcpServers=[]))
        assert json.loads(editor.got())["params"]["cwd"] == str(user_paddock.worktree)
        for line in UNKNOWN:
            editor.send(line)
            got = editor.got()
            assert (json.loads(got), got.isascii()) == (json.loads(line), True)
        editor.say(*NOISE, *UNKNOWN)
        assert [json.loads(editor.line()) for _ in UNKNOWN] == [json.loads(line) for line in UNKNOWN]


def test_garbage_ends_nothing(user_paddock: Paddock) -> None:
    """Random bytes from both sides, lines of a megabyte, endless nesting: what is said afterwards still arrives."""
    chance = random.Random(8)
    with Editor(user_paddock) as editor:
        ends: deque[bytes] = deque(maxlen=200)
        # An agent whose words nobody reads does not read either.
        reader = threading.Thread(target=lambda: ends.extend(iter(editor.line, b"")))
        reader.start()
        for number in range(30):
            junk = chance.randbytes(chance.randint(1, 300)).replace(b"\n", b"") + b"\n"
            editor.say(junk, b'{"id":%d,"method":"fs/read_text_file","params":' % number + b"[" * 2000 + b"\n")
            editor.send(b"\x00" + junk)
        long = b'{"method":"_long","x":"' + b"y" * 1_000_000 + b'"'
        editor.say(long + b"}\n", long + b',"method":"fs/read_text_file"}\n', long + b'\xff"}\n')
        editor.send(b'{"x":"' + b"y" * 1_000_000 + b'"}\n')
        editor.say({"jsonrpc": "2.0", "method": "_last"})
        assert editor.process.stdin is not None
        editor.process.stdin.close()
        reader.join(PATIENCE)
        assert [line for line in ends if b"yyy" in line] == [long + b"}\n"]
        methods = [json.loads(line).get("method") for line in list(ends)[-20:]]
        assert ("_last" in methods, methods[-1]) == (True, "_ended")
        assert editor.end()[0] == 0


def test_a_slow_editor_holds_the_agent_back(user_paddock: Paddock) -> None:
    """What nobody reads is not piled up, and not lost: 100 MB come when they are asked for."""
    count, size = 1000, 100_000
    with Editor(user_paddock, apart=True) as editor:
        editor.send({"jsonrpc": "2.0", "method": "_fill", "params": {"count": count, "size": size}})
        editor.line()  # it has begun
        for _ in range(count - 1):
            assert len(editor.line()) > size
        assert editor.read()["method"] == "_filled"
        assert peak(editor.process.pid) < 100 << 10


# Ends


def test_the_status_is_the_providers(user_paddock: Paddock) -> None:
    """As with `paddock run`; what it was asked at the beginning, and left open, is answered with an error."""
    with Editor(user_paddock) as editor:
        editor.send(request("initialize", 3, protocolVersion=1))
        editor.got()
        editor.say({"method": "_cut"}, newline=False)
        editor.send({"jsonrpc": "2.0", "method": "_exit", "params": {"status": 7}})
        assert editor.read()["method"] == "_cut"
        answer = editor.read()
        assert (answer["id"], answer["error"]["code"]) == (3, -32603)
        assert "exited without an answer" in answer["error"]["message"]
        assert editor.line() == b""
        assert editor.process.wait(PATIENCE) == 7


def test_a_script_that_the_jail_does_not_show_is_named(user_paddock: Paddock) -> None:
    """The agent's interpreter says so on standard error, which editors keep in a log; the answer names the option.

    Also to an editor whose first request comes when the agent has ended already.
    """
    script = user_paddock.place / "agent.py"
    script.write_text("")
    words = user_paddock.words("acp", "--", "/usr/bin/python3", str(script))
    with user_paddock.who.start(words, cwd=user_paddock.worktree) as process:
        assert process.stderr is not None
        while b"can't open file" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(0.2)  # the launcher ends, and with it the last who holds the agent's pipes
        said, _ = process.communicate(
            json.dumps(request("initialize", 3, protocolVersion=1)).encode() + b"\n", PATIENCE
        )
    message = json.loads(said.splitlines()[0])["error"]["message"]
    assert f"denied by the jail's view: read {script}: --ro {script}" in message


def test_the_end_of_the_editor_is_the_end_of_the_input(user_paddock: Paddock) -> None:
    """A provider that ends then ends by itself, after its last words."""
    with Editor(user_paddock) as editor:
        assert editor.process.stdin is not None
        editor.process.stdin.close()
        assert editor.read()["method"] == "_ended"
        assert editor.end()[0] == 0


def test_a_provider_that_does_not_end_is_ended(user_paddock: Paddock, backend: dict[str, str]) -> None:
    """After the grace period, SIGTERM ignored, the whole jail ends; the report is written all the same."""
    report = user_paddock.place / "report.json"
    with Editor(user_paddock, "--grace", "0.2", "--report", report, env=backend, arguments=["deaf"]) as editor:
        editor.say({"method": "_ready"})
        assert editor.read()["method"] == "_ready"
        assert editor.end()[0] == 137
    assert json.loads(report.read_text())["status"] == 137


def test_a_signal_ends_the_provider(user_paddock: Paddock) -> None:
    """SIGTERM for the bridge is SIGTERM for the provider."""
    with Editor(user_paddock) as editor:
        editor.say({"method": "_ready"})
        assert editor.read()["method"] == "_ready"
        editor.process.send_signal(signal.SIGTERM)
        assert editor.process.wait(PATIENCE) == 128 + signal.SIGTERM


def test_nothing_survives_the_bridge(paddock: Paddock, backend: dict[str, str]) -> None:
    """SIGKILL for the bridge ends the provider, however deaf; the fixtures look for what is left.

    A parent in a Landlock domain that scopes signals keeps the kernel's PR_SET_PDEATHSIG from its children outside: so
    only once the bridge is confined does this show anything.
    """
    with Editor(paddock, env=backend, arguments=["deaf"]) as editor:
        editor.say({"method": "_ready"})
        assert editor.read()["method"] == "_ready"
        comm = Path(f"/proc/{editor.process.pid}/comm")
        deadline = time.monotonic() + PATIENCE
        while comm.read_text() != "paddock-acp\n":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.5)
        editor.process.kill()
        assert editor.process.wait(PATIENCE) == -signal.SIGKILL
    assert paddock.run("--", "true").returncode == 0  # what a killed session left is removed by the next that ends


def test_what_cannot_be_started_is_refused(user_paddock: Paddock) -> None:
    """One clear error for a choice that there is not; of a provider that is not there the launcher's own, with its
    status.
    """
    for words in (("--cwd", "no"), ("--fs", "jail?"), ("--mcp", "x"), ("--grace", "-1")):
        assert (words, user_paddock.refused("acp", *words, "--", "true").reference) == (words, "usage")
    assert user_paddock.refused("acp", "--", "nosuch", status=127).reference == "command-not-found"


def test_an_editor_is_answered_when_nothing_can_be_started(user_paddock: Paddock) -> None:
    """By its first request's error, which it shows: of the command line, of the plan, of the launch itself."""
    wrong = {"usage": ("--nosuch",), "grant-missing": ("--ro", "nosuch"), "session-in-use": ("--session", "one")}
    with Editor(user_paddock, "--session", "one") as living:
        living.say({"method": "_ready"})
        assert living.read()["method"] == "_ready"
        for reference, words in wrong.items():
            with Editor(user_paddock, *words) as editor:
                editor.send(request("initialize", 7, protocolVersion=1))
                answer = editor.read()
                status, said = editor.end()
            assert (answer["id"], answer["error"]["data"]["errorType"]) == (7, reference)
            assert answer["error"]["message"] in said.decode()
            assert status == 125
