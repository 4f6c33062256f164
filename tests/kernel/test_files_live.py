"""File tools for a live session: the worker and the shell run in the jail that `paddock run --session` has made."""

import dataclasses
import json
import subprocess

import anyio
import pytest

from launcher.bridges.files import file_service
from tests.support.acp_editor import PlainEditor, request
from tests.support.file_tools import Caller, over_stdio
from tests.support.paddock import Paddock, Session


def seen(paddock: Paddock) -> tuple[str, ...]:
    """Options that let a jail see the interpreter that the worker needs."""
    return ("--ro", str(paddock.installed.prefix))


def test_the_worker_runs_in_the_live_jail(user_paddock: Paddock, backend: dict[str, str]) -> None:
    """Commands of the shell tool see the session's own processes and temp files; paths are denied as ever."""
    paddock = user_paddock
    command = ("sh", "-c", "echo here >$TMPDIR/mark; echo ready; exec cat")

    async def ask(session: Session) -> None:
        async with over_stdio(paddock, "--session", session.name, env=backend) as call:
            assert (await call("read", file_path="file")).text == "content\n"
            assert not (await call("write", file_path="new", content="x")).failed
            assert not (await call("write", file_path="tool", content="y")).failed
            assert not (await call("edit", file_path="tool", old_string="y", new_string="z")).failed
            assert (await call("shell", command="cat $TMPDIR/mark")).text == "exit status 0\nhere\n"
            said = await call("read", file_path=str(paddock.main / ".git/HEAD"))
            assert said.error == "SANDBOX_VIOLATION"
            assert len(list((paddock.state / "sessions").iterdir())) == 1  # no jail was made besides

    tool = paddock.worktree / "tool"
    tool.write_text("x")
    tool.chmod(0o777)
    paddock.who.give(tool)
    with Session(paddock, backend, command, seen(paddock)) as session:
        anyio.run(ask, session)
    assert (paddock.worktree / "new").read_text() == "x"
    assert (tool.read_text(), tool.stat().st_mode & 0o777) == ("z", 0o777)


@pytest.mark.spec("US5.2", "EDGE-1", "EDGE-5")
def test_a_session_is_served_while_it_lives(user_paddock: Paddock) -> None:
    """Once it has ended its calls are errors; when it is started again, one and the same server serves it again, though
    not in another worktree.
    """
    paddock = user_paddock
    other = beside(paddock)

    def start(here: Paddock = paddock) -> "subprocess.Popen[bytes]":
        words = paddock.words("run", "--session", "later", *seen(paddock), "--", "sh", "-c", "echo ready; exec cat")
        process = paddock.who.start(words, cwd=here.worktree)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    def end(process: "subprocess.Popen[bytes]") -> None:
        process.communicate(timeout=60)
        assert process.returncode == 0

    async def ask() -> None:
        process = start()
        async with over_stdio(paddock, "--session", "later") as call:
            assert (await call("read", file_path="file")).text == "content\n"
            end(process)
            await _until(call, "WORKTREE_UNRESOLVED")
            process = start(other)
            await anyio.sleep(file_service.FRESH)
            assert (await call("write", file_path="file", content="x")).error == "WORKTREE_UNRESOLVED"
            end(process)
            process = start()
            await _until(call, "")
        end(process)

    anyio.run(ask)
    assert (paddock.worktree / "file").read_text() == "content\n"
    assert paddock.refused("files", "--session", "later").reference == "session-unknown"


def test_no_agent_takes_a_sessions_place(user_paddock: Paddock) -> None:
    """What agents call their own sessions stands for none that a server serves, alive or ended; nor is that let out,
    in the mode `compatible`, which lets out who is unknown.
    """
    paddock = user_paddock
    other = beside(paddock)

    async def ask(name: str, served: Session | PlainEditor) -> None:
        async with over_stdio(paddock, "--mode", "compatible", "--session", name) as call:
            with claiming(other, name):
                assert (await call("shell", command="pwd")).text == f"exit status 0\n{paddock.worktree}\n"
                served.end()
                for _ in range(2):
                    said = await call("write", file_path=str(other.worktree / "new"), content="x")
                    assert said.error == "WORKTREE_UNRESOLVED"
                    assert "it has ended" in str(said.told["message"])
                    await anyio.sleep(file_service.FRESH)
            assert (await call("shell", command="pwd")).error == "WORKTREE_UNRESOLVED"

    with Session(paddock, options=seen(paddock)) as session:
        anyio.run(ask, session.name, session)
    with claiming(paddock, "0199-made-by-the-agent") as editor:
        anyio.run(ask, "0199-made-by-the-agent", editor)
    assert not (other.worktree / "new").exists()


def beside(paddock: Paddock) -> Paddock:
    """The command in another worktree of the same repository."""
    other = paddock.place / "other"
    paddock.who.run(["git", "-C", paddock.main, "worktree", "add", "-q", "-b", "other", other]).check_returncode()
    return dataclasses.replace(paddock, worktree=other)


def claiming(paddock: Paddock, name: str) -> PlainEditor:
    """An editor whose agent has called its session `name`."""
    editor = PlainEditor(paddock, *seen(paddock))
    editor.send(request("session/new", 5, cwd=str(paddock.worktree), mcpServers=[]))
    assert json.loads(editor.got())["id"] == 5
    editor.say({"jsonrpc": "2.0", "id": 5, "result": {"sessionId": name}})
    assert editor.read()["result"]["sessionId"] == name
    return editor


async def _until(call: Caller, error: str) -> None:
    with anyio.fail_after(60):
        while (await call("read", file_path="file")).error != error:
            await anyio.sleep(0.1)


def test_a_live_jail_without_room_for_the_worker_is_not_left(user_paddock: Paddock) -> None:
    """Another jail might allow more: what its own jail denies by an option stays denied, whatever the server knows."""
    paddock = user_paddock
    (paddock.worktree / "hidden").mkdir()
    (paddock.worktree / "hidden/file").write_text("secret")
    paddock.who.give(paddock.worktree)

    async def ask(session: Session, expected: str) -> None:
        async with over_stdio(paddock, "--session", session.name) as call:
            said = await call("read", file_path="hidden/file")
            assert said.error == expected
            assert "secret" not in said.text

    with Session(paddock, options=("--deny", "hidden", *seen(paddock))) as session:
        anyio.run(ask, session, "SANDBOX_VIOLATION")
    with Session(paddock, options=("--deny", "hidden", "--deny", str(paddock.installed.prefix))) as session:
        anyio.run(ask, session, "WORKER_FAILED")
