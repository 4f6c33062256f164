"""The trunk merged into an agent's worktree, whose files nobody vouches for and whose session may be frozen."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.jail import processes
from launcher.vcs.git import GitFailed
from launcher.vcs.jailed_git import JailedGit
from tests.support import paddock
from tests.support.ground import Ground
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.paddock import Paddock

_SCRIPT = """
seq 20 >a; printf '*.x filter=user\\n' >.gitattributes; echo one >b.x; git add .; git commit -q -m 'main: Numbers.'
git -C ../one reset -q --hard main; rm ../one/file
git config filter.user.smudge 'tee smudged'
"""
_TRUNK = "sed -i 's/^3$/three/' a; echo two >b.x; git commit -q -a -m 'main: Three.'; git rev-parse HEAD"
_AGENT = """
sed -i 's/^17$/seventeen/' a; git commit -q -a -m agent; echo mine >untracked; echo committed; read go
git status --porcelain; git log -1 --format=%p; sed -i 's/^10$/ten/' a; git commit -q -a -m later; echo again; read go
"""


@pytest.fixture
def ground(user: Who, installed: Installed, public_dir: Path) -> Paddock:
    """A main checkout, and the worktree `one` of an agent."""
    place = public_dir / "place"
    place.mkdir()
    return paddock.make(user, installed, user.give(place), _SCRIPT)


def shell(ground: Paddock, line: str, cwd: Path) -> str:
    """Standard output of a line of sh(1) as the user."""
    ended: subprocess.CompletedProcess[str] = ground.who.run(["sh", "-euc", line], cwd=cwd)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def down(ground: Paddock, status: int = 0) -> str:
    """What merging the trunk into the agent's worktree says."""
    ended = ground.call("merge", "--into", "one", "main", cwd=ground.main)
    assert ended.returncode == status, ended
    return ended.stdout


def refused(ground: Paddock, env: dict[str, str] | None = None) -> str:
    """The reference of what refuses it."""
    return ground.refused("merge", "--into", "one", "main", cwd=ground.main, env=env).reference


def jailed(pid: int) -> list[int]:
    """Processes below a launcher that are in its jail, the youngest first: they have a filter."""
    return [below for below in reversed(processes.descendants(pid)) if "\nSeccomp:\t2\n" in _status(below)]


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return ""


