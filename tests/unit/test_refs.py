"""Refs of several repositories move together: what is done is left out, and nobody else's move is undone."""

import os
from pathlib import Path

import pytest

from launcher.vcs.git import Git
from launcher.vcs.refs import Update, clear_locks, prepared
from policy.errors import Refusal
from tests.support.ground import Ground

MAIN = "refs/heads/main"
ZEROS = "0" * 40


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """`one` goes on from `main`, `other` begins there too."""
    made = Ground(tmp_path / "repo", {"a": "a\n"})
    made.branch("one", {"b": "b\n"})
    made.branch("other", {"c": "c\n"})
    made.git("checkout", "-q", "--detach")
    return made


def _move(*changes: tuple[Ground, Update]) -> None:
    with prepared([(Git(str(ground.root / ".git")), [update]) for ground, update in changes], "test") as commit:
        commit()


def test_nothing_moves_before_all_are_ready(ground: Ground, tmp_path: Path) -> None:
    """A ref that somebody has moved stops those of other repositories; until the end, locks keep others away."""
    second = Ground(tmp_path / "second", {"a": "a\n"})
    second.branch("one", {"b": "b\n"})
    old, new, other = ground.id("main"), ground.id("one"), ground.id("other")
    assert (second.id("main"), second.id("one")) == (old, new)
    with pytest.raises(Refusal) as refused:
        _move((ground, Update(MAIN, old, new)), (second, Update(MAIN, other, new, None)))
    assert refused.value.reference == "refs-moved"
    assert (ground.id("main"), second.id("main")) == (old, old)
    with prepared([(Git(str(ground.root / ".git")), [Update(MAIN, old, new)])], "test"):
        assert os.path.exists(ground.root / ".git/refs/heads/main.lock")
    assert not os.path.exists(ground.root / ".git/refs/heads/main.lock")
    assert ground.id("main") == old


@pytest.mark.parametrize(
    ("beside", "places"), [("", []), ("refs/heads/aside", ["refs/heads/aside"])], ids=["lost", "beside"]
)
def test_what_somebody_else_has_moved_stays(ground: Ground, beside: str, places: list[str]) -> None:
    """What was to go there goes beside, if anywhere; a second time there is nothing to do."""
    old, new, other = ground.id("main"), ground.id("one"), ground.id("other")
    ground.git("update-ref", MAIN, other)
    for _ in range(2):
        _move((ground, Update(MAIN, old, new, beside)))
        assert ground.id("main") == other
        found = ground.git("for-each-ref", "--format=%(refname)", f"--points-at={new}").split()
        assert found == sorted([*places, "refs/heads/one"])


@pytest.mark.parametrize(
    ("beside", "place"), [("", ""), ("refs/heads/aside", "refs/heads/aside"), ("refs/heads/main/x", "")]
)
@pytest.mark.parametrize("name", ["refs/heads/one/x", "refs/heads"])
def test_a_ref_that_another_bars_holds_up_none(ground: Ground, beside: str, place: str, name: str) -> None:
    """Git can make none below or above another: it goes beside, or nowhere, and the others are moved."""
    old, new, other = ground.id("main"), ground.id("one"), ground.id("other")
    git = Git(str(ground.root / ".git"))
    with prepared([(git, [Update(name, "", other, beside), Update(MAIN, old, new)])], "test") as commit:
        commit()
    assert ground.id("main") == new
    found = ground.git("for-each-ref", "--format=%(refname)", f"--points-at={other}").split()
    assert sorted(found) == sorted(["refs/heads/other", *filter(None, [place])])


@pytest.mark.parametrize("beside", ["", None])
def test_what_is_done_is_left_out(ground: Ground, beside: str | None) -> None:
    """Also where it cannot be done a second time; what may be anything is replaced, what may not exist is made."""
    old, new, other = ground.id("main"), ground.id("one"), ground.id("other")
    for _ in range(2):
        _move((ground, Update(MAIN, old, new, beside)))
        assert ground.id("main") == new
    _move((ground, Update(MAIN, "", other, beside)), (ground, Update("refs/heads/made", ZEROS, new, beside)))
    assert (ground.id("main"), ground.id("made")) == (other, new)


def test_a_lock_of_somebody_else_stays(ground: Ground) -> None:
    """Only one that holds the value that was to be written is removed, and HEAD's with it."""
    ground.git("checkout", "-q", "main")
    git, new, other = Git(str(ground.root / ".git")), ground.id("one"), ground.id("other")
    locks = [ground.root / ".git/refs/heads/main.lock", ground.root / ".git/HEAD.lock"]
    locks[1].write_text("")
    for value, names in ((other, locks), (new, [])):
        locks[0].write_text(f"{value}\n")
        clear_locks(git, [(MAIN, new)])
        assert [path for path in locks if path.exists()] == names
