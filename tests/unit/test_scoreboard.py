"""The scoreboard: what is counted, and that no sandbox is missing from what is shown."""

import json
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.bench import scoreboard
from tests.bench.scoreboard import SANDBOXES
from tests.support.manual import README

FAILURE = "did not start: bwrap: No permissions | <here>"


def trial(kind: str, verdict: str, name: str, concern: str = "reads") -> dict[str, Any]:
    """One of the self-test's."""
    return {"concern": concern, "kind": kind, "name": name, "verdict": verdict}


TRIALS = [
    trial("attack", "held", "one"), trial("attack", "ESCAPED", "two"), trial("attack", "not promised", "three"),
    trial("attack", "not possible here", "four"), trial("control", "works", "five"),
    trial("control", "BROKEN", "six", "git"), trial("control", "not promised", "seven", "git"),
]  # fmt: skip


def found(*failed: str) -> dict[str, Any]:
    """A whole measurement, of which some did not start."""
    rows = [
        {"name": each.name, "ours": bool(each.backend), "failure": FAILURE}
        if each.name in failed
        else {
            "name": each.name, "ours": bool(each.backend), "startup": 3.25, "spread": 0.5, "processes": 2,
            "memory": 2.0, "work": [1.0, 1.5, 2.0], **scoreboard.tally(TRIALS),
        }
        for each in SANDBOXES
    ]  # fmt: skip
    return {"date": "2026-11-26", "machine": "Linux", "load": 0.5, "versions": ["firejail 0.9.72"], "rows": rows}


def test_what_paddock_does_not_promise_is_a_miss_as_everybodys() -> None:
    """And what the machine does not allow anyway counts for nobody."""
    counted = scoreboard.tally(TRIALS)
    assert {name: counted[name] for name in ("held", "escaped", "impossible", "works", "broken")} == {
        "held": 1, "escaped": 2, "impossible": 1, "works": 1, "broken": 2,
    }  # fmt: skip
    assert counted["concerns"] == {"reads": [1, 2], "git": [0, 0]}
    assert counted["missed"] == {"attack": {"reads": ["two", "three"]}, "control": {"git": ["six", "seven"]}}


@pytest.mark.parametrize("failed", [(), ("firejail",), tuple(each.name for each in SANDBOXES)])
def test_each_sandbox_has_its_row_and_one_that_did_not_start_says_so(failed: tuple[str, ...]) -> None:
    """In the terminal, on the front page, on the page of the manual and in the picture, in the sandbox's own words."""
    measured = json.loads(json.dumps(found(*failed)))
    lines = scoreboard.text(measured).splitlines()[1:]
    front = scoreboard.front(measured).splitlines()[2:-2]
    assert [len(lines), len(front)] == [len(SANDBOXES)] * 2
    shown = [element.text for element in ElementTree.fromstring(scoreboard.picture(measured)).iter() if element.text]
    page = scoreboard.tables(measured)
    for each, line, row in zip(SANDBOXES, lines, front, strict=True):
        assert line.startswith(f"{each.name} ")
        assert row.startswith(f"| {each.name} |")
        assert f"| {each.name} |" in page
        assert shown.count(each.name) == 4
        assert (FAILURE in line) == (each.name in failed) == ("did not start" in row) == ("3.2" not in line)
    assert shown.count(FAILURE) == 3 * len(failed)
    assert FAILURE.replace("|", "\\|") in page or not failed
    for name in ("two", "three", "six", "seven"):
        assert page.count(name) == len(SANDBOXES) - 1 - len({*failed} - {SANDBOXES[-1].name})


def test_every_configuration_is_written_down() -> None:
    """As a user types it, no place left open."""
    text = scoreboard.configurations()
    for each in SANDBOXES:
        assert f"**{each.name}**:\n\n```text\n" in text
    for place in ("paddock", "account", "above", "settings", "node", "srt", "codex", "packages"):
        assert f"{{{place}}}" not in text


def test_only_what_stands_between_the_marks_is_replaced(tmp_path: Path) -> None:
    """A page without them is refused."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a -->\nold\n<!-- /a -->\nafter\n")
    scoreboard.put(page, "a", "new")
    assert page.read_text() == "before\n<!-- a -->\nnew\n<!-- /a -->\nafter\n"
    with pytest.raises(ValueError, match="has no table b"):
        scoreboard.put(page, "b", "new")


def test_the_pages_show_every_sandbox_with_the_same_figures() -> None:
    """Those of the front page are the first columns of the manual's; its picture has all of them."""
    front, page = (path.read_text(encoding="utf-8") for path in (README, scoreboard.PAGE))
    picture = scoreboard.PICTURE.read_text(encoding="utf-8")
    for each in SANDBOXES:
        (row,) = (line for line in front.splitlines() if line.startswith(f"| {each.name} |"))
        assert row.removesuffix("|") in page
        assert picture.count(f">{each.name}<") == 4
    assert scoreboard.configurations() in page


def test_memory_is_that_of_everything_but_the_command() -> None:
    """A shell around it is one process; a command that takes the launcher's place leaves none."""
    count, memory = scoreboard.resident(started("/bin/sh", "-c", "sleep 600; :"))
    assert count == 1
    assert memory is not None
    assert 0.05 < memory < 50
    assert scoreboard.resident(started("env", "sleep", "600")) == (0, 0)
    with pytest.raises(scoreboard.Failed):
        scoreboard.resident(started("true"))


def started(*words: str) -> "subprocess.Popen[str]":
    """A process."""
    return subprocess.Popen(words, text=True)
