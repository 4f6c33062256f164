"""The end of a session: commits are harvested, and what other tools would execute is told, or refused."""

import json

import pytest

from tests.support.features import need
from tests.support.paddock import Paddock

COMMIT = "git add -A && git commit -qm 'agent: Work.'"


@pytest.fixture
def here(user_paddock: Paddock) -> Paddock:
    """The command with a linked worktree that is clean, of an ordinary user."""
    need("userns")
    (user_paddock.worktree / "file").unlink()
    return user_paddock


def _host(here: Paddock, *words: str) -> str:
    ended = here.who.run(["git", *words], cwd=here.worktree)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.removesuffix("\n")


def test_commits_are_on_the_branch_when_the_session_has_ended(here: Paddock) -> None:
    """The session says what it harvested, in words and in the report, and git status is clean."""
    ended = here.run("--git", "private", "--report", "../report", "--", "sh", "-c", f"echo x >x; {COMMIT}")
    assert ended.returncode == 0, ended.stderr
    assert "1 commit harvested to one" in ended.stderr
    assert _host(here, "log", "-1", "--format=%s") == "agent: Work."
    assert _host(here, "status", "--porcelain") == ""
    report = json.loads((here.place / "report").read_text())
    assert report["harvest"]["state"] == "harvested"
    assert report["harvest"]["parts"][0]["new"] == _host(here, "rev-parse", "HEAD")


def test_hand_off_files_in_commits_are_told_and_refused_when_strict(here: Paddock) -> None:
    """With --strict-handoff neither a file in the worktree nor one in a commit is handed over."""
    before = _host(here, "rev-parse", "HEAD")
    options = ("--git", "private", "--strict-handoff", "--")
    # The other kind, which comes before it by its name, hides nothing, however much there is of it.
    many = "for i in $(seq 25); do mkdir a$i; echo {} >a$i/package.json; done"
    said = here.refused("run", *options, "sh", "-c", f"{many}; mkdir -p sub; echo evil >sub/.envrc; {COMMIT}")
    assert said.reference == "handoff-strict"
    assert "changed sub/.envrc" in said.text
    assert _host(here, "rev-parse", "HEAD") == before
    # A later session changes nothing about that; by hand it is taken, and told.
    said = here.refused("run", *options, "true")
    assert (said.reference, "created sub/.envrc" in said.text) == ("handoff-strict", True)
    ended = here.run("--git", "private", "--", "true")
    assert "commits have created sub/.envrc" in ended.stderr
    assert _host(here, "rev-parse", "HEAD") != before
    assert here.run(*options, "sh", "-c", f"echo x >x; {COMMIT}").returncode == 0
    assert _host(here, "status", "--porcelain") == ""


def test_hooks_in_the_directory_that_the_user_named_are_told(here: Paddock) -> None:
    """Wherever core.hooksPath leads to in the worktree, what the agent commits there is executed by the user's git."""
    _host(here, "config", "core.hooksPath", "tools/git")
    ended = here.run("--git", "private", "--", "sh", "-c", f"mkdir -p tools/git; echo x >tools/git/pre-push; {COMMIT}")
    assert "commits have created tools/git/pre-push" in ended.stderr


def test_repositories_made_in_the_worktree_are_told(here: Paddock) -> None:
    """A repository in the worktree has configuration that executes programmes; one that was there is no news."""
    made = "git init -q inner; git init -q --bare inner.git; mkdir d; echo gitdir: /elsewhere >d/.git"
    assert here.refused("run", "--strict-handoff", "--", "sh", "-c", made).reference == "handoff-strict"
    ended = here.run("--report", "../report", "--", "sh", "-c", f"rm -rf inner* d; {made}")
    report = json.loads((here.place / "report").read_text())
    for named in ("inner/.git", "inner.git", "d/.git"):
        assert f"created {named}: " in ended.stderr
        assert {"change": "created", "path": named, "mode": "protect"} in report["handoff"]
    assert here.run("--strict-handoff", "--", "true").returncode == 0
