"""File tools for a live session: the worker and the shell run in the jail that `paddock run --session` has made."""

import subprocess

import anyio
import pytest

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
    """Once it has ended its calls are errors; when it is started again, one and the same server serves it again."""
    paddock = user_paddock

    def start() -> "subprocess.Popen[bytes]":
        words = paddock.words("run", "--session", "later", *seen(paddock), "--", "sh", "-c", "echo ready; exec cat")
        process = paddock.who.start(words, cwd=paddock.worktree)
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
            assert (await call("write", file_path="file", content="x")).error == "WORKTREE_UNRESOLVED"
            process = start()
            await _until(call, "")
        end(process)

    anyio.run(ask)
    assert (paddock.worktree / "file").read_text() == "content\n"
    assert paddock.refused("files", "--session", "later").reference == "session-unknown"


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
