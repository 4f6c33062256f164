"""`paddock worktree harvest` and `dock`: by hand, what a session's end does, and what it leaves to the user."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from tests.support import paddock as paddocks
from tests.support import private_git, repository
from tests.support.features import need
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.paddock import Paddock
from tests.support.private_git import Planted


@pytest.fixture
def here(user: Who, installed: Installed, public_dir: Path) -> Paddock:
    """The command with a linked worktree whose branch has a remote `origin`, of an ordinary user."""
    need("landlock")
    need("userns")
    place = public_dir / "place-of-user"
    place.mkdir()
    made = paddocks.make(user, installed, user.give(place))
    (made.worktree / "file").unlink()
    assert user.run(["git", "clone", "-q", "--bare", "main", "origin.git"], cwd=place).returncode == 0
    assert user.run(["git", "remote", "add", "origin", str(place / "origin.git")], cwd=made.main).returncode == 0
    return made


@pytest.fixture
def planted(user: Who, installed: Installed, public_dir: Path) -> Planted:
    """A private git directory, planted by hand."""
    need("landlock")
    place = public_dir / "harvests"
    place.mkdir()
    repo = repository.make(user, user.give(place))
    return private_git.plant(repo, repo.one, installed, place)


def _commit(here: Paddock, command: str, *options: str) -> str:
    ended = here.run("--git", "private", *options, "--", "sh", "-ec", f"{command}; git add -A; git commit -qm work")
    return ended.stderr


def _host(here: Paddock, *words: str, at: Path | None = None) -> str:
    ended = here.who.run(["git", *words], cwd=at or here.worktree)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.removesuffix("\n")


def test_a_branch_of_the_agent_is_taken_and_pushed_by_name(here: Paddock) -> None:
    """What a session's end offers, the verb takes; a push goes with the user's remote, and runs no hook."""
    hook = here.main / ".git/hooks/pre-push"
    hook.write_text(f"#!/bin/sh\ntouch {here.place}/canary\n")
    hook.chmod(0o755)
    assert "further branches of the agent: topic" in _commit(here, "git checkout -q -b topic; echo x >x")
    named = here.call("worktree", "harvest", here.worktree, cwd=here.main)
    assert f"to take one: paddock worktree harvest --branch NAME {here.worktree}\n" in named.stdout, named
    assert "harvest --branch NAME\n" in here.call("worktree", "harvest").stdout
    ended = here.call("worktree", "harvest", "--branch", "topic=mine", "--push", "origin", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["parts"][0]["ref"] == "refs/heads/mine"
    assert _host(here, "log", "-1", "--format=%s", "mine") == "work"
    assert _host(here, "rev-parse", "mine") == _host(here, "rev-parse", "mine", at=here.place / "origin.git")
    assert not (here.place / "canary").exists()
    told = here.call("worktree", "harvest", "--branch", "topic=mine", "--push", "origin").stdout
    assert f"To {here.place}/origin.git\n = [up to date]  mine -> mine\n" in told


def test_it_says_what_it_did_and_what_is_left(here: Paddock) -> None:
    """Nothing new, then what a strict session refused, then nothing new again; nonsense is refused."""
    assert here.refused("worktree", "harvest").reference == "harvest-no-record"
    assert "handoff-strict" in _commit(here, "echo x >.envrc", "--strict-handoff")
    assert here.refused("worktree", "harvest", "--strict-handoff").reference == "handoff-strict"
    ended = here.call("worktree", "harvest")
    assert ended.returncode == 0, ended.stderr
    assert "1 commit harvested to one" in ended.stdout
    assert "commits have created .envrc" in ended.stdout
    assert here.call("worktree", "harvest", str(here.worktree)).stdout == "nothing new\n"
    for script in ("git update-ref -d refs/heads/one", 'echo x >"$(git rev-parse --git-path refs/heads/one)"'):
        here.run("--git", "private", "--", "sh", "-ec", f"git commit -q --allow-empty -m lost; {script}")
        told = here.call("worktree", "harvest")
        assert (told.returncode, "nothing new" in told.stdout) == (5, False), told
        look, again = [line.partition(": paddock ")[2] for line in told.stdout.splitlines() if "next: " in line]
        assert "lost" in here.shell(f"paddock {look}").stdout
        assert here.shell(f"paddock {again}").returncode == 0
        assert here.call("worktree", "harvest").stdout == "nothing new\n"
    assert here.refused("worktree", "harvest", "--max-size", "lots").reference == "usage"
    assert here.refused("worktree", "harvest", "--push", "--all").reference == "push-remote"


def test_the_worktrees_directory_is_not_needed(here: Paddock) -> None:
    """Moved or gone, a worktree that Paddock knows is harvested by its name; moved back, git in it is content."""
    assert here.call("worktree", "adopt", ".").returncode == 0
    assert "handoff-strict" in _commit(here, "echo x >.envrc", "--strict-handoff")
    away = here.place / "away"
    here.worktree.rename(away)
    assert here.refused("worktree", "remove", "one", cwd=here.main).reference == "worktree-missing"
    assert here.call("worktree", "repair", cwd=here.main).returncode == 0
    ended = here.call("worktree", "harvest", "one", "--push", "origin", cwd=here.main)
    assert ended.returncode == 0, ended.stderr
    assert "1 commit harvested to one" in ended.stdout
    assert _host(here, "rev-parse", "one", at=here.main) == _host(
        here, "rev-parse", "one", at=here.place / "origin.git"
    )
    assert here.call("worktree", "repair", str(away), cwd=here.main).returncode == 0
    assert _host(here, "status", "--porcelain", at=away) == ""


def test_what_git_has_pruned_is_still_harvested(here: Paddock) -> None:
    """Its directory gone and `git worktree prune` run, status, harvest and removal are as they were before."""
    assert here.call("worktree", "adopt", ".").returncode == 0
    assert "handoff-strict" in _commit(here, "echo x >.envrc", "--strict-handoff")
    away = here.worktree.rename(here.place / "away")
    assert _host(here, "worktree", "prune", at=here.main) == ""
    assert "one" in here.call("worktree", "list", "--all", cwd=here.main).stdout
    away.rename(here.worktree)  # a file system was not mounted, say: it is the same worktree as before
    assert here.run("--strict-handoff", "--", "git", "log", "-1", "--format=%s").stdout == "work\n"
    shutil.rmtree(here.worktree)
    assert _host(here, "worktree", "prune", at=here.main) == ""
    assert "1 commit harvested to one" in here.call("worktree", "harvest", "one", cwd=here.main).stdout
    assert _host(here, "log", "-1", "--format=%s", "one", at=here.main) == "work"
    assert "nothing is at stake" in here.call("worktree", "status", "one", cwd=here.main).stdout
    assert here.call("worktree", "remove", "--force", "one", cwd=here.main).returncode == 0
    assert _host(here, "worktree", "list", at=here.main).count("\n") == 0


def test_a_new_worktree_starts_clean_where_an_earlier_one_was(here: Paddock) -> None:
    """The session is on the new branch, harvests to it, and what waited in the old private git directory is named."""
    assert here.call("worktree", "adopt", ".").returncode == 0
    assert "handoff-strict" in _commit(here, "echo x >.envrc", "--strict-handoff")
    shutil.rmtree(here.worktree)
    ended = here.call("worktree", "add", "new", "--path", str(here.worktree), cwd=here.main)
    assert ended.returncode == 0, ended.stderr
    (aside,) = (here.state / "removed").iterdir()
    assert str(aside) in ended.stderr
    assert (aside / "git/HEAD").exists()
    assert "1 commit harvested to agent/new" in _commit(here, "test ! -e .envrc; echo y >y")


@pytest.mark.parametrize("known", [False, True])
def test_a_session_starts_clean_where_git_has_made_another_worktree(here: Paddock, known: bool) -> None:
    """Whether Paddock knew the earlier one or not: its commits are kept aside and named, if they are nowhere else."""
    assert not known or here.call("worktree", "adopt", ".").returncode == 0

    def anew(*words: str) -> None:
        _host(here, "worktree", "remove", "--force", "--force", str(here.worktree), at=here.main)
        _host(here, "worktree", "add", "-q", str(here.worktree), *words, at=here.main)

    _commit(here, "git branch of-old; echo x >x")
    anew("one")
    for _ in range(2):
        ended = here.run("--", "git", "branch", "--list", "--format=%(refname:short)", "of-old")
        assert (ended.stdout, "warning" in ended.stderr) == ("", False), ended.stderr
    assert "handoff-strict" in _commit(here, "echo x >.envrc", "--strict-handoff")
    anew("-b", "two", "main")
    said = _commit(here, "test ! -e .envrc; echo y >y")
    (aside,) = (here.state / "removed").iterdir()
    assert f"warning: git has made another worktree at {here.worktree}; " in said
    assert str(aside) in said
    assert (aside / "git/HEAD").exists()
    assert "1 commit harvested to two" in said
    listed = here.call("worktree", "list", cwd=here.main)
    assert listed.returncode == 0, listed.stderr
    assert "warning" not in listed.stderr
    assert here.run("--", "git", "log", "-1", "--format=%s").stdout == "work\n"


def test_docking_restores_what_an_agent_put_in_the_place_of_git(here: Paddock) -> None:
    """The pointer leads to the user's repository again, and what lay there is where no git finds it."""
    _commit(here, "echo x >x")
    assert "is right" in here.call("worktree", "dock").stdout
    pointer = (here.worktree / ".git").read_text()
    (here.worktree / ".git").unlink()
    assert here.who.run(["git", "init", "-q"], cwd=here.worktree).returncode == 0
    ended = here.call("worktree", "dock", str(here.worktree), "--json")
    assert ended.returncode == 0, ended.stderr
    (docked,) = json.loads(ended.stdout)
    assert docked["action"] == "restored"
    assert Path(docked["aside"], "HEAD").exists()
    assert (here.worktree / ".git").read_text() == pointer
    assert _host(here, "status", "--porcelain") == ""


