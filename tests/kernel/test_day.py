"""Everything that a day's use prints, in one file for reading: each verb runs."""

from pathlib import Path

from launcher import cli
from launcher.verbs import forms
from tests.support import day
from tests.support.install import Installed

WRITTEN = Path(__file__).parents[2] / "build/day.txt"


def test_a_day_is_written_down(installed: Installed) -> None:
    """None ends in a fault of Paddock's. That each verb is in it, and each refusal in what is read besides, is seen in
    `tests.unit.test_texts`.
    """
    said = day.lived(installed.paddock.parent)
    assert {*cli.VERBS} == {name.partition(" ")[0] for name in forms.texts()}
    assert "internal-error" not in said
    assert "/launcher/" not in said, "a traceback of Paddock's own"
    WRITTEN.parent.mkdir(exist_ok=True)
    WRITTEN.write_text(said)
