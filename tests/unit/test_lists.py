"""Lists for people: a heading, columns, and nothing that a terminal would obey."""

from typing import Any

from launcher.verbs import ps, table


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


def test_a_long_command_is_cut_and_that_is_seen() -> None:
    """As wide as the terminal is, 24 characters at least; a shorter one stays whole."""
    session: dict[str, Any] = {"name": "s", "state": "running", "usage": None, "created": None, "outcome": None}
    for command, shown in ((["x" * 24], "x" * 24), (["x" * 500], "x" * 23)):
        last = ps.session_lines([{**session, "command": command}])[1].split()[-1]
        assert last.startswith(shown)
        assert last.endswith("…") == (len(command[0]) > len(last))
