"""The file tools over HTTP: sessions by header and token, each in its own jail, side by side."""

import anyio
import httpx2
import pytest

from launcher.bridges.files.mcp_server import SESSION_HEADER, TOKEN_HEADER
from tests.support.file_tools import Caller, Server
from tests.support.paddock import Paddock


def two_worktrees(paddock: Paddock) -> tuple[str, str]:
    """The options that serve the worktrees `one` and `two`."""
    other = paddock.place / "two"
    ended = paddock.who.run(["git", "-C", str(paddock.main), "worktree", "add", "-q", "-b", "two", str(other)])
    assert ended.returncode == 0, ended.stderr
    return f"--session=one={paddock.worktree}", f"--session=two={other}"


@pytest.mark.spec("FR-015", "FR-016", "FR-017", "FR-019", "CONTRACT-6", "US5.1")
def test_two_sessions_side_by_side_are_each_confined(paddock: Paddock) -> None:
    """Header and token lead each request to its own worktree, however requests of both are mixed."""
    words = two_worktrees(paddock)
    other = paddock.place / "two"

    async def write(call: Caller, path: str, text: str) -> None:
        assert not (await call("write", file_path=path, content=text)).failed

    async def work(server: Server) -> None:
        async with server.client(server.headers("one")) as one, server.client(server.headers("two")) as two:
            async with anyio.create_task_group() as group:
                for number in range(5):
                    for call, text in ((one, "one"), (two, "two")):
                        group.start_soon(write, call, f"f{number}", text)
            assert [(await call("read", file_path="f0")).text for call in (one, two)] == ["one", "two"]
            for call, path in ((one, other / "f0"), (two, paddock.worktree / "f0")):
                for said in (
                    await call("read", file_path=str(path)),
                    await call("write", file_path=str(path), content="changed"),
                    await call("edit", file_path=str(path), old_string="o", new_string="changed"),
                ):
                    assert said.error == "SANDBOX_VIOLATION"
            said = await one("shell", command=f"cat {other}/f0")
            assert not said.text.startswith("exit status 0")

    with Server(paddock, *words) as server:
        assert (server.ready["sessionHeader"], server.ready["tokenHeader"]) == (SESSION_HEADER, TOKEN_HEADER)
        anyio.run(work, server)
    for number in range(5):
        assert (paddock.worktree / f"f{number}").read_text() == "one"
        assert (other / f"f{number}").read_text() == "two"


@pytest.mark.spec("US5.2", "CONTRACT-6", "FR-015", "FR-016")
def test_an_unproven_session_is_a_clear_error(user_paddock: Paddock) -> None:
    """In strict mode: no session, an unknown one, no token, a wrong one, another session's, a header twice."""
    paddock = user_paddock
    words = two_worktrees(paddock)

    async def ask(server: Server) -> None:
        good, other = server.headers("one"), server.headers("two")
        protocol = {"Mcp-Session-Id": "one", TOKEN_HEADER: good[TOKEN_HEADER]}
        for headers in (
            {},
            protocol,
            {SESSION_HEADER: "one"},
            {SESSION_HEADER: ""},
            {SESSION_HEADER: "one", TOKEN_HEADER: "x" * 43},
            {SESSION_HEADER: "one", TOKEN_HEADER: other[TOKEN_HEADER]},
            {SESSION_HEADER: "stranger", TOKEN_HEADER: good[TOKEN_HEADER]},
            {SESSION_HEADER: "../one", TOKEN_HEADER: good[TOKEN_HEADER]},
            [*good.items(), (SESSION_HEADER, "two")],
            [*good.items(), (TOKEN_HEADER, other[TOKEN_HEADER])],
        ):
            async with server.client(headers) as call:
                for said in (
                    await call("read", file_path="file"),
                    await call("write", file_path="file", content="changed"),
                    await call("shell", command="echo changed >file"),
                ):
                    assert said.error == "WORKTREE_UNRESOLVED"
                    assert "could not be resolved" in str(said.told["message"])
        async with server.client(good) as call:
            assert (await call("read", file_path="file")).text == "content\n"
        async with httpx2.AsyncClient(headers={"Accept": "text/event-stream"}, timeout=60) as http:
            for method in ("GET", "DELETE", "OPTIONS"):  # nobody keeps a stream open on which nothing will come
                answer = await http.request(method, server.url, headers=good if method == "DELETE" else {})
                assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")

    with Server(paddock, *words) as server:
        anyio.run(ask, server)
    assert (paddock.worktree / "file").read_text() == "content\n"


def test_older_clients_and_large_files_are_served(user_paddock: Paddock) -> None:
    """With a handshake and the protocol's own session header; eight mebibytes in one call, no more."""
    paddock = user_paddock

    async def ask(server: Server) -> None:
        async with server.client(server.headers("one"), mode="legacy") as call:
            assert not (await call("write", file_path="large", content="ö" * (4 << 20))).failed
            said = await call("read", file_path="large")
            assert len(said.text.encode()) == 256 << 10
            assert (await call("write", file_path="larger", content="x" * ((8 << 20) + 1))).error == "TOO_LARGE"

    with Server(paddock, f"--session=one={paddock.worktree}") as server:
        anyio.run(ask, server)
    assert (paddock.worktree / "large").stat().st_size == 8 << 20
    assert not (paddock.worktree / "larger").exists()
