"""A checkout by several workers gives what one gives: every file, and an index that git itself would have written."""

import os
from pathlib import Path

import pytest

from launcher.vcs.git import GitFailed
from launcher.vcs.worktrees.models import Options
from launcher.vcs.worktrees.worktree_service import WorktreeService
from tests.support import repository
from tests.support.repository import Place, git

_STAT = ("ctime", "mtime", "dev")
"""What differs between two checkouts, beside the inode."""


def _place(root: Path, object_format: str) -> Place:
    """A repository with attributes, links, modes, long and odd names, and directories that all workers share."""
    app = root / "app"
    app.mkdir()
    git("init", "-q", "-b", "main", f"--object-format={object_format}", at=app)
    deep = app / "a" / "b"
    deep.mkdir(parents=True)
    for number in range(40):
        (deep / f"file-{number:02}").write_text(f"{number}\n" * number)
    (app / "a/b-c").write_text("sorts before a/b/\n")
    (app / "a/windows").mkdir()
    (app / "a/windows/.gitattributes").write_text("*.txt text eol=crlf\n*.id ident\n")
    (app / "a/windows/x.txt").write_bytes(b"one\ntwo\n")
    (app / "a/windows/y.id").write_text("$Id$\n")
    (app / "run").write_text("#!/bin/sh\n")
    (app / "run").chmod(0o755)
    (app / "link").symlink_to("a/b")
    os.mkdir(os.fsencode(app) + b"/\xff\xfe")
    for name in (b"\xff\xfe/\n", b"\xff\xfe/" + b"n" * 200):
        with open(os.fsencode(app) + b"/" + name, "wb") as file:
            file.write(name)
    git("add", ".", at=app)
    git(
        "update-index",
        "--add",
        "--cacheinfo",
        f"160000,{'1' * (64 if object_format == 'sha256' else 40)},z/module",
        at=app,
    )
    git("commit", "-q", "-m", "First.", at=app)
    return Place(root, app, WorktreeService(str(root / "state")))


def _tree(root: Path) -> dict[bytes, tuple[int, bytes]]:
    found = {}
    top = os.fsencode(root)
    for here, directories, names in os.walk(top):
        for name in (*directories, *names):
            path = os.path.join(here, name)
            mode = os.lstat(path).st_mode
            if os.path.islink(path):
                content = os.readlink(path)
            elif os.path.isdir(path):
                content = b""
            else:
                with open(path, "rb") as file:
                    content = file.read()
            if name != b".git":
                found[path[len(top) :]] = (mode, content)
    return found


def _index(root: Path) -> list[str]:
    """The index with what a checkout notes of each file, but for what differs anyway."""
    listed = git("ls-files", "--stage", "--debug", at=root).splitlines()
    return [line.partition("ino:")[0] for line in listed if not line.strip().startswith(_STAT)]


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_it_is_what_one_git_writes(tmp_path: Path, object_format: str) -> None:
    """Files, their conversion by attributes, modes, links, and an index in which nothing has to be read again."""
    place = _place(tmp_path, object_format)
    one = place.service.add(place.app, "one", Options(workers=1))
    three = place.service.add(place.app, "three", Options(workers=3))
    git("worktree", "add", "-q", str(tmp_path / "gits"), at=place.app)
    assert _tree(Path(three.path)) == _tree(Path(one.path)) == _tree(tmp_path / "gits")
    assert (Path(three.path) / "a/windows/x.txt").read_bytes() == b"one\r\ntwo\r\n"
    assert _index(Path(three.path)) == _index(tmp_path / "gits")
    # Plumbing compares no content: all times are known.
    assert git("diff-files", at=Path(three.path)) == ""
    assert git("status", "--porcelain", at=Path(three.path)) == ""
    assert git("fsck", "--strict", at=Path(three.path)) == ""
    left = [name for name in os.listdir(three.main.git_dir) if name.startswith("index")]
    assert left == ["index"]


def test_an_object_that_is_missing_undoes_all(tmp_path: Path) -> None:
    """Nothing of the other files is left behind."""
    place = _place(tmp_path, "sha1")
    oid = git("rev-parse", "HEAD:run", at=place.app)
    (place.app / ".git/objects" / oid[:2] / oid[2:]).unlink()
    with pytest.raises(GitFailed):
        place.service.add(place.app, "T", Options(workers=3))
    assert repository.leftovers(place) == []
    assert place.branches == {"main"}
    assert not (tmp_path / "app-T").exists()
