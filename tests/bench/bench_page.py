"""What the page costs: `python -m tests.bench.bench_page [SESSIONS] [DENIALS]` in the repository.

The overview, the denials and one look of an open tab, with so many live sessions and denials in their ledgers; and what
an hour of looks (without the waiting) adds to the service's memory. Records are made directly: no process runs.
"""

import asyncio
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from launcher.service import log_files
from launcher.service.page.live import Tabs, _sent
from launcher.service.schema import Usage
from launcher.service.supervisor import Live
from launcher.service.tables import session_of
from tests.support.paged import Paged, paged

ROUNDS = 20
HOUR = 3_600


def main(sessions: int, denials: int) -> None:
    """Prints the figures."""
    place = Path(tempfile.mkdtemp(prefix="bench-page-", dir="/var/tmp"))
    try:
        with paged(place) as made:
            for number in range(sessions):
                fill(made, f"session-{number:04}", denials // sessions)
            for path in ("/", "/?all=1", "/denials", "/denials?ended=1"):
                first, others = seconds(made, path), [seconds(made, path) for _ in range(ROUNDS)]
                print(f"{path}: first {first * 1000:.0f} ms, then p50 {statistics.median(others) * 1000:.0f} ms, "
                      f"most {max(others) * 1000:.0f} ms, {len(made.get(path).content) >> 10} KiB")  # fmt: skip
            asyncio.run(tab(made))
    finally:
        shutil.rmtree(place)


def fill(made: Paged, name: str, denials: int) -> None:
    """A session that lives as far as the service knows, with a log and a ledger."""
    made.session(name, "claude", "--dangerously-skip-permissions", labels={"ticket": name})
    supervisor = made.service.supervisor
    about = session_of(supervisor.store.required(name)).model_dump(mode="json")
    supervisor.live[name] = Live(name, "", about)
    now = time.time()
    made.service.sampler.usage[name] = Usage(time=now, processes=3, threads=9, memory=300 << 20, cpu_seconds=9.0,
                                             cpu_percent=7.0, read_bytes=0, written_bytes=0)  # fmt: skip
    directory = supervisor.log_of(name)
    os.makedirs(directory)
    line = json.dumps({"time": now, "stream": "stdout", "text": "working on it " * 8}) + "\n"
    Path(directory, log_files.NAME).write_text(line * 200)
    made.denials(name, *(line_of(number) for number in range(denials)))
    session = Path(made.places.state, "sessions", name)
    session.mkdir(parents=True)
    (session / "writes").touch()
    os.utime(session / "writes", (0, 0))


def line_of(number: int) -> dict[str, Any]:
    """One denial of a ledger."""
    return {
        "time": "2026-11-26T12:00:00.000Z", "layer": "guard", "operation": "open", "path": f"/home/me/secret-{number}",
        "host": None, "port": None, "target": None, "rights": ["read_file"], "count": 1,
        "process": {"comm": "node", "exe": "/usr/bin/node", "pid": 7},
        "allow": {"flag": f"--ro /home/me/secret-{number}", "toml": "", "note": ""}, "risk": "it can be read",
    }  # fmt: skip


def seconds(made: Paged, path: str) -> float:
    """For which one answer is waited."""
    begun = time.perf_counter()
    assert made.get(path).status_code == 200
    return time.perf_counter() - begun


async def tab(made: Paged) -> None:
    """An hour of a tab's looks, one after the other."""
    from launcher.service.page import overview
    from launcher.service.page.rendering import macros

    tabs: Tabs = made.app.state.tabs
    visit = next(iter(made.admissions._visits.values()))
    parts, looks, took = macros("sessions.html", visit), 0, 0.0
    names = list(made.service.supervisor.live)
    before = grown = 0

    async def make() -> dict[str, str]:
        nonlocal looks, took, before, grown
        looks += 1
        begun = time.perf_counter()
        await tabs.watcher.look()
        rows = [overview._row(tabs.watcher, made.service.supervisor.session(name)) for name in names]
        found = {f"session-{row['session'].name}": str(parts.row(row)) for row in rows}
        took += time.perf_counter() - begun
        if looks in (HOUR // 20, HOUR):
            gc.collect()
            size = psutil.Process().memory_info().rss
            before, grown = (size, 0) if looks < HOUR else (before, size - before)
        if looks == HOUR:
            tabs.closing.set()
        return found

    sent = 0
    async for each in _sent(tabs, visit, make, 0.0001):
        sent += len(each)
    print(f"a tab: {took / looks * 1000:.1f} ms for a look, {sent / looks / 1024:.1f} KiB sent for each; "
          f"after {HOUR} looks the service has grown by {grown / 1024:.0f} KiB")  # fmt: skip


if __name__ == "__main__":
    main(*(int(each) for each in (*sys.argv[1:], *("200", "10000")[len(sys.argv) - 1 :])))
