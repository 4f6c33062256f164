"""Lists for people: a heading, columns, and nothing that a terminal would obey."""

import os
from typing import Any

import pytest

from launcher.verbs import ps, style, table, tickets, top


def test_columns_are_as_wide_as_what_is_in_them() -> None:
    """The heading counts; the last column has no width, and no line ends with blanks."""
    assert table.lines(("A", "LONGER", "REST"), [("word", 1, "x y"), ("", "2", "")]) == [
        "A     LONGER  REST",
        "word  1       x y",
        "-     2       -",
    ]


def test_control_characters_are_shown() -> None:
    """A name that an agent chose cannot move the cursor, or pretend to be a further line."""
    heading, row = table.lines(("NAME", "PLACE"), [("a\nb", "\x1b[2J")])
    assert heading.split() == ["NAME", "PLACE"]
    assert row.isprintable()


def test_paths_of_tickets_are_printed_as_git_prints_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it conflicts, its worktree and what is left there."""
    monkeypatch.setattr(style, "_settings", dict)
    agent = {
        "ticket": "T", "session_id": "s", "worktree": "/nosuch/ü\x1b", "refusal": None, "harvest": None, "status": 1,
        "reason": "exited", "state": "failed", "log": "/log/ü",  "next": [{"command": "c", "about": "a"}],
    }  # fmt: skip
    clash = {"agent_result_id": "s", "merge_descriptor": {"conflict_files": ["ä\n"], "error_message": "", "hint": ""}}
    result = {
        "agents": [agent],
        "conflicts": [clash],
        "uncommitted": {"s": {"problem": "", "files": ["ö"], "count": 1}},
    }
    run = {
        "name": "run",
        "state": "failed",
        "tickets": ["T"],
        "steps": [{"ticket": "T", "attempt": 2}],
        "result": result,
    }
    shown = tickets.described(run)
    assert [line for line in shown if line.endswith(" (started 2 times)")]
    for path in (r'"/nosuch/\303\274\033"', r'"/log/\303\274"', r'in "\303\244\n"', r': "\303\266"'):
        assert [line for line in shown if line.endswith(path)], (path, shown)


def test_a_long_command_is_cut_and_that_is_seen() -> None:
    """As wide as the terminal is, 24 characters at least; a shorter one stays whole."""
    session: dict[str, Any] = {
        "name": "s", "state": "running", "usage": None, "created": None, "outcome": None, "worktree": None
    }  # fmt: skip
    for command, shown in ((["x" * 24], "x" * 24), (["x" * 500], "x" * 23)):
        last = ps.session_lines([{**session, "command": command}])[1].split()[-1]
        assert last.startswith(shown)
        assert last.endswith("…") == (len(command[0]) > len(last))


def test_tokens_have_a_column_where_there_are_some() -> None:
    """In powers of 1000; a session without any has a dash."""
    usage = {"cpu_percent": 1, "memory": 1 << 20, "processes": 2}
    session: dict[str, Any] = {
        "name": "s", "state": "running", "usage": usage, "created": None, "outcome": None, "worktree": None,
        "command": ["x"],
    }  # fmt: skip
    assert "TOKENS" not in ps.session_lines([session])[0]
    used = [{**session, "usage": {**usage, "tokens": number}} for number in (7, 1_234, 2_345_678)]
    heading, *rows = ps.session_lines([session, *used])
    at = heading.index("TOKENS")
    assert [row[at:].split()[0] for row in rows] == ["-", "7", "1.2k", "2.3M"]
    bounded = ps.session_lines([{**session, "usage": {**usage, "tokens": 7, "token_budget": 2_000_000}}])
    assert " 7/2.0M " in bounded[1]


@pytest.mark.parametrize(("width", "height", "shown"), [(120, 6, 2), (60, 5, 1), (0, 0, 3)])
def test_top_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, width: int, height: int, shown: int) -> None:
    """Lines are cut, what does not fit is counted, and a command cannot move the cursor; 80 by 24 if nobody knows."""
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((width, height)))
    usage = {"cpu_percent": 1, "memory": 1 << 20, "processes": 2}
    session = {"name": "s", "state": "running", "usage": usage, "created": None, "attached": 0, "worktree": "/w"}
    sessions = [{**session, "command": ["x\x1b[2J" * 40]} for _ in range(3)]
    first, heading, *rows, last = top._screen({"helpers": 1, "started": None}, sessions)
    assert "3 live" in first
    assert ("PROCS" in heading) == (width == 120)
    assert len(rows) == shown
    assert ("more" in last) == (shown < 3)
    for row in rows:
        plain = row.replace("\x1b[32m", "").replace("\x1b[m", "")
        assert plain.isprintable()
        assert len(plain) <= (width or 80)
