"""Searching by name and by content, in bounded time and with bounded answers."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from launcher.bridges.files import searching
from launcher.bridges.files.scope import Scope
from launcher.bridges.files.tool_calls import MOST_TEXT, ErrorType, ToolFailed
from tests.support.file_tools import Files, boundaries, error_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "wt"
    for name in ("src/app/main.py", "src/app/data.txt", "src/lib.py", "top.py", ".hidden/x.py", ".git/config.py"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(f"# {name}\nneedle\n")
    return path


@pytest.fixture
def files(root: Path) -> Files:
    return Files(Scope(context=boundaries(root)))


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.py", "top.py"),
        ("**/*.py", ".hidden/x.py src/app/main.py src/lib.py top.py"),
        ("src/**", "src/app/data.txt src/app/main.py src/lib.py"),
        ("src/*/*", "src/app/data.txt src/app/main.py"),
        ("**/app/*.txt", "src/app/data.txt"),
        ("src/**/**/main.py", "src/app/main.py"),
        ("./src/[kl]ib.p?", "src/lib.py"),
        ("nothing*", ""),
        (".git/*", ""),
    ],
)
def test_glob_finds_files_by_their_paths(files: Files, pattern: str, found: str) -> None:
    """`*` stays in one component, `**` goes through any; hidden files count, git's own do not."""
    assert files.text("glob", pattern=pattern).split() == found.split()


def test_patterns_that_lead_out_are_refused(files: Files) -> None:
    """They are about paths below the directory."""
    for pattern in ("/etc/*", "../*", "src/../../*", "/"):
        assert files.error("glob", pattern=pattern) == "INVALID_ARGUMENT", pattern
        assert files.error("grep", pattern="x", glob=pattern) == "INVALID_ARGUMENT", pattern


def test_grep_finds_lines(files: Files) -> None:
    """With path and number, below a directory or in one file, filtered by name, in any case of letters."""
    assert files.text("grep", pattern="^need").splitlines() == [
        ".hidden/x.py:2:needle", "src/app/data.txt:2:needle", "src/app/main.py:2:needle", "src/lib.py:2:needle",
        "top.py:2:needle",
    ]  # fmt: skip
    assert files.text("grep", pattern="needle", target="src", glob="*.txt") == "app/data.txt:2:needle"
    assert files.text("grep", pattern="needle", target="src", glob="app/*.py") == "app/main.py:2:needle"
    assert files.text("grep", pattern="NEEDLE", target="top.py") == ""
    assert files.text("grep", pattern="NEEDLE", target="top.py", ignore_case=True) == "top.py:2:needle"
    assert files.error("grep", pattern="x", target="none") == "NOT_FOUND"


def test_results_are_bounded(root: Path, files: Files) -> None:
    """By their number and by their size, and the note says so."""
    (root / "many").write_text("line\n" * 5000)
    answer = files("grep", pattern="line", limit=7)
    assert len(answer.text.splitlines()) == 7
    assert "more" in answer.note
    (root / "wide").write_text(("x" * 10_000 + "\n") * 2000)
    answer = files("grep", pattern="x", target="wide", limit=2000)
    assert len(answer.text.encode()) <= MOST_TEXT
    assert "more" in answer.note
    assert all(len(line) <= searching.MOST_SHOWN + 20 for line in answer.text.splitlines())


