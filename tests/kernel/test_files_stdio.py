"""The file tools over standard streams: the SDK's client, the installed command, a jailed worker."""

from pathlib import Path

import anyio
import pytest

from tests.support.file_tools import Caller, over_stdio
from tests.support.paddock import Paddock


@pytest.mark.spec("CONTRACT-5", "FR-014", "FR-019", "FR-010", "FR-011", "FR-012")
def test_tools_work_inside_and_are_denied_outside(paddock: Paddock) -> None:
    """Every tool serves the worktree; the same tool with a path outside answers with the specified JSON."""
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
    assert (paddock.worktree / "new/deep/one").read_text() == "a\nB\nc\n"


def test_the_files_are_the_users(paddock: Paddock) -> None:
    """What a tool makes belongs to who started the server, with the rights that his umask leaves."""

    async def write() -> None:
        async with over_stdio(paddock) as call:
            assert not (await call("write", file_path="made", content="x")).failed

    anyio.run(write)
    found = (paddock.worktree / "made").stat()
    assert (found.st_uid, found.st_mode & 0o777) == (paddock.who.uid, 0o644)
    assert sorted(path.name for path in paddock.worktree.iterdir()) == [".git", "file", "made"]


def test_a_worktree_elsewhere_can_be_named(user_paddock: Paddock, tmp_path: Path) -> None:
    """`--worktree` and `--session ID=DIR` serve another directory than the current one."""
    paddock = user_paddock
    other = paddock.place / "two"
    ended = paddock.who.run(["git", "-C", str(paddock.main), "worktree", "add", "-q", "-b", "two", str(other)])
    assert ended.returncode == 0, ended.stderr

    async def ask(*words: str) -> None:
        async with over_stdio(paddock, *words) as call:
            assert (await call("list")).text == ".git"
            said = await call("read", file_path=str(paddock.worktree / "file"))
            assert said.error == "SANDBOX_VIOLATION"

    anyio.run(ask, "--worktree", str(other))
    anyio.run(ask, "--session", f"agent={other}")
