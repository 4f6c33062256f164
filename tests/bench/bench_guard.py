"""What a mediated call costs: `python -m tests.bench.bench_guard [CALLS]` in the repository.

The same calls are made in a jail of the backend landlock+guard and in one of landlock+namespaces, where the kernel
answers them alone; what counts is the ratio. As root and as an ordinary user, alone and by several processes at once.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path

from policy import promises
from tests.support import identity, install, repository
from tests.support.identity import Who, Word

ROUNDS = 5
PROCESSES = 8
SWITCHES = {promises.NAMESPACES: {}, promises.GUARD: {"PADDOCK_NO_USERNS": "1"}}

# Prints one JSON object: microseconds for each call, by name.
PROGRAM = """
import json, os, socket, sys, time
calls = int(sys.argv[1])
open("file", "w").close()
opened = os.open("file", os.O_RDWR)
deep = "a/b/c/d/e/f"
os.makedirs(deep, exist_ok=True)
open(deep + "/file", "w").close()
os.path.exists("s") and os.unlink("s")
server = socket.socket(socket.AF_UNIX)
server.bind("s")
server.listen(64)
def connect():
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect("s")
    server.accept()[0].close()
def bind():
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("t")
    os.unlink("t")
def refused():
    try:
        os.chmod("/etc/passwd", 0o644)
    except OSError:
        pass
acts = {
    "chmod": lambda: os.chmod("file", 0o600),
    "chmod, deep path": lambda: os.chmod(deep + "/file", 0o600),
    "chmod, /proc/self/fd": lambda: os.chmod(f"/proc/self/fd/{opened}", 0o600),
    "chmod, refused": refused,
    "fchmod": lambda: os.fchmod(opened, 0o600),
    "chown": lambda: os.chown("file", -1, -1),
    "utime": lambda: os.utime("file"),
    "setxattr": lambda: os.setxattr("file", "user.x", b"v"),
    "socket, connect, accept": connect,
    "socket, bind, unlink": bind,
    "stat (not mediated)": lambda: os.stat("file"),
}
def measured(act):
    start = time.perf_counter()
    for _ in range(calls):
        act()
    return (time.perf_counter() - start) / calls * 1e6
found = {name: measured(act) for name, act in acts.items()}
processes = int(sys.argv[2])
start = time.perf_counter()
for _ in range(processes):
    if os.fork() == 0:
        for _ in range(calls):
            os.chmod("file", 0o600)
        os._exit(0)
for _ in range(processes):
    os.wait()
found[f"chmod, {processes} processes"] = (time.perf_counter() - start) / calls / processes * 1e6
print(json.dumps(found))
"""


def measure(who: Who, place: Path, calls: int) -> None:
    """Prints one table for `who`, in a repository made below `place`."""
    place.mkdir()
    repo = repository.make(who, who.give(place))
    paddock = install.install().paddock
    argv: list[Word] = [
        paddock,
        "run",
        "--",
        install.base_python(),
        "-I",
        "-S",
        "-c",
        PROGRAM,
        str(calls),
        str(PROCESSES),
    ]
    found: dict[str, dict[str, list[float]]] = {backend: {} for backend in SWITCHES}
    for _ in range(ROUNDS):
        for backend, env in SWITCHES.items():
            ended = who.run(argv, cwd=repo.one, env=env, timeout=600)
            if ended.returncode != 0:
                raise SystemExit(ended.stderr)
            for name, microseconds in json.loads(ended.stdout).items():
                found[backend].setdefault(name, []).append(microseconds)
    print(f"{who.name}, microseconds per call, median of {ROUNDS} rounds of {calls}")
    print(f"  {'':26} {'namespaces':>10} {'guard':>8} {'ratio':>6}")
    for name, plain in found[promises.NAMESPACES].items():
        bare, guarded = statistics.median(plain), statistics.median(found[promises.GUARD][name])
        print(f"  {name:26} {bare:10.1f} {guarded:8.1f} {guarded / bare:6.1f}")


def main() -> None:
    """Prints the tables."""
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory(prefix="bench-", dir=install.public_root()) as name:
        place = Path(name)
        place.chmod(0o755)
        measure(identity.root(place / "home-of-root"), place / "root", calls)
        measure(identity.user(place / "home"), place / "user", calls)


if __name__ == "__main__":
    main()