def test_links_are_not_followed(root: Path, files: Files, tmp_path: Path) -> None:
    """Neither out of the worktree nor around in it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret.py").write_text("needle")
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "out.py").symlink_to(tmp_path / "outside/secret.py")
    (root / "loop").symlink_to(".")
    assert "out" not in files.text("glob", pattern="**")
    assert "out" not in files.text("grep", pattern="needle")


@pytest.mark.spec("US6.2", "FR-018")
def test_what_is_denied_is_left_out(root: Path) -> None:
    """A submodule that is not granted, and a denied path, do not show in what is found above them."""
    files = Files(Scope(context=boundaries(root, closed=("src/app",), denied=(root / ".hidden",))))
    assert files.text("glob", pattern="**").split() == ["src/lib.py", "top.py"]
    assert files.text("grep", pattern="needle").split() == ["src/lib.py:2:needle", "top.py:2:needle"]
    assert files.error("grep", pattern="needle", target="src/app") == "SANDBOX_VIOLATION"
    assert files.error("glob", pattern="*", directory=".hidden") == "SANDBOX_VIOLATION"


def test_binary_files_and_what_cannot_be_read_are_left_out(root: Path, files: Files) -> None:
    """A search goes on."""
    (root / "binary").write_bytes(b"needle\0")
    os.mkfifo(root / "fifo")
    (root / "latin").write_bytes(b"\xd6 needle\n")
    text = files.text("grep", pattern="needle")
    assert "binary" not in text
    assert "latin:1:\\\\xd6 needle" in text.replace("\\xd6", "\\\\xd6")


def test_a_pattern_that_takes_for_ever_is_ended(root: Path) -> None:
    """The kernel ends it, within a match too; what was found until then is answered."""
    (root / "victim").write_text("needle\n" + "a" * 64 + "!\n")

    def work() -> Iterator[str]:
        import re

        for line in (root / "victim").read_text().splitlines():
            if re.search("needle|^(a|a)*$", line):
                yield line

    before = time.monotonic()
    found = searching.lines_of(work, 10, seconds=0.5)
    assert found == (["needle"], "stopped after 0.5 seconds")
    assert time.monotonic() - before < 30


def test_a_pattern_that_python_does_not_take_is_told(files: Files) -> None:
    """The next search works."""
    for pattern in ("(", "[", "a{99999999999}", "(?P<x>a)(?P<x>b)", "(" * 2000 + ")" * 2000):
        assert files.error("grep", pattern=pattern) == "INVALID_ARGUMENT", pattern[:20]
    assert files.text("grep", pattern="needle", target="top.py") == "top.py:2:needle"


def test_work_that_takes_all_memory_is_ended() -> None:
    """Its own process runs out of it, and nobody else."""

    def work() -> Iterator[str]:
        yield str(len(bytearray(2 * searching.SEARCH_MEMORY)))

    with pytest.raises(ToolFailed, match="memory"):
        searching.lines_of(work, 10)


def test_failures_of_bounded_work_are_raised_here() -> None:
    """What the work raises in its process is raised in this one, also after it has yielded something."""

    def refuses() -> Iterator[str]:
        yield "one"
        raise ToolFailed(ErrorType.NO_MATCH, "because")

    def fails() -> Iterator[str]:
        yield from ()
        raise FileNotFoundError(2, "gone")

    with pytest.raises(ToolFailed, match="because"):
        searching.lines_of(refuses, 10)
    with pytest.raises(FileNotFoundError):
        searching.lines_of(fails, 10)


def test_tabs_stay_and_other_control_characters_do_not(root: Path, files: Files) -> None:
    """What is found can be copied into an edit; a terminal is not driven by it."""
    (root / "file").write_text("\tneedle\x1b[31m\r\n")
    assert files.text("grep", pattern="needle", target="file") == "file:1:\tneedle\\x1b[31m"


def test_a_huge_line_is_searched_in_its_beginning(root: Path, files: Files) -> None:
    """Its rest is left out, and the next line keeps its number."""
    (root / "huge").write_text("needle" + "x" * (3 << 20) + "tail\nneedle\n")
    assert [line[:13] for line in files.text("grep", pattern="needle", target="huge").splitlines()] == [
        "huge:1:needle", "huge:2:needle",
    ]  # fmt: skip
    assert files.text("grep", pattern="tail", target="huge") == ""


def test_a_very_deep_tree_ends_somewhere(root: Path, files: Files) -> None:
    """The search does not run out of descriptors."""
    path = root
    for _ in range(250):
        path = path / "d"
    os.makedirs(path)
    assert files.text("glob", pattern="top.py") == "top.py"


@pytest.mark.spec("SC-005", "US6.2")
def test_what_lies_in_a_closed_directory_is_denied_by_that_directory(root: Path) -> None:
    """In the jail the directory cannot even be looked into, but its name says enough."""
    files = Files(Scope(context=boundaries(root, closed=("src/app",), denied=(root / ".hidden",))))
    real = os.open

    def masked(path: str, flags: int, *more: int, dir_fd: int | None = None) -> int:
        if isinstance(path, str) and (".hidden/" in path or "src/app/" in path):
            raise PermissionError(13, "masked")
        return real(path, flags, *more, dir_fd=dir_fd)

    def stat(path: str, **options: object) -> os.stat_result:
        if ".hidden/" in path or "src/app/" in path:
            raise PermissionError(13, "masked")
        return os.stat_result(real_lstat(path))

    real_lstat = os.lstat
    with mock.patch.object(os, "open", masked), mock.patch.object(os, "lstat", stat):
        for path, words in (("src/app/main.py", "submodule src/app"), (".hidden/x.py", ".hidden, which is denied")):
            answer = files("read", file_path=path)
            assert error_of(answer) == "SANDBOX_VIOLATION"
            assert words in answer.text
