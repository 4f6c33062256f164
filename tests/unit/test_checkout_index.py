"""The index of a checkout after a harvest, as far as no jail is needed to look at it."""

import os
import tracemalloc
from pathlib import Path

from launcher.vcs.git import Git
from launcher.vcs.harvest import checkout_index
from tests.support.ground import Ground


def test_deep_paths_are_looked_through_one_by_one(tmp_path: Path) -> None:
    """All beginnings of deep paths, held together, would take a thousand times as much as the paths."""
    ground = Ground(tmp_path / "repo", {"a": "a\n"})
    blob = ground.id("HEAD:a")
    paths = [f"{number}/{'d/' * 1000}f" for number in range(8)]
    ground.run("update-index", "--index-info", stdin="".join(f"100644 {blob}\t{path}\n" for path in paths).encode())
    git, index = Git(ground.root / ".git"), str(ground.root / ".git/index")
    tracemalloc.start()
    try:
        assert not checkout_index._trapped(git, str(ground.root), index)
        assert tracemalloc.get_traced_memory()[1] < 100 * len("".join(paths))
    finally:
        tracemalloc.stop()


def test_a_fifo_as_attributes_of_any_directory_is_found(tmp_path: Path) -> None:
    """At the root, in a directory that has files, in one that has only directories; not in one without a file."""
    ground = Ground(tmp_path / "repo", {"a": "a\n", "b/c/d": "d\n", "b/c-d": "d\n", "e/f/g/h": "h\n"})
    git, index = Git(ground.root / ".git"), str(ground.root / ".git/index")
    (ground.root / "none").mkdir()
    for place, trapped in (("", True), ("b/c", True), ("e/f", True), ("e/f/g", True), ("none", False)):
        fifo = ground.root / place / ".gitattributes"
        os.mkfifo(fifo)
        assert checkout_index._trapped(git, str(ground.root), index) is trapped
        fifo.unlink()
    assert not checkout_index._trapped(git, str(ground.root), index)
