"""The file tools over standard streams: the SDK's client, the installed command, a jailed worker."""

import json
import time

import anyio
import pytest

from tests.support.features import need
from tests.support.file_tools import Caller, over_stdio, served
from tests.support.paddock import Paddock


@pytest.mark.spec("CONTRACT-5", "FR-014", "FR-019", "FR-010", "FR-011", "FR-012")
def test_tools_work_inside_and_are_denied_outside(paddock: Paddock) -> None:
    """Every tool serves the worktree, and what it makes belongs to who started the server, with the rights that his
    umask leaves; the same tool with a path outside answers with the specified JSON.
    """
    outside = paddock.place / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret\n")
    paddock.who.give(outside)

    async def inside(call: Caller) -> None:
        assert [tool.name for tool in (await call.client.list_tools()).tools] == [
            "read", "write", "edit", "list", "glob", "grep", "shell",
        ]  # fmt: skip
        assert (await call("read", file_path="file")).text == "content\n"
        assert not (await call("write", file_path="new/deep/one", content="a\nb\nc\n")).failed
        assert not (await call("edit", file_path="new/deep/one", old_string="b", new_string="B")).failed
        assert (await call("read", file_path="new/deep/one", offset=2, limit=1)).text == "B\n"
        assert (await call("list")).text.splitlines() == [".git", "file", "new/"]
        assert (await call("glob", pattern="**/one")).text == "new/deep/one"
        assert (await call("grep", pattern="^B$")).text == "new/deep/one:2:B"
        said = await call("shell", command="cat new/deep/one; exit 3")
        assert said.text == "exit status 3\na\nB\nc\n"

    async def denied(call: Caller) -> None:
        for path in (f"{outside}/secret", "../outside/secret", "new/../../outside/secret"):
            for said in (
                await call("read", file_path=path),
                await call("write", file_path=path, content="changed"),
                await call("edit", file_path=path, old_string="secret", new_string="changed"),
                await call("grep", pattern="secret", target=path),
            ):
                assert said.error == "SANDBOX_VIOLATION"
                assert said.told["attemptedPath"] == path
                assert said.told["sandboxRoot"] == str(paddock.worktree)
        for tool, more in (("list", {}), ("glob", {"pattern": "*"}), ("shell", {"command": "ls"})):
            assert (await call(tool, directory=str(outside), **more)).error == "SANDBOX_VIOLATION"
        said = await call("shell", command=f"cat {outside}/secret")
        assert said.text.startswith("exit status 1\n")
        assert "secret\n" not in said.text.splitlines()

    async def both() -> None:
        async with over_stdio(paddock) as call:
            await inside(call)
            await denied(call)

    anyio.run(both)
    assert (outside / "secret").read_text() == "secret\n"
    assert list(outside.iterdir()) == [outside / "secret"]
    made = paddock.worktree / "new/deep/one"
    assert made.read_text() == "a\nB\nc\n"
    assert (made.stat().st_uid, made.stat().st_mode & 0o777) == (paddock.who.uid, 0o644)
    assert sorted(path.name for path in paddock.worktree.iterdir()) == [".git", "file", "new"]


def test_every_line_has_its_answer(user_paddock: Paddock) -> None:
    """Also what the protocol's own library cannot read, such as half of a surrogate pair; the server goes on."""
    paddock = user_paddock
    call = '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"write","arguments":%s}}'
    start = '{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}'
    lines = (  # what is sent, the id and the code of the answer
        (call % (1, '{"file_path":"a","content":"\\ud800"}'), 1, -32602),
        (f'{{"jsonrpc":"2.0","id":2,"method":"initialize","params":{start}}}', 2, 0),
        ('{"jsonrpc":"2.0","method":"notifications/initialized"}', None, None),
        (call % ('"three"', '{"file_path":"\\udfff","content":"x"}'), "three", -32602),
        (call % ('"\\ud800"', "{}"), None, -32602),
        ('{"jsonrpc":"2.0","id":4,', None, -32700),
        ("[" * 100_000, None, -32700),
        ('{"jsonrpc":"2.0","id":5,"method":6}', 5, -32600),
        ("[]", None, -32600),
        ("", None, None),
        (call % (7, '{"file_path":"a","content":"\\ud83d\\ude00"}'), 7, 0),
    )
    server = served(paddock, "--session", "a=.")
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stderr is not None
    for line, identifier, code in lines:
        server.stdin.write(line.encode() + b"\n")
        server.stdin.flush()
        if code is None:
            continue
        said = json.loads(server.stdout.readline())
        assert (said["id"], said.get("error", {}).get("code", 0)) == (identifier, code), said
    server.stdin.close()
    with server.stdout, server.stderr:
        status, errors = server.wait(60), server.stderr.read()
    assert (status, b"Traceback" in errors) == (0, False), errors
    assert [path.name for path in paddock.worktree.glob("a*")] == ["a"]
    assert (paddock.worktree / "a").read_text() == "\U0001f600"