class Agent:
    """A session that works on a word, and answers in lines."""

    def __init__(self, ground: Paddock) -> None:
        words = ground.words("run", "--git", "private", "--", "sh", "-eu", "-c", _AGENT)
        self.process = ground.who.start(words, cwd=ground.worktree)

    def line(self) -> str:
        """The next line that it says."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")

    def go(self) -> None:
        """Lets it do the next thing."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        """Stops all that is in the jail, or lets it go on, its launcher too, which has stopped with its command."""
        for pid in jailed(self.process.pid):
            os.kill(pid, number)
        if number is signal.SIGCONT:
            self.process.send_signal(number)


@pytest.fixture
def agent(ground: Paddock) -> Iterator[Agent]:
    """An agent at work."""
    made = Agent(ground)
    with made.process:
        yield made
        made.process.kill()


def test_a_frozen_agent_goes_on_with_the_trunk_merged(ground: Paddock, agent: Agent) -> None:
    """While it works nothing is touched; frozen, its work is harvested, its branch, index and files follow."""
    trunk = shell(ground, _TRUNK, ground.main)
    assert agent.line() == "committed"
    before = shell(ground, "git for-each-ref; cat a", ground.worktree)
    assert refused(ground) == "session-running"
    assert shell(ground, "git for-each-ref; cat a", ground.worktree) == before
    agent.send(signal.SIGSTOP)
    deadline = time.monotonic() + 60
    while not (said := ground.call("merge", "--into", "one", "main", cwd=ground.main)).stdout:
        assert "session-running" in said.stderr, said  # a signal takes its time to arrive at every thread
        assert time.monotonic() < deadline
    assert "1 of 1 merged" in said.stdout
    merged = shell(ground, "git rev-parse one", ground.main)
    assert shell(ground, f"git merge-base --is-ancestor {trunk} one && git log -2 --format=%s one", ground.main)
    content = (ground.worktree / "a").read_text()
    assert ("three\n" in content, "seventeen\n" in content) == (True, True)
    agent.send(signal.SIGCONT)
    agent.go()
    # Its own git knows the merge: nothing but the untracked file is to be seen, and HEAD is a merge.
    assert agent.line() == "?? untracked"
    assert len(agent.line().split()) == 2
    assert agent.line() == "again"
    agent.go()
    assert agent.process.wait(60) == 0
    assert shell(ground, "git rev-parse one~1; git show one:a", ground.main).split()[0] == merged
    assert "ten" in shell(ground, "git show one:a", ground.main)
    assert shell(ground, "git status --porcelain", ground.worktree) == "?? untracked"


def test_an_ended_agent_finds_the_trunk_merged(ground: Paddock) -> None:
    """By git in a jail, without which nothing moves; no filter runs, and a name that git would wait for is refused."""
    line = "sed -i 's/^17$/seventeen/' a; git commit -q -a -m agent"
    assert ground.run("--git", "private", "--", "sh", "-euc", line).returncode == 0
    shell(ground, f"mkdir 'd r'; echo x >'d r/c'; git add .; {_TRUNK}", ground.main)
    before = shell(ground, "git for-each-ref; cat a", ground.worktree)
    assert refused(ground, {"PADDOCK_NO_USERNS": "1", "PADDOCK_NO_LANDLOCK": "1"}) == "harvest-no-jail"
    shell(
        ground, "rm .gitattributes; mkfifo .gitattributes; touch a", ground.worktree
    )  # git compares it, and looks there
    assert refused(ground) == "worktree-obstructed"
    shell(ground, "rm .gitattributes; git restore .gitattributes", ground.worktree)
    shell(ground, "mkdir ../own; mkfifo ../own/.gitignore; ln -s ../own 'd r'", ground.worktree)
    assert refused(ground) == "trunk-dirty"  # what the link leads to is not there in the jail
    shell(ground, "rm 'd r'", ground.worktree)
    shell(ground, "sed -i 's/^3$/mine/' a", ground.worktree)
    assert refused(ground) == "trunk-dirty"
    shell(ground, "sed -i 's/^mine$/3/' a; echo mine >untracked", ground.worktree)
    assert shell(ground, "git for-each-ref; cat a", ground.worktree) == before
    child = shell(ground, "git rev-parse one", ground.main)
    run = down(ground).rpartition("--rollback ")[2].strip()
    assert shell(ground, "grep -c -e three -e seventeen a; cat b.x; ls -m", ground.worktree).split("\n") == [
        "2", "two", "a, b.x, d r, untracked",
    ]  # fmt: skip
    status = ground.run("--git", "private", "--", "git", "status", "--porcelain")
    assert status.stdout == "?? untracked\n", status
    assert ground.call("merge", "--rollback", run, cwd=ground.main).returncode == 0
    assert shell(ground, "git rev-parse one; git status --porcelain", ground.worktree) == f"{child}\n?? untracked"


def test_an_agent_solves_a_conflict_in_its_own_jail(ground: Paddock) -> None:
    """The child stays as it was, and the command that the answer names works there: it sees the trunk's objects."""
    line = "sed -i 's/^3$/THREE/' a; git commit -q -a -m agent"
    assert ground.run("--git", "private", "--", "sh", "-euc", line).returncode == 0
    trunk = shell(ground, _TRUNK, ground.main)
    before = shell(ground, "git for-each-ref; cat a; git status --porcelain", ground.worktree)
    assert "conflict in a" in down(ground, status=1)
    assert shell(ground, "git for-each-ref; cat a; git status --porcelain", ground.worktree) == before
    line = f"git merge {trunk} && exit 9; git checkout -q --ours a && git commit -q -a -m Solved."
    ended = ground.run("--git", "private", "--", "sh", "-c", line)
    assert ended.returncode == 0, ended
    assert "nothing new" in down(ground)
    assert "1 of 1 merged" in ground.call("merge", "one", cwd=ground.main).stdout


def test_git_on_an_agents_files_is_jailed(tmp_path: Path) -> None:
    """It reads and writes the files and its index; not what lies beside them, as git outside would."""
    ground = Ground(tmp_path / "repo", {"a": "a\n"})
    secret, outside = tmp_path / "secret", tmp_path / "outside"
    secret.write_text("secret\n")
    index = tmp_path / "own/index"
    index.parent.mkdir()
    git = JailedGit(str(ground.root / ".git"), str(ground.root))
    environment = {"GIT_INDEX_FILE": str(index)}
    (ground.root / "a").unlink()
    git.run("read-tree", "-m", "-u", "HEAD", environment=environment)
    git.run("checkout-index", "-a", "-f", environment=environment)
    assert (ground.root / "a").read_text() == "a\n"
    assert git.run("hash-object", "--", str(ground.root / "a")).out
    tries = (
        ("hash-object", "--", str(secret)),
        ("hash-object", "--", str(ground.root / ".git/config")),
        ("checkout-index", "-a", f"--prefix={outside}/"),
        ("checkout-index", "-a", f"--prefix={ground.root}/.git/hooks/"),
    )
    for words in tries:
        with pytest.raises(GitFailed):
            git.run(*words, environment=environment)
    assert not outside.exists()
    assert not (ground.root / ".git/hooks/a").exists()
    assert (ground.root / ".git/config").stat().st_size
