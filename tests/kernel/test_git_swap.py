"""Git in the jail where there are no mounts: `.git` on the disk is another one for a while, and comes back."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from policy import promises
from tests.support import private_git, warmed
from tests.support.git_scene import Git, make, ok
from tests.support.identity import Who
from tests.support.install import Installed

PLACES = ("", "library", "library/inner")
WITHOUT = {"PADDOCK_NO_USERNS": "1"}

PLANT = r"""
rm -rf planted fifos; printf '#!/bin/sh\ntouch "%s/ran"\n' "$1" >evil; chmod +x evil
git init -q planted; git config core.fsmonitor "$PWD/evil"; git -C planted config core.fsmonitor "$PWD/evil"
git -C planted -c user.name=A -c user.email=a@example.invalid commit -q --allow-empty -m planted
"""
# What lies at .git, library/.git and library/inner/.git when the command ends; how many of them are put aside.
LEFT = (
    ("echo 'gitdir: planted/.git' >.git; ln -sf ../planted/.git library/.git; rm $I; mkfifo $I", 3),
    ("rm .git; mv planted/.git .git; mkfifo .git/fifo; rm library/.git; chmod 0 $I library/inner", 2),
    ("ln .git hard; : >library/.git; rm $I; mkdir -m 0 $I; chmod 555 . library", 2),
)


@pytest.fixture
def git(user: Who, installed: Installed, public_dir: Path) -> Git:
    """A worktree that Paddock made, of an ordinary user, without user namespaces."""
    return make(user, installed, public_dir, "one", promises.GUARD)


def pointers(git: Git) -> dict[str, tuple[bytes, int, int]]:
    """Content, mode and time of each `.git` file of the worktree; none may have a second name."""
    found = {}
    for place in PLACES:
        entry = (git.worktree / place / ".git").lstat()
        assert (entry.st_mode >> 12, entry.st_nlink) == (0o10, 1)
        content = (git.worktree / place / ".git").read_bytes()
        found[place] = (content, entry.st_mode, entry.st_mtime_ns)
    return found


def paddock(git: Git, *words: str, at: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Runs another command than `run`."""
    return warmed.run(git.who, git.installed.python, words, cwd=at or git.worktree, env=WITHOUT)