def test_lfs_objects_come_with_the_commits(planted: Planted) -> None:
    """An object whose content is what its name says is copied into the main store, once."""
    content = b"large\n"
    name = hashlib.sha256(content).hexdigest()
    source = planted.git_dir / f"lfs/objects/{name[:2]}/{name[2:4]}/{name}"
    source.parent.mkdir(parents=True)
    source.write_bytes(content)
    planted.who.give(planted.git_dir)
    planted.commit("file.bin", f"version https://git-lfs.github.com/spec/v1\noid sha256:{name}\nsize 6\n")
    assert planted.harvest()["state"] == "harvested"
    target = planted.repo.main / f".git/lfs/objects/{name[:2]}/{name[2:4]}/{name}"
    assert target.read_bytes() == content
    assert [path.name for path in target.parent.iterdir()] == [name]


def test_a_blob_of_half_a_gigabyte_is_refused(planted: Planted) -> None:
    """Zeros are small as a pack and large as a file; the default limit looks at the file."""
    large = planted.worktree / "large"
    with large.open("wb") as file:
        file.truncate((512 << 20) + 1)
    planted.who.give(large)
    settings = ("-c", "core.compression=1", "-c", "core.bigFileThreshold=1m")
    planted.agent(*settings, "add", "large")
    planted.agent("commit", "-q", "-m", "agent: Large.")
    before = planted.host("count-objects", "-v")
    refused = planted.harvest()
    assert refused["errorType"] == "harvest-too-large", refused
    assert "--max-blob" in refused["hint"]
    assert planted.host("count-objects", "-v") == before
