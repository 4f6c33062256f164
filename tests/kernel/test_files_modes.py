"""The two modes of the installed server, line by line of the specification's backward-compatibility table."""

from pathlib import Path

import anyio
import pytest

from launcher.bridges.files.mcp_server import SESSION_HEADER, TOKEN_HEADER
from tests.support.file_tools import Caller, Server, over_stdio
from tests.support.paddock import Paddock


async def uses_anything(call: Caller, outside: Path) -> None:
    """Legacy behaviour: files anywhere, commands without a jail."""
    assert (await call("read", file_path="file")).text == "content\n"
    assert (await call("read", file_path=str(outside / "secret"))).text == "secret"
    assert not (await call("write", file_path=str(outside / "new"), content="x")).failed
    assert not (await call("edit", file_path=str(outside / "new"), old_string="x", new_string="y")).failed
    assert (await call("shell", command=f"cat {outside}/new")).text == "exit status 0\ny"
    (outside / "new").unlink()


async def is_refused(call: Caller, outside: Path) -> None:
    """An error for each, and nothing happens."""
    for tool, arguments in (
        ("read", {"file_path": str(outside / "secret")}),
        ("read", {"file_path": "file"}),
        ("write", {"file_path": str(outside / "new"), "content": "x"}),
        ("shell", {"command": f"touch {outside}/new"}),
    ):
        assert (await call(tool, **arguments)).error == "WORKTREE_UNRESOLVED"
    assert not (outside / "new").exists()


@pytest.mark.spec("CONTRACT-COMPATIBLE", "US5.2", "CONTRACT-6", "EDGE-1", "EDGE-5")
def test_calls_without_a_known_session_over_http(user_paddock: Paddock) -> None:
    """Missing, empty and unknown ids: legacy in `compatible` with the server's own token; they are errors in `strict`,
    the mode of `test_files_http.py`. A worktree that is not there is never legacy, before it is made and after it was
    deleted; in between it is served.
    """
    paddock = user_paddock
    outside, later = paddock.place / "outside", paddock.place / "later"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    paddock.who.give(outside)

    async def ask(server: Server) -> None:
        token = server.ready["tokens"][""]
        for headers in ({}, {SESSION_HEADER: ""}, {SESSION_HEADER: "stranger"}):
            async with server.client(headers) as call:
                await is_refused(call, outside)  # nobody is served without a token
            async with server.client({**headers, TOKEN_HEADER: token}) as call:
                await uses_anything(call, outside)
        async with server.client({SESSION_HEADER: "one", TOKEN_HEADER: token}) as call:
            await is_refused(call, outside)  # a known session is not let out by the token of no session
        async with server.client(server.headers("one")) as call:
            assert (await call("read", file_path="file")).text == "content\n"
            assert (await call("read", file_path=str(outside / "secret"))).error == "SANDBOX_VIOLATION"
        async with server.client(server.headers("later")) as call:
            said = await call("read", file_path="file")
            assert said.error == "WORKTREE_UNRESOLVED"
            assert "there is no directory" in str(said.told["message"])
            assert (await call("write", file_path=str(paddock.place / "x"), content="")).error == "WORKTREE_UNRESOLVED"
            words = ["git", "-C", str(paddock.main), "worktree", "add", "-q", "-b", "later", str(later)]
            assert paddock.who.run(words).returncode == 0
            assert not (await call("write", file_path="file", content="there")).failed
            assert (await call("read", file_path="file")).text == "there"
            paddock.who.run(["rm", "-rf", str(later)]).check_returncode()
            for tool, arguments in (("read", {"file_path": "file"}), ("write", {"file_path": "file", "content": "x"})):
                said = await call(tool, **arguments)
                assert said.error == "SANDBOX_VIOLATION"
                assert "no longer exists" in said.text
        assert not later.exists()

    words = ("--mode", "compatible", f"--session=one={paddock.worktree}", f"--session=later={later}")
    with Server(paddock, *words) as server:
        assert set(server.ready["tokens"]) == {"one", "later", ""}
        anyio.run(ask, server)


@pytest.mark.spec("CONTRACT-COMPATIBLE")
def test_calls_without_a_session_over_standard_streams(user_paddock: Paddock) -> None:
    """`compatible` alone has no boundaries; with a worktree, here or elsewhere, it has; who names a session is never
    served without it.
    """
    paddock = user_paddock
    outside, other = paddock.place / "outside", paddock.place / "two"
    ended = paddock.who.run(["git", "-C", str(paddock.main), "worktree", "add", "-q", "-b", "two", str(other)])
    assert ended.returncode == 0, ended.stderr
    outside.mkdir()
    (outside / "secret").write_text("secret")
    paddock.who.give(outside)

    async def ask() -> None:
        async with over_stdio(paddock, "--mode", "compatible") as call:
            await uses_anything(call, outside)
        async with over_stdio(paddock, "--mode", "compatible", "--worktree", str(other)) as call:
            assert (await call("list")).text == ".git"
            for path in (outside / "secret", paddock.worktree / "file"):
                assert (await call("read", file_path=str(path))).error == "SANDBOX_VIOLATION"

    anyio.run(ask)
    for mode in ("strict", "compatible"):
        assert paddock.refused("files", "--mode", mode, "--session", "stranger").reference == "session-unknown"


def test_bad_command_lines_are_refused(user_paddock: Paddock) -> None:
    """One clear error each."""
    cases: tuple[tuple[tuple[str, ...], str], ...] = (
        (("--mode", "lax"), "usage"),
        (("--stdio", "--http", "127.0.0.1:0"), "usage"),
        (("--session", "a=", "--session", "b"), "usage"),
        (("--http", "127.0.0.1:0", "--session", "a=.", "--session", "stranger"), "session-unknown"),
        (("--session", "../a"), "session-name"),
        (("--session", "a=.", "--session", "a=."), "usage"),
        (("--session", "a=.", "--session", "b=."), "usage"),
        (("--http", "0.0.0.0:0"), "http-not-loopback"),
        (("--http", "nonsense"), "http-address"),
        (("--http", "127.0.0.1:99999"), "http-address"),
        (("--http", "unix:/nonexistent/socket"), "http-unusable"),
        (("more",), "usage"),
    )
    errors = user_paddock.refused_each(*(["files", *words] for words, _ in cases))
    assert [(words, error.reference) for (words, _), error in zip(cases, errors, strict=True)] == [*cases]
    assert user_paddock.refused("files", cwd=user_paddock.place).reference == "not-a-worktree"
