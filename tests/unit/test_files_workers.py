"""Workers as the router has them: strangers whose words are checked, started and ended as they are needed."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from launcher import wire
from launcher.bridges.files import tool_calls, workers, writing
from launcher.bridges.files.router import Router, Sessions
from launcher.bridges.files.scope import Scope
from launcher.bridges.files.tool_calls import Answer, Read, Write
from launcher.bridges.files.workers import Pool, Room, WorkerFailed, WorkerProcess
from policy.sandbox_context import WorktreeSandboxContext
from tests.support.file_tools import HOSTILE, WORKER, Stand, boundaries, error_of, routed


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "wt"
    path.mkdir()
    (path / "file").write_text("content\n")
    return path


@pytest.mark.parametrize(
    "does",
    [
        "os._exit(0)",
        "os.write(1, b'J\\xff\\xff\\xff\\xff')",
        "os.write(1, b'\\0\\0')\nos._exit(0)",
        "say(b'no json')",
        "say(b'[]')",
        "say(json.dumps({'number': 99, 'text': 'x', 'note': '', 'failed': False}).encode())",
        "say(json.dumps({'number': 1, 'text': 5, 'note': '', 'failed': False}).encode())",
        "say(json.dumps({'number': 1, 'text': 'x' * 1000000, 'note': 'y' * 5000, 'failed': False}).encode())",
        "say(json.dumps({'number': 1, 'text': 'x', 'note': '', 'failed': False, 'more': 1}).encode())",
        "reply = json.dumps({'number': 1, 'text': 'x', 'note': '', 'failed': False}).encode()\n"
        "os.write(1, (b'J' + len(reply).to_bytes(4, 'little') + reply) * 2)",
        "say(b'[' * 500000)",
    ],
)
def test_a_worker_that_talks_nonsense_is_ended(root: Path, does: str) -> None:
    """Its answer is not believed, nor is its next one; the client gets an error."""
    router = routed(root, [sys.executable, "-c", HOSTILE + does + "\ntime.sleep(1000)"])
    try:
        for tool, arguments in (("read", {"file_path": "file"}), ("write", {"file_path": "file", "content": "x"})):
            assert error_of(router.call(tool, arguments, "one", None)) == "WORKER_FAILED"
    finally:
        router.close()


def test_a_worker_that_says_nothing_is_not_waited_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at its start nor in a call, nor when it reads nothing."""
    monkeypatch.setattr(workers, "CALL_PATIENCE", 0.5)
    scope = Scope(context=boundaries(root))
    silent = WorkerProcess([sys.executable, "-c", HOSTILE + "time.sleep(1000)"], scope, "/")
    with pytest.raises(WorkerFailed, match="not answer"):
        silent.call(Read(file_path="file"))
    assert silent.ended
    deaf = WorkerProcess([sys.executable, "-c", HOSTILE.partition("request =")[0] + "time.sleep(1000)"], scope, "/")
    with pytest.raises(WorkerFailed, match="not answer"):
        deaf.call(Write(file_path="file", content="x" * (1 << 20)))
    monkeypatch.setattr(workers, "START_PATIENCE", 0.5)
    with pytest.raises(WorkerFailed, match="not answer"):
        WorkerProcess([sys.executable, "-c", "import time; time.sleep(1000)"], scope, "/")


