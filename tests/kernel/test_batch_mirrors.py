"""What bases of batches on a cluster leave on its nodes: mirrors, and how they go."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.engines import base, row
from tests.support import forked
from tests.support.features import need
from tests.support.ground import Ground

DAY = 86_400.0

NODE = """
    import sys
    from launcher.engines import base, row
    from launcher.engines.base import Mirror, Part
    from launcher.vcs.worktrees.models import Options
    repository, commit, name = sys.argv[1:]
    (part,) = base.parts(repository, (commit,))

    def take():
        mirror = Mirror(name)
        mirror.take(part, base.packed(repository, part, ()))
        assert mirror.has(part)
        return mirror
"""


class Scene:
    """A repository, its mirror here, and processes that play a node's.

    Attributes:
        mirror: the mirror's directory.
        mirrors: the one around all of them.
    """

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.name = base.name_of(str(ground.root), "machine")
        self.mirrors = Path(os.environ["HOME"], ".local/share/paddock/mirrors")
        self.mirror = self.mirrors / self.name

    def words(self, script: str) -> list[str]:
        """A node's process that runs a script."""
        program = textwrap.dedent(NODE) + textwrap.dedent(script)
        return [sys.executable, "-c", program, str(self.ground.root), self.ground.git("rev-parse", "HEAD"), self.name]

    def do(self, script: str) -> None:
        """Runs it to its end, in a child."""
        _, _, program, *arguments = self.words(script)

        def act() -> None:
            sys.argv = ["-c", *arguments]
            exec(program, {"__name__": "__main__"})

        forked.run(act)

    @contextmanager
    def alive(self, script: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Runs it until it has said "ready", and kills it at the end."""
        script += "\nprint('ready', flush=True)\nsys.stdin.read()\n"
        words = self.words(script)
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
                yield process
            finally:
                process.kill()

    def grow_old(self, days: float = 31) -> None:
        """As if the mirror had not been used for so long."""
        then = time.time() - days * DAY
        os.utime(self.mirror, (then, then))


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A mirror that has been taken in, of a node whose home is empty otherwise."""
    need("userns")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    made = Scene(Ground(tmp_path / "repo", {"a": "a\n"}))
    made.do("take()")
    return made


def test_a_mirror_goes_when_nobody_has_used_it_for_long(scene: Scene) -> None:
    """Not before, not in a trial, and not while a process lives that has used it; its next use makes it anew."""
    assert base.prune(30) == ([], [])
    scene.grow_old()
    (would,), notes = base.prune(30, dry_run=True)
    assert (would.name, notes) == (str(scene.mirror), [])
    assert would.size > 0
    with scene.alive("mirror = Mirror(name)"):
        scene.grow_old()
        assert base.prune(30) == ([], [])
        assert base.prune(0) == ([], [])
    assert [each.name for each in base.prune(0)[0]] == [str(scene.mirror)]
    assert list(scene.mirrors.iterdir()) == []
    scene.do("take()\nassert base.prune(0) == ([], [])")


def test_worktrees_of_killed_rows_go_with_it_and_any_other_keeps_it(scene: Scene) -> None:
    """A batch that nobody continues is no reason to keep its mirror; somebody's work is."""
    script = "row._service().add(take().root, '{}', Options(start=sys.argv[2]))"
    with scene.alive(script.format("batch-0123456789-1-1-tree")) as process:
        assert base.prune(0) == ([], [])
        process.kill()
        process.wait()
    scene.do(script.format("T-1"))
    scene.grow_old()
    assert base.prune(30) == ([], [])
    store = row._service().store
    (own,) = (each for each in store.all() if each.ticket == "T-1")
    row._service().remove(own, force=True)
    scene.grow_old()
    (gone,), notes = base.prune(30)
    assert (gone.name, notes, store.all()) == (str(scene.mirror), [], [])
    assert list(scene.mirrors.iterdir()) == []


def test_a_removal_that_is_killed_leaves_no_half_mirror(scene: Scene) -> None:
    """What it left has another name, and goes with the next one, which does not disturb one that is at work."""
    killed = "import os\nbase.remove_tree = lambda path: os.kill(os.getpid(), 9)\nbase.prune(0)"
    with pytest.raises(forked.Killed):
        scene.do(killed)
    (left,) = scene.mirrors.iterdir()
    assert left.name.startswith(".going-")
    scene.do("take()")
    with scene.alive(f"import fcntl, os\nfcntl.flock(os.open({str(left)!r}, os.O_RDONLY), fcntl.LOCK_EX)"):
        assert base.prune(30) == ([], [])
        assert left.exists()
    assert base.prune(30, dry_run=True) == ([], [])
    assert left.exists()
    assert base.prune(30) == ([], [])
    assert list(scene.mirrors.iterdir()) == [scene.mirror]


def test_a_mirror_that_is_removed_while_it_is_made_is_made_again(scene: Scene) -> None:
    """Between mkdir(2) and chmod(2) nobody holds it."""
    (gone,) = base.prune(0)[0]
    assert gone.name == str(scene.mirror)
    scene.do(
        """
        import os
        change = os.chmod
        def late(path, mode):
            os.chmod = change
            os.rmdir(path)
            change(path, mode)
        os.chmod = late
        take()
        assert os.chmod is change
        """
    )


def test_whoever_takes_in_a_base_has_it_however_often_mirrors_are_removed(scene: Scene) -> None:
    """Three processes take it in again and again, while another one removes what is free in each moment."""
    again = """
        import os
        for _ in range(3):
            if (pid := os.fork()) == 0:
                take()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
    """
    processes = [subprocess.Popen(scene.words(again)) for _ in range(3)]
    removed = 0
    try:
        while any(each.poll() is None for each in processes):
            gone, notes = base.prune(0)
            assert notes == []
            removed += len(gone)
    finally:
        for each in processes:
            each.kill()
            each.wait()
    assert [each.returncode for each in processes] == [0, 0, 0]
    assert removed > 1, "nothing was tried"
