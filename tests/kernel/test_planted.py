"""What one jail leaves in the worktree opens nothing to the next one. Each case was a hole that a tester found."""

import shlex
import shutil
from pathlib import Path

import pytest

from tests.support.identity import AS_A_USER
from tests.support.paddock import Paddock

# A submodule in the old layout, with its git directory inside, that borrows objects from anywhere.
SUBMODULE = """
mkdir -p x/.git/objects/info x/.git/refs
echo x >x/.git/HEAD
echo {target} >x/.git/objects/info/alternates
printf '[submodule "x"]\\n\\tpath = x\\n' >>.gitmodules
"""
# A repository of its own in a directory, which is then "the worktree that holds the current directory".
REPOSITORY = "mkdir src && cd src && git init -q . && echo {target} >.git/objects/info/alternates"


@pytest.fixture
def secret(paddock: Paddock) -> Path:
    """A file in a directory beside the worktree."""
    directory = paddock.place / "keys"
    directory.mkdir()
    (directory / "id").write_text("KEY\n")
    paddock.who.give(directory)
    return directory / "id"


@AS_A_USER
def test_a_planted_submodule_borrows_nothing(paddock: Paddock, secret: Path, backend: dict[str, str]) -> None:
    """A git directory that a jail made names its own object stores; none of them is granted to the next run."""
    planted = SUBMODULE.format(target=shlex.quote(str(secret.parent)))
    assert paddock.run("sh", "-c", planted, env=backend).returncode == 0
    ended = paddock.run("cat", secret, env=backend)
    assert ended.returncode != 0
    assert "KEY" not in ended.stdout
    assert paddock.run("cat", "file", env=backend).stdout == "content\n"


@AS_A_USER
def test_a_planted_repository_borrows_nothing(paddock: Paddock, secret: Path) -> None:
    """So does a repository that a jail made below the worktree, when somebody starts the next jail in there."""
    planted = REPOSITORY.format(target=shlex.quote(str(secret.parent)))
    assert paddock.run("sh", "-c", planted).returncode == 0
    ended = paddock.call("run", "--", "cat", str(secret), cwd=paddock.worktree / "src")
    assert "KEY" not in ended.stdout
    assert "which is not granted" in ended.stderr
    words = ("run", "--ro", str(secret.parent), "--", "cat", str(secret))
    assert "[git-dir-written]" in paddock.call(*words, cwd=paddock.worktree / "src").stderr
    assert str(secret.parent) in paddock.call("trust", ".", cwd=paddock.worktree / "src").stdout
    assert paddock.call(*words, cwd=paddock.worktree / "src").stdout == "KEY\n"


@AS_A_USER
def test_a_planted_link_as_the_command_grants_nothing(paddock: Paddock, backend: dict[str, str]) -> None:
    """A command in the worktree that has become a link to a programme elsewhere is refused; called by name it runs."""
    tools = paddock.place / "tools"
    tools.mkdir()
    (tools / "tool").write_text("#!/bin/sh\necho ran\n")
    (tools / "tool").chmod(0o755)
    paddock.who.give(tools)
    assert paddock.run("ln", "-s", tools / "tool", "tool", env=backend).returncode == 0
    ended = paddock.run("./tool", env=backend)
    assert ended.returncode == 126
    assert "[command-leaves-worktree]" in ended.stderr
    assert paddock.run(tools / "tool", env=backend).stdout == "ran\n"


@AS_A_USER
@pytest.mark.parametrize("words", [("run", "--", "true"), ("doctor",)], ids=["run", "doctor"])
def test_a_planted_programme_on_path_is_not_run_outside(paddock: Paddock, words: tuple[str, ...]) -> None:
    """What Paddock runs itself comes from the system, though PATH leads into the worktree first."""
    tools = paddock.worktree / "bin"
    script = f'#!/bin/sh\necho "$0" >>{shlex.quote(str(paddock.place / "ran"))}\n'
    for name in ("git", "bwrap", "sleep"):
        assert paddock.run("sh", "-c", 'mkdir -p bin; printf %s "$1" >bin/$2; chmod +x bin/$2', "sh", script, name)
    assert sorted(path.name for path in tools.iterdir()) == ["bwrap", "git", "sleep"]
    shutil.rmtree(paddock.state)  # the private home is made, and the user's name asked for, at the first run only
    ended = paddock.call(*words, env={"PATH": f"{tools}:{paddock.who.path}"})
    assert ended.returncode == 0, ended.stderr
    assert not (paddock.place / "ran").exists()
