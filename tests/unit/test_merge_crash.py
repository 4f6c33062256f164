"""SIGKILL anywhere in a run over a repository and two submodules: all old, or all new, never between.

`PADDOCK_KILLS=N` (default 1: at a quarter of the steps) kills N times at every step; from the second time on once more,
at a random step of what was to finish the work.
"""

import json
import os
import random
import shutil
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher.safefs import walk
from launcher.vcs.git import Completed, Git
from launcher.vcs.merge import work, worktree_files
from launcher.vcs.merge.descriptors import Source
from launcher.vcs.merge.moving import Follow
from launcher.vcs.merge.target import find
from launcher.vcs.refs import Transaction
from policy.errors import Refusal
from tests.support import repository
from tests.support.ground import Ground
from tests.support.repository import Nested, changed

# One merge, resume or rollback in a process of its own, that may kill itself at any step.
#
# A fork, not a new interpreter: hundreds of them have to be cheap. Steps are all calls that change something on disk,
# or that let git do so: writes of the journal, locks, git processes that move refs or files, and each exchange with a
# transaction.

_WRITERS = {"read-tree", "update-index", "checkout-index", "update-ref"}
_STEPS: tuple[tuple[object, str], ...] = (
    (walk, "put"),
    (walk, "write_all"),
    (worktree_files.Files, "lock"),
    (worktree_files.Files, "unlock"),
    (worktree_files.Files, "_publish"),
    (Transaction, "prepare"),
    (Transaction, "commit"),
    (Transaction, "close"),
)


class Task(NamedTuple):
    """What to do.

    Attributes:
        action: merge, resume or rollback.
        root: of the repository.
        state: Paddock's state.
        names: branches to merge.
        run: to roll back.
        kill_at: number of the step before which it dies, from 1; 0 for never.
        everything: its git processes die with it, as when the machine goes down.
        jailed: files are moved by git in a jail, as an agent's are.
    """

    action: str
    root: str
    state: str
    names: tuple[str, ...] = ()
    run: str = ""
    kill_at: int = 0
    everything: bool = False
    jailed: bool = False


