"""Gitlinks in trees: finding them, and trees with other ones, as signing makes them."""

import inspect
import sys
from pathlib import Path

import pytest

from launcher.vcs.git import Git
from launcher.vcs.gitlinks import Gitlink, gitlinks_of, paths_by_name
from launcher.vcs.harvest.signing import retreed
from policy.errors import Refusal
from tests.support.ground import Entry, Ground

_OLD, _NEW = "1" * 40, "2" * 40


def test_more_submodules_are_found_than_fit_on_a_command_line(tmp_path: Path) -> None:
    """`.gitmodules` is the agent's, and its paths need not exist."""
    names = [f"{number:0200}" for number in range(12_000)]
    text = "".join(f'[submodule "{name}"]\npath={name}\n' for name in names)
    ground = Ground(tmp_path / "repo", {".gitmodules": text, names[7]: Entry("160000", _OLD), "m": "m\n"})
    assert gitlinks_of(Git(ground.root / ".git"), "main") == {names[7]: Gitlink(names[7], names[7], _OLD)}


def test_a_gitlink_below_more_directories_than_there_are_frames_is_replaced(tmp_path: Path) -> None:
    """An agent's path may have some thousand names; what lies beside it on the way stays as it is."""
    depth = 120
    deep, odd = "d/" * depth + "lib", ":(odd)\nname/lib"
    ground = Ground(tmp_path / "repo", {"m": "m\n"})
    ground.commit("one", {deep: Entry("160000", _OLD), odd: Entry("160000", _OLD), "d/x": "x\n", "lib": "a file\n"})
    git = Git(ground.root / ".git")
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + depth)
    try:
        made = retreed(git, ground.tree("one"), {path: {_OLD: _NEW} for path in (deep, odd)}, {})
    finally:
        sys.setrecursionlimit(before)
    assert len(made) == depth + 2
    differing = ground.git("diff-tree", "-r", "-z", "--name-only", "one", made[-1]).split("\0")
    assert sorted(filter(None, differing)) == sorted((deep, odd))
    assert ground.id(f"{made[-1]}:{deep}") == ground.id(f"{made[-1]}:{odd}") == _NEW


def test_submodules_of_a_file_without_end_are_not_read(tmp_path: Path) -> None:
    """One of many megabytes is refused, or names none where a broken one does; it would take ten times that."""
    ground = Ground(tmp_path / "repo", {"a": "a\n"})
    section = '[submodule "s"]\n\tpath = s\n'
    ground.branch("few", {".gitmodules": section})
    ground.branch("many", {".gitmodules": section + "#" * (8 << 20)})
    git = Git(ground.root / ".git")
    assert paths_by_name(git, ground.id("few")) == {"s": "s"}
    with pytest.raises(Refusal) as raised:
        paths_by_name(git, ground.id("many"))
    assert raised.value.reference == "gitmodules-too-large"
    assert paths_by_name(git, ground.id("many"), ok=(0, 1, 3, 128)) == {}
