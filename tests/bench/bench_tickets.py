"""A ticket run with a submodule beside the same by hand: `python -m tests.bench tickets`.

Each agent commits in its submodule and in its main repository. By hand is a plain script, one ticket after the other:
`git worktree add`, `git submodule update`, the agent's own command without a jail, and both merges.
"""

import itertools
import time
from pathlib import Path

from tests.bench import harness
from tests.bench.harness import Result
from tests.support import identity, served
from tests.support.served import Served

PARALLEL = 4

_REPOSITORY = """
set -e
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=protocol.file.allow GIT_CONFIG_VALUE_0=always
identify() { git -C "$1" config user.name Tester; git -C "$1" config user.email tester@example.invalid; }
fill() { for d in $(seq 20); do mkdir "$1/d$d"; for f in $(seq 10); do echo "$d $f" > "$1/d$d/f$f"; done; done; }
git init -q -b main upstream; identify upstream; fill upstream
git -C upstream add .; git -C upstream commit -q -m 'upstream: First.'
git init -q -b main app; identify app; fill app
git -C app submodule --quiet add ../upstream library; identify app/library
git -C app add .; git -C app commit -q -m 'app: First.'
"""
_AGENT = """
export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@b.c GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@b.c
cd library && echo {0} > work-{0} && git add -A && git commit -q -m 'library {0}' && cd .. &&
echo {0} > work-{0} && git add -A && git commit -q -m 'app {0}'
"""
_BY_HAND = """
set -e
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=protocol.file.allow GIT_CONFIG_VALUE_0=always
cd app
for number in $(seq {count}); do
    git worktree add -q -b hand/$number ../hand-$number
    git -C ../hand-$number submodule --quiet update --init
    (cd ../hand-$number; sh ../agent $number)
done
for number in $(seq {count}); do
    git -C library fetch -q ../../hand-$number/library HEAD
    git -C library merge -q --no-edit FETCH_HEAD > ../said
    git merge -q --no-ff --no-commit hand/$number > ../said 2>&1 || true
    git add library
    git commit -q -m "Merge $number"
    git submodule --quiet update
    git worktree remove --force ../hand-$number
done
"""


def repository(who: identity.Who, place: Path) -> Path:
    """A repository of 200 files with a submodule of 200 in it."""
    place.mkdir()
    who.give(place)
    (place / "agent").write_text(_AGENT.replace("{0}", "$1"))
    who.run(["sh", "-c", _REPOSITORY], cwd=place).check_returncode()
    return place / "app"


def by_hand(who: identity.Who, place: Path, count: int) -> float:
    """Seconds of the plain script."""
    repository(who, place)
    begun = time.perf_counter()
    ended = who.run(["sh", "-c", _BY_HAND.format(count=count)], cwd=place, timeout=600)
    assert ended.returncode == 0, ended
    return time.perf_counter() - begun


def by_paddock(service: Served, place: Path, count: int) -> float:
    """Seconds of a ticket run."""
    app = repository(service.paddock.who, place)
    tickets = [
        {"ticket": f"T-{number}", "command": ["sh", "-c", _AGENT.replace("{0}", str(number))]}
        for number in range(1, count + 1)
    ]
    body = {"repository": str(app), "tickets": tickets, "parallel": PARALLEL,
            "environment": service.paddock.who.environment(service.env)}  # fmt: skip
    begun = time.perf_counter()
    name = service.post("/v1/ticket-runs", body).json["name"]
    seen = 0
    while (found := service.get(f"/v1/ticket-runs/{name}?wait=60&seen={seen}").json)["ended"] is None:
        seen = found["seen"]
    seconds = time.perf_counter() - begun
    assert found["state"] == "ended", found
    assert len(found["result"]["aggregation"]["merged"]) == count
    assert all((app / "library" / f"work-{number}").exists() for number in range(1, count + 1))
    return seconds


def rows(quick: bool = False) -> list[Result]:
    """The run as a whole."""
    with served.started(helpers=4) as service:
        numbers = itertools.count()
        place, who, count = service.paddock.place, service.paddock.who, 2 if quick else 8
        ways = {
            "by hand, without jails": lambda: by_hand(who, place / f"hand{next(numbers)}", count),
            f"{count} tickets, {PARALLEL} at a time": lambda: by_paddock(service, place / f"run{next(numbers)}", count),
        }
        return harness.against(harness.turns(ways, 1 if quick else 3))


if __name__ == "__main__":
    harness.main(rows)
