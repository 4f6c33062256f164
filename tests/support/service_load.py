"""Load for a service: many sessions at once, many one after the other; what that takes, how fast it answers."""

import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.support.served import PATIENCE, Served, descriptors

BWRAP = ("bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "/bin/true")


class Cost(NamedTuple):
    """What the service has: descriptors, KiB of resident memory."""

    descriptors: int
    memory: int


def cost(service: Served) -> Cost:
    """What it has now."""
    text = Path(f"/proc/{service.pid}/status").read_text()
    memory = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS"))
    return Cost(descriptors(service.pid), memory)


def settled(service: Served, helpers: int) -> Cost:
    """What it has once nothing lives and its helpers are ready again."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        health = service.get("/v1/health").json
        live = sum(health["sessions"][state] for state in ("created", "starting", "running", "stopping"))
        if not live and health["helpers"] == helpers:
            return cost(service)
        time.sleep(0.1)
    raise AssertionError(service.get("/v1/health").json)


def alive(service: Served, count: int, label: str) -> list[str]:
    """Makes so many sessions that stay, and waits until all of them run; their names."""
    names = [f"{label}{number}" for number in range(count)]
    for name in names:
        body = {"name": name, "command": ["sleep", "1000"], "directory": str(service.paddock.worktree)}
        answer = service.post("/v1/sessions", body)
        assert answer.status == 201, answer.raw
    deadline = time.monotonic() + PATIENCE + count
    while time.monotonic() < deadline:
        states = service.get("/v1/health").json["sessions"]
        if states["running"] == count:
            return names
        assert not states["failed"], service.get("/v1/sessions?state=failed").json
        time.sleep(0.1)
    raise AssertionError(service.get("/v1/health").json)


def churn(service: Served, count: int, label: str, workers: int = 4) -> float:
    """Starts, talks to and ends so many sessions, `workers` at the same time; seconds that it took."""
    problems: list[object] = []
    numbers = iter(range(count))
    lock = threading.Lock()

    def work() -> None:
        while not problems:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            name = f"{label}{number}"
            try:
                service.create("sh", "-c", f"echo {name}", name=name, wait=0)
                over = service.over(name)
                if over["outcome"]["status"] != 0 or service.log(name) != [name]:
                    problems.append(over)
            except Exception as error:  # told by the thread that waits
                problems.append(error)

    begun = time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems
    return time.monotonic() - begun


def answers(service: Served, until: Callable[[], bool]) -> list[float]:
    """Seconds that each of many small requests took, while something else goes on."""
    found = []
    while not until():
        begun = time.monotonic()
        assert service.get("/v1/sessions?live=1&limit=20").status == 200
        found.append(time.monotonic() - begun)
        time.sleep(0.005)
    return found


def spawns(service: Served, rounds: int, label: str) -> tuple[list[float], list[float]]:
    """Seconds to start a command: in a session, from the hand-over to a helper on, and in bubblewrap, in turn."""
    ours, theirs = [], []
    for number in range(rounds):
        while service.get("/v1/health").json["helpers"] < 2:
            time.sleep(0.05)
        time.sleep(0.1)
        name = f"{label}{number}"
        service.create("true", name=name, wait=0)
        ours.append(service.over(name)["spawn_seconds"])
        time.sleep(0.1)
        begun = time.monotonic()
        pid = os.posix_spawnp(BWRAP[0], BWRAP, os.environ)
        os.waitpid(pid, 0)
        theirs.append(time.monotonic() - begun)
    return ours, theirs


def percentile(values: list[float], percent: int) -> float:
    """So many percent of the values are not above this one."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def bubblewrap_works() -> bool:
    """Whether there is something to compare with."""
    try:
        return subprocess.run(BWRAP, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
