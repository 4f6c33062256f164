"""A terminal's rendering of what was written there: which text stands where, what is printed of it, and its bounds."""

import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pyte
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from launcher.service import screen
from launcher.service.screen import Rendering, Screen


def shown(text: str, rows: int = 6, columns: int = 20) -> list[str]:
    """The screen's rows after `text`."""
    terminal = Screen(rows, columns)
    terminal.feed(text)
    return [row.text for row in terminal.rows]


def printed(*records: tuple[str, str] | str, tail: int | None = None, times: bool = False) -> list[str]:
    """The lines that are printed of a log; a record is (stream, text), or what was written."""
    reader, writer = os.pipe()
    rendering = Rendering(writer, tail=tail, times=times)
    for at, record in enumerate(records):
        stream, text = ("stdout", record) if isinstance(record, str) else record
        rendering.take({"time": at, "stream": stream, "text": text, "more": True})
    rendering.end()
    os.close(writer)
    with open(reader, "rb") as file:
        return file.read().decode().splitlines()


def test_lines_are_complete_scrollback() -> None:
    """All of them, blank ones too; a long one is one line, as wide as it was."""
    lines = [f"line {number}" + " word" * 40 * (number % 3 == 0) for number in range(500)]
    lines[7] = ""
    assert printed("\r\n".join(lines) + "\r\n") == lines


def test_progress_is_folded_to_its_last_state() -> None:
    """Carriage returns, backspaces and erased lines; colours and titles are gone."""
    bar = "".join(f"\r{percent:3}% {'#' * (percent // 10)}" for percent in range(0, 101, 5))
    assert printed(f"begin\r\n{bar}\r\n\x1b]0;title\x07\x1b[1;32mdone\x1b[0m abd\bc\r\nlong\r\x1b[Kx\r\n") == [
        "begin", "100% ##########", "done abc", "x",
    ]  # fmt: skip


def test_lines_drawn_over_are_as_they_were_last() -> None:
    """As with cargo, docker or an agent's box: the cursor goes up, and lines are written again."""
    frames = "".join(f"a {number}\r\nb {number}\r\n\x1b[2A" for number in range(100))
    assert printed(f"first\r\n{frames}\x1b[2Bover\r\n") == ["first", "a 99", "b 99", "over"]


def test_a_full_screen_is_its_last_state_in_its_place() -> None:
    """What was before it comes before it, and what follows it behind; vim, less and htop leave like that."""
    inside = "\x1b[?1049h\x1b[2J\x1b[H" + "".join(f"\x1b[2;3Hround {number}" for number in range(50)) + "\x1b[5;1Hq"
    before = "$ vim\r\n"
    assert printed(before, inside) == ["$ vim", "", "  round 49", "", "", "q"]  # still there, or killed
    assert printed(before, f"{inside}\x1b[?1049l", "$ exit\r\n") == ["$ vim", "", "  round 49", "", "", "q", "$ exit"]


def test_blank_lines_that_are_scrolled_out_are_not_printed() -> None:
    """A few bytes would make many lines. What is written line by line is as it was."""
    assert printed(*["\x1b[Hx\x1b[99999S"] * 50) == ["x"] * 50
    assert printed("\x1b[99999S" * 50, "\x1b[S" * 50, "end") == ["end"]
    assert printed("a\r\n\r\nb\x1b[9S", "\x1b[Hc\r\n\r\nd") == ["a", "", "b", "c", "", "d"]


@pytest.mark.parametrize("begin", ["\x1b]0;", "\x1bP", "\x1b_", "\x1b^", "\x1bX"])
def test_a_string_without_an_end_hides_no_more_than_a_bound(begin: str) -> None:
    """And what it hides is counted; a long one with an end is a picture, and says nothing."""
    line = "x" * 98 + "\r\n"
    lines = printed("before\r\n", begin, *[line] * 700, "after\r\n")
    assert (lines[0], lines[-1], 40 < len(lines) < 60) == ("before", "after", True)
    assert lines[1].endswith("characters of a sequence without an end: --raw shows them]")
    assert printed("before\r\n", begin + "hidden") == [
        "before", f"[{len(begin) + 4} characters of a sequence without an end: --raw shows them]",
    ]  # fmt: skip
    assert printed(f"{begin}{'x' * 200_000}\x1b\\after") == ["after"]
    assert printed(*[begin] * 9, "hidden", "\x07after") == ["after"]


