"""How long it takes until the command runs, and what memory a jail has meanwhile: `python -m tests.bench launch`.

Measured as an ordinary user would see it, in a real worktree, with a bare interpreter as the unit and other sandboxes
beside it.
"""

import shutil
from collections.abc import Sequence
from functools import partial

from policy import promises
from tests.bench import harness
from tests.bench.harness import Result, Way
from tests.support.identity import SYSTEM_PATH
from tests.support.paddock import Paddock, below, content

FLOOR = "python3 -I -S -c pass"
READONLY = ("run", "--net", "none", "--git", "readonly")
READS = "paddock run --git readonly"
GOALS = {"paddock --version": 1.5, "paddock run": 3.2, READS: 3.2, f"{READS}, guard": 2.5}
PEERS = {
    "unshare, all namespaces": ("unshare", "--user", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork"),
    "bwrap --unshare-all": ("bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc",
                            "--dev", "/dev"),
    "firejail --noprofile": ("firejail", "--quiet", "--noprofile", "--net=none"),
}  # fmt: skip
"""A peer that is not there, or refuses this user, is left out."""


def ways(paddock: Paddock) -> dict[str, Way]:
    """What is compared."""
    who, ours = paddock.who, str(paddock.installed.paddock)
    true = shutil.which("true", path=SYSTEM_PATH) or "/bin/true"

    def run(*words: str, **variables: str) -> Way:
        uid = who.uid if who.prefix else None
        return harness.command(words, paddock.worktree, who.environment(variables), uid)

    def first() -> object:
        shutil.rmtree(who.home / ".cache/cold", ignore_errors=True)
        return cold()

    cold = run(ours, *READONLY, "--", true, XDG_CACHE_HOME=str(who.home / ".cache/cold"))
    found = {FLOOR: run(str(paddock.installed.python), "-I", "-S", "-c", "pass"), "/bin/true": run(true)}
    for name, words in PEERS.items():
        if who.run([*words, true]).returncode == 0:
            found[name] = run(*words, true)
    found["paddock --version"] = run(ours, "--version")
    found["paddock run"] = run(ours, "run", "--net", "none", "--", true)
    found[READS] = run(ours, *READONLY, "--", true)
    for name, (env, options) in harness.backends().items():
        if name != promises.NAMESPACES:
            found[f"{READS}, {name.rpartition('+')[2]}"] = run(ours, *READONLY, *options, "--", true, **env)
    proxy = run(ours, *READONLY[:1], *READONLY[3:], "--allow-domain=example.com", "--", true)
    return {**found, f"{READS}, with a proxy": proxy, f"{READS}, the first time": first}


def resident(paddock: Paddock, words: Sequence[str], ours: bytes) -> float:
    """MiB of those processes of a command whose command line has `ours` in it, once it has said that it is ready."""
    with paddock.who.start(words, cwd=paddock.worktree) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            pids = (process.pid, *below(process.pid))
            return harness.memory([pid for pid in pids if ours in content(pid, "cmdline")])
        finally:
            process.kill()


def rows(quick: bool = False) -> list[Result]:
    """Start-up, then memory."""
    with harness.scene() as paddock:
        found = harness.against(harness.turns(ways(paddock), 10 if quick else 60), GOALS)
        asleep = ("run", "--git", "readonly", "--net", "none", "--", "sh", "-c", "echo ready; exec sleep 600")
        code = "print('ready', flush=True); __import__('time').sleep(600)"
        ours = {
            "a bare interpreter": ([str(paddock.installed.python), "-I", "-S", "-c", code], b"python3"),
            "a jail": (paddock.words(*asleep), b"paddock"),
            "a jail with a proxy": (paddock.words(*asleep[:3], "--allow-domain=example.com", *asleep[5:]), b"paddock"),
        }
        held = {name: partial(resident, paddock, *which) for name, which in ours.items()}
        return found + harness.against(harness.turns(held, 3), prefix="memory of ", unit="MiB")


if __name__ == "__main__":
    harness.main(rows)
