"""A repository with nested submodules, and the way into a jail with a private git directory in one of its worktrees."""

import dataclasses
import subprocess
from pathlib import Path

from policy import promises
from tests.support import git_commands
from tests.support.features import need
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.programs.scene import SWITCHES


@dataclasses.dataclass(frozen=True)
class Git:
    """A repository with nested submodules, and the way into a jail in one of its worktrees.

    Args:
        who: owns everything.
        installed: the command under test.
        place: holds `main` and its linked worktree `one`.
        worktree: the one that is worked in.
        backend: of `policy.promises`.
    """

    who: Who
    installed: Installed
    place: Path
    worktree: Path
    backend: str

    @property
    def common(self) -> Path:
        return self.place / "main/.git"

    @property
    def state(self) -> Path:
        """The directory of the worktree's private git directory."""
        (found,) = (self.who.home / ".local/state/paddock/git").glob(f"{self.worktree.name}-*")
        return found

    def run(self, script: str, *options: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """Runs bash in the jail."""
        extra, words = SWITCHES[self.backend]
        command = [str(self.installed.paddock), "run", *words, *options, "--", "bash", "-c", script]
        return self.who.run(command, cwd=self.worktree, env=extra | (env or {}), timeout=280)

    def start(self, script: str) -> "subprocess.Popen[bytes]":
        """Starts bash in the jail; what it says on standard output is lost."""
        extra, words = SWITCHES[self.backend]
        command = [str(self.installed.paddock), "run", *words, "--", "bash", "-c", script]
        return subprocess.Popen(
            self.who.command(command),
            cwd=self.worktree,
            env=self.who.environment(extra),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def outside(self, *words: str, at: str = "") -> str:
        """Runs the host's git in the worktree and returns stdout without its last newline."""
        ended = self.who.run(["git", *words], cwd=self.worktree / at)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.removesuffix("\n")


def make(who: Who, installed: Installed, public_dir: Path, worktree: str, backend: str) -> Git:
    """The repository of `git_commands.SETUP`, owned by `who`; for the guard `one` is a worktree that Paddock made."""
    need({promises.NAMESPACES: "userns", promises.BUBBLEWRAP: "bubblewrap"}.get(backend, "landlock"))
    place = public_dir / "place"
    place.mkdir(exist_ok=True)
    ended = who.run(["bash", "-euc", git_commands.SETUP], cwd=who.give(place))
    assert ended.returncode == 0, ended.stderr
    if backend == promises.GUARD and worktree == "one":
        words = [str(installed.paddock), "worktree", "add", "one", "--branch", "one", "--path", str(place / "one")]
        for command in (["git", "worktree", "remove", "--force", "--force", "../one"], words):
            ended = who.run(command, cwd=place / "main")
            assert ended.returncode == 0, ended.stderr
    return Git(who, installed, place, place / worktree, backend)


def ok(ended: "subprocess.CompletedProcess[str]") -> str:
    """The output of what must have succeeded."""
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
