"""Everything that a day's use prints, in one file for reading: each verb runs, and each refusal is there."""

import re
from pathlib import Path

from launcher import cli
from launcher.verbs import forms
from tests.support import day, texts
from tests.support.install import Installed
from tests.unit.test_interfaces import refusals

WRITTEN = Path(__file__).parents[2] / "build/day.txt"
_HIDDEN = {"service enable-audit"}
"""What units call, and people do not."""


def test_a_day_is_written_down(installed: Installed) -> None:
    """Each verb and sub-command is in it; none ends in a fault of Paddock's, and none says nothing about a failure."""
    said = day.lived(installed.paddock.parent)
    typed = [line for line in day.DAY.splitlines() if "paddock" in line]
    for name in forms.texts():
        verb = name.partition(" ")[0]
        if name not in _HIDDEN and not (forms.subcommands(verb) and name == verb and not forms.form(name).options):
            assert any(re.search(rf"paddock {name}\b", line) for line in typed), f"no day has paddock {name}"
    assert {*cli.VERBS} == {name.partition(" ")[0] for name in forms.texts()}
    assert "internal-error" not in said
    assert "/launcher/" not in said, "a traceback of Paddock's own"
    known = {part for name, _ in texts.refusals() for part in name.split(" | ")}
    assert {name for name in refusals() if "-" in name} <= known
    WRITTEN.parent.mkdir(exist_ok=True)
    WRITTEN.write_text("\n".join([said, *(f"{name}\n    {text}" for name, text in sorted(texts.refusals())),
                                  *(f"{place}: {text}" for place, text in texts.others())]))  # fmt: skip
