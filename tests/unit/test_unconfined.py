"""How much of Paddock takes in bytes with all of the user's rights: `tests.bench.bench_house` counts, this holds it."""

from tests.bench import bench_house

MOST = 56_000
"""Lines, an upper bound: the script says what is counted. The goal is 12,000 for what reads an agent's bytes."""


def test_what_runs_unconfined_does_not_grow() -> None:
    """A module that begins to read must be confined, or stand in for another one."""
    found = bench_house.unconfined(bench_house.modules())
    assert sum(found.values()) <= MOST, sorted(found)


def test_what_counts_as_confined_is_imported_by_nobody_else() -> None:
    """Else another process, with all of the user's rights, might read by it: each further importer has its reason."""
    modules = bench_house.modules()
    confined = bench_house.confined()
    assert confined <= modules.keys()
    importers = {name for name, module in modules.items() if module.imports & confined} - confined
    assert importers == set(bench_house.ENTRIES)
