"""A session that exchanges directories for links (renameat2) as long as it lives, and a tree that they lead to."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from policy import promises
from tests.support.features import need
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.programs.scene import SWITCHES

_PYTHON = ("/usr/bin/python3", "-c")
_LOOP = r"""
import ctypes, os, sys
place, outside = map(os.fsencode, sys.argv[1:])
os.chdir(place)
renameat2 = ctypes.CDLL(None).renameat2
def twice(name, link):
    for _ in range(2):
        renameat2(-100, name, -100, link, 2)
"""

DIRECTORIES = (*_PYTHON, _LOOP + r"""
open(".gitignore", "w").write("*")  # so that no git looks at what is exchanged
names = [f"d{number}".encode() for number in range(150)]
for name in names:
    os.makedirs(name + b"/below")
    open(name + b"/file", "w").close()
    os.symlink(outside, name + b".link")
print("ready", flush=True)
while True:
    for name in names:
        twice(name, name + b".link")
""")  # fmt: skip
"""The command: directories of its own in a place; two arguments, the place and what the links lead to."""

WHATEVER_COMES = (*_PYTHON, _LOOP + r"""
known = {b"known.link"}
os.symlink(outside, b"known.link")
print("ready", flush=True)
while True:
    pending = [b"."]
    while pending:
        here = pending.pop()
        try:
            names = [each.name for each in os.scandir(here) if each.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        for name in names:
            path = here + b"/" + name
            if path.count(b"/") < 3:
                pending.append(path)
            twice(path, b"known.link")
""")  # fmt: skip
"""The command: every directory that anybody makes in a place, three levels deep; arguments as above."""


def canary(who: Who, place: Path) -> Path:
    """A tree of the user's with closed modes, in a place of his."""
    outside = place / "outside"
    for directory in (outside, outside / "below"):
        directory.mkdir()
        (directory / "file").write_text("precious")
        (directory / "file").chmod(0o640)
    who.give(outside)
    for directory in (outside / "below", outside):
        directory.chmod(0o751)
    return outside


def seen(top: Path) -> dict[str, tuple[object, ...]]:
    """What is below a directory, with all that anybody could change of it: nobody sets a ctime back."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (top, *sorted(top.rglob("*"))):
        entry = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(top))] = (entry.st_mode, entry.st_nlink, entry.st_ctime_ns, content)
    return found


@contextmanager
def session(who: Who, installed: Installed, backend: str, root: Path, *words: str) -> Iterator[None]:
    """A session with this command, which says `ready`, lives when the block begins, and is gone when it has ended."""
    need({promises.NAMESPACES: "userns", promises.BUBBLEWRAP: "bubblewrap"}.get(backend, "landlock"))
    extra, switches = SWITCHES[backend]
    process = subprocess.Popen(
        who.command([installed.paddock, "run", *switches, *words]),
        cwd=root,
        env=who.environment(extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n", process.stderr.read()
        yield
    finally:
        process.kill()
        process.communicate()
