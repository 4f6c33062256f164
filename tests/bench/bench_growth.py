"""What becomes slower as there is more of something, beside the least of it: `python -m tests.bench growth`.

Sessions of one service (start of another one, memory of each), grants, refs of the repository, and its worktrees.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import psutil

from tests.bench import harness
from tests.bench.harness import Result, Way
from tests.support import paddock, served
from tests.support.identity import Word
from tests.support.paddock import Paddock
from tests.support.served import Served

SESSIONS = [1, 10, 100, 500]
GRANTS = [10, 100, 1_000, 10_000]
REFS = [10, 1_000, 10_000, 100_000]
WORKTREES = [1, 10, 50, 200]
MOST_SECONDS = 90.0
"""How long sessions are started before the bench is content with fewer."""
SPARE = 2 << 30
"""Bytes of memory that sessions leave to the machine."""

_COMMIT = ("git", "commit", "-q", "--allow-empty", "-m", "Work.")
_ADD = """
import sys
from launcher.vcs.worktrees.worktree_service import WorktreeService
service = WorktreeService(sys.argv[1])
for number in range(int(sys.argv[3])):
    service.add(sys.argv[2], f"t{number}")
"""


def sessions(levels: Sequence[int]) -> list[Result]:
    """Start-up and memory beside so many that live; fewer where time or memory is short."""
    starts: dict[str, list[float]] = {}
    sizes: dict[str, list[float]] = {}
    live, most = 0, max(levels) + 8
    with served.started(helpers=4, most_sessions=most, most_sessions_of_client=most) as service:
        served.churn(service, 5, "warm")
        end = time.monotonic() + MOST_SECONDS
        try:
            for level in levels:
                while live < level and time.monotonic() < end and psutil.virtual_memory().available > SPARE:
                    more = min(8, level - live)
                    with ThreadPoolExecutor(4) as pool:
                        list(pool.map(partial(_sleeping, service), range(live, live + more)))
                    live += more
                name = f"with {live} {'session' if live == 1 else 'sessions'}"
                if name in starts:
                    break
                starts[name] = served.spawns(service, 9, f"at{level}-", beside=False)[0]
                sizes[name] = [_memory(service, f"sleeping{number}") for number in range(max(0, live - 9), live)]
                sizes[name] += sizes[name][:1] * (9 - len(sizes[name]))
        finally:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(partial(_stopped, service), range(live)))
    return harness.against(starts, prefix="start in the service, ") + harness.against(
        sizes, prefix="memory of a session, ", unit="MiB"
    )


def _sleeping(service: Served, number: int) -> None:
    service.create("sleep", "1000", name=f"sleeping{number}")


def _stopped(service: Served, number: int) -> None:
    service.post(f"/v1/sessions/sleeping{number}/stop", {"term_seconds": 0, "forget": True, "wait": 60})


def _memory(service: Served, name: str) -> float:
    return harness.memory(served.own_processes(service, name))


def grants(levels: Sequence[int], rounds: int) -> list[Result]:
    """A launch with so many directories that may be read."""
    with harness.scene() as made:
        ways: dict[str, Way] = {}
        granted, files = made.place / "g", made.place / "files"
        for directory in (files, granted, *(granted / str(number) for number in range(max(levels)))):
            directory.mkdir()
        made.who.give(granted)
        for level in levels:
            file = files / f"{level}.toml"
            names = ",\n".join(f'"../g/{number}"' for number in range(level))  # a file may have 256 KiB
            file.write_text(f"schema = 1\n[filesystem]\nread = [{names}]\n")
            ways[f"{level:,} grants"] = _launch(made, "--config", str(file), "--git", "readonly")
        return harness.against(harness.turns(ways, rounds), prefix="paddock run, ")


def refs(levels: Sequence[int], rounds: int) -> list[Result]:
    """A launch with a private git directory, and one whose commit is harvested, in repositories of so many refs."""
    launches: dict[str, Way] = {}
    commits: dict[str, Way] = {}
    with repositories(levels) as made:
        for level, one in made.items():
            commit = one.who.run(["git", "rev-parse", "HEAD"], cwd=one.main).stdout.strip()
            lines = "".join(f"create refs/tags/t{number:06} {commit}\n" for number in range(level))
            for words, text in ((["update-ref", "--stdin"], lines), (["pack-refs", "--all"], "")):
                one.who.run(["git", *words], cwd=one.main, stdin=text, timeout=300).check_returncode()
            launches[f"{level:,} refs"] = _launch(one)
            commits[f"{level:,} refs"] = _launch(one, command=_COMMIT)
        return harness.against(harness.turns(launches, rounds), prefix="paddock run, ") + harness.against(
            harness.turns(commits, rounds), prefix="paddock run, commit, harvest, "
        )


def worktrees(levels: Sequence[int], rounds: int) -> list[Result]:
    """One more worktree, the status of each, and a launch in one, in repositories of so many worktrees."""
    ways: dict[str, dict[str, Way]] = {"worktree add": {}, "worktree status, each": {}, "paddock run": {}}
    with repositories(levels) as made:
        for level, one in made.items():
            words: list[Word] = [one.installed.python, "-I", "-c", _ADD, one.state, one.main, str(level)]
            one.who.run(words, timeout=600).check_returncode()
            number = f"{level} worktree" + "s" * (level > 1)
            ways["worktree add"][number] = partial(_added, one)
            ways["worktree status, each"][number] = partial(_status, one, level)
            ways["paddock run"][number] = _launch(one)
        found = []
        for what, each in ways.items():
            found += harness.against(harness.turns(each, 1 if "status" in what else rounds), prefix=f"{what}, ")
        return found


@contextmanager
def repositories(levels: Sequence[int]) -> Iterator[dict[int, Paddock]]:
    """A small repository for each level, of one user."""
    with harness.scene() as first:
        found = {}
        for level in levels:
            place = first.place / str(level)
            place.mkdir()
            found[level] = paddock.make(first.who, first.installed, first.who.give(place))
        yield found


def _launch(one: Paddock, *words: str, command: Sequence[str] = ("true",)) -> Way:
    return partial(_succeeds, one, "run", "--quiet", "--net", "none", *words, "--", *command)


def _succeeds(one: Paddock, *words: str) -> None:
    ended = one.call(*words)
    if ended.returncode:
        raise RuntimeError(f"{words}: {ended.stderr}")


def _added(one: Paddock) -> float:
    taken = harness.seconds(partial(_succeeds, one, "worktree", "add", "--repo", str(one.main), "more"))
    _succeeds(one, "worktree", "remove", "--repo", str(one.main), "more")
    return taken


def _status(one: Paddock, number: int) -> float:
    return harness.seconds(partial(_succeeds, one, "worktree", "status", "--repo", str(one.main))) / number


def rows(quick: bool = False) -> list[Result]:
    """All four; quickly: without the last step of each."""
    some, rounds = slice(-1 if quick else None), 3 if quick else 7
    return [
        *sessions(SESSIONS[some]),
        *grants(GRANTS[some], rounds),
        *refs(REFS[some], rounds),
        *worktrees(WORKTREES[some], rounds),
    ]


if __name__ == "__main__":
    harness.main(rows)
