"""What a harvest costs: `python -m tests.bench.bench_harvest [ROUNDS]` in the repository.

Processor time of all processes, because other work on the machine spoils the time that passes, beside what gives less:
`git fetch` from the agent's directory, which runs what the agent configured there, and `git status`, as a measure of
the machine. Also what a session's end without a commit costs, in microseconds; that starts no process.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from launcher.vcs.harvest import agent_refs
from tests.bench.bench_git import processor_time
from tests.support import identity, install, private_git, repository


def main() -> None:
    """Prints the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory(prefix="bench-", dir=install.public_root()) as name:
        place = Path(name)
        place.chmod(0o755)
        who = identity.user(place / "home")
        (place / "ground").mkdir()
        repo = repository.make(who, who.give(place / "ground"))
        planted = private_git.plant(repo, repo.one, install.install(), place / "ground")
        fetch = ["git", "fetch", "-q", str(planted.git_dir), "+refs/heads/one:refs/heads/fetched"]
        contestants: dict[str, Callable[[], object]] = {
            "git status": lambda: who.run(["git", "status"], cwd=repo.one),
            "git fetch": lambda: who.run(fetch, cwd=repo.main).check_returncode(),
            "an interpreter": lambda: planted.start(limits={"nonsense": 1}),
            "harvest": lambda: planted.harvest(),
        }
        times: dict[str, list[float]] = {name: [] for name in contestants}
        quiet: list[float] = []
        for number in range(rounds):
            planted.commit(f"file-{number}", f"{number}\n")
            for name, action in contestants.items():
                times[name].append(processor_time(action))
            before = time.process_time()
            assert not agent_refs.harvest_due(str(planted.directory))
            quiet.append(time.process_time() - before)
        median = {name: statistics.median(taken) for name, taken in times.items()}
        own = median["harvest"] - median["an interpreter"]
        for name, seconds in median.items():
            print(f"{name:<24}{seconds * 1000:8.1f} ms")
        print(f"{'harvest alone':<24}{own * 1000:8.1f} ms  {own / median['git fetch']:.1f} x git fetch")
        print(f"{'nothing to harvest':<24}{statistics.median(quiet) * 1e6:8.0f} us")


if __name__ == "__main__":
    main()
