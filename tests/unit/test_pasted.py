"""How words are written where a user may paste them into a shell."""

import os
import shlex
import subprocess

import pytest

from launcher.vcs.harvest.decide import join
from policy.pasted import joined, pathspec, quoted


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
