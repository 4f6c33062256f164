"""Every id of the specification has a test, and every id that a test names is one of the specification's."""

import pkgutil
from pathlib import Path

import pytest

from tests.support.traceability import IDS, OPEN, Misplaced, problems, reached, shown, table


def test_every_id_has_a_test_or_waits_openly() -> None:
    """No id without a test, no dead id, and nothing is open that has a test (the table is printed)."""
    found = shown()
    print(table(found))
    assert not problems(found)


def test_the_table_names_every_id() -> None:
    """Each id stands there once, with tests or with what it waits for."""
    lines = table(shown()).splitlines()
    heads = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert heads == list(IDS)
    assert sum("OPEN: waits for" in line for line in lines) == len(OPEN)


def test_what_reaches_an_id_is_there() -> None:
    """That it is called, only the installed command can show; a name that has gone is seen at once."""
    for _, function in reached().values():
        pkgutil.resolve_name(function)


@pytest.mark.spec("SM-MF-007")
def test_every_edge_case_of_merging_has_a_unit_test() -> None:
    """Features alone would not say which part of the engine failed."""
    found = shown()
    for name in IDS:
        if name.startswith("EC-MF-"):
            assert any(test.startswith("unit/") for test in found[name]), name


@pytest.mark.spec("SM-MF-006")
def test_every_scenario_of_merging_is_a_feature() -> None:
    """The three features of the merge flow are there, each with scenarios."""
    features = {test.partition("::")[0].rpartition("/")[2] for tests in shown().values() for test in tests}
    assert {
        "worktree-context-flow.feature",
        "worktree-merge-child.feature",
        "worktree-merge-parent.feature",
    } <= features


def test_what_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing test, an unknown id, and an open id with a test are three different findings."""
    found = {name: ["test_x.py::test_y"] for name in IDS if name not in OPEN}
    assert problems(found) == []
    assert problems({name: tests for name, tests in found.items() if name != "FR-001"}) == [
        "FR-001 has no test and is not OPEN"
    ]
    assert problems({**found, "FR-999": ["test_x.py::test_y"]}) == ["FR-999 is no id, but test_x.py::test_y bears it"]
    monkeypatch.setitem(OPEN, "FR-001", "somebody")
    assert problems(found) == ["FR-001 is OPEN but has a test: test_x.py::test_y"]
    monkeypatch.setitem(OPEN, "FR-998", "nobody")
    assert "FR-998 is OPEN but no id" in problems(found)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("helper.py", '@pytest.mark.spec("FR-001")\ndef test_it(): ...'),
        ("test_a.py", '@pytest.mark.spec("FR-001")\ndef helper(): ...'),
        ("test_a.py", 'pytestmark = pytest.mark.spec("FR-001")'),
        ("test_a.py", "@pytest.mark.spec(NAME)\ndef test_it(): ..."),
        ("test_a.py", "@pytest.mark.spec()\ndef test_it(): ..."),
        ("test_a.py", '@pytest.mark.spec("FR-001", why="x")\ndef test_it(): ...'),
    ],
)
def test_a_marker_that_shows_nothing_is_refused(tmp_path: Path, name: str, source: str) -> None:
    """Only tests bear ids, and only such that can be read from the source."""
    (tmp_path / name).write_text(source)
    with pytest.raises(Misplaced):
        shown(tmp_path)


def test_scenarios_bear_ids_as_tags(tmp_path: Path) -> None:
    """A feature's tags count for all its scenarios; tags that look like no id are other tags; dead ids are kept."""
    (tmp_path / "x.feature").write_text(
        "@sandbox-read @FR-010\nFeature: F\n\n  @US2.1 @slow\n  Scenario: one\n\n  @FR-999\n  Scenario Outline: two\n"
    )
    assert shown(tmp_path) == {
        "FR-010": ["x.feature::one", "x.feature::two"],
        "US2.1": ["x.feature::one"],
        "FR-999": ["x.feature::two"],
    }
