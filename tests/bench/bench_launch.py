"""How long it takes until the command runs: `python -m tests.bench.bench_launch [ROUNDS]` in the repository.

Measured as an ordinary user would see it, in a real worktree, with a bare interpreter as the unit and bubblewrap
beside it. The targets: 2.5 with Landlock and the guard alone, 3.2 for the full default, git included.
"""

import os
import shutil
import subprocess
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

    def entry(name: str, *argv: str, cold: bool = False, variables: dict[str, str] | None = None) -> Contestant:
        env = who.environment({"XDG_CACHE_HOME": str(cache)} if cold else variables or {})
        return Contestant(name, argv, repo.one, env, (cache,) if cold else (), uid)

    paddock = (str(environment.paddock), *OPTIONS, true)
    default = (str(environment.paddock), "run", "--net", "none", "--", true)
    ruled = (str(environment.paddock), "run", "--allow-domain", "example.com:443", "--git", "readonly", "--", true)
    # Its own cache: plans are found by the command line, and a changed ability makes a new one each time.
    guard = {"PADDOCK_NO_USERNS": "1", "XDG_CACHE_HOME": str(place / "home/.cache/guard")}
    found = [
        entry("python3 -I -S -c pass", str(environment.python), "-I", "-S", "-c", "pass"),
        entry("true", true),
    ]
    if bwrap := shutil.which("bwrap"):
        argv = (bwrap, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev")
        found.append(entry("bwrap --unshare-all", *argv, true))
    return [
        *found,
        entry("paddock run, warm", *paddock),
        entry("paddock run, private git", *default),
        entry("paddock run, with a rule", *ruled),
        entry("paddock run, guard", *paddock, variables=guard),
        entry("paddock run, cold", *paddock, cold=True),
    ]


def resident(found: Contestant) -> tuple[int, int]:
    """How many processes of Paddock's one live jail has, and their memory in KiB (Pss: shared pages by their share)."""
    command = ["setpriv", f"--reuid={found.uid}", f"--regid={found.uid}", "--clear-groups"] if found.uid else []
    words = [*command, *found.argv[:-1], "sh", "-c", "echo ready; exec sleep 600"]
    with subprocess.Popen(words, cwd=found.cwd, env=dict(found.env or {}), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            ours, pending = [], [process.pid]
            while pending:
                pid = pending.pop()
                pending += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
                if b"paddock" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    ours.append(pid)
            rolled = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in ours]
            return len(ours), sum(int(text.split("Pss:")[1].split()[0]) for text in rolled)
        finally:
            process.kill()


def main() -> None:
    """Prints the table, and the memory of one jail."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    # Not below /tmp where that can be helped: there every mount point is made on the disk, as for few worktrees.
    above = Path("/srv") if os.access("/srv", os.W_OK) else install.public_root()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=above) as name:
        place = Path(name)
        place.chmod(0o755)
        found = contestants(place)
        print(table(compare(found, rounds)))
        count, memory = resident(next(item for item in found if item.name == "paddock run, warm"))
        print(f"memory of our {count} processes in one jail: {memory / 1024:.1f} MiB")


if __name__ == "__main__":
    main()
