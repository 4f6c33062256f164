"""The user's own command that is told of questions: what it gets, what counts as its answer, when it ends."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher import wire
from launcher.jail import init
from launcher.session import notifier
from launcher.session.places import Places
from policy import asking
from policy.asking import Question
from policy.plan import VERSION, Plan

QUESTION = Question(3, "files.example.org", 443, "curl")


@pytest.fixture
def told(tmp_path: Path) -> Callable[[str], int]:
    """Starts a notifier with a line of sh(1); returns the proxy's end."""

    def start(line: str) -> int:
        plan = Plan(**{**dict.fromkeys(Plan.FIELDS, ()), "version": VERSION, "worktree": "/w", "notify": line})
        places = Places(str(tmp_path), *(str(tmp_path / name) for name in ("config", "state", "cache")))
        fd = notifier.started(plan, "mine", places, str(tmp_path))
        wire.send(fd, wire.frame(asking.ASKED, QUESTION.packed()))
        return fd

    init.block_signals()
    init.unblock_signals()
    return start


def ended(fd: int) -> None:
    """The proxy ends, and the notifier with it."""
    os.close(fd)
    os.wait()


def test_the_question_is_in_its_environment(told: Callable[[str], int], tmp_path: Path) -> None:
    """In no text of a shell; it runs in the home directory, without the caller's PATH."""
    fd = told("env >environment; echo once")
    frame = wire.receive(fd, [], deadline=time.monotonic() + 20)
    assert frame == (asking.ANSWER, b"3 once")
    lines = (tmp_path / "environment").read_text().splitlines()
    wanted = {"HOST=files.example.org", "PORT=443", "PROCESS=curl", "SESSION=mine", "WORKTREE=/w"}
    assert {f"PADDOCK_{each}" for each in wanted} <= set(lines)
    assert not [line for line in lines if line.startswith("PATH=") and "/usr/local/sbin" not in line]
    ended(fd)


@pytest.mark.parametrize(
    "line", ["exit 1", "echo maybe", "echo once more", "printf '\\377'", "nosuch", "head -c 9999 /dev/zero"]
)
def test_anything_else_is_no_answer(told: Callable[[str], int], line: str) -> None:
    """Somebody else may answer then."""
    fd = told(f"{line}; sleep 0.1")
    with pytest.raises(TimeoutError):
        wire.receive(fd, [], deadline=time.monotonic() + 1)
    ended(fd)


def test_what_it_has_started_ends_with_the_question(told: Callable[[str], int], tmp_path: Path) -> None:
    """Also what has left its output."""
    fd = told("(sleep 300 & echo $! >pid) >/dev/null 2>&1 &")
    pid, deadline = tmp_path / "pid", time.monotonic() + 20
    while not pid.exists() or not pid.read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    started = Path(f"/proc/{pid.read_text().strip()}/cmdline")
    assert b"sleep" in started.read_bytes()
    wire.send(fd, wire.frame(asking.GONE, b"3"))
    while started.exists() and b"sleep" in started.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    ended(fd)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nosuch\x1b[31m; exit 127", "ended with status 127 (it was not found): nosuch"),
        (f"exit 3 # {'x' * 999}", "ended with status 3: exit 3 # xxx"),
        ("kill -9 $$", "ended with status 137: kill"),
        ("echo maybe", ""),
    ],
)
def test_a_command_that_fails_is_told_of_once(told: Callable[[str], int], tmp_path: Path, line: str, why: str) -> None:
    """Bounded, and escaped where it is shown; without a word nobody would know why they are not asked."""
    fd = told(line)
    deadline = time.monotonic() + (20 if why else 0.5)
    while not (found := notifier.failure(str(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.02)
    wire.send(fd, wire.frame(asking.GONE, b"3") + wire.frame(asking.ASKED, QUESTION.packed()))
    ended(fd)
    assert notifier.failure(str(tmp_path)) == found
    assert bool(found) == bool(why)
    assert all(why in said and len(said) < 400 for said in found)
