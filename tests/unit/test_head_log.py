"""What HEAD's log tells of commits that were made on no branch: of real git's logs."""

from pathlib import Path

import pytest

from launcher.vcs.harvest.head_log import left_behind
from tests.support.repository import git

_MADE = "commit -q --allow-empty -m {}"
_DIVERGED = ("init -q -b a", _MADE.format("one"), "branch topic", _MADE.format("two"),
             "checkout -q topic", "commit -q --allow-empty -m three", "checkout -q a")  # fmt: skip
_LOST = (*_DIVERGED, "checkout -q --detach", _MADE.format("lost"), "tag lost")


def told(tmp_path: Path, *lines: str, branch: str | None = "refs/heads/a") -> list[str]:
    """What of these commands' commits was left behind: subjects."""
    for line in lines:
        git(*line.split(" "), at=tmp_path)
    log = (tmp_path / ".git/logs/HEAD").read_bytes()
    return [git("log", "-1", "--format=%s", oid, at=tmp_path) for oid in left_behind(log, branch)]


@pytest.mark.parametrize(
    "lines",
    [
        (*_LOST, "checkout -q a"),
        (*_LOST, "checkout -q --orphan pages", _MADE.format("pages")),
        (*_LOST, "rebase -q --no-keep-empty a topic"),
        (*_LOST, "rebase -q --keep-empty a topic"),
        (*_LOST, "rebase -q a topic~0", "checkout -q a"),
        (*_LOST, "rebase -q a topic~0"),
        (*_LOST, "rebase -q a a"),
        (*_LOST, _MADE.format("more"), "reset -q HEAD~1", "checkout -q a"),
        (*_LOST, "checkout -q -b b", _MADE.format("more"), "checkout -q --detach lost", _MADE.format("lost"),
         "merge -q --ff-only HEAD", "checkout -q a"),
        (*_DIVERGED, "checkout -q --detach topic~0", "config user.name a\tb", _MADE.format("lost"), "checkout -q a"),
        (*_DIVERGED, "checkout -q --detach", _MADE.format("lost"), "checkout -q -b b", _MADE.format("b"),
         "checkout -q HEAD~1", "reset -q HEAD~0", "merge -q b", "checkout -q a"),
    ],
)  # fmt: skip
def test_what_was_made_on_no_branch_is_told_once_something_else_is_checked_out(
    tmp_path: Path, lines: tuple[str, ...]
) -> None:
    """However it came to be."""
    assert "lost" in told(tmp_path, *lines)


def test_a_rebase_of_another_branch_leaves_the_commit_that_a_worktree_began_with_behind(tmp_path: Path) -> None:
    """Its log does not say that HEAD was on no branch; and a rebase of its own has given up what it was."""
    there = tmp_path / "there"
    told(tmp_path, *_DIVERGED)
    git("worktree", "add", "-q", "--detach", str(there), at=tmp_path)
    git("commit", "-q", "--allow-empty", "-m", "lost", at=there)
    git("rebase", "-q", "a", "topic", at=there)
    (log,) = ((tmp_path / ".git/worktrees/there/logs/HEAD").read_bytes(),)
    assert left_behind(log, "refs/heads/topic") == left_behind(log, "") == []
    (oid,) = left_behind(log, None)
    assert git("log", "-1", "--format=%s", oid, at=tmp_path) == "lost"


@pytest.mark.parametrize(
    "lines",
    [
        (*_DIVERGED, "checkout -q topic", "branch -m b", "rebase -q a"),
        (*_DIVERGED, "checkout -q a~1", "checkout -q a", "checkout -q topic", "checkout -q a"),
        (*_DIVERGED, "rebase -q topic", "checkout -q topic"),
        (*_LOST, "reset -q --hard a", "checkout -q a"),
        (*_LOST, "rebase -q topic"),
        (*_DIVERGED, "checkout -q topic~0", "merge -q --ff-only topic", "checkout -q a"),
        (*_DIVERGED, "checkout -q a~1", "merge -q --ff-only topic", "checkout -q a"),
        (*_DIVERGED, "checkout -q a~1", "reset -q --hard topic", "checkout -q a"),
        (*_DIVERGED, "checkout -q --orphan b", _MADE.format("b"), _MADE.format("c"), "rebase -q --onto HEAD~1 --root"),
    ],
)
def test_what_was_given_up_or_was_somewhere_is_not(tmp_path: Path, lines: tuple[str, ...]) -> None:
    """Amended, reset and rebased; or only looked at, forwarded to, renamed. Of a branch, it has a name."""
    assert {*told(tmp_path, *lines)} <= {"two"}
