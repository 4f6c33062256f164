"""Making a worktree of 20,000 files against `git worktree add`, in turn, and many small ones by 8 processes.

`python -m tests.bench.bench_worktree [FILES [ROUNDS]]` prints ratios; the first line is what they refer to.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from launcher.vcs.worktrees.models import Options
from launcher.vcs.worktrees.worktree_service import WorktreeService
from tests.support.repository import ENV

_SMALL = """
import sys
from launcher.vcs.worktrees.worktree_service import WorktreeService
service = WorktreeService(sys.argv[1])
for number in range(int(sys.argv[3]), 100, 8):
    service.add(sys.argv[2], f"small-{number}")
"""


def git(*words: str, at: Path) -> None:
    """Runs plain git, however long it takes."""
    subprocess.run(["git", *words], cwd=at, env=ENV, check=True, stdout=subprocess.DEVNULL)


def repository(place: Path, files: int) -> Path:
    """A repository with `files` files of 100 to 1500 bytes, 100 in each directory."""
    app = place / "app"
    app.mkdir(parents=True)
    git("init", "-q", "-b", "main", at=app)
    git("config", "gc.auto", "0", at=app)
    for number in range(files):
        path = app / f"d{number // 100:03}" / f"f{number % 100:02}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {number}\n" + "value = 1\n" * (10 + number * 7 % 140))
    git("add", ".", at=app)
    git("commit", "-q", "-m", "Files.", at=app)
    git("gc", "-q", at=app)
    return app


def timed(act: Callable[[], object]) -> float:
    """Seconds that `act` takes."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def main() -> None:
    """Prints one line per way: seconds (median and best), and the ratios to `git worktree add`."""
    files, rounds = (int(sys.argv[at]) if len(sys.argv) > at else default for at, default in ((1, 20_000), (2, 5)))
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        app = repository(place, files)
        service = WorktreeService(str(place / "state"))
        ways: dict[str, Callable[[str], object]] = {
            "git worktree add": lambda name: git("worktree", "add", "-q", "-b", name, f"../app-{name}", at=app),
            "git, 4 workers": lambda name: git(
                "-c", "checkout.workers=4", "worktree", "add", "-q", "-b", name, f"../app-{name}", at=app
            ),
            "paddock": lambda name: service.add(app, name),
            "paddock, 1 worker": lambda name: service.add(app, name, Options(workers=1)),
            "paddock, 10 directories": lambda name: service.add(
                app, name, Options(sparse=tuple(f"d{number:03}" for number in range(10)))
            ),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(rounds):
            for way, act in ways.items():
                name = f"{list(ways).index(way)}-{number}"
                times[way].append(timed(lambda: act(name)))  # noqa: B023  # called at once
                if way.startswith("git"):
                    git("worktree", "remove", "--force", f"../app-{name}", at=app)
                else:
                    service.remove(service.find(app, name))
        first = times["git worktree add"]
        for way, found in times.items():
            middle, best = statistics.median(found), min(found)
            print(
                f"{way:28} median {middle:7.3f} s  {middle / statistics.median(first):5.2f}"
                f"   best {best:7.3f} s  {best / min(first):5.2f}"
            )
        small = repository(place / "small", 10)
        state = str(place / "state-small")
        start = time.perf_counter()
        running = [
            subprocess.Popen([sys.executable, "-c", _SMALL, state, str(small), str(number)]) for number in range(8)
        ]
        if any(process.wait() for process in running):
            raise SystemExit("a process failed")
        print(f"{'100 small ones, 8 processes':28} {time.perf_counter() - start:7.3f} s")


if __name__ == "__main__":
    main()
