"""What a command in a sandbox costs, and to make it clean again: `python -m tests.bench sandbox`."""

import shutil
import tempfile
from pathlib import Path

from launcher.sandbox.box import Sandbox
from tests.bench import harness
from tests.bench.bench_worktree import repository
from tests.bench.harness import Result, Way
from tests.support.install import install

FILES = 2_000
_BWRAP = ("bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")


def rows(quick: bool = False) -> list[Result]:
    """One command; a reset; a whole sandbox."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        app = repository(Path(name).resolve(), FILES)
        with Sandbox(app) as box:
            paddock = str(install().paddock)
            ways: dict[str, Way] = {
                "subprocess.run": harness.command(["/bin/true"], app),
                "a command in a Sandbox": lambda: box.exec(["/bin/true"]),
                "paddock run for each command": harness.command([paddock, "run", "--quiet", "--", "true"], app),
                "a Sandbox for each command": lambda: Sandbox(app).close(),
            }
            if shutil.which("bwrap"):
                ways["bwrap for each command"] = harness.command([*_BWRAP, "--bind", app, app, "true"], app)
            found = harness.against(harness.turns(ways, 10 if quick else 60))
        with Sandbox(app, cow=True) as box:
            target = Path(name) / "copy"

            def copied() -> float:
                seconds = harness.seconds(lambda: shutil.copytree(app, target, symlinks=True))
                shutil.rmtree(target)
                return seconds

            resets: dict[str, Way] = {f"copying {FILES:,} files": copied, "Sandbox.reset of them": box.reset}
            return found + harness.against(harness.turns(resets, 3 if quick else 5))


if __name__ == "__main__":
    harness.main(rows)
