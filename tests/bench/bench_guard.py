"""What a mediated call costs: `python -m tests.bench guard`.

The same calls are made in a jail of the backend landlock+guard and in one of landlock+namespaces, where the kernel
answers them alone; by one process and by several at once.
"""

import json

from policy import promises
from tests.bench import harness
from tests.bench.harness import Result
from tests.support.install import base_python

PROCESSES = 8

# Prints one JSON object: seconds for each call, by name.
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
    return (time.perf_counter() - start) / calls
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
found[f"chmod, {processes} processes"] = (time.perf_counter() - start) / calls / processes
print(json.dumps(found))
"""


def rows(quick: bool = False) -> list[Result]:
    """Every call; empty where this machine has not both backends."""
    backends = {name: way for name, way in harness.backends().items() if name != promises.BUBBLEWRAP}
    if len(backends) < 2:
        return []
    found: dict[str, dict[str, list[float]]] = {}
    with harness.scene() as made:
        calls = "200" if quick else "1000"
        for _ in range(3 if quick else 5):
            for backend, (env, options) in backends.items():
                words = (base_python(), "-I", "-S", "-c", PROGRAM, calls, str(PROCESSES))
                ended = made.run("--net", "none", *options, "--", *words, env=env)
                if ended.returncode:
                    raise RuntimeError(ended.stderr)
                for name, seconds in json.loads(ended.stdout).items():
                    way = "by the kernel" if backend == promises.NAMESPACES else name
                    found.setdefault(name, {}).setdefault(way, []).append(seconds)
    return [each for taken in found.values() for each in harness.against(taken, prefix="by the guard: ")]


if __name__ == "__main__":
    harness.main(rows)
