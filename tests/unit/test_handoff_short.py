"""What a session was too short to search for is not lost: the next one that looks tells of it."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from launcher.jail import syscalls
from launcher.session import handoff_changes, nested, state
from launcher.session.machine import Machine
from tests.support import derived

LONG, SHORT = 0.0, 1e9


def nobody_made(place: str) -> bool:
    """As of a worktree without sessions."""
    return not place


def ended(root: Path, own: Path, lasting: float, monkeypatch: pytest.MonkeyPatch, *, made: str = "") -> list[str]:
    """What is told of a session that makes a repository, or nothing."""
    monkeypatch.setattr(handoff_changes, "LASTING", lasting)
    plan = derived.plan().replace(worktree=str(root), repositories=())
    watch = handoff_changes.Watch(plan, str(own))
    watch.begin()
    if made:
        subprocess.run(["git", "init", "-q", str(root / made)], check=True)
    told = [path for _, path, _ in watch.changes(thorough=False)]
    assert watch.searched is (lasting == LONG)
    return told


def a_tick_later() -> None:
    """What is older than a session is told from what is of it: times of files may be a tick ahead of the clock."""
    time.sleep(0.02)


def test_a_short_session_leaves_its_search_to_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them since the last search are looked at, each repository is told once, and nothing from before."""
    root, own = tmp_path / "root", tmp_path / "own"
    own.mkdir()
    subprocess.run(["git", "init", "-q", str(root / "before")], check=True)
    a_tick_later()
    assert ended(root, own, LONG, monkeypatch) == []
    for made in ("a", "b/c", ""):
        assert ended(root, own, SHORT, monkeypatch, made=made) == []
    assert (own / state.UNSEARCHED_NOTE).exists()
    assert ended(root, own, LONG, monkeypatch, made="d") == ["a/.git", "b/c/.git", "d/.git"]
    assert not (own / state.UNSEARCHED_NOTE).exists()
    a_tick_later()
    assert ended(root, own, LONG, monkeypatch) == []


@pytest.mark.parametrize("births", [True, False])
def test_who_made_a_repository_does_not_depend_on_who_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, births: bool
) -> None:
    """Those of short sessions are sessions', before a search and after it; what came in between is their user's."""
    if not births:
        monkeypatch.setattr(syscalls, "STATX_BTIME", 0)
    root, own = tmp_path / "root", tmp_path / "own"
    own.mkdir()
    for short, users in (("a", "mine"), ("b", "yours")):
        ended(root, own, SHORT, monkeypatch, made=short)
        a_tick_later()
        subprocess.run(["git", "init", "-q", str(root / users)], check=True)
        a_tick_later()
    names = ["a", "b", "mine", "yours"]

    def sessions() -> list[str]:
        made = nested.by_sessions(str(own), state.unsearched(str(own)))
        return [name for name in names if made(str(root / name / ".git"))]

    assert sessions() == ["a", "b"]
    ended(root, own, LONG, monkeypatch)
    assert (sessions(), state.unsearched(str(own))) == (["a", "b"], [])
    (root / "a").rename(root / "moved")
    subprocess.run(["git", "init", "-q", str(root / "a")], check=True)
    a_tick_later()
    names = ["a", "moved", "b"]
    for _ in range(2):
        assert sessions() == ["moved", "b"]
        ended(root, own, LONG, monkeypatch)


def test_what_is_noted_while_another_takes_the_note_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written once more."""
    write = os.write
    taken: list[object] = []

    def exchanged(fd: int, data: bytes) -> int:
        if not taken:
            taken.append(state.unsearched(str(tmp_path), take=True))
        return write(fd, data)

    monkeypatch.setattr(os, "write", exchanged)
    state.note_unsearched(str(tmp_path), 1, 2)
    assert (taken, state.unsearched(str(tmp_path))) == ([[]], [(1, 2)])


def test_the_note_of_short_sessions_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then one searches though it is short; what cannot be read in a note is left out."""
    root, own = tmp_path / "root", tmp_path / "own"
    own.mkdir()
    ended(root, own, SHORT, monkeypatch, made="a")
    with (own / state.UNSEARCHED_NOTE).open("ab") as note:
        note.write(b"\0" * 40 + b"\n\nx 1\n-1\n" + b" " * state.MOST_NOTED)
    watch = handoff_changes.Watch(derived.plan().replace(worktree=str(root), repositories=()), str(own))
    assert [path for _, path, _ in watch.changes(thorough=False)] == ["a/.git"]
    assert (watch.searched, state.unsearched(str(own))) == (True, [])


def test_where_it_cannot_be_left_to_anybody_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state directory has gone meanwhile: the worktree counts as not looked at."""
    monkeypatch.setattr(handoff_changes, "LASTING", SHORT)
    own = tmp_path / "own"
    own.mkdir()
    watch = handoff_changes.Watch(derived.plan().replace(worktree=str(tmp_path), repositories=()), str(own))
    watch.begin()
    os.unlink(own / state.UNSEARCHED_NOTE)
    own.rmdir()
    assert ("created", "...", "protect") in watch.changes(thorough=False)


def test_the_search_for_repositories_ends_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies less deep comes first, no link is followed, and a bound that is hit is told."""
    tree, elsewhere = tmp_path / "tree", tmp_path / "elsewhere"
    for place in (
        tree / "a/.git",
        tree / "b/c/d/.git",
        tree / "bare/refs",
        tree / "bare/objects",
        elsewhere / "x/.git",
    ):
        place.mkdir(parents=True)
    (tree / "bare/HEAD").touch()
    (tree / "link").symlink_to(elsewhere)
    mine = (f"{tree}/.git",)
    places, *_, warnings = nested.look([str(tree)], mine, nobody_made, Machine({}), str)
    assert (set(places), warnings) == ({f"{tree}/a/.git", f"{tree}/b/c/d/.git", f"{tree}/bare"}, ())
    monkeypatch.setattr(nested, "MOST_ENTRIES", 9)
    places, *_, warnings = nested.look([str(tree)], mine, nobody_made, Machine({}), str)
    assert f"{tree}/a/.git" in places
    assert f"{tree}/b/c/d/.git" not in places
    assert "too large" in warnings[0]
    monkeypatch.setattr(nested, "MOST_ENTRIES", 100)
    monkeypatch.setattr(nested, "MOST_REPOSITORIES", 1)
    places, *_, warnings = nested.look([str(tree)], mine, nobody_made, Machine({}), str)
    assert (len(places), "more than 1 repositories" in warnings[0]) == (1, True)
