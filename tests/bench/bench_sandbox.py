"""What a command in a sandbox costs: `python -m tests.bench.bench_sandbox [COMMANDS [SANDBOXES]]`.

In the same minute, in turn: `subprocess.run` (the first line, which the ratios refer to), `Sandbox.exec`, the command
through bwrap(1) and through `paddock run` each time. Then `reset` of a copy with 10,000 files, against copying them;
then memory and descriptors of this process over COMMANDS commands in one sandbox, and SANDBOXES sandboxes in turn.
"""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from launcher.sandbox.box import Sandbox
from tests.bench.bench_worktree import repository, timed
from tests.support.install import install

ROUNDS = 200
_BWRAP = ("bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")


def plain(*words: str, at: Path) -> None:
    """A command that says nothing, as `subprocess.run` runs it."""
    subprocess.run(words, cwd=at, check=True, stdin=subprocess.DEVNULL, capture_output=True)


def compare(ways: dict[str, Callable[[], object]], rounds: int) -> None:
    """Prints a line for each: milliseconds (median, best) and the ratio to the first one's median."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, act in ways.items():
            taken[name].append(timed(act) * 1000)
    first = statistics.median(next(iter(taken.values())))
    for name, times in taken.items():
        median = statistics.median(times)
        print(
            f"{name:34} {median:8.2f} ms  best {min(times):8.2f}   {median - first:+8.2f} ms  {median / first:6.1f} x"
        )


def opened(app: Path, times: int) -> None:
    """Makes a sandbox and closes it, so many times."""
    for _ in range(times):
        Sandbox(app).close()


def held() -> tuple[int, int]:
    """KiB of memory that this process has now, and its open descriptors."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024, len(os.listdir("/proc/self/fd"))


def main() -> None:
    """Prints all of it."""
    commands, boxes = (int(sys.argv[at]) if len(sys.argv) > at else default for at, default in ((1, 5000), (2, 200)))
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        app = repository(Path(name).resolve(), 10_000)
        os.chdir(app)
        with Sandbox(app) as box:
            ways: dict[str, Callable[[], object]] = {
                "subprocess.run": lambda: plain("/bin/true", at=app),
                "Sandbox.exec": lambda: box.exec(["/bin/true"]),
            }
            if shutil.which("bwrap"):
                ways["bwrap for each command"] = lambda: plain(*_BWRAP, "--bind", str(app), str(app), "true", at=app)
            paddock = str(install().paddock)
            ways["paddock run for each command"] = lambda: plain(paddock, "run", "--quiet", "--", "true", at=app)
            compare(ways, ROUNDS)
            print()
            before = held()
            seconds = timed(lambda: [box.exec(["/bin/true"]) for _ in range(commands)])
            print(
                f"{commands} commands: {seconds / commands * 1000:.2f} ms each; KiB, descriptors {before} -> {held()}"
            )
        with Sandbox(app, cow=True) as box:
            target = Path(name) / "copy"

            def copied() -> None:
                shutil.copytree(app, target, symlinks=True)
                shutil.rmtree(target)

            compare({"copying 10,000 files": copied, "Sandbox.reset": box.reset}, 10)
        before = held()
        seconds = timed(lambda: opened(app, boxes))
        print(f"{boxes} sandboxes: {seconds / boxes * 1000:.1f} ms each; KiB, descriptors {before} -> {held()}")


if __name__ == "__main__":
    main()
