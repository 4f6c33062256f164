"""What a private git directory and its harvest cost, in processor time: `python -m tests.bench git`.

Of the launcher and all its children, because other work on the machine spoils the time that passes. A harvest is beside
what gives less: `git fetch` from the agent's directory, which runs what the agent configured there.
"""

import functools
import statistics
import time
from collections.abc import Callable

from launcher.vcs.harvest import agent_refs
from tests.bench import harness
from tests.bench.harness import Result, Way
from tests.support import private_git, repository
from tests.support.identity import Word
from tests.support.install import base_python
from tests.support.paddock import Paddock

FILES = 2000
GOALS = {"paddock run --git private": 1.15, "git status": 1.3, "git commit": 1.3, "harvest of a commit": 4.0}
INSIDE = """
import resource, subprocess, sys
def spent():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
for words in (["git", "status"], ["git", "commit", "-q", "--allow-empty", "-m", "x"]):
    for _ in range(int(sys.argv[1])):
        before = spent()
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        print(spent() - before)
"""


def processor_time(action: Callable[[], object]) -> float:
    """Seconds of processor time that the children of this process take for `action`."""
    before = harness.processor()
    action()
    return harness.processor() - before


def launches(made: Paddock, rounds: int) -> list[Result]:
    """A launch with a private git directory, also after another branch has moved, beside one with a read-only one."""

    def run(mode: str) -> None:
        ended = made.run("--net", "none", "--git", mode, "--", "true")
        ended.check_returncode()

    def moved() -> float:
        made.who.run(["git", "commit", "-q", "--allow-empty", "-m", "Elsewhere."], cwd=made.main).check_returncode()
        return processor_time(functools.partial(run, "private"))

    ways: dict[str, Way] = {
        "paddock run --git readonly": functools.partial(run, "readonly"),
        "paddock run --git private": functools.partial(run, "private"),
        "the same, another branch moved": moved,
    }
    return harness.against(harness.turns(ways, rounds, harness.processor), GOALS)


def inside(made: Paddock, rounds: int) -> list[Result]:
    """git in the jail beside git outside, in the same worktree, without the launch."""
    script: list[Word] = [base_python(), "-I", "-S", "-c", INSIDE, str(rounds)]
    found = []
    outside = made.who.run(script, cwd=made.worktree, timeout=600)
    jailed = made.run("--net", "none", "--", *script)
    there, here = ([*map(float, ended.stdout.split())] for ended in (outside, jailed))
    for name, part in (("git status", slice(rounds)), ("git commit", slice(rounds, None))):
        found += harness.against({f"{name} outside": there[part], name: here[part]}, GOALS, prefix="in a jail: ")
    return found


def harvests(made: Paddock, rounds: int) -> list[Result]:
    """A harvest without its interpreter beside a fetch, and the question whether there is something to harvest."""
    repo = repository.Repo(made.who, made.main, made.worktree, made.worktree, made.place)
    planted = private_git.plant(repo, repo.one, made.installed, made.place)
    fetch = ["git", "fetch", "-q", str(planted.git_dir), "+refs/heads/one:refs/heads/fetched"]
    numbers = iter(range(10**6))

    def committed() -> float:
        number = next(numbers)
        planted.commit(f"file-{number}", f"{number}\n")
        return processor_time(lambda: made.who.run(fetch, cwd=repo.main).check_returncode())

    taken = harness.turns(
        {
            "git fetch": committed,
            "an interpreter": lambda: planted.start(limits={"nonsense": 1}),
            "harvest": planted.harvest,
        },
        rounds,
        harness.processor,
    )
    interpreter = statistics.median(taken["an interpreter"])
    quiet = []
    for _ in range(rounds):
        before = time.process_time()
        assert not agent_refs.harvest_due(str(planted.directory))
        quiet.append(time.process_time() - before)
    return harness.against(
        {
            "git fetch": taken["git fetch"],
            "harvest of a commit": [each - interpreter for each in taken["harvest"]],
            "harvest, with its interpreter": taken["harvest"],
            "harvest, nothing to do": quiet,
        },
        GOALS,
    )


def rows(quick: bool = False) -> list[Result]:
    """All of it, in a worktree of many files."""
    rounds = 5 if quick else 30
    with harness.scene() as made:
        for number in range(FILES):
            (made.worktree / f"file-{number}").write_text(str(number))
        made.who.give(made.worktree)
        for words in (["add", "."], ["commit", "-qm", "Many files."]):
            made.who.run(["git", *words], cwd=made.worktree).check_returncode()
        return launches(made, rounds) + inside(made, rounds) + harvests(made, rounds)


if __name__ == "__main__":
    harness.main(rows)