def await_that(condition: Callable[[], bool]) -> None:
    """Waits until something is so, a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it has not come about"
        time.sleep(0.02)


def test_what_an_agent_leaves_at_git_is_put_aside(git: Git, public_dir: Path) -> None:
    """Files, links, FIFOs, directories, nothing: the pointers are what they were, and host git runs nothing planted."""
    canary = git.who.give(_made(public_dir / "canary"))
    before = pointers(git)
    warm = ok(git.run("git commit -q --allow-empty -m twin; cat .git"))
    assert f"gitdir: {git.state}/git" in warm
    assert git.outside("log", "-1", "--format=%s") == "twin"
    assert pointers(git) == before
    for script, aside in LEFT:
        common = private_git.tree_state(git.common)
        ended = git.run(f"set -- {canary}; I=library/inner/.git\n{PLANT}\n{script}")
        assert ended.returncode == 0, ended.stderr
        assert pointers(git) == before
        assert ended.stderr.count("was replaced by the command") == aside, ended.stderr
        assert "paddock: created .git/" not in ended.stderr, "it lies elsewhere by now"
        assert private_git.tree_state(git.common) == common
        git.outside("status", "--porcelain")
        assert list(canary.iterdir()) == []
        assert list(git.worktree.rglob(".git.*")) == []
    assert len(list(git.state.glob("docked-*"))) == sum(aside for _, aside in LEFT)
    strict = git.run("rm .git; echo x >.git", "--strict-handoff")
    assert (strict.returncode, "handoff-strict" in strict.stderr) == (125, True), strict.stderr
    assert pointers(git) == before


def test_sessions_share_it_and_nothing_outside_is_misled(git: Git) -> None:
    """The last to end puts `.git` back, though one had removed it; meanwhile Paddock knows the worktree by its own."""
    before = pointers(git)
    wait = "touch {0}; while test ! -e go-{0}; do sleep 0.05; done"
    session = git.start(f"{wait.format('a')}; rm .git library/.git; {wait.format('b')}; rm a b go-a go-b")
    await_that((git.worktree / "a").exists)
    assert ok(git.run("git commit -q --allow-empty -m second")) == ""
    assert f"gitdir: {git.state}/git\n" == (git.worktree / ".git").read_text()
    for step in ("a", "b"):
        await_that((git.worktree / step).exists)
        listed = paddock(git, "worktree", "list", "--json", at=git.place / "main")
        assert [row["state"] for row in json.loads(listed.stdout)] == ["ready"], listed.stderr
        assert json.loads(ok(paddock(git, "explain", "--plan", "--json")))["git"] == "private"
        assert paddock(git, "worktree", "harvest").returncode == 4
        assert "dock-busy" in paddock(git, "worktree", "dock").stderr
        assert "worktree-in-use" in paddock(git, "worktree", "remove", "one", "--force").stderr
        git.who.run(["git", "worktree", "prune"], cwd=git.place / "main")
        (git.worktree / f"go-{step}").touch()
    assert session.wait(60) == 0
    assert session.stderr is not None
    session.stderr.close()
    assert pointers(git) == before
    assert git.outside("log", "-1", "--format=%s") == "second"
    assert not (git.common / "worktrees/one/locked").exists()


def test_a_submodule_that_was_moved_leads_nowhere(git: Git) -> None:
    """Its `.git` has moved with it, and still led to what the agent writes: host git goes there by itself."""
    deep = "d/" * 1100  # nothing may be too deep to be looked for
    try:
        ok(git.run(f"mkdir -p {deep}; git mv library books; git commit -qm moved; git -C books/inner status"))
    finally:
        ok(git.who.run(["rm", "-rf", "d"], cwd=git.worktree))  # the fixture could not
    assert git.outside("log", "-1", "--format=%s") == "moved"
    assert not list((git.worktree / "books").rglob(".git"))
    assert git.outside("ls-tree", "HEAD", "books").startswith("160000 commit")
    assert git.outside("status", "--porcelain") == ""
    said = ok(paddock(git, "worktree", "dock"))
    assert f"{git.worktree}/library is missing" in said
    assert "library/.git" not in said
    main = git.place / "main"
    assert (
        "the content of books, where a submodule belongs" in paddock(git, "worktree", "status", "one", at=main).stdout
    )
    assert "[worktree-dirty]" in paddock(git, "worktree", "remove", "one", at=main).stderr
    ok(paddock(git, "worktree", "remove", "--force", "one", at=main))
    assert not git.worktree.exists()


def test_a_submodule_that_was_moved_away_and_back_gets_its_pointer_again(git: Git, public_dir: Path) -> None:
    """By two sessions; what the second one has put in the place of the inner one is obeyed by no git outside."""
    canary = git.who.give(_made(public_dir / "canary"))
    before = {place: content for place, (content, *_) in pointers(git).items()}
    ok(git.run("mv library away; ln -s away library"))
    assert "lost its .git" not in paddock(git, "worktree", "status", "one").stdout  # it is not there at all
    back = "rm library; mv away library; rm -rf library/inner; mv planted library/inner"
    ok(git.run(f"set -- {canary}\n{PLANT}\n{back}"))
    said = paddock(git, "worktree", "status", "one").stdout
    for name in ("library", "library/inner"):
        repair = f"paddock worktree repair {git.worktree}"
        assert f"submodule {name} has lost its .git, so git does not see it: {repair}" in said
    done = ok(paddock(git, "worktree", "repair"))
    assert f"{git.worktree}/library/.git" in done
    (aside,) = git.state.glob("docked-*")
    assert f"{git.worktree}/library/inner/.git" in done
    assert str(aside) in done
    assert {place: content for place, (content, *_) in pointers(git).items()} == before
    assert " M library\n" in f"{git.outside('status', '--porcelain')}\n"
    assert list(canary.iterdir()) == []
    assert "lost its .git" not in paddock(git, "worktree", "status", "one").stdout
    assert ok(paddock(git, "worktree", "repair")) == "nothing to do\n"
    assert "restored" not in ok(paddock(git, "worktree", "dock"))


def test_files_of_another_branch_in_the_place_of_a_submodule_get_no_pointer(git: Git) -> None:
    """The user has switched to a branch that has the files themselves: git there stays that of the worktree."""
    ok(git.run("true"))
    for words in (
        ("submodule", "--quiet", "deinit", "--force", "library"),
        ("rm", "-q", "--cached", "library"),
        ("commit", "-qm", "Vendored."),
    ):
        git.outside(*words)
    (git.worktree / "library/vendored").write_text("x")
    git.who.give(git.worktree / "library")
    assert "lost its .git" not in paddock(git, "worktree", "status", "one").stdout
    assert "restored" not in ok(paddock(git, "worktree", "repair"))
    assert git.outside("rev-parse", "--show-toplevel", at="library") == str(git.worktree)
    git.outside("add", "library")
    assert git.outside("status", "--porcelain") == "A  library/vendored"


def test_nothing_in_a_submodule_is_obeyed_when_it_gets_its_pointer_again(git: Git, public_dir: Path) -> None:
    """Where its index names a submodule that is not populated, a session could make a repository meanwhile."""
    canary = git.who.give(_made(public_dir / "canary"))
    link = "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),new; mkdir new"
    ok(git.who.run(["sh", "-ec", link], cwd=git.worktree / "library"))
    ok(git.run("mv library away; ln -s away library"))
    back = "rm library; mv away library; rmdir library/new; mv planted library/new"
    ok(git.run(f"set -- {canary}\n{PLANT}\n{back}"))
    done = paddock(git, "worktree", "dock")
    assert f"{git.worktree}/library/new/.git was written by the command" in done.stdout + done.stderr
    assert f"{git.worktree}/library/.git" in ok(done)
    git.outside("status", "--porcelain")
    assert list(canary.iterdir()) == []
    (aside,) = git.state.glob("docked-*")
    ok(git.who.run(["mv", str(aside), str(git.worktree / "library/new/.git")], cwd=git.worktree))
    git.who.run(["git", "status"], cwd=git.worktree)
    assert [path.name for path in canary.iterdir()] == ["ran"]


def moved(git: Git) -> None:
    """Moves the worktree away: its commits are harvested, and `repair` puts `.git` right there. And back again."""
    away = git.place / "away"
    git.worktree.rename(away)

    def harvested() -> bool:
        return paddock(git, "worktree", "harvest", str(git.worktree), at=git.place / "main").returncode == 0

    await_that(harvested)  # not while its last process is being ended
    git.worktree.mkdir()
    assert "[worktree-moved]" in paddock(git, "worktree", "repair", str(away), at=away).stderr
    git.worktree.rmdir()
    assert str(git.state) in (away / ".git").read_text()
    assert f"is at {away} now" in ok(paddock(git, "worktree", "repair", str(away), at=away))
    assert ok(git.who.run(["git", "log", "-1", "--format=%s"], cwd=away)) == "kept\n"
    away.rename(git.worktree)
    ok(paddock(git, "worktree", "repair", str(git.worktree), at=git.worktree))


def test_what_to_do_with_a_worktree_that_is_moved_while_a_session_lives_is_said(git: Git) -> None:
    """At the session's end `.git` cannot be put right, as nobody knows where it is; `repair` does it when told."""
    before = pointers(git)
    session = git.start("touch ready; while test ! -e go; do sleep 0.05; done; rm ready go")
    await_that((git.worktree / "ready").exists)
    away = git.worktree.rename(git.place / "away")
    (away / "go").touch()
    assert session.stderr is not None
    assert b"run no git there before: paddock worktree repair" in session.stderr.read()
    session.stderr.close()
    assert session.wait(60) == 0
    ok(paddock(git, "worktree", "repair", str(away), at=away))
    away.rename(git.worktree)
    assert pointers(git) == before