def test_a_worker_that_cannot_start_says_why(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the end of what it wrote to standard error, control characters made visible."""
    router = routed(root, [sys.executable, "-c", "import sys; sys.exit('no \\x1b[31m room')"])
    answer = router.call("read", {"file_path": "file"}, "one", None)
    assert error_of(answer) == "WORKER_FAILED"
    assert "no \\x1b[31m room" in json.loads(answer.text)["message"]
    assert "no \\x1b[31m room" in caplog.text
    assert "\x1b" not in caplog.text
    router.close()
    router = routed(root, ["/nonexistent/worker"])
    assert "cannot be started" in router.call("read", {"file_path": "file"}, "one", None).text
    router.close()


def test_workers_are_reused_replaced_and_bounded(root: Path) -> None:
    """One for each session, a new one for new boundaries or after its end, the oldest idle one makes room."""
    pool = Pool(most=2)
    made: list[Stand] = []

    def make() -> Stand:
        made.append(Stand(Scope(context=boundaries(root))))
        return made[-1]

    def use(session: str, key: str = "k") -> Room:
        with pool.lease(session, key, make) as room:
            return room

    try:
        assert use("a") is use("a") is made[0]
        assert use("a", "other boundaries") is made[1]
        assert made[0].process.ended
        made[1].process.kill()
        assert use("a", "other boundaries") is made[2]
        with pool.lease("a", "other boundaries", make), pool.lease("b", "k", make), pool.lease("c", "k", make):
            assert not any(room.process.ended for room in made[2:])  # all in use: none is ended
        use("d")
        assert len(pool) == 2
        assert [room.process.ended for room in made[2:]] == [True, True, False, False]
    finally:
        pool.close()
    assert all(room.process.ended for room in made)


def test_idle_workers_end_by_themselves(root: Path) -> None:
    """No further call is needed; one that is in use stays."""
    pool = Pool(idle_seconds=0.2)
    made: list[Stand] = []

    def make() -> Stand:
        made.append(Stand(Scope(context=boundaries(root))))
        return made[-1]

    try:
        with pool.lease("used", "k", make):
            with pool.lease("idle", "k", make):
                pass
            deadline = time.monotonic() + 60
            while not made[1].process.ended:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert not made[0].process.ended
    finally:
        pool.close()


def test_one_worker_is_started_for_many_callers(root: Path) -> None:
    """Whoever comes while it starts waits for it."""
    started: list[str] = []
    context = boundaries(root)

    def enter(session_id: str, found: WorktreeSandboxContext) -> Room:
        started.append(session_id)
        return Stand(Scope(context=found))

    router = Router(Sessions({"one": context}.get), enter)
    answers: list[Answer] = []
    threads = [
        threading.Thread(target=lambda: answers.append(router.call("read", {"file_path": "file"}, "one", None)))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    router.close()
    assert (started, answers) == (["one"], [Answer("content\n")] * 16)


def test_a_worker_ends_with_its_router(root: Path) -> None:
    """Its input ends, and it has nothing more to do."""
    reading, writing = os.pipe()
    told, answers = os.pipe()
    worker = subprocess.Popen(WORKER, stdin=reading, stdout=answers)
    wire.write(writing, tool_calls.packed(Scope(context=boundaries(root))))
    assert b"ready" in os.read(told, 1000)
    os.close(writing)
    assert worker.wait(60) == 0
    for fd in (reading, told, answers):
        os.close(fd)


def test_the_next_worker_sweeps_up_after_a_killed_one(root: Path) -> None:
    """A file that was on its way to its name when the worker died goes, at that place only."""
    (root / "deep").mkdir()
    left = root / "deep" / f"{writing.PREFIX}0123456789abcdef"
    made: list[Stand] = []

    def enter(session_id: str, found: WorktreeSandboxContext) -> Room:
        dies = [sys.executable, "-c", f"{HOSTILE}open({str(left)!r}, 'w').close()\nos._exit(9)"]
        made.append(Stand(Scope(context=found), None if made else dies))
        return made[-1]

    router = Router(Sessions({"one": boundaries(root)}.get), enter)
    answer = router.call("write", {"file_path": "deep/file", "content": "x"}, "one", None)
    assert error_of(answer) == "WORKER_FAILED"
    assert "may or may not have taken effect" in answer.text
    assert list((root / "deep").iterdir()) == []
    assert not router.call("write", {"file_path": "deep/file", "content": "x"}, "one", None).failed
    router.close()
    assert len(made) == 2