def forked(task: Task) -> tuple[int, str] | None:
    """Does it in a fork: number of steps, and what came of it; None when it has killed itself."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            os.write(writing, json.dumps(_done(task)).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as stream:
        answer = stream.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert status == 0, answer
    steps, said = json.loads(answer)
    return steps, said


def _done(task: Task) -> tuple[int, str]:
    """Changes functions of this process for good."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == task.kill_at:
            for child in _children() if task.everything else ():
                os.kill(child, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    def stepping(owner: object, name: str) -> None:
        before = getattr(owner, name)

        def after(*words: object, **options: object) -> object:
            step()
            done: object = before(*words, **options)
            step()
            return done

        setattr(owner, name, after)

    for owner, name in _STEPS:
        stepping(owner, name)
    run_git = Git.run

    def run(self: Git, *words: str, **options: object) -> Completed:
        if words[0] in _WRITERS and "-n" not in words:
            step()
        return run_git(self, *words, **options)  # type: ignore[arg-type]  # passed on as they are

    Git.run = run  # type: ignore[method-assign]
    try:
        answer = _act(task)
    except Refusal as refusal:
        answer = f"{refusal.reference}: {refusal.message} {refusal.context}"
    return steps, answer


def _act(task: Task) -> str:
    git_dir = f"{task.root}/.git"
    if task.action == "merge":
        git = Git(git_dir)
        sources = [Source(name, git.text("rev-parse", f"refs/heads/{name}")) for name in task.names]
        follow = Follow(files=True, jailed=task.jailed)
        settings = work.Settings(task.state, {}, seconds=1_500_000_000, follow=follow)
        return work.merge(lambda: find(task.root, None), sources, settings, git_dir).state
    if task.action == "resume":
        done = work.resume(git_dir, task.state)
        return "nothing" if done is None else done.state
    return work.roll_back(git_dir, task.state, task.run).state


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as stream:
        return [int(word) for word in stream.read().split()]


ROUNDS = int(os.environ.get("PADDOCK_KILLS", "1"))
pytestmark = pytest.mark.timeout(300 if ROUNDS == 1 else 1800)


def make(root: Path) -> None:
    """A repository with `lib` and `doc` and two children that change files everywhere, add, remove and retype some."""
    nested = Nested.copied(root)
    nested.child("one", lib=changed(1), doc=changed(1), main=changed(1))
    nested.child("two", lib=changed(18), doc=changed(18))
    nested.main.commit("two", {"new/file": "new\n", "big": "x" * 300_000})
    nested.main.commit("one", {"gone/away": "x\n"})


_before: dict[str, object] = {}
"""`Scene.all` of every copy: commits do not depend on the time."""


class Scene:
    """One copy of what `make` has made, before a run.

    Args:
        root: where to; made.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        repository.repeat(make, root)
        self.nested = Nested(root)
        self.main = self.nested.main
        self.state = root / "state"
        self.state.mkdir()
        (self.main.root / "mine").write_text("untracked\n")
        if not _before:
            _before.update(self.all())
        self.before = _before

    def all(self) -> dict[str, object]:
        """Refs and files: everything that a run may change."""
        grounds = (self.main, self.nested.lib, self.nested.doc)
        return {
            **{f"refs {each.root.name}": self.refs(each) for each in grounds},
            "status": [line for each in grounds for line in each.status()],
            "files": {
                str(path.relative_to(self.main.root)): path.read_bytes()
                for path in sorted(self.main.root.rglob("*"))
                if path.is_file() and ".git" not in path.parts and path.name != ".git"
            },
            "locks": [
                str(path)
                for pattern in ("*.lock", "index.paddock*", "*.keep", "pack-*.new", "*.tmp")
                for top in (self.main.root, self.state)
                for path in top.rglob(pattern)
            ],
        }

    @staticmethod
    def refs(ground: Ground) -> dict[str, str]:
        """Branches and HEAD; what a run keeps for itself is not among them."""
        lines = ground.git("for-each-ref", "--format=%(refname) %(objectname)", "refs/heads").splitlines()
        return dict(line.split(" ") for line in lines) | {"HEAD": ground.id("HEAD")}

    def do(
        self, action: str, *, run: str = "", kill_at: int = 0, everything: bool = False, jailed: bool = False
    ) -> tuple[int, str] | None:
        """Merges, resumes or rolls back in a process of its own."""
        root, state = str(self.main.root), str(self.state)
        return forked(Task(action, root, state, ("one", "two"), run, kill_at, everything, jailed))

    def run_id(self) -> str:
        """The name of the only run."""
        (file,) = self.state.glob("merges/*/2*.json")
        return file.stem


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, object]]:
    """The number of steps of a merge, and what it gives when nothing disturbs it."""
    scene = Scene(tmp_path_factory.mktemp("after"))
    done = scene.do("merge")
    assert done is not None
    assert done[1] == "done"
    assert scene.all()["status"] == ["?? mine"]
    assert not scene.all()["locks"]
    assert scene.do("rollback", run=scene.run_id()) is not None
    assert scene.all() == scene.before
    # The commits do not depend on the time, so another copy has the same.
    scene.do("merge")
    return done[0], scene.all()


@pytest.mark.parametrize(
    ("everything", "jailed"),
    [(False, False), (True, False), (True, True)],
    ids=["launcher", "launcher-and-git", "git-in-a-jail"],
)
def test_a_killed_merge_ends_all_old_or_all_new(
    after: tuple[int, dict[str, object]], tmp_path: Path, everything: bool, jailed: bool
) -> None:
    """After `--resume`, refs and files of all repositories are either as before or as after, and nothing is left."""
    steps, new = after
    chance = random.Random(7)
    seen = set()
    for kill in range(1 + 4 * everything, steps + 1, 1 if ROUNDS > 1 else 12 if jailed else 8):
        for number in range(ROUNDS):
            scene = Scene(tmp_path / f"{kill}-{number}")
            assert scene.do("merge", kill_at=kill, everything=everything, jailed=jailed) is None
            if number:
                scene.do("resume", kill_at=chance.randint(1, steps), everything=everything)
            done = scene.do("resume")
            assert done is not None
            assert done[1] in ("done", "abandoned", "nothing"), (kill, done)
            found = scene.all()
            assert found == (new if done[1] == "done" or found["refs repo"] == new["refs repo"] else scene.before), (
                f"killed before step {kill}: {done[1]}"
            )
            seen.add(found["refs repo"] == new["refs repo"])
            shutil.rmtree(tmp_path / f"{kill}-{number}")
    assert seen == {False, True}


def test_a_killed_rollback_ends_all_old(after: tuple[int, dict[str, object]], tmp_path: Path) -> None:
    """Killed while everything is taken back: `--resume` takes the rest back."""
    steps, new = after
    for kill in range(2, steps, 1 if ROUNDS > 1 else 9):
        scene = Scene(tmp_path / str(kill))
        scene.do("merge")
        if scene.do("rollback", run=scene.run_id(), kill_at=kill, everything=bool(kill % 4)) is not None:
            break  # a rollback has fewer steps
        done = scene.do("resume")
        assert done is not None
        found = scene.all()
        assert found == (new if done[1] == "nothing" and found["refs repo"] == new["refs repo"] else scene.before), kill
        shutil.rmtree(tmp_path / str(kill))


def test_an_unfinished_merge_can_be_taken_back(after: tuple[int, dict[str, object]], tmp_path: Path) -> None:
    """Instead of forward, `--rollback` goes backward from wherever a run was killed."""
    steps, _ = after
    for kill in range(steps // 2, steps, 1 if ROUNDS > 1 else 8):
        scene = Scene(tmp_path / str(kill))
        assert scene.do("merge", kill_at=kill, everything=True) is None
        done = scene.do("rollback", run=scene.run_id())
        assert done is not None
        if done[1].startswith("merge-not-done"):  # nothing had moved: `--resume` clears it away
            scene.do("resume")
        assert scene.all() == scene.before, (kill, done)
        shutil.rmtree(tmp_path / str(kill))
