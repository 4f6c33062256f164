"""Reading and listing: lines, sizes, encodings, and what is no file at all."""

import os
import socket
from pathlib import Path

import pytest

from launcher.bridges.files.scope import Scope
from launcher.bridges.files.tool_calls import MOST_TEXT
from tests.support.file_tools import Files, boundaries


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "wt"
    path.mkdir()
    return path


@pytest.fixture
def files(root: Path) -> Files:
    return Files(Scope(context=boundaries(root)))


def test_the_text_comes_back_unchanged(root: Path, files: Files) -> None:
    """Line ends of every kind, a missing last one, and nothing at all."""
    for text in ("", "one", "one\n", "one\r\ntwo\r\n", "ein Öl\n\n", "\u2028\x1b[0m"):
        (root / "file").write_bytes(text.encode())
        assert files("read", file_path="file") == (text, "", False)


def test_lines_are_counted_from_one(root: Path, files: Files) -> None:
    """offset and limit cut out whole lines, and the note says where to go on."""
    (root / "file").write_text("".join(f"{number}\n" for number in range(1, 11)))
    answer = files("read", file_path="file", offset=3, limit=2)
    assert answer.text == "3\n4\n"
    assert answer.note == "lines 3 to 4; the file continues at offset 5"
    assert files("read", file_path="file", offset=9, limit=2) == ("9\n10\n", "", False)
    assert files("read", file_path="file", offset=9) == ("9\n10\n", "", False)
    assert files("read", file_path="file", offset=11) == ("", "", False)
    assert files.error("read", file_path="file", offset=12) == "INVALID_ARGUMENT"
    (root / "file").write_text("1\n")
    assert '"the file has only 1 line"' in files("read", file_path="file", offset=3).text


def test_a_large_file_is_read_in_pieces(root: Path, files: Files) -> None:
    """Each answer is bounded; together they are the file."""
    whole = "".join(f"line {number}\n" for number in range(60_000))
    (root / "file").write_text(whole)
    assert len(whole) > 2 * MOST_TEXT
    pieces: list[str] = []
    offset = 1
    while True:
        answer = files("read", file_path="file", offset=offset)
        assert not answer.failed
        assert len(answer.text) <= MOST_TEXT
        pieces.append(answer.text)
        if not answer.note:
            break
        offset = int(answer.note.rpartition(" ")[2])
    assert "".join(pieces) == whole


def test_a_huge_line_is_cut(root: Path, files: Files) -> None:
    """Its beginning is shown, whole characters only, and that it is not all."""
    (root / "file").write_text("x" + "ö" * MOST_TEXT)
    answer = files("read", file_path="file")
    assert answer.text == "x" + "ö" * ((MOST_TEXT - 1) // 2)
    assert "longer than 256 KiB" in answer.note


def test_a_sparse_file_without_end_costs_nothing(root: Path, files: Files) -> None:
    """A terabyte of nothing is told by its first bytes, or by how far a line lies in it."""
    with (root / "file").open("wb") as file:
        file.truncate(1 << 40)
    assert files.error("read", file_path="file") == "BINARY_FILE"
    assert files.error("read", file_path="file", offset=2) == "TOO_LARGE"


def test_binary_files_are_not_shown(root: Path, files: Files) -> None:
    """A NUL byte makes a file binary, and the message says its size."""
    (root / "file").write_bytes(b"\x7fELF\0\0")
    answer = files("read", file_path="file")
    assert "BINARY_FILE" in answer.text
    assert "(6 bytes)" in answer.text


def test_other_encodings_are_shown_escaped(root: Path, files: Files) -> None:
    """Bytes that are no UTF-8 are readable, and the note says what they are."""
    (root / "file").write_bytes("Öl\n".encode("latin-1"))
    answer = files("read", file_path="file")
    assert answer.text == "\\xd6l\n"
    assert "not UTF-8" in answer.note


def test_what_is_no_regular_file_is_refused_at_once(root: Path, files: Files) -> None:
    """Directories, FIFOs without a writer, sockets and devices: nobody waits for them."""
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        for name in ("fifo", "socket", "."):
            assert files.error("read", file_path=name) == "NOT_A_FILE", name
        for name in ("fifo", "socket"):
            assert files.error("write", file_path=name, content="x") == "NOT_A_FILE", name
            assert files.error("edit", file_path=name, old_string="a", new_string="b") in ("NOT_A_FILE", "IO_ERROR")
            assert files.error("grep", pattern="x", target=name) == "NOT_A_FILE", name
    assert Files(Scope(context=None)).error("read", file_path="/dev/zero") == "NOT_A_FILE"


def test_missing_files_are_told(files: Files, root: Path) -> None:
    """A name that is not there, and one below a file."""
    (root / "file").write_text("")
    assert files.error("read", file_path="none") == "NOT_FOUND"
    assert files.error("read", file_path="file/none") in ("NOT_FOUND", "NOT_A_DIRECTORY")
    assert files.error("list", directory="none") == "NOT_FOUND"
    assert files.error("list", directory="file") == "NOT_A_DIRECTORY"


def test_a_listing_says_what_things_are(root: Path, files: Files) -> None:
    """Sorted, with a mark each; names that would break the lines are escaped."""
    (root / "b").mkdir()
    (root / "a").write_text("")
    (root / "link").symlink_to("/etc")
    os.mkfifo(root / "pipe")
    (root / "new\nline").write_text("")
    Path(os.fsdecode(os.fsencode(root) + b"/\xff")).write_text("")
    assert files.text("list").split("\n") == ["a", "b/", "link@", "new\\nline", "pipe|", "\\xff"]


def test_a_huge_directory_is_cut(root: Path, files: Files) -> None:
    """The first names are shown, and how many there are."""
    for number in range(2100):
        (root / f"{number:05}").touch()
    answer = files("list")
    assert len(answer.text.splitlines()) == 2000
    assert answer.note.startswith("the first 2000 of 2100 entries")
