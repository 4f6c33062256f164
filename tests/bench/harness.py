"""Compares commands by running them in turn, in the same minute, on the same machine.

Absolute times say more about the machine than about the programme, so what counts is the ratio to the first
command. Nothing here asserts anything.
"""

import shutil
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Contestant:
    """One command to measure.

    Args:
        name: as it is printed.
        argv: the command; it must succeed.
        cwd: where it starts.
        env: its whole environment, the caller's when None.
        cold: directories to remove ahead of every run, outside the measured time.
        uid: user and group to run as; None for the caller's. No setpriv(1), whose start would be measured too.
    """

    name: str
    argv: Sequence[str]
    cwd: Path = Path("/")
    env: Mapping[str, str] | None = None
    cold: Sequence[Path] = ()
    uid: int | None = None


@dataclass(frozen=True)
class Result:
    """What was measured of one command.

    Args:
        name: the contestant's name.
        median: seconds.
        spread: half the distance between the quartiles, seconds.
    """

    name: str
    median: float
    spread: float


def compare(contestants: Sequence[Contestant], rounds: int = 100) -> list[Result]:
    """Runs all contestants `rounds` times, interleaved, after two unmeasured rounds.

    Raises:
        subprocess.CalledProcessError: a command failed; its stderr is in the error.
    """
    times: list[list[float]] = [[] for _ in contestants]
    for number in range(-2, rounds):
        for index, contestant in enumerate(contestants):
            for path in contestant.cold:
                shutil.rmtree(path, ignore_errors=True)
            seconds = measure(contestant)
            if number >= 0:
                times[index].append(seconds)
    return [
        Result(contestant.name, statistics.median(taken), _spread(taken))
        for contestant, taken in zip(contestants, times, strict=True)
    ]


def measure(contestant: Contestant) -> float:
    """Runs a command once and returns the seconds from its start until it has ended and closed its output.

    Memory is not measured here: ru_maxrss of a child also counts the image it was forked from, this one.
    """
    start = time.perf_counter()
    process = subprocess.Popen(
        contestant.argv,
        cwd=contestant.cwd,
        env=contestant.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        user=contestant.uid,
        group=contestant.uid,
        extra_groups=None if contestant.uid is None else (),
    )
    assert process.stderr is not None
    complaint = process.stderr.read()
    status = process.wait()
    seconds = time.perf_counter() - start
    process.stderr.close()
    if status != 0:
        raise subprocess.CalledProcessError(status, list(contestant.argv), stderr=complaint)
    return seconds


def table(results: Sequence[Result]) -> str:
    """The results as text; every ratio is to the first line."""
    width = max(len(result.name) for result in results)
    lines = [f"{'':{width}}  {'median':>9}  {'+/-':>7}  {'ratio':>6}"]
    for result in results:
        lines.append(
            f"{result.name:{width}}  {result.median * 1e3:6.2f} ms  {result.spread * 1e3:7.2f}"
            f"  {result.median / results[0].median:6.2f}"
        )
    return "\n".join(lines)


def _spread(taken: list[float]) -> float:
    if len(taken) < 2:
        return 0.0
    low, _, high = statistics.quantiles(taken, n=4)
    return (high - low) / 2
