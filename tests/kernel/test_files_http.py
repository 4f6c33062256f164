"""The file tools over HTTP: sessions by header and token, each in its own jail, side by side."""

from collections.abc import Iterator

import anyio
import httpx2
import pytest

from launcher.bridges.files.mcp_server import SESSION_HEADER, TOKEN_HEADER
from tests.support import warmed
from tests.support.file_tools import Caller, Server
from tests.support.paddock import Paddock


def two_worktrees(paddock: Paddock) -> tuple[str, str]:
    """The options that serve the worktrees `one` and `two`."""
    other = paddock.place / "two"
    ended = paddock.who.run(["git", "-C", str(paddock.main), "worktree", "add", "-q", "-b", "two", str(other)])
    assert ended.returncode == 0, ended.stderr
    return f"--session=one={paddock.worktree}", f"--session=two={other}"


@pytest.fixture(scope="module")
def server(file_paddock: Paddock) -> Iterator[Server]:
    """One that serves `one` twice and `two`, for tests that leave `file` as it was."""
    with Server(file_paddock, *two_worktrees(file_paddock), f"--session=beside={file_paddock.worktree}") as made:
        yield made


@pytest.mark.spec("FR-015", "FR-016", "FR-017", "FR-019", "CONTRACT-6", "US5.1")
def test_two_sessions_side_by_side_are_each_confined(file_paddock: Paddock, server: Server) -> None:
    """Header and token lead each request to its own worktree, however requests of both are mixed."""
    paddock, other = file_paddock, file_paddock.place / "two"

    async def write(call: Caller, path: str, text: str) -> None:
        assert not (await call("write", file_path=path, content=text)).failed

    async def work() -> None:
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

    assert (server.ready["sessionHeader"], server.ready["tokenHeader"]) == (SESSION_HEADER, TOKEN_HEADER)
    assert server.ready["tokens"].keys() == {"one", "two", "beside"}, "in strict mode, none for no session"
    anyio.run(work)
    for number in range(5):
        assert (paddock.worktree / f"f{number}").read_text() == "one"
        assert (other / f"f{number}").read_text() == "two"


@pytest.mark.spec("US5.2", "CONTRACT-6", "FR-015", "FR-016")
def test_an_unproven_session_is_a_clear_error(file_paddock: Paddock, server: Server) -> None:
    """In strict mode: no session, an unknown one, no token, a wrong one, another session's, a header twice."""

    async def ask() -> None:
        good, other = server.headers("one"), server.headers("two")
        protocol = {"Mcp-Session-Id": "one", TOKEN_HEADER: good[TOKEN_HEADER]}
        for headers in (
            {},
            protocol,
            {SESSION_HEADER: "one"},
            {SESSION_HEADER: ""},
            {SESSION_HEADER: "one", TOKEN_HEADER: "x" * 43},
            {SESSION_HEADER: "one", TOKEN_HEADER: other[TOKEN_HEADER]},
            {SESSION_HEADER: "stranger"},
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

    anyio.run(ask)
    assert (file_paddock.worktree / "file").read_text() == "content\n"


def test_older_clients_and_large_files_are_served(file_paddock: Paddock, server: Server) -> None:
    """With a handshake and the protocol's own session header; eight mebibytes in one call, no more."""

    async def ask() -> None:
        async with server.client(server.headers("one"), mode="legacy") as call:
            assert not (await call("write", file_path="large", content="ö" * (4 << 20))).failed
            said = await call("read", file_path="large")
            assert len(said.text.encode()) == 256 << 10
            assert (await call("write", file_path="larger", content="x" * ((8 << 20) + 1))).error == "TOO_LARGE"

    anyio.run(ask)
    assert (file_paddock.worktree / "large").stat().st_size == 8 << 20
    assert not (file_paddock.worktree / "larger").exists()


@pytest.mark.spec("EDGE-3")
def test_two_sessions_may_share_a_worktree(server: Server) -> None:
    """Both see what the other writes, each with its own token and worker."""

    async def ask() -> None:
        async with server.client(server.headers("one")) as one, server.client(server.headers("beside")) as two:
            assert not (await one("write", file_path="shared", content="1")).failed
            assert (await two("read", file_path="shared")).text == "1"
            assert not (await two("edit", file_path="shared", old_string="1", new_string="2")).failed
            assert (await one("read", file_path="shared")).text == "2"

    anyio.run(ask)


def test_no_page_and_no_other_name_may_ask(server: Server) -> None:
    """A web page cannot use its user's browser against the server: neither by its origin nor by a name of its own."""

    async def ask() -> None:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list", "arguments": {}}}
        headers = {**server.headers("one"), "Accept": "application/json, text/event-stream"}
        async with httpx2.AsyncClient() as http:
            for more in ({"Origin": "http://evil.example"}, {"Origin": server.url}, {"Host": "evil.example"}):
                answer = await http.post(server.url, json=body, headers={**headers, **more})
                assert answer.status_code in (403, 421), more

    anyio.run(ask)


EARLY = """
import os, signal, sys
from launcher import __main__
from launcher.session import messages
messages.show = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
sys.exit(__main__.main(["paddock", "files", "--http", "127.0.0.1:0", "--session", "one=."]))
"""


def test_who_has_read_where_it_is_ends_it_in_order(file_paddock: Paddock) -> None:
    """At once: the status is 0 then, too."""
    paddock = file_paddock
    ended = warmed.run(paddock.who, paddock.installed.python, [], cwd=paddock.worktree, program=EARLY)
    assert (ended.returncode, ended.stderr) == (0, "")
