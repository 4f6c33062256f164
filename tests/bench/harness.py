"""Compares commands by running them in turn, in the same minute, on the same machine.

Absolute times say more about the machine than about the programme, so what counts is the ratio to the first
command. Nothing here asserts anything.
"""

import os
import resource
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
        peak: greatest resident memory of any process of the command, bytes.
    """

    name: str
    median: float
    spread: float
    peak: int


def compare(contestants: Sequence[Contestant], rounds: int = 100) -> list[Result]:
    """Runs all contestants `rounds` times, interleaved, after two unmeasured rounds.

    Raises:
        subprocess.CalledProcessError: a command failed; its stderr is in the error.
    """
    times: list[list[float]] = [[] for _ in contestants]
    peaks = [0] * len(contestants)
    for number in range(-2, rounds):
        for index, contestant in enumerate(contestants):
            for path in contestant.cold:
                shutil.rmtree(path, ignore_errors=True)
            seconds, peak = measure(contestant)
            if number >= 0:
                times[index].append(seconds)
                peaks[index] = max(peaks[index], peak)
    return [
        Result(contestant.name, statistics.median(taken), _spread(taken), peak)
        for contestant, taken, peak in zip(contestants, times, peaks, strict=True)
    ]


def measure(contestant: Contestant) -> tuple[float, int]:
    """Runs a command once and returns seconds from start to end, and its peak resident memory in bytes."""
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
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.stderr.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, list(contestant.argv), stderr=complaint)
    return seconds, _bytes(usage)


def table(results: Sequence[Result]) -> str:
    """The results as text; every ratio is to the first line."""
    width = max(len(result.name) for result in results)
    lines = [f"{'':{width}}  {'median':>9}  {'+/-':>7}  {'ratio':>6}  {'peak':>9}"]
    for result in results:
        lines.append(
            f"{result.name:{width}}  {result.median * 1e3:6.2f} ms  {result.spread * 1e3:7.2f}"
            f"  {result.median / results[0].median:6.2f}  {result.peak / 2**20:5.1f} MiB"
        )
    return "\n".join(lines)


def _spread(taken: list[float]) -> float:
    if len(taken) < 2:
        return 0.0
    low, _, high = statistics.quantiles(taken, n=4)
    return (high - low) / 2


def _bytes(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss * 1024  # KiB on Linux, getrusage(2)
