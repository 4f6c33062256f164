"""Benchmarks share one shape: what they compute, where it is shown, and that none is forgotten. Nothing is measured."""

import importlib
import inspect
import time
from functools import partial

import pytest

from tests.bench import __main__ as bench
from tests.bench import harness
from tests.bench.harness import Result
from tests.support.install import ROOT

BY_THEMSELVES = {"adapters", "agents", "cluster", "house", "page"}
"""Not of `make bench`: they need real agents, play a cluster, count lines, or measure what nobody waits for."""


def test_every_benchmark_is_run_and_has_its_place_on_the_page() -> None:
    """Each module has `rows`; the page has a place for each, and shows each picture."""
    names = {path.stem.removeprefix("bench_") for path in (ROOT / "tests/bench").glob("bench_*.py")}
    assert names == bench.TITLES.keys() | BY_THEMSELVES
    page = bench.PAGE.read_text(encoding="utf-8")
    for name in bench.TITLES:
        rows = importlib.import_module(f"tests.bench.bench_{name}").rows
        assert list(inspect.signature(rows).parameters) == ["quick"]
        assert page.count(f"<!-- bench {name} -->\n") == page.count(f"<!-- end of {name} -->") == 1
    assert all(f"(images/bench-{picture}.svg)" in page for picture in bench.PICTURES)
    assert {name for names in bench.PICTURES.values() for name in names} < bench.TITLES.keys()


def test_a_ratio_is_of_one_round_and_the_first_is_the_floor() -> None:
    """A machine that becomes slower between rounds changes no ratio."""
    (found,) = harness.against({"git fetch": [1.0, 2.0, 4.0], "harvest": [3.0, 6.0, 12.0]}, {"harvest": 2.0})
    assert found == Result("harvest", "git fetch", 6.0, 2.0, 3.0, 0.0, 2.0)
    assert harness.cells(found) == ("harvest", "6 s", "git fetch: 2 s", "3.00", "0.00", "2, missed by 50%")
    (spread,) = harness.against({"a": [1.0] * 4, "b": [1.0, 2.0, 3.0, 4.0]}, prefix="<", suffix=">")
    assert (spread.name, spread.ratio, spread.spread) == ("<b>", 2.5, 1.25)


def test_they_take_turns_and_the_first_round_does_not_count() -> None:
    """What a way returns as a float was measured; else it is the time that it took."""
    calls: list[str] = []

    def measured() -> float:
        calls.append("measured")
        return 7.0 if len(calls) > 2 else 1000.0

    taken = harness.turns({"measured": measured, "timed": partial(calls.append, "timed")}, 2, time.perf_counter)
    assert calls == ["measured", "timed"] * 3
    assert taken["measured"] == [7.0, 7.0]
    assert all(0 <= seconds < 7 for seconds in taken["timed"])


def test_a_name_that_is_none_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """And says which there are."""
    with pytest.raises(SystemExit, match="2"):
        bench.main(["launch", "lunch"])
    assert "no benchmark: lunch; there are launch, service" in capsys.readouterr().err
