"""What the command line makes read-only: parts of the worktree, all of it, a review; and directories without git."""

import subprocess
from pathlib import Path

import pytest

from policy import promises
from tests.kernel.conftest import ROOT_ONCE
from tests.support.features import need, need_backend
from tests.support.paddock import Paddock
from tests.support.programs import writes
from tests.support.programs.scene import SWITCHES, Scene, Trees

WORK = "echo x >tracked; echo x >new; git checkout -qb other; git commit -q --allow-empty -m no; git rev-parse HEAD"


def test_promise_a_read_only_part_of_the_worktree(scene: Scene) -> None:
    """Nothing is written below --ro, by any way of writing; what --rw names below it, and what lies beside, is open."""
    closed = scene.area / "closed"
    trees = Trees({"inside": closed / "here"}, {"below": closed / "open", "beside": scene.area / "beside"})
    places = trees.prepare(scene, writes.PROGRAMME.placed)
    words = ("--ro", closed, "--rw", closed / "open", "--freeze-root")
    answers = scene.tried("writes", places | {"placed_only": True, "area": closed / "open"}, *words)
    scene.judge("deny-inside-allow", answers, seen=trees.seen())
    if not promises.has_mounts(scene.backend):
        refused = scene.run(["true"], *words[:-1])
        assert (refused.returncode, "exception-in-writable-tree" in refused.stderr) == (125, True)


@ROOT_ONCE
def test_promise_a_read_only_worktree(scene: Scene) -> None:
    """With --ro on the worktree itself nothing of it is written but what --rw names, on every backend."""
    trees = Trees({"inside": scene.area / "closed"}, {"below": scene.area / "open"})
    places = trees.prepare(scene, writes.PROGRAMME.placed)
    words = ("--ro", scene.repo.one, "--rw", scene.area / "open")
    answers = scene.tried("writes", places | {"placed_only": True, "area": scene.area / "open"}, *words)
    scene.judge("writes", answers, seen=trees.seen())


