"""Repositories of every shape hand their commits over: without a commit yet, SHA-256, sparse, detached, packed."""

from pathlib import Path

import pytest

from tests.support.features import need
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.paddock import Paddock

IDENTITY = "git config user.name Tester; git config user.email tester@example.invalid"
FIRST = f"{IDENTITY}; mkdir -p a b; echo a >a/file; echo b >b/file; git add .; git commit -qm First."
WORK = "mkdir -p a; echo work >>a/file; echo new >new; git add -A --sparse . && git commit -qm 'agent: Work.'"

CLEAN = 'test -z "$(git status --porcelain)"'

SHAPES = {
    "no commit yet": (f"git init -q .; {IDENTITY}", WORK),
    "SHA-256": (f"git init -q --object-format=sha256 .; {FIRST}", WORK),
    "sparse index": (f"git init -q .; {FIRST}; git sparse-checkout set --cone --sparse-index a", WORK),
    "split index, detached": (
        f"git init -q .; {FIRST}; git update-index --split-index; git checkout -q --detach",
        WORK,
    ),
    "packed refs, and a merge, renames and removals in the jail": (
        f"git init -q .; {FIRST}; git checkout -q -b other; echo o >other; git add .; git commit -qm Other.; "
        "git checkout -q -; git gc -q; git pack-refs --all",
        f"{WORK}; git mv a c; git rm -q b/file; echo x >b; git add b; git commit -qm 'agent: Moved.'; "
        "git merge -q --no-edit other; git gc -q; git pack-refs --all",
    ),
    "shallow": (
        f"mkdir ~/up; cd ~/up; git init -q .; {FIRST}; git commit -q --allow-empty -m Second.; cd - >/dev/null; "
        f'git clone -q --depth 1 "file://$HOME/up" .; {IDENTITY}',
        WORK,
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_repository_of_any_shape_hands_its_commits_over(
    user: Who, installed: Installed, public_dir: Path, shape: str
) -> None:
    """Two sessions commit; after each the user's HEAD has the work, his index agrees, and fsck finds nothing. Each
    repository has an odd name.
    """
    need("landlock")
    need("userns")
    place = public_dir / 'odd [x] "y" ü'
    place.mkdir()
    here = Paddock(user, installed, user.give(place), place, place)
    prepare, work = SHAPES[shape]
    assert user.run(["sh", "-euc", prepare], cwd=place).returncode == 0
    for turn, command in enumerate((work, "echo more >more && git add --sparse more && git commit -qm 'agent: More.'")):
        ended = here.run("--git", "private", "--", "sh", "-euc", f"{CLEAN}; {command}; git fsck")
        assert ended.returncode == 0, ended.stderr
        assert "harvested to" in ended.stderr, ended.stderr
        status = user.run(["git", "status", "--porcelain"], cwd=place)
        assert (status.returncode, status.stdout) == (0, ""), (turn, status.stdout, ended.stderr)
        assert user.run(["git", "fsck", "--strict", "--no-dangling"], cwd=place).returncode == 0
    assert user.run(["git", "log", "-1", "--format=%s"], cwd=place).stdout == "agent: More.\n"
