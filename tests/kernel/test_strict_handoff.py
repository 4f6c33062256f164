"""The end of a session: commits are harvested, and what other tools would execute is told, or refused."""

import json

import pytest

from tests.support.features import need
from tests.support.paddock import Paddock, Session

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
    # A later session changes nothing about that, strict or not; by hand it is taken, and told.
    said = here.refused("run", *options, "true")
    assert (said.reference, "created sub/.envrc" in said.text) == ("handoff-strict", True)
    ended = here.run("--git", "private", "--", "true")
    assert (ended.returncode, "handoff-strict" in ended.stderr, "created sub/.envrc" in ended.stderr) == (0, True, True)
    assert _host(here, "rev-parse", "HEAD") == before
    assert "commits have created sub/.envrc" in here.call("worktree", "harvest").stdout
    assert _host(here, "rev-parse", "HEAD") != before
    assert here.run(*options, "sh", "-c", f"echo x >x; {COMMIT}").returncode == 0
    assert _host(here, "status", "--porcelain") == ""


CLEAN = "echo x >>fine; git add fine; git commit -qm fine"


def _is_held(here: Paddock, before: str, named: str) -> None:
    """Neither a strict session nor a plain one hands the work over, and each says so; by hand it comes."""
    said = here.refused("run", "--git", "private", "--strict-handoff", "--", "true")
    assert (said.reference, named in said.text) == ("handoff-strict", True), said.text
    ended = here.run("--git", "private", "--", "sh", "-c", CLEAN)
    assert (ended.returncode, "handoff-strict" in ended.stderr, named in ended.stderr) == (0, True, True), ended.stderr
    assert _host(here, "rev-parse", "HEAD") == before
    assert " harvested to one" in here.call("worktree", "harvest").stdout
    ended = here.run("--git", "private", "--strict-handoff", "--", "sh", "-c", CLEAN)
    assert (ended.returncode, "1 commit harvested to one" in ended.stderr) == (0, True), ended.stderr


def test_what_a_strict_session_leaves_is_handed_over_by_hand_alone(here: Paddock) -> None:
    """It has refused, for a file that no commit has, or was killed, or lived beside another that looked away."""
    before = _host(here, "rev-parse", "HEAD")
    options = ("--git", "private", "--strict-handoff")
    for script in ("echo x >.envrc", CLEAN):
        assert "created .envrc" in here.refused("run", *options, "--", "sh", "-c", script).text
    _is_held(here, before, "created .envrc")
    # The twin: one that was ended before it had done anything keeps nothing back.
    for script, options_of in (("echo ready; exec cat", options), (f"{CLEAN}; echo ready; exec cat", ())):
        with Session(here, command=("sh", "-c", script), options=options_of) as session:
            session.kill()
    ended = here.run("--git", "private", "--strict-handoff", "--", "true")
    assert (ended.returncode, "1 commit harvested" in ended.stderr) == (0, True), ended.stderr
    before = _host(here, "rev-parse", "HEAD")
    with Session(here, command=("sh", "-c", f"{CLEAN}; echo ready; exec cat"), options=options) as session:
        session.kill()
    _is_held(here, before, "before it had looked")
    # Beside a plain one, which ends last, and has seen the file come.
    before = _host(here, "rev-parse", "HEAD")
    with Session(here, options=("--git", "private")):
        assert "created .vimrc" in here.refused("run", *options, "--", "sh", "-c", f"echo x >.vimrc; {CLEAN}").text
    _is_held(here, before, "created .vimrc")
    # And the file may be the plain one's.
    before = _host(here, "rev-parse", "HEAD")
    made = ("sh", "-c", "echo x >.exrc; echo ready; exec cat")
    with Session(here, command=made, options=("--git", "private")):
        assert here.run(*options, "--", "sh", "-c", CLEAN).returncode == 0
    _is_held(here, before, "created .exrc")


def test_a_commit_of_the_users_is_no_work_of_a_session_that_was_killed(here: Paddock) -> None:
    """It changes the directory of the main checkout's repository, and nothing that is executed there."""
    options = ("--git", "private", "--worktree", str(here.main))
    with Session(here, options=options) as session:
        session.kill()
    ended = here.who.run(["git", "commit", "-q", "--allow-empty", "-m", "The user's."], cwd=here.main)
    assert ended.returncode == 0, ended
    ended = here.run(*options, "--strict-handoff", "--", "true")
    assert (ended.returncode, "hooks" in ended.stderr) == (0, False), ended.stderr


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
