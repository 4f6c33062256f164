"""Launches in a worktree where a directory becomes a link to elsewhere, and again a directory, thousands of times."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.derived import program
from tests.support.paddock import Paddock

PROGRAM = Path(__file__).resolve().parents[1] / "support/programs/swapper.py"
LAUNCHES = 8
SECRET = "of-no-concern-to-agents"


@contextmanager
def exchanged(root: Path, outside: Path) -> Iterator[None]:
    """`way` in the worktree leads outside at every other moment, from another process."""
    words = [sys.executable, str(PROGRAM), str(root), str(10**9), str(outside)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as swapper:
        try:
            assert swapper.stdout is not None
            assert swapper.stdout.readline() == b"ready\n"
            yield
        finally:
            swapper.kill()


def test_no_launch_grants_what_a_name_leads_to_at_the_wrong_moment(user_paddock: Paddock) -> None:
    """Neither by an option that names it, nor through an activated environment in PATH: refused, or nothing of it."""
    paddock = user_paddock
    root, outside = paddock.worktree, paddock.place / "outside"
    for top in (root / "way", outside):
        program(top / "bin/python3")
        (top / "lib").mkdir()
        (top / "pyvenv.cfg").write_text("home = /usr/bin\n")
        (top / "file").write_text("inside\n")
    for place in (outside, outside / "bin", outside / "lib"):
        (place / "file").write_text(SECRET)
    paddock.who.give(paddock.place)
    script = f"cat {outside}/file {outside}/bin/file {outside}/lib/file; echo changed > {outside}/file; true"
    env = {"PATH": f"{root}/way/bin:{paddock.who.path}"}
    outcomes = []
    with exchanged(root, outside):
        for number in range(LAUNCHES):
            options = ("--rw", str(root / "way")) if number % 2 else ()
            ended = paddock.run(*options, "--", "sh", "-c", script, env={} if number % 2 else env)
            assert SECRET not in ended.stdout
            assert ended.returncode in (0, 125), ended
            outcomes.append((bool(number % 2), ended.returncode))
    assert (outside / "file").read_text() == SECRET
    assert (False, 0) in outcomes  # there was something to win
