"""How long it takes until the command runs: `python -m tests.bench.bench_launch [ROUNDS]` in the repository.

Measured as an ordinary user would see it, in a real worktree, with a bare interpreter as the unit and bubblewrap
beside it. The target for the warm launch without namespaces is a ratio of 2.5.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from tests.bench.harness import Contestant, compare, table
from tests.support import identity, install, repository

OPTIONS = ("run", "--net", "none", "--git", "readonly", "--")


def contestants(place: Path) -> list[Contestant]:
    """The commands to compare, in a repository made below `place`."""
    who = identity.user(place / "home")
    ground = place / "ground"
    ground.mkdir()
    repo = repository.make(who, who.give(ground))
    environment = install.install()
    true = shutil.which("true", path=identity.SYSTEM_PATH) or "/bin/true"

    cache = place / "home/.cache/cold"
    uid = who.uid if who.prefix else None

    def entry(name: str, *argv: str, cold: bool = False) -> Contestant:
        env = who.environment({"XDG_CACHE_HOME": str(cache)} if cold else {})
        return Contestant(name, argv, repo.one, env, (cache,) if cold else (), uid)

    paddock = (str(environment.paddock), *OPTIONS, true)
    found = [
        entry("python3 -I -S -c pass", str(environment.python), "-I", "-S", "-c", "pass"),
        entry("true", true),
    ]
    if bwrap := shutil.which("bwrap"):
        argv = (bwrap, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev")
        found.append(entry("bwrap --unshare-all", *argv, true))
    return [*found, entry("paddock run, warm", *paddock), entry("paddock run, cold", *paddock, cold=True)]


def main() -> None:
    """Prints the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory(prefix="bench-", dir=install.public_root()) as name:
        place = Path(name)
        place.chmod(0o755)
        print(table(compare(contestants(place), rounds)))


if __name__ == "__main__":
    main()
