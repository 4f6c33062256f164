"""`paddock worktree harvest` and `dock`: by hand, what a session's end does, and what it leaves to the user."""

import hashlib
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.vcs.harvest import harvest
from launcher.vcs.harvest.parts import Limits
from tests.support import paddock as paddocks
from tests.support import warmed
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
    paddocks.far(made)
    return made


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
    assert "further branches of the agent: topic" in _commit(
        here, "git checkout -q -b topic; echo x >x", "--branch-policy", "keep"
    )
    named = here.call("worktree", "harvest", here.worktree, cwd=here.main)
    line = f"to take one: paddock worktree harvest --branch topic={here.worktree.name}/topic {here.worktree}\n"
    assert (line in named.stdout, line in here.call("worktree", "harvest").stdout) == (True, True), named
    ended = here.call("worktree", "harvest", "--branch", "topic=mine", "--push", "origin", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["parts"][0]["ref"] == "refs/heads/mine"
    assert _host(here, "log", "-1", "--format=%s", "mine") == "work"
    assert _host(here, "rev-parse", "mine") == _host(here, "rev-parse", "mine", at=here.place / "origin.git")
    assert not (here.place / "canary").exists()
    told = here.call("worktree", "harvest", "--branch", "topic=mine", "--push", "origin").stdout
    assert f"To ssh://far.invalid{here.place}/origin.git\n = [up to date]  mine -> mine\n" in told


def test_a_branch_is_dismissed_until_it_moves(here: Paddock) -> None:
    """It is not mentioned again, and no work that would be lost; a merge names where a branch is that is not here."""
    _commit(here, "git checkout -q -b topic; echo x >x", "--branch-policy", "keep")
    said = here.refused("merge", "topic", cwd=here.main)
    assert f"paddock worktree harvest {here.worktree} --branch topic" in said.text
    assert "nothing new" in here.call("worktree", "harvest", "--dismiss", "topic").stdout
    assert "topic" not in here.call("worktree", "harvest").stdout.replace("HEAD is on topic", "")
    assert here.refused("worktree", "harvest", "--dismiss", "none").reference == "harvest-branch-unknown"
    _commit(here, "echo y >y", "--branch-policy", "keep")
    assert "further branches of the agent: topic" in here.call("worktree", "harvest").stdout


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
    assert "nothing would be lost" in here.call("worktree", "status", "one", cwd=here.main).stdout
    assert here.call("worktree", "remove", "--force", "one", cwd=here.main).returncode == 0
    assert _host(here, "worktree", "list", at=here.main).count("\n") == 0


@pytest.mark.parametrize("known", [False, True])
def test_a_session_starts_clean_where_git_has_made_another_worktree(here: Paddock, known: bool) -> None:
    """Whether Paddock knew the earlier one or not: its commits are kept aside and named, if they are nowhere else."""
    assert not known or here.call("worktree", "adopt", ".").returncode == 0

    def anew(*words: str) -> None:
        _host(here, "worktree", "remove", "--force", "--force", str(here.worktree), at=here.main)
        _host(here, "worktree", "add", "-q", str(here.worktree), *words, at=here.main)

    _commit(here, "git branch of-old; echo x >x", "--branch-policy", "keep")
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
    assert "is correct" in here.call("worktree", "dock").stdout
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


def test_a_blob_is_measured_as_the_file_that_it_is(planted: Planted) -> None:
    """Zeros are small as a pack and large as a file: the limit, half a gigabyte by default, looks at the file."""
    assert Limits().blob == 512 << 20
    large = planted.worktree / "large"
    with large.open("wb") as file:
        file.truncate((8 << 20) + 1)
    planted.who.give(large)
    planted.agent("add", "large")
    planted.agent("commit", "-q", "-m", "agent: Large.")
    before = planted.host("count-objects", "-v")
    refused = planted.harvest(limits={"blob": 8 << 20})
    assert refused["errorType"] == "harvest-too-large", refused
    assert "--max-blob" in refused["hint"]
    assert planted.host("count-objects", "-v") == before


def _job(here: Paddock, name: str = "harvest.waiting") -> list[dict[str, Any]]:
    """What a job of the service says that runs without any service."""
    program = "import json, sys; from launcher.service.job import TABLE; print(json.dumps(TABLE[sys.argv[1]]()))"
    ended = warmed.run(here.who, here.installed.python, [name], cwd=here.place, program=program)
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout)["worktrees"]
    return found


