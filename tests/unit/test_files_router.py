"""The router: it answers whatever happens, and takes its workers for strangers."""

import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
import pytest

from launcher.bridges.files import router as shell
from launcher.bridges.files.mcp_server import SESSION_HEADER, THREADS, application, ending
from launcher.bridges.files.router import MOST_CALLS, Mode, Router, Sessions
from launcher.bridges.files.scope import Scope
from launcher.bridges.files.tool_calls import Answer, Call
from launcher.bridges.files.workers import Room
from policy.errors import Refusal
from policy.sandbox_context import WorktreeSandboxContext
from tests.support.file_tools import Stand, boundaries, error_of, routed

PATIENCE = 60.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "wt"
    path.mkdir()
    (path / "file").write_text("content\n")
    return path


@pytest.fixture
def router(root: Path) -> Iterator[Router]:
    found = routed(root)
    yield found
    found.close()


def test_calls_go_to_the_sessions_worker(root: Path, router: Router) -> None:
    """And to nobody for a session that is not known."""
    assert router.call("read", {"file_path": "file"}, "one", None) == ("content\n", "", False)
    assert error_of(router.call("read", {"file_path": "file"}, "two", None)) == "WORKTREE_UNRESOLVED"
    assert error_of(router.call("read", {"file_path": "file"}, None, None)) == "WORKTREE_UNRESOLVED"


BAD: tuple[tuple[str, dict[str, object], str], ...] = (
    ("delete", {}, "UNKNOWN_TOOL"),
    ("x" * 1_000_000, {}, "UNKNOWN_TOOL"),
    ("read", {"file_path": "x" * 1_000_000}, "INVALID_ARGUMENT"),
    ("read", {}, "INVALID_ARGUMENT"),
    ("read", {"file_path": 1}, "INVALID_ARGUMENT"),
    ("read", {"file_path": "file", "offset": "1"}, "INVALID_ARGUMENT"),
    ("read", {"file_path": "file", "offset": 0}, "INVALID_ARGUMENT"),
    ("read", {"file_path": "file", "more": 1}, "INVALID_ARGUMENT"),
    ("read", {"file_path": "file", **dict.fromkeys(map(str, range(300_000)))}, "INVALID_ARGUMENT"),
    ("read", {"file_path": "\udcff"}, "INVALID_ARGUMENT"),
    ("read", {"file_path": "x" * 5000}, "SANDBOX_VIOLATION"),
    ("read", {"file_path": "a\0b"}, "SANDBOX_VIOLATION"),
    ("read", {"file_path": ""}, "SANDBOX_VIOLATION"),
    ("write", {"file_path": "file", "content": "\ud800"}, "INVALID_ARGUMENT"),
    ("edit", {"file_path": "file", "old_string": "", "new_string": "x"}, "INVALID_ARGUMENT"),
    ("shell", {"command": "true", "timeout_seconds": 1e9}, "INVALID_ARGUMENT"),
    ("shell", {"command": "a\0b"}, "INVALID_ARGUMENT"),
    ("shell", {"command": "true", "directory": "/"}, "SANDBOX_VIOLATION"),
    ("shell", {"command": "true", "directory": "file"}, "NOT_A_DIRECTORY"),
)


def test_bad_calls_are_answered(router: Router) -> None:
    """Whatever is wrong with them, the answer is the specified JSON, and the next call works."""
    for tool, arguments, kind in BAD:
        answer = router.call(tool, arguments, "one", None)
        case = (tool[:20], str(arguments)[:80])
        assert (case, error_of(answer)) == (case, kind)
        assert len(answer.text) < 20_000, case
        assert not router.call("read", {"file_path": "file"}, "one", None).failed, case


def test_refusals_of_paths_are_told_to_the_room(root: Path) -> None:
    """For the ledger: denials of the validator, and nothing else that fails."""
    made: list[Stand] = []

    def enter(session_id: str, found: WorktreeSandboxContext) -> Room:
        made.append(Stand(Scope(context=found)))
        return made[-1]

    router = Router(Sessions({"one": boundaries(root)}.get), enter)
    for tool, arguments in (
        ("read", {"file_path": "../a"}),
        ("read", {"file_path": "none"}),
        ("read", {"file_path": "file"}),
        ("write", {"file_path": "/b", "content": ""}),
        ("shell", {"command": "ls", "directory": "/c"}),
        ("shell", {"command": "ls", "directory": "none"}),
    ):
        router.call(tool, arguments, "one", None)
    router.close()
    assert made[0].refusals == ["../a", "/b", "/c"]


