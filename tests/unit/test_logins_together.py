"""Logins of sessions that start, write and end at the same time, and of those that are killed."""

import fcntl
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from launcher.session import credentials
from tests.support.logins import Ground, brought_in, document, mode


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """With the login brought in once."""
    return brought_in(tmp_path)


def test_sessions_that_end_together_leave_the_newest_token(ground: Ground, tmp_path: Path) -> None:
    """Each in a worktree of its own; no half of a file is ever seen."""
    grounds = [ground]
    for number in range(3):
        home = tmp_path / f"home-{number}"
        home.mkdir()
        other = Ground.__new__(Ground)
        other.__dict__ |= ground.__dict__ | {"home": home, "inside": home / ".agent/auth.json"}
        assert other.logins().bring() == []
        grounds.append(other)
    said: list[str] = []

    def end(one: Ground, first: int) -> None:
        for turn in range(first, 42, 4):
            one.refresh(f"t{turn}", turn)
            said.extend(one.logins().take_back())

    threads = [threading.Thread(target=end, args=(one, 2 + number)) for number, one in enumerate(grounds)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert ground.kept()["account"] == "me"
    for thread in threads:
        thread.join()
    assert said == []
    assert ground.kept() == document("t41", 41)
    assert os.listdir(ground.user) == ["auth.json"]


def test_a_session_that_holds_the_lock_for_ever_is_not_waited_for(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its token stays in the private home, where the next session finds it."""
    monkeypatch.setattr(credentials, "PATIENCE", 0.05)
    holder = os.open(ground.user, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    ground.refresh()
    assert "for too long" in ground.logins().take_back()[0]
    os.close(holder)
    assert ground.kept() == document("old", 1)
    assert ground.logins().take_back() == []
    assert ground.kept() == document("new", 2)


@pytest.mark.parametrize("call", ["fsync", "rename", "fchmod"])
def test_a_kill_in_the_middle_leaves_the_old_file_whole(ground: Ground, call: str) -> None:
    """What was half written is removed by the next session."""
    ground.refresh()
    child = os.fork()
    if child == 0:

        def kill(*_: object, **__: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(os, call, kill)
        ground.logins().take_back()
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert ground.kept() == document("old", 1)
    assert sorted(os.listdir(ground.user)) == [".auth.json.paddock", "auth.json"]
    assert mode(ground.user / ".auth.json.paddock") == 0o600
    assert ground.logins().take_back() == []
    assert ground.kept() == document("new", 2)
    assert os.listdir(ground.user) == ["auth.json"]


def test_a_file_that_changed_since_it_was_read_is_not_replaced(ground: Ground) -> None:
    """The user's own programme writes it without our lock."""
    directory = os.open(ground.user, os.O_RDONLY)
    try:
        read = credentials.read_private(directory, "auth.json", 1000)
        assert read is not None
        ground.host.write_text("changed")
        assert not credentials.replace_private(directory, "auth.json", b"ours", read, locked=True)
        assert not credentials.replace_private(directory, "auth.json", b"ours", None, locked=False)
        assert ground.host.read_text() == "changed"
        assert os.listdir(ground.user) == ["auth.json"]
        assert credentials.replace_private(directory, "other", b"ours", None, locked=False)
    finally:
        os.close(directory)


def test_sessions_that_start_together_in_one_worktree_both_have_the_login(ground: Ground) -> None:
    """Neither meets the other's half of a file, and nothing is left beside it."""
    said = ground.logins().bring()
    stop = threading.Event()

    def start() -> None:
        for _ in range(100):
            said.extend(ground.logins().bring())
        stop.set()

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(10_000):
        text = json.dumps(document("t" * (turn % 50), 1))
        ground.host.with_suffix(".new").write_text(text)
        ground.host.with_suffix(".new").rename(ground.host)
        json.loads(ground.inside.read_text())
        if stop.is_set():
            break
    for thread in threads:
        thread.join()
    assert [line for line in said if not line.endswith(": it keeps changing")] == []
    assert ground.logins().bring() == []
    assert ground.inside.read_bytes() == ground.host.read_bytes()
    assert os.listdir(ground.inside.parent) == ["auth.json"]
