"""What a private git directory costs: `python -m tests.bench.bench_git [ROUNDS]` in the repository.

Processor time of the launcher and all its children, in turn, because other work on the machine spoils the time that
passes. Targets, as ratios: a warm launch with --git private to one with --git readonly 1.15, `git status` and
`git commit` in the jail to the same outside 1.3 (measured inside of one jail, without the launch).
"""

import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.support import identity, install, repository

FILES = 2000
INSIDE = """
import resource, subprocess, sys
def spent():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
for words in (["git", "status"], ["git", "commit", "-q", "--allow-empty", "-m", "x"]):
    times = []
    for _ in range(int(sys.argv[1])):
        before = spent()
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        times.append(spent() - before)
    print(sorted(times)[len(times) // 2])
"""


def processor_time(action: Callable[[], object]) -> float:
    """Seconds of processor time that the children of this process take for `action`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    action()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Prints the tables."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    with tempfile.TemporaryDirectory(prefix="bench-", dir=install.public_root()) as name:
        place = Path(name)
        place.chmod(0o755)
        who = identity.user(place / "home")
        (place / "ground").mkdir()
        repo = repository.make(who, who.give(place / "ground"))
        for number in range(FILES):
            (repo.one / f"file-{number}").write_text(str(number))
        who.give(repo.one)
        repo.git("add", ".", at=repo.one)
        repo.git("commit", "-qm", "Many files.", at=repo.one)
        paddock = str(install.install().paddock)

        def run(*words: str) -> "subprocess.CompletedProcess[str]":
            ended = who.run([paddock, "run", "--net", "none", *words], cwd=repo.one)
            ended.check_returncode()
            return ended

        def move_another_branch() -> None:
            repo.git("commit", "-q", "--allow-empty", "-m", "Elsewhere.", at=repo.two)

        kinds: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
            "--git readonly, warm": (lambda: None, ("--git", "readonly", "--", "true")),
            "--git private, warm": (lambda: None, ("--git", "private", "--", "true")),
            "--git private, another branch moved": (move_another_branch, ("--git", "private", "--", "true")),
        }
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for number in range(-3, rounds):
            for kind, (before, words) in kinds.items():
                before()
                taken = processor_time(lambda words=words: run(*words))  # type: ignore[misc]
                if number >= 0:
                    times[kind].append(taken)
        unit = statistics.median(next(iter(times.values())))
        for kind, found in times.items():
            print(f"{kind:40}{statistics.median(found) * 1e3:7.2f} ms{statistics.median(found) / unit:7.2f}")
        script = ["/usr/bin/python3", "-I", "-c", INSIDE, str(rounds)]
        repo.git("merge", "-q", "one", at=repo.two)
        outside = list(map(float, who.run(script, cwd=repo.two, timeout=600).stdout.split()))
        inside = list(map(float, run("--", *script).stdout.split()))
        for what, there, here in zip(("git status", "git commit"), outside, inside, strict=True):
            print(f"{what + ' in the jail to outside':40}{here * 1e3:7.2f} ms{here / there:7.2f}")


if __name__ == "__main__":
    main()