def test_a_region_scrolls_alone() -> None:
    """As apt's progress bar at the bottom: lines above it become scrollback, the bar stays."""
    text = "\x1b[1;5r\x1b[6;1HBAR\x1b[1;1H" + "\r\n".join(f"line {number}" for number in range(20)) + "\x1b[r"
    assert shown(text) == [*(f"line {number}" for number in range(15, 20)), "BAR"]
    terminal = Screen(6, 20)
    terminal.feed(text)
    assert [row.text for row in terminal.gone] == [f"line {number}" for number in range(15)]


def test_sizes_come_with_what_was_written() -> None:
    """A record of the terminal's size counts from there on; a new terminal begins blank, behind the old one's text."""
    wide = "x" * 30 + "\x1b[1;30Hy"
    assert printed(("terminal", "24 80 new"), wide) == ["x" * 29 + "y"]
    assert printed(("terminal", "24 20 new"), wide) == ["x" * 19 + "y", "x" * 10]
    new = ("terminal", "24 80 new")
    twice = printed(new, "first", ("paddock", "attempt 1 ended"), new, "\x1b[Hsecond")
    assert twice == ["first", "paddock: attempt 1 ended", "second"]
    assert printed(("terminal", "0 0 new"), wide, ("terminal", "3 80"), "\x1b[24;1Hz")[-1] == "z"


def test_no_line_looks_like_the_services_own() -> None:
    """What begins with Paddock's name, in letters like its own too, has a mark; what only contains it has none."""
    note = "paddock: the log ends here: the disk is full"
    spelled = (note.upper(), note.replace("a", "\u0430"), "\uff50addock: x")
    fakes = [note, f"  {note}", f"| {note}", *spelled, "paddock", "paddock-x"]
    plain = ["x", "the paddock: x", "paddocks: x", "_paddock: x", "padlock: x", "\u044f" * 8, "$HOME/paddock: x"]
    for text in (*fakes, *plain):
        assert printed(f"{text}\r\n") == [screen.marked(text)]
    assert [screen.marked(text) for text in fakes] == [f"| {text}" for text in fakes]
    assert [screen.marked(text) for text in plain] == plain
    assert printed("before\r\n", ("paddock", note[9:]), f"{note}\r\n") == ["before", note, f"| {note}"]
    assert printed(("terminal", "24 20 new"), "x" * 20 + note) == ["x" * 20 + note]


def test_tail_counts_lines_that_are_printed() -> None:
    """Not those of the log, and times are those of the last writing."""
    assert printed("a\r\nb\r\n", "c\rd\r\n", tail=2) == ["b", "d"]
    assert printed("a\r\n", "b", "\x1b[1;1Hc", tail=0) == []
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(2))
    assert printed("a\r\n", "b", "\rc", times=True)[1] == f"{stamp} c"


def test_following_prints_what_stays() -> None:
    """In quiet moments what is new, once; a line that is not over when it is, a changed one again."""
    reader, writer = os.pipe()
    rendering = Rendering(writer, tail=1, times=False)

    def step(text: str) -> list[str]:
        rendering.take({"time": 1, "stream": "stdout", "text": text, "more": True})
        rendering.settle()
        rendering.catch_up()
        os.set_blocking(reader, False)
        try:
            return os.read(reader, 65536).decode().splitlines()
        except BlockingIOError:
            return []

    assert step("past\r\nlast\r\n50%") == ["last"]
    assert step("\r60%") == []
    assert step("\r100%\r\n\r\nnext\r\n") == ["100%", "", "next"]
    assert step("\x1b[A\rNEXT\r\n") == ["NEXT"]
    assert step("\x1b[?1049h\x1b[Hfull screen") == []
    assert step("\x1b[?1049l") == ["full screen"]
    assert step("\r\n".join(map(str, range(100))) + "\r\n") == [*map(str, range(100))]


def test_line_drawing_wide_and_combining_characters() -> None:
    """ncurses' lines, CJK text and accents take the cells that they take."""
    assert shown("\x1b(0lqk\x1b(B lqk")[0] == "┌─┐ lqk"
    assert shown("日本x\x1b[1;3HA")[0] == "日A x"
    assert shown("e" + "\u0301" * 100_000 + "x\x1b[1;2Hy")[0] == "e" + "\u0301" * 8 + "y"
    assert shown("日" * 11)[:2] == ["日" * 10, "日"]


SEQUENCES = st.one_of(
    st.text("abcd xyz", min_size=1, max_size=30),
    st.sampled_from(["\r", "\n", "\r\n", "\b", "\t", "\x1bM", "\x1bD", "\x1b7\x1b[3;3H", "\x1b[1;31m"]),
    st.builds(lambda number, final: f"\x1b[{number}{final}", st.integers(0, 8), st.sampled_from("ABCDEFGdPX@LM")),
    st.builds(lambda what, final: f"\x1b[{what}{final}", st.integers(0, 2), st.sampled_from("JK")),
    st.builds(lambda row, column: f"\x1b[{row};{column}H", st.integers(0, 8), st.integers(0, 22)),
)


