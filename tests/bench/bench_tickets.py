"""A ticket run with a submodule beside the same by hand: `python -m tests.bench.bench_tickets [TICKETS] [PARALLEL]`.

Each agent commits in its submodule and in its main repository. By hand is a plain script, one ticket after the other:
`git worktree add`, `git submodule update`, the agent's own command without a jail, and both merges.
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.support import identity, install, paddock, served
from tests.support.served import Served

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


def by_hand(who: identity.Who, place: Path, count: int) -> tuple[float, float]:
    """Seconds of the plain script, and of processors."""
    repository(who, place)
    begun, used = time.perf_counter(), os.times()
    ended = who.run(["sh", "-c", _BY_HAND.format(count=count)], cwd=place, timeout=600)
    assert ended.returncode == 0, ended
    now = os.times()
    processor = now.children_user + now.children_system - used.children_user - used.children_system
    return time.perf_counter() - begun, processor


def processor_of(pid: int) -> float:
    """Seconds of processors that a process and those that it has waited for have used (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def by_paddock(
    service: Served, place: Path, count: int, parallel: int
) -> tuple[float, float, dict[str, tuple[float, float]]]:
    """Seconds of a ticket run, of processors, and both for each of its states."""
    app = repository(service.paddock.who, place)
    tickets = [
        {"ticket": f"T-{number}", "command": ["sh", "-c", _AGENT.replace("{0}", str(number))]}
        for number in range(1, count + 1)
    ]
    body = {"repository": str(app), "tickets": tickets, "parallel": parallel,
            "environment": service.paddock.who.environment(service.env)}  # fmt: skip
    pid = service.get("/v1/health").json["pid"]
    begun, used = time.perf_counter(), processor_of(pid)
    name = service.post("/v1/ticket-runs", body).json["name"]
    states: dict[str, tuple[float, float]] = {}
    at, state, seen = (begun, used), "created", 0
    while True:
        found = service.get(f"/v1/ticket-runs/{name}?wait=60&seen={seen}").json
        now, spent = time.perf_counter(), processor_of(pid)
        before = states.get(state, (0.0, 0.0))
        states[state] = (before[0] + now - at[0], before[1] + spent - at[1])
        at, state, seen = (now, spent), found["state"], found["seen"]
        if found["ended"] is not None:
            break
    assert state == "ended", found
    assert len(found["result"]["aggregation"]["merged"]) == count
    assert all((app / "library" / f"work-{number}").exists() for number in range(1, count + 1))
    return now - begun, processor_of(pid) - used, states


def main() -> None:
    """Prints seconds and ratios; the two take turns."""
    count, parallel, rounds = (
        int(sys.argv[at]) if len(sys.argv) > at else default for at, default in ((1, 50), (2, 4), (3, 1))
    )
    place = Path(tempfile.mkdtemp(prefix="b-", dir=install.public_root()))
    place.chmod(0o755)
    who = identity.user(place / "home")
    (place / "place").mkdir()
    made = paddock.make(who, install.install(), who.give(place / "place"))
    try:
        with served.serving(made, helpers=4) as service:
            by_paddock(service, place / "place" / "warm", 2, 2)
            for number in range(rounds):
                hand, processors = by_hand(who, place / "place" / f"hand{number}", count)
                seconds, used, states = by_paddock(service, place / "place" / f"run{number}", count, parallel)
                told = ", ".join(f"{state} {taken:.2f}/{by_it:.2f}" for state, (taken, by_it) in states.items())
                print(f"{count} tickets by hand {hand:.2f} s; by paddock {seconds:.2f} s ({told}); "
                      f"ratio {seconds / hand:.2f}; of processors {used:.2f} s, by hand {processors:.2f} s, "
                      f"ratio {used / processors:.2f}")  # fmt: skip
    finally:
        if not os.environ.get("KEEP"):
            shutil.rmtree(place)


if __name__ == "__main__":
    main()
