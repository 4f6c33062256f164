"""Git in the jail: everything that people and tools do with it works, and all of it reaches the repository."""

import os
from pathlib import Path

import pytest

from policy import promises
from tests.support import git_scene, identity
from tests.support.git_scene import make, ok
from tests.support.identity import Who
from tests.support.install import Installed, base_python, libraries

HUSH = "hush-"


@pytest.mark.parametrize(
    ("worktree", "backend", "name"),
    [
        ("main", promises.NAMESPACES, "root"),
        ("one", promises.GUARD, "user"),
    ],
)
def test_git_works_in_the_jail_and_its_commits_arrive(
    worktree: str, backend: str, name: str, installed: Installed, public_dir: Path, user: Who
) -> None:
    """The whole table, offline, with nested submodules and a local hook; afterwards the host's branches have it all."""
    who = identity.root(public_dir / "home") if (name, os.geteuid()) == ("root", 0) else user
    git = make(who, installed, public_dir, worktree, backend)
    before = git.outside("rev-parse", "HEAD")
    config = (git.common / "config").read_bytes()
    hooks = sorted(path.name for path in (git.common / "hooks").iterdir())
    ended = git.run(git_scene.script())
    lines = ended.stdout.splitlines()
    assert [line for line in lines if not line.startswith("ok ")] == [], ended.stdout + ended.stderr
    assert [line[3:] for line in lines] == list(git_scene.STEPS)

    assert git.outside("status", "--porcelain") == ""
    assert git.outside("log", "-1", "--format=%s") == "main: Deep."
    assert git.outside("merge-base", before, "HEAD") == before
    inner = git.outside("rev-parse", "HEAD", at="library/inner")
    assert git.outside("log", "-1", "--format=%s", inner, at="library/inner") == "inner: Deep."
    assert git.outside("ls-tree", "HEAD:", "inner", at="library").split()[2] == inner
    git.outside("fsck", "--full", "--strict")
    assert (git.common / "config").read_bytes() == config
    assert sorted(path.name for path in (git.common / "hooks").iterdir()) == hooks
    held = b"".join(path.read_bytes() for path in git.state.rglob("*") if path.is_file())
    assert HUSH.encode() not in held


def test_other_implementations_of_git_commit(user: Who, installed: Installed, public_dir: Path) -> None:
    """libgit2 and dulwich read the borrowed history and add to it, without any variable set."""
    packages = libraries("pygit2", "dulwich")
    git = make(user, installed, public_dir, "one", promises.NAMESPACES)
    for name, program in git_scene.LIBRARIES.items():
        file = public_dir / f"with-{name}.py"
        file.write_text(program)
        script = f"PYTHONPATH={packages} {base_python()} -B {file}"
        ok(git.run(script, "--ro", str(packages), "--ro", str(file)))
        assert git.outside("log", "-1", "--format=%s") == f"{name}: A commit."
        assert git.outside("status", "--porcelain") == ""