def test_a_worktree_elsewhere_can_be_named(user_paddock: Paddock) -> None:
    """`--session ID=DIR` serves another directory than the current one (`--worktree`: test_files_modes.py). `paddock
    denials` tells of what was refused, with what would allow it; once for each path and tool. However long a path is,
    a line of the ledger is short, and what no path can be has no option.
    """
    paddock = user_paddock
    other, outside = paddock.place / "two", paddock.place / "data"
    ended = paddock.who.run(["git", "-C", str(paddock.main), "worktree", "add", "-q", "-b", "two", str(other)])
    assert ended.returncode == 0, ended.stderr
    outside.mkdir()
    (outside / "set").write_text("x")
    paddock.who.give(outside)

    async def ask() -> None:
        async with over_stdio(paddock, "--session", f"agent={other}") as call:
            assert (await call("list")).text == ".git"
            for _ in range(3):
                for path in (paddock.worktree / "file", "../data/set"):
                    assert (await call("read", file_path=str(path))).error == "SANDBOX_VIOLATION"
                assert (await call("shell", command="ls", directory=str(outside))).error == "SANDBOX_VIOLATION"
            for path in ("/" + "\x01" * 8000, "/" + "\x01/" * 2100):
                assert (await call("read", file_path=path)).error == "SANDBOX_VIOLATION"

    anyio.run(ask)
    (ledger,) = (paddock.state / "ledgers").glob("files-agent-*.jsonl")
    assert max(map(len, ledger.read_bytes().splitlines())) < 32 << 10
    name = ledger.name.partition(".")[0]
    lines = map(json.loads, paddock.call("denials", name, "--json").stdout.splitlines())
    told = [each for each in lines if each["layer"] == "validator"]
    found = [(each["operation"], each["path"], each["allow"]["flag"]) for each in told[:3]]
    assert found == [
        ("read", f"{paddock.worktree}/file", f"--ro {paddock.worktree}/file"),
        ("read", f"{outside}/set", f"--ro {outside}/set"),
        ("execute", str(outside), f"--ro {outside}"),
    ]
    assert [each["allow"]["flag"] for each in told[3:]] == ["", ""]
    shown = paddock.call("denials", name).stdout
    assert f"{outside}/set" in shown
    assert "--ro" in shown


def test_a_client_that_leaves_ends_its_command(user_paddock: Paddock) -> None:
    """The server does not wait for it, and nothing of it is left (the fixtures look). Before that: a file that may not
    be written is not replaced, for a rename would only ask whether the directory may be; the file's own mode counts.
    """
    paddock = user_paddock
    path = paddock.worktree / "file"
    path.chmod(0o444)

    async def leave() -> None:
        async with over_stdio(paddock) as call, anyio.create_task_group() as group:
            assert (await call("write", file_path="file", content="x")).error == "ACCESS_DENIED"
            assert (await call("edit", file_path="file", old_string="content", new_string="x")).error == "ACCESS_DENIED"
            assert not (await call("shell", command="chmod u+w file")).failed
            assert not (await call("write", file_path="file", content="x")).failed

            async def work() -> None:
                await call("shell", command="touch begun; sleep 500", timeout_seconds=600)

            group.start_soon(work)
            while not (paddock.worktree / "begun").exists():
                await anyio.sleep(0.05)
            group.cancel_scope.cancel()

    before = time.monotonic()
    anyio.run(leave)
    assert time.monotonic() - before < 120
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("x", 0o644)


def test_in_bubblewrap_too(user_paddock: Paddock) -> None:
    """Where there is no Landlock, the worker runs in the view that bubblewrap makes."""
    need("bubblewrap")
    paddock = user_paddock

    async def ask() -> None:
        async with over_stdio(paddock, env={"PADDOCK_NO_LANDLOCK": "1"}) as call:
            assert not (await call("write", file_path="new", content="x")).failed
            assert (await call("read", file_path="new")).text == "x"
            assert (await call("grep", pattern="x")).text == "new:1:x"
            assert (await call("read", file_path=str(paddock.main / ".git/HEAD"))).error == "SANDBOX_VIOLATION"
            said = await call("shell", command=f"cat new {paddock.main}/.git/HEAD")
            assert said.text.startswith("exit status 1\nx")

    anyio.run(ask)


def test_an_agent_in_its_jail_can_start_it_itself(user_paddock: Paddock) -> None:
    """As its own server for tools: a jail in its jail, which can only be narrower. With the older handshake."""
    paddock = user_paddock
    outer = paddock.words("run", "--ro", paddock.installed.prefix, "--")

    async def ask() -> None:
        async with over_stdio(paddock, inside=outer, mode="legacy") as call:
            assert (await call("read", file_path="file")).text == "content\n"
            assert not (await call("write", file_path="new", content="x")).failed
            assert (await call("shell", command="cat new")).text == "exit status 0\nx"
            assert (await call("read", file_path=str(paddock.main / ".git/HEAD"))).error == "SANDBOX_VIOLATION"

    anyio.run(ask)
