"""What takes turns with its floor on the same machine, in the same minute, and how far it is from it.

Absolute times say more about the machine than about the programme, so what counts is the ratio to something that
does less. Nothing here asserts anything.
"""

import functools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launcher.jail import syscalls
from policy import promises
from tests.support import features, identity, install, paddock, suite
from tests.support.paddock import Paddock
from tests.support.programs.scene import SWITCHES

Way = Callable[[], object]
"""Does something once. Where it returns a float, that was measured; else the time that it took."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class Result:
    """How far something is from its floor.

    Args:
        name: what was measured.
        floor: what it is compared with.
        taken: of it, and `base` of the floor: medians, in `unit`.
        base: see `taken`.
        ratio: the median of the ratios of one round.
        spread: half the distance between the quartiles of these.
        goal: what the ratio should not exceed.
        unit: "s" (shown in what is easiest to read), or what is shown behind the number.
    """

    name: str
    floor: str
    taken: float
    base: float
    ratio: float
    spread: float = 0.0
    goal: float | None = None
    unit: str = "s"


Rows = Callable[[bool], list[Result]]
"""What a module measures; in fewer rounds, or with less, if told so."""


def turns(ways: Mapping[str, Way], rounds: int, clock: Clock = time.perf_counter) -> dict[str, list[float]]:
    """What each has taken in each round: they take turns, after a round that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-1, rounds):
        for name, act in ways.items():
            begun = clock()
            answer = act()
            spent = clock() - begun
            if number >= 0:
                taken[name].append(answer if isinstance(answer, float) else spent)
    return taken


def against(
    taken: Mapping[str, Sequence[float]],
    goals: Mapping[str, float] | None = None,
    *,
    prefix: str = "",
    suffix: str = "",
    unit: str = "s",
) -> list[Result]:
    """The results of all but the first, which is the floor; `prefix` and `suffix` go around each name."""
    (floor, base), *others = taken.items()
    found = []
    for name, times in others:
        ratios = [one / other for one, other in zip(times, base, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        found.append(
            Result(prefix + name + suffix, floor, statistics.median(times), statistics.median(base), middle,
                   (high - low) / 2, (goals or {}).get(name), unit)
        )  # fmt: skip
    return found


def processor() -> float:
    """A clock of the processor time of this process's children: other work on the machine counts less."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def command(argv: Sequence[str | Path], at: Path, env: Mapping[str, str] | None = None, uid: int | None = None) -> Way:
    """A way that runs a command until it has ended and closed its output; it must succeed.

    Args:
        argv: of the command.
        at: where it starts.
        env: its whole environment, the caller's when None.
        uid: user and group to run as; None for the caller's.
    """
    words = [*map(str, argv)]

    def run() -> float | None:
        if uid is None:
            ended = subprocess.run(
                words, cwd=at, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                text=True, check=False,
            )  # fmt: skip
            taken, status, said = None, ended.returncode, ended.stderr
        else:
            taken, status, said = _Starter.of(uid).run(words, str(at), env)
        if status:
            raise RuntimeError(f"{argv} ended with {status}: {said}")
        return taken

    return run


class _Starter:
    """A small process of another user that starts commands and says what they took.

    What changes its user in between is copied as a whole by fork(2), which takes four times as long as `true`: a ratio
    of two commands would look better than it is.
    """

    _PROGRAM = """
import json, subprocess, sys, time
for line in sys.stdin:
    words, at, env = json.loads(line)
    begun = time.perf_counter()
    ended = subprocess.run(
        words, cwd=at, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    print(json.dumps([time.perf_counter() - begun, ended.returncode, ended.stderr]), flush=True)
"""

    def __init__(self, uid: int) -> None:
        self._process = subprocess.Popen(
            [str(install.base_python()), "-I", "-S", "-c", self._PROGRAM], cwd="/", user=uid, group=uid,
            extra_groups=(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    @classmethod
    def of(cls, uid: int) -> "_Starter":
        """The one of a user who sees the files that this process sees now."""
        return _starter(uid, os.stat("/proc/self/ns/mnt").st_ino)

    def run(self, words: list[str], at: str, env: Mapping[str, str] | None) -> tuple[float, int, str]:
        """Seconds, status, and what was said on standard error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([words, at, env if env is None else dict(env)]) + "\n")
        self._process.stdin.flush()
        taken, status, said = json.loads(self._process.stdout.readline())
        return taken, status, said


@functools.cache
def _starter(uid: int, _view: int) -> _Starter:
    return _Starter(uid)


@contextmanager
def ground(prefix: str) -> Iterator[Path]:
    """A directory that every user can enter; for root in memory, and seen by this process and its children only.

    Not below /tmp where that can be helped: there every mount point is made anew, as for few worktrees. In memory
    because ext4 takes up to twenty times as long for new files where others have been removed before.
    """
    above = Path("/srv") if os.access("/srv", os.W_OK) else install.public_root()
    with tempfile.TemporaryDirectory(prefix=prefix, dir=above) as name:
        if os.geteuid() != 0:
            Path(name).chmod(0o755)
            yield Path(name)
            return
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("tmpfs", name, "tmpfs", data="mode=755,nr_inodes=0")
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "--lazy", name], check=True)


@contextmanager
def scene() -> Iterator[Paddock]:
    """The installed command in a small repository of an ordinary user."""
    with ground("bench-") as place:
        who = identity.user(place / "home")
        (place / "place").mkdir()
        yield paddock.make(who, install.install(), who.give(place / "place"))


def backends() -> dict[str, tuple[Mapping[str, str], Sequence[str]]]:
    """Those of this machine: what variables and options of `paddock run` select each."""
    needs = {promises.NAMESPACES: "userns", promises.GUARD: "landlock", promises.BUBBLEWRAP: "bubblewrap"}
    return {name: way for name, way in SWITCHES.items() if not features.missing(needs[name])}


def seconds(act: Way) -> float:
    """How long it takes once."""
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def memory(pids: Sequence[int]) -> float:
    """MiB of these processes, shared pages by their share (Pss in proc(5), smaps_rollup)."""
    rolled = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(int(text.split("Pss:")[1].split()[0]) for text in rolled) / 1024


def shown(value: float, unit: str) -> str:
    """A figure for people."""
    if unit == "s":
        value, unit = (value, "s") if value >= 1 else (value * 1e3, "ms") if value >= 1e-3 else (value * 1e6, "us")
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


def cells(result: Result) -> tuple[str, ...]:
    """A row of the table."""
    goal = "" if result.goal is None else f"{result.goal:g}"
    if result.goal is not None and result.ratio > result.goal:
        goal += f", missed by {result.ratio / result.goal - 1:.0%}"
    return (
        result.name, shown(result.taken, result.unit), f"{result.floor}: {shown(result.base, result.unit)}",
        f"{result.ratio:.2f}" if result.ratio >= 0.01 else "< 0.01", f"{result.spread:.2f}", goal,
    )  # fmt: skip


HEADING = ("what", "takes", "beside", "ratio", "+/-", "goal")


def table(results: Sequence[Result]) -> str:
    """The results as text."""
    rows = [HEADING, *map(cells, results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def main(rows: Rows) -> None:
    """Prints what a module measures; with --quick in fewer rounds."""
    suite.work_in_memory()
    print(table(rows("--quick" in sys.argv)))