@pytest.fixture(params=promises.BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend."""
    return need_backend(request.param)


@pytest.fixture
def here(user_paddock: Paddock) -> Paddock:
    """The command with a linked worktree of an ordinary user."""
    return user_paddock


def _git(here: Paddock, *words: str) -> str:
    ended = here.who.run(["git", *words], cwd=here.worktree)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _refs(here: Paddock) -> str:
    return _git(here, "for-each-ref") + _git(here, "symbolic-ref", "HEAD") + _git(here, "status", "--porcelain")


def test_a_review_reads_and_leaves_nothing(here: Paddock, backend: str) -> None:
    """Git works in it where jails have mounts; no file, branch, commit or directory of the review stays."""
    tracked = here.worktree / "tracked"
    tracked.write_text("as it was\n")
    _git(here, "add", "tracked")
    _git(here, "commit", "-qm", "one: Tracked.")
    before = _refs(here)
    ended = here.run(
        *SWITCHES[backend][1], "--review", "--", "sh", "-c", f"git log --oneline -1; {WORK}", env=SWITCHES[backend][0]
    )
    assert "one: Tracked." in ended.stdout
    assert (tracked.read_text(), _refs(here)) == ("as it was\n", before)
    mounts = promises.has_mounts(backend)
    assert ("which are dropped: --review hands nothing over" in ended.stderr) is mounts
    assert [path for path in here.place.rglob("*review*") if path.is_dir()] == []
    # The next session, which is none, takes nothing of it over.
    ended = here.run(*SWITCHES[backend][1], "--", "git", "log", "--oneline", "--all", env=SWITCHES[backend][0])
    assert " no\n" not in ended.stdout
    assert _git(here, "for-each-ref", "--contains", "HEAD", "refs/heads") in before


def test_a_review_may_be_opened_in_one_place(here: Paddock) -> None:
    """--rw below it, for what a build writes; `why` and the file tools' answers say the same as the kernel."""
    need("userns")
    build = here.worktree / "build"
    build.mkdir()
    here.who.give(build)
    ended = here.run("--review", "--rw", "build", "--", "sh", "-c", "echo x >build/out; echo x >beside")
    assert ended.returncode != 0
    assert ((here.worktree / "build/out").read_text(), (here.worktree / "beside").exists()) == ("x\n", False)
    said = here.call("why", "--review", "--rw", "build", "beside")
    assert "leave out --review, or add --rw" in said.stdout
    said = here.call("why", "--review", "--rw", "build", "build/out")
    assert "write" in said.stdout
    assert here.refused("run", "--review", "--git", "shared", "--", "true").reference == "review-shares-git"


def test_a_killed_review_leaves_nothing(here: Paddock) -> None:
    """Its git directory is the session's own, and goes with the session's directory when that is swept."""
    need("userns")
    before = _refs(here)
    words = here.words("run", "--review", "--", "sh", "-c", "git commit -q --allow-empty -m no; echo made; sleep 60")
    running = subprocess.Popen(
        here.who.command(words), cwd=here.worktree, env=here.who.environment(here.env), stdout=subprocess.PIPE
    )
    assert running.stdout is not None
    with running, running.stdout:
        assert running.stdout.readline() == b"made\n"
        running.kill()
    assert _refs(here) == before
    here.run("--", "true")  # which sweeps
    assert here.left() == []
    assert [*here.who.home.rglob("review"), *here.place.rglob("review")] == []


def test_a_directory_without_git(here: Paddock, backend: str) -> None:
    """It is offered where there is no worktree; the command is held to it, and what others obey in it is told."""
    need("landlock")
    plain = here.place / "plain"
    plain.mkdir()
    here.who.give(plain)
    secret = here.place / "secret"
    secret.write_text("secret\n")
    here.who.give(secret)
    said = here.refused("run", "--", "true", cwd=plain)
    assert (said.reference, "--directory" in said.text) == ("not-a-worktree", True)
    code = f"cat {secret}; echo x >{secret}; echo x >file; echo x >.envrc; pwd"
    ended = here.run(*SWITCHES[backend][1], "--directory", "--", "sh", "-c", code, cwd=plain, env=SWITCHES[backend][0])
    assert ended.stdout == f"{plain}\n"
    assert ((plain / "file").read_text(), secret.read_text()) == ("x\n", "secret\n")
    assert "created .envrc" in ended.stderr
    ended = here.run(
        *SWITCHES[backend][1], "--directory", "--worktree", str(plain), "--", "cat", "file", env=SWITCHES[backend][0]
    )
    assert (ended.returncode, ended.stdout) == (0, "x\n")


def test_directories_that_are_refused(here: Paddock) -> None:
    """A worktree is held as one; and nobody is held to all of /tmp."""
    said = here.refused("run", "--directory", "--", "true", cwd=here.worktree)
    assert said.reference == "directory-is-worktree"
    assert here.refused("run", "--directory", "--", "true", cwd=Path("/")).reference == "directory-too-wide"


def test_a_repository_that_an_agent_made(here: Paddock) -> None:
    """Git outside of jails uses it once the user has seen what it obeys there, and accepted it; and no longer."""
    need("landlock")
    plain = here.place / "made"
    plain.mkdir()
    here.who.give(plain)
    ran = here.place / "ran"
    code = f"git init -q; git config core.fsmonitor 'touch {ran}'; ln -s ../../x .git/hooks/pre-push; git add ."
    commit = "git -c user.name=A -c user.email=a@example.invalid commit -q --allow-empty -m"
    for number in (1, 2):
        extra, words = (("--directory",), code) if number == 1 else ((), f"echo x >>file; git add file; {commit} more")
        ended = here.run(*extra, "--", "sh", "-c", f"{words}; {commit} {number}", cwd=plain)
        assert ended.returncode == 0, ended.stderr
        if number == 2:
            break
        said = here.refused("run", "--", "true", cwd=plain)
        assert (said.reference, f"paddock trust {plain}/.git" in said.text) == ("git-dir-written", True)
        shown = here.call("trust", ".git", cwd=plain).stdout.splitlines()
        assert {"  config:", f"    core.fsmonitor = touch {ran}", "  hooks/pre-push -> ../../x"} <= {*shown}
        (plain / ".git/hooks/pre-push").unlink()
    assert here.who.run(["git", "-c", "core.fsmonitor=", "log", "--format=%s"], cwd=plain).stdout == "2\nmore\n1\n"
    assert not ran.exists()
    here.run("--git", "shared", "--", "true", cwd=plain)
    assert here.refused("run", "--", "true", cwd=plain).reference == "git-dir-written"
    assert here.refused("trust", "..", cwd=plain).reference == "trust-no-git-directory"


@pytest.mark.parametrize("backend", [promises.NAMESPACES, promises.GUARD], indirect=True)
def test_no_link_of_an_agents_chooses_what_is_read_only(here: Paddock, backend: str) -> None:
    """Where it leads could be written, and its name could be taken: refused, and the place itself is named."""
    env, switches = SWITCHES[backend]
    ended = here.run("--", "sh", "-c", "mkdir src; echo content >src/a; ln -s src docs; ln -s . here")
    assert ended.returncode == 0, ended.stderr
    for words in (("--review", "--rw", "docs"), ("--ro", ".", "--rw", "here/docs"), ("--ro", "docs")):
        said = here.refused("run", *switches, *words, "--", "true", env=env)
        assert (said.reference, str(here.worktree / "src") in said.text) == ("grant-behind-link", True)
    code = "echo more >>src/a; echo no >free"
    here.run(*switches, "--review", "--rw", "src", "--", "sh", "-c", code, env=env)
    assert ((here.worktree / "src/a").read_text(), (here.worktree / "free").exists()) == ("content\nmore\n", False)
    here.run(*switches, "--rw", "docs", "--", "sh", "-c", "echo again >>docs/a", env=env)
    assert (here.worktree / "src/a").read_text() == "content\nmore\nagain\n"


def test_a_review_is_granted_no_git_directory(here: Paddock) -> None:
    """What it hands over is nothing, on every backend."""
    for backend, path in ((promises.NAMESPACES, here.main / ".git"), (promises.GUARD, here.main / ".git/hooks")):
        env, switches = SWITCHES[backend]
        said = here.refused("run", *switches, "--review", "--rw", path, "--", "true", env=env)
        assert said.reference == "review-shares-git"