def test_the_shell_tells_status_and_output(router: Router, root: Path) -> None:
    """Both outputs, in their order; what is too much is left out in the middle."""
    answer = router.call("shell", {"command": "echo out; echo err >&2; exit 7"}, "one", None)
    assert answer == ("exit status 7\nout\nerr\n", "", False)
    (root / "sub").mkdir()
    assert router.call("shell", {"command": "pwd", "directory": "sub"}, "one", None).text.endswith(f"{root}/sub\n")
    assert router.call("shell", {"command": "kill -9 $$"}, "one", None).text == "exit status 137\n"
    answer = router.call("shell", {"command": "seq 200000"}, "one", None)
    assert answer.text.startswith("exit status 0\n1\n2\n")
    assert answer.text.endswith("\n199999\n200000\n")
    assert answer.note.endswith("bytes in the middle are omitted")


def test_a_command_without_end_is_ended(router: Router, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it has started; what it had written is shown."""
    monkeypatch.setattr(shell, "_PATIENCE", 0.5)  # for SIGTERM, which this command ignores
    line = f"echo begun; sleep 1000 & echo $! >{tmp_path}/pid; trap '' TERM; wait; sleep 1000"
    answer = router.call("shell", {"command": line, "timeout_seconds": 0.3}, "one", None)
    assert error_of(answer) == "TIMED_OUT"
    assert answer.note == "begun\n"
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_command_that_nobody_waits_for_is_ended(router: Router, tmp_path: Path) -> None:
    """When the client leaves, before it has begun too."""
    for late in (True, False):
        stop = shell.Stop()
        (tmp_path / "begun").unlink(missing_ok=True)
        if not late:
            stop.set()
        arguments = {"command": f"touch {tmp_path}/begun; sleep 1000"}
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(router.call, "shell", arguments, "one", None, stop)
            while late and not (tmp_path / "begun").exists():
                time.sleep(0.01)
            stop.set()
            assert error_of(answer.result(60)) == "CANCELLED"


@pytest.mark.spec("EDGE-5")
def test_a_worktree_that_is_deleted_or_replaced_is_denied(root: Path, router: Router, tmp_path: Path) -> None:
    """Whatever comes in its place; when it is back as a directory, its sessions work in that."""
    calls = (
        ("read", {"file_path": "file"}),
        ("write", {"file_path": "file", "content": "x"}),
        ("shell", {"command": "ls"}),
    )
    assert not router.call("read", {"file_path": "file"}, "one", None).failed
    shutil.rmtree(root)
    for tool, arguments in calls:
        answer = router.call(tool, arguments, "one", None)
        assert error_of(answer) == "SANDBOX_VIOLATION"
        assert "no longer exists" in answer.text
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("secret")
    root.symlink_to(elsewhere)
    for tool, arguments in calls:
        assert error_of(router.call(tool, arguments, "one", None)) == "SANDBOX_VIOLATION"
    assert (elsewhere / "file").read_text() == "secret"
    root.unlink()
    root.mkdir()
    (root / "file").write_text("again")
    assert router.call("read", {"file_path": "file"}, "one", None).text == "again"


def test_a_refused_launch_and_a_fault_of_ours_are_answered(root: Path) -> None:
    """Nothing that `enter` raises gets out of the router."""
    for raised in (Refusal("net-denied", "no way", context="because"), RuntimeError("oops")):

        def enter(session_id: str, found: WorktreeSandboxContext, raised: Exception = raised) -> Room:
            raise raised

        router = Router(Sessions({"one": boundaries(root)}.get), enter)
        answer = router.call("read", {"file_path": "file"}, "one", None)
        assert error_of(answer) == "WORKER_FAILED"
        assert "oops" not in answer.text


@pytest.mark.spec("CONTRACT-COMPATIBLE")
def test_compatible_calls_use_files_as_before(root: Path, tmp_path: Path) -> None:
    """Without a session: relative paths from the base, any absolute one, and commands; with a session: confined."""
    (tmp_path / "other").write_text("other")
    router = routed(root, mode=Mode.COMPATIBLE)
    try:
        for session in (None, "", "stranger"):
            assert router.call("read", {"file_path": "file"}, session, None).text == "content\n"
            assert router.call("read", {"file_path": "../other"}, session, None).text == "other"
            assert router.call("read", {"file_path": str(tmp_path / "other")}, session, None).text == "other"
            assert not router.call("write", {"file_path": "../new", "content": "x"}, session, None).failed
            assert not router.call(
                "edit", {"file_path": "../new", "old_string": "x", "new_string": "y"}, session, None
            ).failed
            assert (tmp_path / "new").read_text() == "y"
            assert router.call("shell", {"command": "cat ../new"}, session, None).text == "exit status 0\ny"
            assert router.call("list", {"directory": ".."}, session, None).text.split() == ["new", "other", "wt/"]
            assert error_of(router.call("read", {"file_path": "none"}, session, None)) == "NOT_FOUND"
        assert error_of(router.call("read", {"file_path": "../other"}, "one", None)) == "SANDBOX_VIOLATION"
    finally:
        router.close()


class Held:
    """A room whose calls wait."""

    def __init__(self, go: threading.Event, begun: threading.Semaphore) -> None:
        self.process = self
        self.usable = True
        self._go = go
        self._begun = begun

    def call(self, call: Call, *, sweep: bool = False) -> Answer:
        self._begun.release()
        assert self._go.wait(PATIENCE)
        return Answer("late")

    def close(self) -> None:
        self.usable = False

    def refused(self, call: Call) -> None:
        raise AssertionError("nothing is refused here")

    def command(self, line: str, directory: str) -> list[str]:
        raise AssertionError("no commands here")


def test_no_number_of_sessions_keeps_another_waiting(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several have all the calls that they may, none of which ends: another one's is answered, and theirs beyond."""
    monkeypatch.setattr(metadata, "version", lambda name: "0")  # nothing is installed here
    hogs = [f"hog{number}" for number in range(1 + THREADS // MOST_CALLS)]
    go, begun = threading.Event(), threading.Semaphore(0)
    contexts = dict.fromkeys((*hogs, "one"), boundaries(root))
    router = Router(
        Sessions(contexts.get), lambda name, found: Stand(Scope(context=found)) if name == "one" else Held(go, begun)
    )
    served = application(router)
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": "read", "arguments": {"file_path": "file"}}}  # fmt: skip

    async def read(session: str) -> str:
        headers = {SESSION_HEADER: session, "Accept": "application/json, text/event-stream"}
        transport = httpx2.ASGITransport(app=served)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1", timeout=PATIENCE) as http:
            answer = (await http.post("/mcp", json=body, headers=headers)).json()
        return str(answer["result"]["content"][0]["text"])

    async def ask() -> None:
        async with served.router.lifespan_context(served), anyio.create_task_group() as group:
            try:
                for name in hogs * MOST_CALLS:
                    group.start_soon(read, name)
                for _ in hogs * MOST_CALLS:
                    assert await anyio.to_thread.run_sync(partial(begun.acquire, timeout=PATIENCE))
                with anyio.fail_after(PATIENCE / 2):
                    assert await read("one") == "content\n"
                    assert "BUSY" in await read(hogs[0])
            finally:
                go.set()

    with ending(router):
        anyio.run(ask)


def test_one_session_does_not_keep_the_others_waiting(root: Path, tmp_path: Path) -> None:
    """Its calls beyond a bound are answered at once, and may come again when one has ended."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("other")
    contexts = {"one": boundaries(root), "two": boundaries(other)}
    router = Router(Sessions(contexts.get), lambda _, found: Stand(Scope(context=found)))
    begun = root / "begun"
    with ThreadPoolExecutor(MOST_CALLS) as pool:
        line = f"echo >> {begun}; while ! test -e {tmp_path}/go; do sleep 0.05; done"
        held = [pool.submit(router.call, "shell", {"command": line}, "one", None) for _ in range(MOST_CALLS)]
        while not begun.exists() or len(begun.read_text()) < MOST_CALLS:
            time.sleep(0.02)
        assert error_of(router.call("read", {"file_path": "file"}, "one", None)) == "BUSY"
        assert router.call("read", {"file_path": "file"}, "two", None).text == "other"
        (tmp_path / "go").touch()
        assert not any(each.result().failed for each in held)
    assert router.call("read", {"file_path": "file"}, "one", None).text == "content\n"
    router.close()
