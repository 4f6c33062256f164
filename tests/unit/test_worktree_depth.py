"""Worktrees with more directories in each other than Python has frames for."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.safefs.remove import remove_tree
from launcher.vcs.private import record
from launcher.vcs.worktrees.models import Options
from tests.support import repository
from tests.support.repository import committed, git


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """Makes a file below more directories than Python has frames for."""

    def make(top: Path) -> Path:
        path = str(top)
        for _ in range(1100):
            path += "/d"
            os.mkdir(path)
        (found := Path(path, "file")).write_text("x")
        return found

    yield make
    assert remove_tree(str(tmp_path)) == []  # pytest itself could not


def test_no_depth_is_too_much_to_be_told_and_removed(tmp_path: Path, deep: Callable[[Path], Path]) -> None:
    """Directories as deep as an agent likes, ignored ones and those of a repository inside."""
    place = repository.plain(tmp_path)
    committed(place.app, **{".gitignore": "data/\n"})
    made = place.service.add(place.app, "T")
    inner = Path(made.path, "inner")
    for name in (inner, Path(made.path, "data")):
        name.mkdir()
    git("init", "-q", at=inner)
    committed(inner, a="a\n")
    deep(Path(made.path, "data"))
    kept = deep(inner)
    assert place.service.status(made).ignored() == ["1 file, 1 byte: data/"]
    (store, ref), _ = place.service.remove(made, force=True).backups
    assert git("cat-file", "blob", f"{ref}:{kept.relative_to(made.path)}", at=Path(store)) == "x"
    assert not Path(made.path).exists()
    private = Path(record.directory_of(place.state, made.worktree_id), record.GIT)
    private.mkdir(parents=True)
    deep(private)
    place.service.add(place.app, "T", Options(branch="other"))
    assert not private.parent.exists()
