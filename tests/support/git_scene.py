"""A repository with nested submodules, and the way into a jail with a private git directory in one of its worktrees."""

import dataclasses
import subprocess
from pathlib import Path

from policy import promises
from tests.support import repository, warmed
from tests.support.features import need_backend
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.programs.scene import SWITCHES

# What people and tools do with git, as pieces of bash; and a repository that has everything they do it with.
#
# Each piece runs in the worktree, with `set -e`, and leaves a clean worktree on the branch it found.

SETUP = r"""
git() { command git -c init.defaultBranch=main -c protocol.file.allow=always "$@"; }
identify() { git -C "$1" config user.name Tester; git -C "$1" config user.email tester@example.invalid; }
make() {
    git init -q "$1"
    identify "$1"
    echo "$1" >"$1/$1.txt"
    git -C "$1" add .
    git -C "$1" commit -qm "$1: First."
}
make main
mkdir main/src
seq 100 >main/src/numbers
printf '*.log\n' >main/.gitignore
if test -z "${1:-}"; then
    make inner
    make library
    git -C library submodule --quiet add ../inner inner
    git -C library commit -qam 'library: Inner.'
    git -C main submodule --quiet add ../library library
    git -C main submodule --quiet update --init --recursive
fi
git -C main add .
git -C main commit -qm 'main: Everything.'
for n in 1 2 3 4 5; do echo $n >>main/src/count; git -C main add .; git -C main commit -qm "count: To $n."; done
git -C main tag -a v1 -m 'Version 1' HEAD~3
git -C main branch other HEAD~2
git -C main remote add origin 'https://user:hush-token@example.invalid/x.git?private_token=hush-query'
git -C main update-ref refs/remotes/origin/main HEAD
git -C main config branch.one.remote origin
git -C main config branch.one.merge refs/heads/main
git -C main config http.extraHeader 'Authorization: hush-header'
git -C main config alias.planted '!echo planted'
git -C main gc -q
cat >main/.git/hooks/pre-commit <<'END'
#!/bin/sh
if git diff --cached --name-only | grep -q forbidden; then echo "the hook says no" >&2; exit 1; fi
END
chmod +x main/.git/hooks/pre-commit
git -C main worktree add -q -b one "$PWD/one"
git -C one submodule --quiet update --init --recursive
for sub in main/library main/library/inner one/library one/library/inner; do ! test -e $sub || identify $sub; done
"""
"""Makes `main` and its linked worktree `one`, with nested submodules, secrets in the configuration and a local hook.

With an argument, without submodules: what a session costs goes by the number of repositories.
"""

STEPS = {
    name: code
    for name, _, code in (
        part.partition("\n") for part in Path(__file__).with_suffix(".txt").read_text().split("### ")[1:]
    )
}
"""What each step is called, and its bash: `git_scene.txt`, in that order."""

LIBRARIES = {
    "libgit2": """
import pygit2, sys
repo = pygit2.Repository('.')
assert not repo.status(), repo.status()
open('by-libgit2', 'w').write('x')
repo.index.add('by-libgit2')
repo.index.write()
tree = repo.index.write_tree()
who = pygit2.Signature('Tester', 'tester@example.invalid')
made = repo.create_commit('HEAD', who, who, 'libgit2: A commit.', tree, [repo.head.target])
assert repo.revparse_single('HEAD').id == made and repo.revparse_single('v1')
assert pygit2.Repository('library/inner').head
""",
    "dulwich": """
from dulwich import porcelain
from dulwich.repo import Repo
open('by-dulwich', 'w').write('x')
porcelain.add('.', ['by-dulwich'])
who = b'Tester <tester@example.invalid>'
porcelain.commit('.', message=b'dulwich: A commit.', author=who, committer=who)
assert b'refs/tags/v1' in Repo('.').get_refs()
assert sum(1 for _ in Repo('.').get_walker()) > 5
""",
}
"""Programmes that use git without git; each makes a commit."""


def grown(place: Path) -> None:
    """What `SETUP` makes, in a directory of the suite's own user."""
    repository.repeat(_grow, place)


def _grow(place: Path) -> None:
    subprocess.run(["bash", "-euc", SETUP], cwd=place, check=True, capture_output=True)


def script() -> str:
    """All steps in one bash script, which prints a line ``ok NAME`` for each, or ``failed NAME`` and what it said."""
    lines = [
        "BRANCH=$(git symbolic-ref --short HEAD); test $BRANCH = main && ON_MAIN=1 || ON_MAIN=; WORKTREE=$PWD",
        "export LC_ALL=C GIT_EDITOR=true GIT_MERGE_AUTOEDIT=no BRANCH ON_MAIN",
        'step() { cd $WORKTREE; if said=$(bash -exc "$2" 2>&1); then echo "ok $1"; else echo "failed $1"; '
        "printf '%s\\n' \"$said\" | tail -n 12; fi; }",
    ]
    return "\n".join([*lines, *(f"step {_quoted(name)} {_quoted(code)}" for name, code in STEPS.items())])


def _quoted(code: str) -> str:
    return "'" + code.replace("'", "'\\''") + "'"


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
        command = ["run", *words, *options, "--", "bash", "-c", script]
        at, env = self.worktree, extra | (env or {})
        return warmed.launch(self.who, self.installed.python, command, cwd=at, env=env, patience=280)

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


def make(
    who: Who, installed: Installed, public_dir: Path, worktree: str, backend: str, *, submodules: bool = True
) -> Git:
    """The repository of `git_scene.SETUP`, owned by `who`; for the guard `one` is a worktree that Paddock made."""
    need_backend(backend)
    place = public_dir / "place"
    place.mkdir(exist_ok=True)
    repository.grow(who, who.give(place), SETUP, *(() if submodules else ("alone",)))
    if backend == promises.GUARD and worktree == "one":
        ok(who.run(["git", "worktree", "remove", "--force", "--force", "../one"], cwd=place / "main"))
        words = ("worktree", "add", "one", "--branch", "one", "--path", place / "one")
        ok(warmed.run(who, installed.python, words, cwd=place / "main"))
    return Git(who, installed, place, place / worktree, backend)


def ok(ended: "subprocess.CompletedProcess[str]") -> str:
    """The output of what must have succeeded."""
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
