"""Work on many files inside of one jail beside the same outside, without any start: `python -m tests.bench files`.

Each backend and the outside has a worktree of its own of the same 50,000 files, and a process in it that is told in
turn what to run. npm installs packages that lie in the repository, and a build compiles what lies there.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from policy import promises
from tests.bench import harness
from tests.bench.harness import Result, Way
from tests.support.install import base_python
from tests.support.paddock import Paddock

OUTSIDE = "outside of a jail"
GOAL = 1.05
TASKS = {
    "git status, 50,000 files": ("true", "git status --porcelain", 12),
    "tar -x, 3,000 files": ("mkdir -p out/$N", "tar -xf files.tar -C out/$N", 6),
    "npm ci, 200 packages": (
        "mkdir -p out/npm$N; cd out/npm$N; cp ../../npm/*.json .; ln -s ../../npm/packages .",
        "cd out/npm$N && npm ci --offline --no-audit --no-fund --silent", 4,
    ),
    "make -j2, 100 files of C": ("cp -r c out/c$N", "make -sj2 -C out/c$N", 4),
}  # fmt: skip
"""What is done before, what is measured, how often.

Each round has a directory of its own: where files were removed, ext4 makes new ones so slowly that nothing else shows.
"""

# Fills the current directory; argument: how many files.
_FILL = """
import base64, hashlib, io, json, os, sys, tarfile
def archive(path, names, mode):
    with tarfile.open(path, mode) as made:
        for name, text in names.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(text), 1_700_000_000
            made.addfile(info, io.BytesIO(text.encode()))
def source(number):
    return f"# {number}\\n" + "value = 1\\n" * (5 + number * 7 % 90)
for number in range(int(sys.argv[1])):
    if number % 100 == 0:
        os.makedirs(f"d{number // 100}")
    with open(f"d{number // 100}/f{number}.py", "w") as file:
        file.write(source(number))
archive("files.tar", {f"d{number // 50}/f{number}": source(number) for number in range(3_000)}, "w")
os.makedirs("npm/packages")
named, locked = {}, {}
for number in range(200):
    name = f"package-{number}"
    path = f"packages/{name}.tgz"
    text = {f"package/lib/{part}.js": f"exports.a = {number};\\n" * (20 + part * 9) for part in range(8)}
    text["package/package.json"] = json.dumps({"name": name, "version": "1.0.0"})
    archive(f"npm/{path}", text, "w:gz")
    integrity = base64.b64encode(hashlib.sha512(open(f"npm/{path}", "rb").read()).digest()).decode()
    named[name] = f"file:{path}"
    locked[f"node_modules/{name}"] = {
        "version": "1.0.0", "resolved": f"file:{path}", "integrity": f"sha512-{integrity}"
    }
package = {"name": "all", "version": "1.0.0", "dependencies": named}
lock = {"name": "all", "version": "1.0.0", "lockfileVersion": 3, "requires": True, "packages": {"": package, **locked}}
for name, content in (("package", package), ("package-lock", lock)):
    with open(f"npm/{name}.json", "w") as file:
        json.dump(content, file)
os.mkdir("c")
for number in range(100):
    with open(f"c/f{number}.c", "w") as file:
        file.write("#include <stdio.h>\\n#include <stdlib.h>\\n#include <string.h>\\n")
        file.write("".join(f"int f{number}_{part}(int x) {{ return x * {part} + {number}; }}\\n" for part in range(30)))
with open("c/main.c", "w") as file:
    file.write("int main(void) { return 0; }\\n")
with open("c/Makefile", "w") as file:
    file.write("all: $(patsubst %.c,%.o,$(wildcard *.c))\\n\\tgcc -o $@ $^\\n%.o: %.c\\n\\tgcc -O0 -c -o $@ $<\\n")
with open(".gitignore", "w") as file:
    file.write("/out/\\n")
"""

# Reads two commands a line, runs both, and prints the seconds of the second, or what went wrong.
_WORKER = """
import json, os, subprocess, sys, time
for number, line in enumerate(sys.stdin):
    os.environ["N"] = str(number)
    before, words = json.loads(line)
    subprocess.run(["sh", "-c", before], check=True)
    begun = time.perf_counter()
    ended = subprocess.run(["sh", "-c", words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    taken = time.perf_counter() - begun
    print(json.dumps(ended.stderr + ended.stdout if ended.returncode else taken), flush=True)
"""


@contextmanager
def worker(paddock: Paddock, words: list[str], at: Path, env: dict[str, str]) -> "Iterator[subprocess.Popen[bytes]]":
    """A process that waits for commands."""
    with paddock.who.start([*words, base_python(), "-I", "-S", "-c", _WORKER], cwd=at, env=env) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def measured(process: "subprocess.Popen[bytes]", before: str, words: str) -> float:
    """Seconds that a command took there."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([before, words]).encode() + b"\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        assert process.stderr is not None
        raise RuntimeError(process.stderr.read().decode())
    taken = json.loads(answer)
    if not isinstance(taken, float):
        raise RuntimeError(f"{words}: {taken}")
    return taken


def rows(quick: bool = False) -> list[Result]:
    """Every task on every backend."""
    with harness.scene() as paddock, ExitStack() as stack:
        main, who = paddock.main, paddock.who

        def run(*words: str | Path) -> None:
            ended = who.run(words, cwd=main, timeout=300)
            if ended.returncode:
                raise RuntimeError(f"{words}: {ended.stderr}")

        run(base_python(), "-I", "-S", "-c", _FILL, "5000" if quick else "50000")
        run("git", "add", ".")
        run("git", "commit", "-qm", "Files.")
        places: dict[str, tuple[list[str], dict[str, str]]] = {OUTSIDE: ([], {})}
        for name, (env, options) in harness.backends().items():
            places[name] = (paddock.words("run", "--net", "none", *options, "--"), dict(env))
        processes = {}
        for number, (name, (words, env)) in enumerate(places.items()):
            run(*paddock.words("worktree", "add", f"w{number}"))
            at = main.with_name(f"{main.name}-w{number}")
            processes[name] = stack.enter_context(worker(paddock, words, at, env))
        found = []
        for task, (before, what, rounds) in TASKS.items():
            ways: dict[str, Way] = {
                name: partial(measured, process, before, what) for name, process in processes.items()
            }
            found += harness.against(harness.turns(ways, 2 if quick else rounds), {promises.NAMESPACES: GOAL},
                                     prefix=f"{task}: ")  # fmt: skip
        return found


if __name__ == "__main__":
    harness.main(rows)
