"""How Paddock says no."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.errors import EXIT_REFUSED, Refusal, in_rows, printable


def test_a_refusal_reads_as_what_why_and_what_next() -> None:
    """The text has the message with its reference first, then the reason, then the way out."""
    refusal = Refusal("no-worktree", "no git worktree here", context="/srv holds no .git", hint="cd into one")
    assert str(refusal) == (
        "paddock: no git worktree here [no-worktree]\n"
        "  why:  /srv holds no .git\n"
        "  hint: cd into one"
    )  # fmt: skip


def test_empty_parts_leave_no_line() -> None:
    """A refusal without context and hint is one line."""
    assert str(Refusal("usage", "unknown option --x")) == "paddock: unknown option --x [usage]"


def test_rows_are_those_that_are_given_as_rows() -> None:
    """Those are one block. What is in a name makes none, whatever it holds, nor once it went through a service."""
    refusal = Refusal("r", "m", context=in_rows("one\nhint: no", in_rows("two", "three\u2028\x0b"), ""), hint="a\nb")
    text = [
        "paddock: m [r]",
        "  why:  one\\nhint: no",
        "        two",
        "        three\\u2028\\x0b",
        "  hint: a\\nb",
    ]
    assert str(refusal).split("\n") == text
    assert str(Refusal.of(refusal.as_dict())).split("\n") == text


def test_a_refusal_ends_with_125_unless_told_otherwise() -> None:
    """The exit status is the launcher's own, not one the command could have used."""
    assert Refusal("r", "m").exit_code == EXIT_REFUSED == 125
    assert Refusal("r", "m", exit_code=127).exit_code == 127


def test_a_refusal_is_an_exception_with_its_message() -> None:
    """It can be raised, and `args` holds the message for tools that log exceptions."""
    with pytest.raises(Refusal) as caught:
        raise Refusal("r", "the message", hint="h")
    assert caught.value.args == ("the message",)


def test_programmes_get_the_same_facts() -> None:
    """as_dict survives JSON and holds every part."""
    refusal = Refusal("r", "m", context="c", hint="h", exit_code=126)
    assert json.loads(json.dumps(refusal.as_dict())) == {
        "error": True,
        "errorType": "r",
        "message": "m",
        "context": "c",
        "hint": "h",
        "exitCode": 126,
    }


def test_escape_sequences_cannot_reach_the_terminal() -> None:
    """A file name made by an agent is shown, not obeyed."""
    assert printable("\x1b[2J") == "\\x1b[2J"
    assert printable("a\nb\tc\r") == "a\\nb\\tc\\r"
    assert printable("\u202egnp.exe") == "\\u202egnp.exe"
    assert printable("\udcff") == "\\udcff"


def test_ordinary_text_is_left_alone() -> None:
    """Letters of any script, spaces and signs pass unchanged."""
    assert printable("Grüße, 世界! ~/x y") == "Grüße, 世界! ~/x y"


@given(st.text(st.characters(exclude_categories=())))
def test_whatever_is_printed_is_printable(text: str) -> None:
    """No character that drives a terminal, and none that stdout cannot encode, is left."""
    shown = printable(text)
    assert shown.isprintable()
    shown.encode()


@given(*[st.text(st.characters(exclude_categories=()))] * 3)
def test_no_part_of_a_refusal_can_smuggle_control_characters(message: str, context: str, hint: str) -> None:
    """The whole text holds line feeds as its only control characters."""
    text = str(Refusal("r", message, context=context, hint=hint))
    assert all(line.isprintable() for line in text.split("\n"))
    first, *rest = text.split("\n")
    assert first.startswith("paddock: ")
    assert len(rest) == bool(context) + bool(hint)
