"""Making worktrees and asking what would be lost with them, beside plain git: `python -m tests.bench worktree`."""

import os
import subprocess
import tempfile
from functools import partial
from itertools import count
from pathlib import Path

from launcher.vcs.worktrees.models import Options
from launcher.vcs.worktrees.worktree_service import WorktreeService
from tests.bench import harness
from tests.bench.harness import Result, Way
from tests.support.install import install
from tests.support.repository import ENV

GOALS = {"paddock worktree add": 1.0, "paddock worktree status": 1.5}


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


def added(place: Path, files: int, rounds: int) -> list[Result]:
    """One worktree more."""
    app = repository(place, files)
    service = WorktreeService(str(place / "state"))
    numbers = count()

    def by_git(*options: str) -> float:
        name = f"../git-{next(numbers)}"
        seconds = harness.seconds(partial(git, *options, "worktree", "add", "-q", "--detach", name, at=app))
        git("worktree", "remove", "--force", name, at=app)
        return seconds

    def by_paddock(**options: object) -> float:
        name = f"ours-{next(numbers)}"
        seconds = harness.seconds(lambda: service.add(app, name, Options(**options)))  # type: ignore[arg-type]
        service.remove(service.find(app, name))
        return seconds

    ways: dict[str, Way] = {
        f"git worktree add, {files:,} files": by_git,
        "git, 4 workers": partial(by_git, "-c", "checkout.workers=4"),
        "paddock worktree add": by_paddock,
        "the same, 1 worker": partial(by_paddock, workers=1),
        "the same, 10 of its directories": partial(by_paddock, sparse=tuple(f"d{each:03}" for each in range(10))),
    }
    return harness.against(harness.turns(ways, rounds), GOALS)


def asked(place: Path, number: int, files: int, rounds: int) -> list[Result]:
    """What many would lose."""
    app = repository(place, files)
    environment = {**os.environ, "HOME": str(place), "XDG_STATE_HOME": str(place / "state")}
    service = WorktreeService(str(place / "state/paddock"))
    trees = [service.add(app, f"t{one}").path for one in range(number)]
    for tree in trees:
        git("status", at=Path(tree))  # writes the index once more: entries younger than it are not read again

    def by_git() -> None:
        for tree in trees:
            git("status", at=Path(tree))

    words = [str(install().paddock), "worktree", "status", "--repo", str(app)]
    ways = {
        f"git status, {number} times {files:,} files": by_git,
        "paddock worktree status": harness.command(words, place, environment),
    }
    return harness.against(harness.turns(ways, rounds), GOALS, suffix=f", {number} of {files:,} files")


def rows(quick: bool = False) -> list[Result]:
    """Both, small and large for the second one."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        found = added(place / "add", 1_000 if quick else 5_000, 3 if quick else 8)
        found += asked(place / "small", 20, 50, 3 if quick else 5)
        return found + asked(place / "large", 5 if quick else 20, 10_000, 2 if quick else 3)


if __name__ == "__main__":
    harness.main(rows)