def _killed(here: Paddock, script: str, *options: str, worktree: Path | None = None) -> None:
    """A session that gets a SIGKILL, launcher and all, when its script has come to its end."""
    where = worktree or here.worktree
    words = here.words("run", "--git", "private", *options, "--", "sh", "-ec", f"{script}; echo ready; exec sleep 1000")
    with subprocess.Popen(
        here.who.command(words), cwd=where, env=here.who.environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as session:  # fmt: skip
        assert session.stdout is not None
        while session.stdout.readline() != b"ready\n":
            assert session.poll() is None
        session.kill()
        assert session.stdout.read() == b""  # nobody of the session has it open any more
    time.sleep(2 * harvest._TICK / 1e9)  # what changed in the moment before a harvest is looked at once more


def test_what_killed_sessions_left_is_harvested_by_the_service_alone(here: Paddock) -> None:
    """Asked of the private git directories: no session, no database and no user says what waits."""
    for number in range(1, 5):
        assert _host(here, "worktree", "add", "-q", "-b", f"w{number}", f"../w{number}", at=here.main) == ""
    trees = [here.place / f"w{number}" for number in range(1, 5)]
    for tree in trees:
        _killed(here, f"echo x >{tree.name}; git add -A; git commit -qm {tree.name}", worktree=tree)
    _host(here, "branch", "fresh", at=here.main)
    _killed(here, "git log -1", worktree=trees[0])  # looks, and commits nothing
    assert here.run("--git", "private", "--", "true").returncode == 0  # nothing waits there
    for name in ("service.db", "worktrees.db"):
        (here.state / name).write_text("no database\n" * 500)
    assert _host(here, "worktree", "move", "../w2", "../moved", at=here.main) == ""
    shutil.rmtree(trees[2])
    _host(here, "worktree", "prune", at=here.main)
    (record,) = here.state.glob("git/w4-*/record")
    content = record.read_bytes()
    record.write_bytes(b"damaged")
    found = {each["worktree"]: each for each in _job(here)}
    assert {path: each["state"] for path, each in found.items()} == {
        "": "refused", **{str(tree): "harvested" for tree in trees[:3]},
    }  # fmt: skip
    assert found[""]["refusal"]["errorType"] == "git-record-damaged"
    assert found[""]["directory"] == str(record.parent)
    for tree in trees[:3]:
        assert _host(here, "log", "-1", "--format=%s", tree.name, at=here.main) == tree.name
    record.write_bytes(content)
    assert [(each["worktree"], each["state"]) for each in _job(here)] == [(str(trees[3]), "harvested")]
    assert _job(here) == []


def test_the_service_does_not_take_what_a_strict_session_would_refuse(here: Paddock) -> None:
    """It is remembered beside the private git directory, until somebody takes the work over who may."""
    before = _host(here, "rev-parse", "HEAD")
    _killed(here, "echo x >.envrc; git add -A; git commit -qm work", "--strict-handoff")
    for _ in range(2):
        (said,) = _job(here)
        assert (said["state"], said["strict"], said["refusal"]["errorType"]) == ("refused", True, "handoff-strict")
        assert _host(here, "rev-parse", "HEAD") == before
    assert here.call("worktree", "harvest").returncode == 0
    assert _host(here, "log", "-1", "--format=%s") == "work"
    assert _job(here) == []
    # Neither what is refused for a file that nobody has committed.
    before = _host(here, "rev-parse", "HEAD")
    script = "git commit -q --allow-empty -m more; mkdir .vscode; echo {} >.vscode/tasks.json"
    assert here.refused("run", "--git", "private", "--strict-handoff", "--", "sh", "-ec", script).reference == (
        "handoff-strict"
    )
    (said,) = _job(here)
    assert (said["state"], said["refusal"]["errorType"]) == ("refused", "handoff-strict")
    assert _host(here, "rev-parse", "HEAD") == before
    # Nor what one has left in the worktree that was killed before it could look.
    assert here.call("worktree", "harvest").returncode == 0
    before = _host(here, "rev-parse", "HEAD")
    _killed(here, "git commit -q --allow-empty -m more; echo x >.exrc", "--strict-handoff")
    (said,) = _job(here)
    assert (said["state"], said["refusal"]["errorType"]) == ("refused", "handoff-strict")
    assert _host(here, "rev-parse", "HEAD") == before
    # The twin: a session that asks for nothing of the kind, after one that left nothing.
    assert here.call("worktree", "harvest").returncode == 0
    shutil.rmtree(here.worktree / ".vscode")
    (here.worktree / ".exrc").unlink()
    assert here.run("--git", "private", "--strict-handoff", "--", "true").returncode == 0
    _killed(here, "mkdir sub; echo y >sub/.envrc; git add -A; git commit -qm last")
    (said,) = _job(here)
    assert (said["state"], said["strict"]) == ("harvested", False)
    assert _host(here, "log", "-1", "--format=%s") == "last"


def test_what_is_kept_beside_a_branch_or_under_way_does_not_wait(here: Paddock) -> None:
    """A harvest that could do no more is not made again and again; a live session's work is its own to hand over."""
    _killed(here, "git commit -q --allow-empty -m theirs")
    _host(here, "commit", "-q", "--allow-empty", "-m", "mine")
    (said,) = _job(here)
    assert said["state"] == "kept"
    assert _job(here) == []
    words = here.words("run", "--git", "private", "--", "sh", "-c", "git commit -q --allow-empty -m x; echo r; cat")
    with subprocess.Popen(
        here.who.command(words), cwd=here.worktree, env=here.who.environment(), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as session:  # fmt: skip
        assert session.stdout is not None
        assert session.stdout.readline() == b"r\n"
        assert [each["state"] for each in _job(here)] == ["busy"]
        session.communicate()
    _killed(here, "git checkout -q -b topic; git commit -q --allow-empty -m beside")
    assert [each["state"] for each in _job(here)] in (["nothing"], ["kept"])
    assert _job(here) == []


def test_prune_gives_up_what_a_worktree_left_that_the_user_removed_with_git(here: Paddock) -> None:
    """Its private git directory and its pins, in submodules too, when nothing waits; else both stay."""
    for name in ("gone", "waits"):
        tree = here.place / name
        _host(here, "worktree", "add", "-q", "-b", name, str(tree), at=here.main)
        ended = here.run("--git", "private", "--", "git", "commit", "-q", "--allow-empty", "-m", "x", cwd=tree)
        assert ended.returncode == 0, ended.stderr
    _killed(here, "git commit -q --allow-empty -m y", worktree=here.place / "waits")
    assert here.run("--git", "private", "--", "true").returncode == 0
    assert json.loads(here.call("prune", "--json").stdout)["removed"] == []
    for name in ("gone", "waits"):
        _host(here, "worktree", "remove", "--force", f"../{name}", at=here.main)
    trial = json.loads(here.call("prune", "--dry-run", "--json", cwd=here.main).stdout)
    said = json.loads(here.call("prune", "--json", cwd=here.place).stdout)
    assert {**trial, "dry_run": False} == said
    assert [Path(each["name"]).name.rpartition("-")[0] for each in said["removed"]] == ["gone", "gone"]
    left = [path.name.rpartition("-")[0] for path in here.state.glob("git/*")]
    assert sorted(left) == ["one", "waits"]
    pins = _host(here, "for-each-ref", "--format=%(refname:lstrip=3)", "refs/paddock/base", at=here.main).split()
    assert sorted(name.rpartition("-")[0] for name in pins) == ["one", "waits"]
    assert [(each["state"], each["refusal"]) for each in _job(here)] == [("harvested", None)]
    assert _host(here, "log", "-1", "--format=%s", "waits", at=here.main) == "y"
    assert len(json.loads(here.call("prune", "--json").stdout)["removed"]) == 2
    assert here.call("prune").stdout == "nothing to remove\n"
