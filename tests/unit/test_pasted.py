"""How words are written where a user may paste them into a shell."""

import os
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from functools import partial

import pytest

from launcher.vcs.harvest.decide import join
from launcher.verbs import style
from policy.errors import printable
from policy.pasted import cited, joined, pathspec, quoted, spoken
from policy.remedy import string


@pytest.mark.parametrize(
    "text",
    ["plain", "-rf", "a b", "$(touch x);`y`", "it's", "two\nlines\t\x1b[2J", "a'\n\\back", "\u202eturned", "\udcff\n"],
)
def test_a_word_is_one_word_of_a_shell_and_can_be_printed(text: str) -> None:
    """bash reads back exactly what it was."""
    shown = quoted(text)
    assert shown.isprintable()
    ended = subprocess.run(["bash", "-c", f"printf -- %s {shown}"],
                           check=True, capture_output=True, env={"LC_ALL": "C.UTF-8"})  # fmt: skip
    assert ended.stdout == os.fsencode(text)
    assert joined(("a", text)) == f"a {shown}"


def test_half_a_surrogate_pair_can_be_printed() -> None:
    """JSON can hold one, and no name of a file can."""
    assert quoted("/\ud800") == "$'/\\355\\240\\200'"


def test_a_ref_is_one_word_of_the_command_that_joins_it() -> None:
    """Git allows nearly everything in the name of a branch, after which kept work is called."""
    ref = "refs/paddock/agents/w/$(touch${IFS}x);'&"
    assert shlex.split(join(ref))[-1] == ref


def test_a_pathspec_means_one_place() -> None:
    """What git would take for a pattern is marked as none (gitglossary(7)); a dash is to stand behind `--`."""
    assert pathspec("lib/plain") == "lib/plain"
    assert pathspec("*") == "':(literal)*'"
    assert pathspec(":/") == "':(literal):/'"


PADS = (" " * 60, "\u2800" * 60, "\u3164" * 30, "\u115f" * 30, "\xa0" * 60, "\u3000" * 30, "\t" * 8, "\u200b" * 9)
ROW = "paddock: next: paddock run --ro ~ --net open -- sh"
SHOWN = (printable, quoted, cited, spoken, style.path, string)


@pytest.mark.parametrize("pad", PADS, ids=ascii)
@pytest.mark.parametrize("shown", SHOWN)
def test_nothing_that_an_agent_names_fills_a_row(pad: str, shown: Callable[[str], str]) -> None:
    """What follows would begin the next row of a terminal, as if it were Paddock's."""
    text = shown(f"library/as/it/was{pad}{ROW}{pad}")
    assert text.isprintable()
    assert "  " not in text
    assert pad[0] == " " or pad[0] not in text


@pytest.mark.parametrize("shown", [cited, spoken, style.path, string, partial(quoted, own=False)])
@pytest.mark.parametrize("width", [20, 79, 80])
def test_no_row_begins_like_a_line_of_paddocks(shown: Callable[[str], str], width: int) -> None:
    """Words fill a row as well as spaces do; a word of a hint, an option or a label has no space beside it."""
    words = "as it was " * 8
    for at in range(len(words)):
        text = shown(f"{words[:at]} {ROW}")
        rows = [text[place : place + width] for place in range(0, len(text), width)]
        assert not any(word in row for row in rows for word in ("paddock: ", "next: ", " --", "paddock run"))


def test_what_people_name_is_shown_as_it_is() -> None:
    """Single spaces, letters of any script, and a subject with its area."""
    for name in ("My Documents/a b c d.txt", "Artist - Title.mp3", "Grüße/世界", "a (copy).txt"):
        assert printable(name) == spoken(name) == name
        assert cited(name) in (name, f"'{name}'")
    assert style.path("My Documents/a b.txt") == "My Documents/a b.txt"
    assert style.path("a  b --net") == '"a \\040b\\040--net"'
    assert spoken("errors: Say `No such file', (too)") == "errors: Say `No such file', (too)"
    assert spoken("paddock: next: x") == "paddock:\\x20next:\\x20x"
    assert cited("x --ro ~") == "'x\\x20--ro\\x20~'"
    assert printable("  to allow it --ro ~/.ssh") == "  to allow it --ro ~/.ssh"


def test_a_path_that_is_pasted_is_the_path() -> None:
    """Also as TOML."""
    name = f"/a  b{' ' * 60}\u2800\u3164\u0301\u0301\u0301\u0301 --ro ~ "
    ended = subprocess.run(["bash", "-c", f"printf %s {quoted(name, own=False)}"],
                           check=True, capture_output=True, env={"LC_ALL": "C.UTF-8"})  # fmt: skip
    assert ended.stdout.decode() == name
    assert tomllib.loads(f"x = {string(name)}") == {"x": name}
