"""Gitlinks found by their mode in an index are those that git lists."""

import os
import subprocess
from pathlib import Path

import pytest

from launcher.session import inputs, submodule_places
from launcher.vcs import written
from launcher.vcs.git import Git
from launcher.vcs.private import planted

ODD = ("plain", "with space", "ü", "new\nline", "deep/er/place", "x" * 200, "y" * 4095, "\udcff")


def git(place: Path, *words: str, stdin: bytes = b"") -> bytes:
    """Runs git in `place`."""
    return subprocess.run(["git", "-C", str(place), *words], input=stdin, capture_output=True, check=True).stdout


@pytest.mark.parametrize("version", ["2", "3", "4", "split"])
@pytest.mark.parametrize("algorithm", ["sha1", "sha256"])
def test_they_are_those_that_git_lists(tmp_path: Path, algorithm: str, version: str) -> None:
    """In every version of the format, whatever the names; and none where there is none."""
    git(tmp_path, "init", "-q", f"--object-format={algorithm}")
    (tmp_path / "link").write_text("link")
    (tmp_path / "symbolic-link").write_text("")
    git(tmp_path, "add", ".")
    assert submodule_places.named(f"{tmp_path}/.git") == []
    oid = "1" * (40 if algorithm == "sha1" else 64)
    lines = b"".join(f"160000 {oid}\t".encode() + name.encode("utf-8", "surrogateescape") + b"\0" for name in ODD)
    git(tmp_path, "update-index", "-z", "--index-info", stdin=lines)
    if version == "3":
        git(tmp_path, "update-index", "--skip-worktree", "plain", "link")
    elif version == "split":
        git(tmp_path, "update-index", "--split-index")
    else:
        git(tmp_path, "update-index", "--index-version", version)
    assert (tmp_path / ".git/index").read_bytes()[7] == (2 if version == "split" else int(version))
    assert sorted(submodule_places.named(f"{tmp_path}/.git")) == sorted(ODD)


def test_names_that_look_like_entries_are_no_more_than_names(tmp_path: Path) -> None:
    """An index that is no index, and none at all, name nothing."""
    assert submodule_places.named(str(tmp_path)) == []
    (tmp_path / "index").write_bytes(b"DIRC\0\0\0\2" + b"\0\0\xe0\0" * 40)
    assert submodule_places.named(str(tmp_path)) == []


@pytest.mark.parametrize("version", ["3", "4", "split"])
def test_no_index_of_an_agents_is_given_to_git(tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an agent could write, it is read here: with bounds, whole or damaged in whatever way."""
    git(tmp_path, "init", "-q")
    oid = "1" * 40
    git(tmp_path, "update-index", "-z", "--index-info", stdin=f"160000 {oid}\tone\0".encode())
    git(tmp_path, "update-index", *(["--split-index"] if version == "split" else ["--index-version", version]))
    monkeypatch.setattr(written, "agents_tree", lambda git_dir: str(tmp_path))
    monkeypatch.setattr(Git, "run", None)
    index = tmp_path / ".git/index"
    whole = index.read_bytes()
    assert submodule_places.named(f"{tmp_path}/.git") == ["one"]
    for at in range(len(whole)):
        for content in (whole[:at], whole[:at] + b"\xff" + whole[at + 1 :]):
            index.write_bytes(content)
            assert len(submodule_places.named(f"{tmp_path}/.git")) < 3  # neither an error, nor without end
    index.unlink()
    os.mkfifo(index)
    assert submodule_places.named(f"{tmp_path}/.git") == []


def test_an_index_is_read_again_only_when_it_is_another_one(tmp_path: Path) -> None:
    """An answer holds as long as its index is the same file; then, or without a mark, by what is named there."""
    git(tmp_path, "init", "-q")
    git(tmp_path, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},one")
    git_dir = f"{tmp_path}/.git"
    mark = inputs.ask(inputs.CONTENT, f"{git_dir}/index", {})

    def holds(mark: object, *names: str) -> bool:
        return inputs.unchanged(((inputs.LINKS, git_dir, (mark, names)),), {})

    assert holds(mark, "not looked at")
    assert not holds(None, "not looked at")
    assert holds(None, "one")
    git(tmp_path, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},two")
    assert not holds(mark, "one")
    assert holds(mark, "one", "two")


def test_a_note_that_was_lost_with_the_power_is_told_once(tmp_path: Path) -> None:
    """An empty file is what a rename can leave (ext4(5), auto_da_alloc); a whole one is gone when nothing is left."""
    session = tmp_path / "sessions/one"
    session.mkdir(parents=True)
    (session / planted.NOTE).touch()
    assert "was killed" in "".join(planted.sweep(str(tmp_path)))
    planted.write(str(session), (("/gone", "/gone/.git", "/gone/library"),), str(tmp_path))
    assert planted.sweep(str(tmp_path)) == []
    assert list(session.iterdir()) == []