@pytest.mark.parametrize("after", ["list", "run", "harvest"])
def test_the_next_command_ends_what_a_killed_session_left(git: Git, after: str) -> None:
    """After SIGKILL of the launcher `.git` comes back with whatever is done next, and no commit is lost."""
    before = pointers(git)
    session = git.start("git commit -q --allow-empty -m kept; rm library/.git; touch ready; exec sleep 600")
    await_that((git.worktree / "ready").exists)
    if after == "harvest":
        away = git.worktree.rename(git.place / "away")
        assert "a session is running in it" in paddock(git, "worktree", "repair", str(away), at=away).stderr
        away.rename(git.worktree)
    os.kill(session.pid, signal.SIGKILL)
    session.wait(60)
    assert session.stderr is not None
    session.stderr.close()
    (git.worktree / "ready").unlink()
    if after == "harvest":
        moved(git)

    def docked() -> bool:
        if after == "list":
            paddock(git, "worktree", "list", at=git.place / "main")
        elif after == "run":
            paddock(git, "run", "--git", "readonly", "--", "true")
        else:
            paddock(git, "worktree", "harvest")
        return (git.worktree / ".git").read_bytes() == before[""][0]  # not while its last process is being ended

    await_that(docked)
    assert pointers(git) == before
    assert paddock(git, "worktree", "harvest").returncode == 0
    assert git.outside("log", "-1", "--format=%s") == "kept"


def _made(path: Path) -> Path:
    path.mkdir()
    return path