@given(st.lists(SEQUENCES, max_size=30))
@example(["abcdabcdabcdabcdabcd", "x"])
def test_it_is_what_pyte_shows(pieces: list[str]) -> None:
    """For what both know; the cursor behind a full row is where terminals differ."""
    theirs = pyte.Screen(20, 6)
    stream = pyte.Stream(theirs)
    ours = Screen(6, 20)
    for piece in pieces:
        if ours.x == 20 and not piece.isprintable():
            piece = "\r" + piece
        stream.feed(piece)
        ours.feed(piece)
        assert [row.text for row in ours.rows] == [line.rstrip() for line in theirs.display], pieces


@given(
    st.lists(st.one_of(SEQUENCES, st.text(max_size=5), st.text("\x1b[?;0123456789hlmrstuSTbJKc()\x9b\n", max_size=9)))
)
def test_whatever_is_written_is_rendered(pieces: list[str]) -> None:
    """In any division into pieces, and never past the screen's size."""
    whole, single = Screen(5, 10), Screen(5, 10)
    text = "".join(pieces)
    whole.feed(text)
    for char in text:
        single.feed(char)
    assert [row.text for row in whole.finish()] == [row.text for row in single.finish()]
    assert len(whole.rows) == 5
    assert all(len(row.cells) <= 10 for row in whole.rows)


def confined(content: bytes) -> tuple[int, bytes]:
    """Status and output of the real process for records."""
    source, sink = (os.memfd_create(name) for name in ("source", "sink"))
    os.write(source, content)
    os.lseek(source, 0, os.SEEK_SET)
    child = os.fork()
    if child == 0:
        os.dup2(source, 0)
        os.dup2(sink, 1)
        screen.serve(follow=False, tail=None, times=False)
    status = os.waitpid(child, 0)[1]
    with open(sink, "rb") as file:
        os.lseek(sink, 0, os.SEEK_SET)
        return status, file.read()


def record(text: str) -> bytes:
    return json.dumps({"time": 1, "stream": "stdout", "text": text, "more": True}).encode() + b"\n"


HOSTILE = {
    "parameters": "\x1b[" + "9" * 60_000 + "C\x1b[" + "1;" * 30_000 + "m",
    "scrolls": "\x1b[9999S\x1b[9999L\x1b[9999T" * 3_000,
    "combining": "e" + "\u0301" * 60_000,
    "unfinished": "\x1b]0;" + "x" * 60_000,
    "repeats": "x\x1b[9999b" * 6_000,
    "random": "".join(chr(7919 * number % 0x250) for number in range(60_000)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_output_costs_little(kind: str) -> None:
    """A quarter of a megabyte of it: bounded memory, and time as for other output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    status, _ = confined(record(HOSTILE[kind]) * 4)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert status == 0
    assert after.ru_utime - before.ru_utime < 60
    assert confined(record("still\r\n") * 2) == (0, b"still\nstill\n")


@pytest.mark.parametrize("text", ["é\x1b[80b", "漢\x1b[80b", "e\u0301\x1b[80b", "\x1bc", "x\x1b[2J"])
def test_a_few_bytes_are_little_work(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """However many cells they fill or erase: rows are written as wholes, and blank ones are left alone."""
    done: list[object] = []

    def counting(before: Callable[..., object]) -> Callable[..., object]:
        def counted(*given: object) -> object:
            done.append(before)
            return before(*given)

        return counted

    for what, name in ((Screen, "_put"), (Screen, "_mark"), (screen.Row, "erase"), (screen, "_width")):
        monkeypatch.setattr(what, name, counting(getattr(what, name)))
    Screen(24, 80).feed(text * 100)
    assert len(done) <= 15 * 100


def test_it_is_confined_before_it_reads(tmp_path: Path) -> None:
    """Filter and no privileges; a record that is none ends it, and is no line."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.dup2(reader, 0)
        screen.serve(follow=False, tail=None, times=False)
    os.close(reader)
    deadline = time.monotonic() + 30
    while (name := Path(f"/proc/{child}/comm").read_text()) != "paddock-render\n" or "Seccomp:\t2" not in (
        status := Path(f"/proc/{child}/status").read_text()
    ):
        assert time.monotonic() < deadline, name
    assert "NoNewPrivs:\t1" in status
    os.write(writer, b"{nonsense\n")
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 1 << 8
