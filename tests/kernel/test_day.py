"""Everything that a day's use prints, in one file for reading: each verb runs, and each refusal is there."""

from pathlib import Path

from launcher import cli
from launcher.verbs import forms
from tests.support import day, texts
from tests.support.install import Installed
from tests.unit.test_interfaces import refusals

WRITTEN = Path(__file__).parents[2] / "build/day.txt"


def test_a_day_is_written_down(installed: Installed) -> None:
    """None ends in a fault of Paddock's. That each verb is in it is seen in `tests.unit.test_texts`."""
    said = day.lived(installed.paddock.parent)
    assert {*cli.VERBS} == {name.partition(" ")[0] for name in forms.texts()}
    assert "internal-error" not in said
    assert "/launcher/" not in said, "a traceback of Paddock's own"
    told = sorted(texts.refusals())
    known = {part for name, _ in told for part in name.split(" | ")}
    assert {name for name in refusals() if "-" in name} <= known
    WRITTEN.parent.mkdir(exist_ok=True)
    WRITTEN.write_text("\n".join([said, *(f"{name}\n    {text}" for name, text in told),
                                  *(f"{place}: {text}" for place, text in texts.others())]))  # fmt: skip
