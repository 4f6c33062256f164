"""`paddock worktree status` of many large worktrees against `git status` in each of them, in turn.

`python -m tests.bench.bench_status [WORKTREES [FILES [ROUNDS]]]` prints seconds, and the ratio to git's. The target: at
most 1.5 times.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from launcher.vcs.worktrees.worktree_service import WorktreeService
from tests.bench.bench_worktree import git, repository, timed


def main() -> None:
    """Prints one line per way: seconds (median and best), and the ratios to `git status`."""
    number, files, rounds = (
        int(sys.argv[at]) if len(sys.argv) > at else default for at, default in ((1, 40), (2, 50_000), (3, 3))
    )
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        app = repository(place, files)
        environment = {**os.environ, "HOME": str(place), "XDG_STATE_HOME": str(place / "state")}
        service = WorktreeService(str(place / "state/paddock"))
        trees = [service.add(app, f"t{one}").path for one in range(number)]
        for tree in trees:
            git("status", at=Path(tree))  # writes the index once more: entries younger than it are not read again

        def by_git() -> None:
            for tree in trees:
                git("status", at=Path(tree))

        def by_paddock() -> None:
            words = [sys.executable, "-m", "launcher", "worktree", "status", "--repo", str(app)]
            output = subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE).stdout
            assert output.count(b"nothing would be lost") == number

        times: dict[str, list[float]] = {"git status": [], "paddock worktree status": []}
        for _ in range(rounds):
            times["git status"].append(timed(by_git))
            times["paddock worktree status"].append(timed(by_paddock))
        first = times["git status"]
        for way, found in times.items():
            middle, best = statistics.median(found), min(found)
            print(
                f"{way:24} median {middle:7.3f} s  {middle / statistics.median(first):5.2f}"
                f"   best {best:7.3f} s  {best / min(first):5.2f}"
            )


if __name__ == "__main__":
    main()
