"""What HEAD's log tells of commits that were made on no branch: of real git's logs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from launcher.vcs.harvest.head_log import left_behind
from tests.support.repository import ENV, git

COMMIT = 'c() { echo "$1" >>"${2-file}"; git add -A; git commit -qm "$1"; }\n'
DIVERGED = """git init -q -b a; c one; git branch topic; c two other; git checkout -q topic; c three; git checkout -q a
git branch -q old HEAD~1"""
LOST = "git checkout -q --detach; c lost lost; git tag lost\n"
EDITED = "export GIT_EDITOR=true GIT_SEQUENCE_EDITOR='sed -i 1s/pick/edit/'\n"


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with two branches that have diverged."""
    made = tmp_path_factory.mktemp("diverged")
    run(made, DIVERGED)
    return made


@pytest.fixture
def place(diverged: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(diverged, tmp_path, dirs_exist_ok=True)
    return tmp_path


def run(place: Path, script: str) -> None:
    """Runs a script in it, to its end."""
    subprocess.run(["bash", "-c", COMMIT + script], cwd=place, env=os.environ | ENV, capture_output=True, check=False)


def told(place: Path, *branches: str | None, at: str = ".git") -> list[str]:
    """What was left behind, and no ref but the tag `lost` has, if HEAD began on one of these branches: subjects."""
    log = (place / at / "logs/HEAD").read_bytes()
    is_loose = not (place / at / "HEAD").read_text().startswith("ref: ")
    found = {oid for branch in branches for oid in left_behind(log, branch, loose=is_loose)}
    unheld = {*git("rev-list", *found, "--not", "--branches", at=place).split()} & found if found else found
    return [git("log", "-1", "--format=%s", oid, at=place) for oid in unheld]


@pytest.mark.parametrize(
    "script",
    [
        "git checkout -q a",
        "git checkout -q --orphan pages; c pages",
        "git checkout -q --orphan pages; git checkout -qf a",
        "git checkout -q --orphan pages; git reset -q --hard a",
        "git switch -q --orphan pages; git switch -q a",
        "git rebase -q a topic",
        "git rebase -q --apply a topic",
        "git rebase -q a topic~0; git checkout -q a",
        "git rebase -q a topic~0",
        "git rebase -q a a; git checkout -q topic",
        "c more; git reset -q --hard HEAD~1; git checkout -q a",
        "git merge -q --ff-only $(git commit-tree -p HEAD -m x HEAD^{tree}); git checkout -q a",
        "git rebase -q topic; git reset -q --hard ORIG_HEAD; git checkout -q a",
        "echo l >other; git commit -qam lost; git rebase old~0; git rebase --abort; git reset -q --hard a; "
        "git reset -q --hard ORIG_HEAD; git reset -q --hard lost; git checkout -q a",
        "echo x >file; git commit -qam lost; git rebase topic; git rebase --abort; git reset -q --hard a; "
        "git reset -q --hard ORIG_HEAD; git checkout -q a",
        "echo x >file; git commit -qam lost; git cherry-pick topic; git cherry-pick --abort; git checkout -q a",
        "c b; " + EDITED + "git rebase -i HEAD~1; git commit --amend -qm b2; git rebase --continue; "
        "git reset -q --hard HEAD~1; git checkout -q a",
        "GIT_REFLOG_ACTION='pull -q origin a' git checkout -q old~0; git checkout -q a",
        "git update-ref HEAD old; git checkout -qf a",
        "git update-ref HEAD old",
        "git commit -q --amend -m 'fix(parser): returning to the old API'; git checkout -q a",
        "git commit -q --amend -m 'docs (start): checkout of the guide'; git checkout -q a",
        "git commit -q --amend -m 'explain merge: Fast-forward'; git checkout -q a",
        "git commit -q --amend -m 'checkout: moving from a to b'; git checkout -q a",
        "git checkout -q a; git checkout -q --detach a; git checkout -q lost; git checkout -q a",
        "git -c user.name=$'a\\tb' commit -q --amend -m lost; git checkout -q a",
    ],
)
def test_what_was_made_on_no_branch_is_told_once_something_else_is_checked_out(place: Path, script: str) -> None:
    """However it came to be."""
    run(place, LOST + script)
    assert told(place, "refs/heads/a") != []


def test_the_commits_that_a_worktree_began_with_on_no_branch_are_told(place: Path) -> None:
    """Its log does not say so; and a rebase of its own branch has given up what that was."""
    run(place, "git worktree add -q --detach there; cd there; c lost lost; git rebase -q a topic")
    for branch in (None, "refs/heads/a", ""):
        assert told(place, branch, at=".git/worktrees/there") == ["lost"]
    assert told(place, "refs/heads/topic", at=".git/worktrees/there") == []


@pytest.mark.parametrize(
    "script",
    [
        "git checkout -q topic; git branch -m b; git rebase -q old",
        "git checkout -q topic; git branch -m b; git rebase -q a || git checkout --theirs . && git add -A; "
        "git rebase --continue",
        "git checkout -q a~1; git checkout -q a; git checkout -q topic; git checkout -q a",
        "c four x; git rebase -q topic -X theirs; git checkout -q topic",
        "git checkout -q --detach; c four; git reset -q --hard a; git checkout -q a",
        "git checkout -q --detach old; c four x; git rebase -q a",
        "git checkout -q --detach old; c four x; c 'fixup! four' x; GIT_SEQUENCE_EDITOR=true "
        "git rebase -q -i --autosquash a; git switch -q -c keep",
        "git checkout -q --detach old; git merge -q --ff-only topic; git checkout -q a",
        "git checkout -q --detach old; git reset -q --hard topic; git checkout -q a",
        "git checkout -q --orphan b; c b; c c; git rebase -q --onto HEAD~1 --root",
        "git checkout -q --detach; c four; git switch -q -c keep; git commit -q --amend -m five",
        "git checkout -q --detach; c four; git switch -q -c keep; git rebase -q -X theirs topic",
        "c four x; git rebase -q a old; git checkout -q a; git commit -q --amend -m five",
        "c four x; git rebase -q -X theirs a topic; git checkout -q a; git commit -q --amend -m five",
        "c four x; git checkout -q --orphan n; c five; git checkout -q a; git commit -q --amend -m six",
        "git checkout -q --detach; c four x; git rebase topic; git rebase --abort; git rebase -q -X theirs topic; "
        "git switch -q -c keep",
        "git checkout -q --detach; c four x; git checkout -q a; git checkout -q -; git commit -q --amend -m five; "
        "git switch -q -c keep",
        "c four x; c five x; " + EDITED + "git rebase -i HEAD~2; git checkout -q old~0; git checkout -q -; "
        "git commit -q --amend -m six; git rebase --continue",
        "git checkout -q --detach; c four x; git stash; git bisect start; git bisect bad; git bisect good old; "
        "git bisect reset; git switch -q -c keep; git commit -q --amend -m five",
        "c four x; git checkout -q --detach; git checkout -q old~0; git checkout -q a; git commit -q --amend -m five",
        "c four x; git commit -q --amend -m five; git update-ref -m 'paddock: harvest' refs/heads/a topic",
        "c four x; git update-ref -m 'paddock: harvest' refs/heads/a topic; git checkout -q topic",
    ],
)
def test_what_was_given_up_or_was_somewhere_is_not(place: Path, script: str) -> None:
    """Amended, reset and rebased; only looked at, forwarded to, renamed; taken over by a branch, or come back to."""
    run(place, script)
    assert told(place, "refs/heads/a", "") == []


def test_a_log_of_lines_that_are_none_takes_no_memory() -> None:
    """An agent may have written it."""
    assert left_behind(b"".join(b" %x> \tm\n" % number for number in range(10_000)), None, loose=True) == []
