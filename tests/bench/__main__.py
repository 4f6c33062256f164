"""Runs the benchmarks one after another, prints their tables, and writes those and pictures into the manual.

`python -m tests.bench [--quick] [NAME...]`, or `make bench ARGS='launch files'` for a part. With --quick in fewer
rounds, and nothing is written.
"""

import argparse
import datetime
import importlib
import os
import platform
import re
import sys
import time
from collections.abc import Mapping, Sequence

from tests.bench import chart, harness
from tests.bench.harness import Result, Rows
from tests.support import suite, warmed
from tests.support.install import ROOT

PAGE = ROOT / "docs/benchmarks.md"
PICTURES = {
    "start": ("launch", "service", "sandbox"),
    "files": ("files",),
    "git": ("git", "worktree", "merge", "tickets"),
    "growth": ("growth",),
}
TITLES = {
    "launch": "A launch",
    "service": "A session of the service",
    "sandbox": "A command in a Sandbox",
    "files": "Work on many files in a jail",
    "git": "A private git directory (processor time)",
    "worktree": "Worktrees",
    "merge": "Merges (processor time)",
    "tickets": "A ticket run",
    "growth": "With more of something",
    "egress": "The proxy",
    "validate": "The validator",
    "tools": "File tools",
    "guard": "The guard",
    "acp": "The ACP bridge",
}
"""Every benchmark of `make bench`, in this order."""
OTHERS = ("/bin/true", "unshare", "bwrap", "firejail", "git,", "merge-tree", "tinyproxy")


def markdown(name: str, results: Sequence[Result]) -> str:
    """A table of the page, with when and how it was made."""
    lines = [
        f"{datetime.date.today()}, `make bench ARGS={name}`, {os.cpu_count()} processors, Linux {platform.release()}:",
        "",
        "| what | takes | beside | ratio | goal |",
        "|---|---|---|---|---|",
    ]
    for what, takes, beside, ratio, spread, goal in map(harness.cells, results):
        lines.append(f"| {what} | {takes} | {beside} | {ratio} ± {spread} | {goal} |")
    return "\n".join(lines)


def panel(name: str, results: Sequence[Result]) -> str:
    """A bar for each result, of the ratio to its floor."""
    floors = {result.floor for result in results}
    shared = f", beside {results[0].floor}" if len(floors) == 1 else ""
    rows = [
        chart.Bar(result.name, result.ratio, result.spread, not result.name.startswith(OTHERS),
                  "" if shared else f"({result.floor})")
        for result in results
    ]  # fmt: skip
    return chart.bars(f"{TITLES[name]}{shared}", rows, "x")


def write(found: Mapping[str, Sequence[Result]]) -> None:
    """Puts what was measured into the page; a picture only once all that it shows was measured."""
    text = PAGE.read_text(encoding="utf-8")
    for name, results in found.items():
        begin, end = f"<!-- bench {name} -->\n", f"<!-- end of {name} -->"
        if len(parts := re.split(f"{begin}|{end}", text)) != 3:
            raise ValueError(f"{PAGE} has no place for {name}")
        text = parts[0] + begin + markdown(name, results) + "\n" + end + parts[2]
    PAGE.write_text(text, encoding="utf-8")
    for picture, names in PICTURES.items():
        if found.keys() >= set(names):
            panels = [panel(name, found[name]) for name in names if found[name]]
            chart.write(ROOT / f"docs/images/bench-{picture}.svg", chart.stacked(TITLES[names[0]], panels))


def main(words: Sequence[str]) -> int:
    """Exit status 0. Raises SystemExit(2) for words that mean nothing."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"a part: {', '.join(TITLES)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and nothing is written")
    given = parser.parse_args(words)
    quick, names = given.quick, given.names or list(TITLES)
    if unknown := set(names) - TITLES.keys():
        parser.error(f"no benchmark: {', '.join(sorted(unknown))}; there are {', '.join(TITLES)}")
    suite.work_in_memory()
    warmed.APART = True
    found: dict[str, list[Result]] = {}
    for number, name in enumerate(names, 1):
        print(f"\n{TITLES[name]} ({name}, {number} of {len(names)})", flush=True)
        rows: Rows = importlib.import_module(f"tests.bench.bench_{name}").rows
        begun = time.monotonic()
        found[name] = rows(quick)
        print(f"{harness.table(found[name])}\n{time.monotonic() - begun:.0f} seconds", flush=True)
        if not quick:
            write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
