"""A merge moves files in a checkout while a session that can write there exchanges directories for symbolic links."""

import time
from pathlib import Path

import psutil
import pytest

from tests.support import paddock
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.paddock import Paddock

_FILES = 400
_SCRIPT = f"""
mkdir -p top/d; for n in $(seq {_FILES}); do printf 'old\\n' >top/d/$n; done; git add .; git commit -q -m 'main: Files.'
git -C ../one reset -q --hard main; rm -f ../one/file
cd ../one; for n in $(seq {_FILES}); do printf 'new\\n' >top/d/$n; done; git commit -q -a -m 'one: All files.'
mkdir ../outside; printf 'mine\\n' >../outside/{_FILES}; ln -s ../outside ../link
git -C ../main worktree add -q -b two ../two main
"""
# Waits for the first file that is merged, and exchanges its directory for a link from then on.
_ATTACK = """
import ctypes, os, sys
link = sys.argv[1]
if not os.path.lexists(link):
    os.symlink(sys.argv[2], link)
exchange = ctypes.CDLL(None).renameat2
print("ready", flush=True)
def merged():
    try:
        return open("d/1").read() == "new\\n"
    except OSError:
        return False
while not merged():
    pass
print("exchanging", flush=True)
while True:
    exchange(-100, b"d", -100, os.fsencode(link), 2)
"""
_TIDY = "if test -L top/d; then rm top/d; test ! -d top/link || mv top/link top/d; fi; rm -rf top/link"


@pytest.fixture
def ground(user: Who, installed: Installed, public_dir: Path) -> Paddock:
    """A main checkout, a branch that changes many of its files, and a directory beside with a file of the user's.

    No right of root's is what a name leads to, and he has the same jails: an ordinary user's alone.
    """
    place = public_dir / "place"
    place.mkdir()
    return paddock.make(user, installed, user.give(place), _SCRIPT)


def _outside(ground: Paddock) -> dict[str, str]:
    return {path.name: path.read_text() for path in (ground.place / "outside").iterdir()}


_WAYS = {
    # where the session is, its options, where the merge goes
    "readonly": ("main", ("--git", "readonly"), ()),
    "rw": ("one", ("--git", "readonly", "--rw", "../main/top"), ()),
    "into": ("two", ("--git", "readonly"), ("--into", "two")),
}
_BACKENDS = {
    "namespaces": {},
    "guard": {"PADDOCK_NO_USERNS": "1"},
    "bubblewrap": {"PADDOCK_NO_LANDLOCK": "1"},
}


# The way is where files are moved, the backend what moves them: each of both, and what no session without mounts can.
_TRIED = [("readonly", "namespaces"), ("readonly", "guard"), ("into", "guard"), ("rw", "bubblewrap")]


def _wait_for_the_end(link: Path) -> None:
    """Until nobody exchanges any more: streams are carried, and those of a killed launcher end before its jail does."""
    deadline = time.monotonic() + 30
    while any(str(link) in (each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(("way", "backend"), _TRIED)
def test_merged_files_stay_in_the_checkout(ground: Paddock, way: str, backend: str) -> None:
    """Nothing arrives behind the link, nor is anything of the user's there replaced; without the attack all merges."""
    where, options, into = _WAYS[way]
    checkout = ground.place / ("two" if way == "into" else "main")
    tree = checkout / "top"
    env = _BACKENDS[backend]
    words = ground.words("run", *options, "--", "sh", "-c", 'cd "$1" && exec /usr/bin/python3 -c "$2" "$3" "$4"', "sh",
                         tree, _ATTACK, tree / "link", ground.place / "outside")  # fmt: skip
    before = _outside(ground)
    process = ground.who.start(words, cwd=ground.place / where, env=env)
    with process:
        assert process.stdout is not None
        try:
            begun = process.stdout.readline()
            if backend == "guard" and way == "readonly":
                assert begun == b""  # without mounts nothing would keep the session from .git
                return
            assert begun == b"ready\n"
            for _ in range(2):
                ended = ground.call("merge", *into, "one", cwd=ground.main, env=env)
                assert ended.returncode in (0, 1, 125), ended
                assert "Traceback" not in ended.stderr, ended
        finally:
            process.kill()
            process.stdout.read()
            _wait_for_the_end(tree / "link")
    assert _outside(ground) == before
    # The allowed twin: the same merge, when nobody is at work there, and what was left half-way is thrown away. While
    # the link is in the directory's place, a merge cannot be taken back, and the index stays locked.
    assert ground.who.run(["sh", "-euc", _TIDY], cwd=checkout).returncode == 0
    ground.call("merge", "--resume", cwd=ground.main)
    ended = ground.who.run(["git", "reset", "-q", "--hard"], cwd=checkout)
    assert ended.returncode == 0, ended
    ended = ground.call("merge", *into, "one", cwd=ground.main)
    assert ended.returncode == 0, ended
    assert (tree / f"d/{_FILES}").read_text() == "new\n", ended
    assert _outside(ground) == before
