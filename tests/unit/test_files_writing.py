"""Writing and editing: in one step, with nothing left behind, and never over what is not to be written."""

import errno
import fcntl
import os
import threading
from pathlib import Path
from unittest import mock

import pytest

from launcher.bridges.files import writing
from launcher.bridges.files.scope import Scope
from launcher.bridges.files.tool_calls import MOST_CONTENT, Write
from tests.support.file_tools import Files, boundaries

HANDOFF = ((".envrc", "protect"), (".vscode/tasks.json", "protect"), (".github/workflows/*", "report"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "wt"
    path.mkdir()
    return path


@pytest.fixture
def files(root: Path) -> Files:
    return Files(Scope(context=boundaries(root), handoff=HANDOFF))


def names(path: Path) -> list[str]:
    """All that lies in a directory, hidden names too."""
    return sorted(os.listdir(path))


def test_a_new_file_is_made_with_its_directories(root: Path, files: Files) -> None:
    """Its rights are what the umask leaves, and nothing else is left."""
    assert files.text("write", file_path="a/b/new", content="ö\n") == "created a/b/new: 3 bytes"
    assert (root / "a/b/new").read_bytes() == "ö\n".encode()
    mask = os.umask(0)
    os.umask(mask)
    assert (root / "a/b/new").stat().st_mode & 0o777 == 0o666 & ~mask
    assert (names(root), names(root / "a/b")) == (["a"], ["new"])


def test_a_file_is_replaced_in_one_step_and_keeps_its_rights(root: Path, files: Files) -> None:
    """Who has the old one open goes on reading it."""
    path = root / "file"
    mask = os.umask(0o022)
    try:
        for mode in (0o750, 0o600, 0o666, 0o777, 0o644):
            path.write_text("old")
            path.chmod(mode)
            with path.open() as reader:
                assert files.text("write", file_path="file", content="new").startswith("replaced file")
                assert reader.read() == "old"
            assert path.read_text() == "new"
            assert path.stat().st_mode & 0o777 == mode
            assert names(root) == ["file"]
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(mask)


def test_without_nameless_files_it_works_too(root: Path, files: Files) -> None:
    """Some file systems know no O_TMPFILE."""
    real = os.open

    def refusing(path: str, flags: int, *more: int, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not here")
        return real(path, flags, *more, dir_fd=dir_fd)

    with mock.patch.object(os, "open", refusing):
        assert not files("write", file_path="new", content="1").failed
        assert not files("write", file_path="new", content="2").failed
        assert not files("edit", file_path="new", old_string="2", new_string="3").failed
    assert (names(root), (root / "new").read_text()) == (["new"], "3")


def test_a_link_inside_is_followed_and_stays(root: Path, files: Files) -> None:
    """As with open(2): the file behind it is written."""
    (root / "file").write_text("old")
    (root / "link").symlink_to("file")
    assert not files("write", file_path="link", content="new").failed
    assert (root / "link").is_symlink()
    assert (root / "file").read_text() == "new"


def test_an_edit_replaces_exactly_one_place_or_all(root: Path, files: Files) -> None:
    """What is missing, ambiguous, or no change at all is told."""
    path = root / "file"
    path.write_text("a b a")
    assert files.error("edit", file_path="file", old_string="c", new_string="d") == "NO_MATCH"
    assert files.error("edit", file_path="file", old_string="a", new_string="d") == "NOT_UNIQUE"
    assert files.error("edit", file_path="file", old_string="a", new_string="a") == "INVALID_ARGUMENT"
    assert path.read_text() == "a b a"
    assert files.text("edit", file_path="file", old_string="b", new_string="") == "edited file: 1 place"
    assert path.read_text() == "a  a"
    assert files.text("edit", file_path="file", old_string="a", new_string="x", replace_all=True).endswith("2 places")
    assert path.read_text() == "x  x"


def test_an_edit_leaves_every_other_byte_alone(root: Path, files: Files) -> None:
    """Line ends and bytes of other encodings."""
    (root / "file").write_bytes(b"\xd6l\r\nhere\r\n\xff")
    assert not files("edit", file_path="file", old_string="here", new_string="there").failed
    assert (root / "file").read_bytes() == b"\xd6l\r\nthere\r\n\xff"


def test_binary_and_huge_files_are_not_edited(root: Path, files: Files) -> None:
    """Nor is a huge one made, by any way."""
    (root / "binary").write_bytes(b"a\0")
    assert files.error("edit", file_path="binary", old_string="a", new_string="b") == "BINARY_FILE"
    with (root / "huge").open("wb") as file:
        file.truncate(MOST_CONTENT + 1)
    assert files.error("edit", file_path="huge", old_string="a", new_string="b") == "TOO_LARGE"
    assert files.error("write", file_path="new", content="x" * (MOST_CONTENT + 1)) == "TOO_LARGE"
    (root / "grows").write_text("x" * 5000)
    bomb = {"file_path": "grows", "old_string": "x", "new_string": "y" * 5000, "replace_all": True}
    assert files.error("edit", **bomb) == "TOO_LARGE"
    assert names(root) == ["binary", "grows", "huge"]


@pytest.mark.parametrize(
    "path",
    [".git", ".git/config", "sub/.git/hooks/pre-commit", ".GIT/config", ".envrc", "a/.envrc", ".vscode/tasks.json"],
)
def test_what_others_would_execute_is_not_written(root: Path, files: Files, path: str) -> None:
    """git's own files and protected hand-off files, in any directory, whether they exist or not."""
    assert files.error("write", file_path=path, content="x") == "SANDBOX_VIOLATION"
    assert names(root) == []
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text("old")
    assert files.error("write", file_path=path, content="x") == "SANDBOX_VIOLATION"
    assert files.error("edit", file_path=path, old_string="old", new_string="new") == "SANDBOX_VIOLATION"
    assert (root / path).read_text() == "old"
    assert files.text("read", file_path=path) == "old"


def test_reported_handoff_files_can_be_written(root: Path, files: Files) -> None:
    """Agents rightly edit workflows; so they do files whose names only resemble git's."""
    for path in (".github/workflows/test.yml", ".gitignore", "git/config"):
        assert not files("write", file_path=path, content="x").failed, path


@pytest.mark.spec("EDGE-4")
def test_the_root_itself_is_not_written(root: Path, files: Files) -> None:
    """It can be listed and searched."""
    for path in (".", str(root), f"{root}/"):
        assert files.error("write", file_path=path, content="x") == "SANDBOX_VIOLATION"
        assert files.error("edit", file_path=path, old_string="a", new_string="b") == "SANDBOX_VIOLATION"
        assert files.text("list", directory=path) == ""
        assert files.text("glob", pattern="*", directory=path) == ""


def test_a_change_by_somebody_else_is_not_undone(root: Path, files: Files) -> None:
    """An edit that meets another writer between its reading and its renaming is refused, and the other's work stays."""
    path = root / "file"
    path.write_text("mine")
    real = writing._nameless

    def meanwhile(folder: int, mode: int) -> tuple[int, str]:
        path.write_text("somebody else's")
        return real(folder, mode)

    with mock.patch.object(writing, "_nameless", meanwhile):
        assert files.error("edit", file_path="file", old_string="mine", new_string="x") == "CHANGED"
    assert path.read_text() == "somebody else's"
    assert names(root) == ["file"]


@pytest.mark.spec("EDGE-3")
def test_edits_of_two_agents_in_one_worktree_do_not_undo_each_other(root: Path) -> None:
    """Each adds its own lines to one file, at the same time; all of them are there in the end."""
    (root / "file").write_text("end\n")

    def work(name: str) -> None:
        files = Files(Scope(context=boundaries(root)))
        for number in range(50):
            line = f"{name}{number}\nend\n"
            assert not files("edit", file_path="file", old_string="end\n", new_string=line).failed

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (root / "file").read_text().splitlines()
    assert sorted(lines) == sorted(["end", *(f"{name}{number}" for name in "ab" for number in range(50))])
    assert names(root) == ["file"]


def test_a_lock_that_is_never_given_back_does_not_hang(root: Path, files: Files) -> None:
    """Anybody can lock a directory; the tool says so after a while."""
    lock = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with mock.patch.object(writing, "PATIENCE", 0.05):
            assert files.error("write", file_path="new", content="x") == "BUSY"
    finally:
        os.close(lock)
    assert not files("write", file_path="new", content="x").failed


def test_a_failed_write_leaves_everything_as_it_was(root: Path, files: Files) -> None:
    """No space, at any of the steps: the old content stays and no new name appears."""
    path = root / "file"
    path.write_text("old")
    for step in ("write", "link", "rename"):
        with mock.patch.object(os, step, side_effect=OSError(errno.ENOSPC, "full")):
            assert files.error("write", file_path="file", content="new") == "IO_ERROR", step
        assert (path.read_text(), names(root)) == ("old", ["file"]), step


def test_what_a_killed_worker_left_is_swept(root: Path, files: Files) -> None:
    """Only names of ours, only in that directory."""
    (root / "a").mkdir()
    for name in (f"{writing.PREFIX}1234", ".paddock-other", "a/file", f"a/{writing.PREFIX}5678"):
        (root / name).write_text("")
    files.tools.sweep(Write(file_path="a/file", content=""))
    assert (names(root), names(root / "a")) == ([writing.PREFIX + "1234", ".paddock-other", "a"], ["file"])
    files.tools.sweep(Write(file_path="../elsewhere", content=""))


def test_text_that_no_file_can_hold_is_an_argument_error(files: Files) -> None:
    """A lone surrogate cannot be written as UTF-8."""
    call = Write.model_construct(file_path="new", content="\ud800")
    assert "INVALID_ARGUMENT" in files.tools.answer(call).text
