"""SIGKILL anywhere in a run over a repository and two submodules: all old, or all new, never between.

Where git dies with the launcher, one run is copied as it stands before its steps: a copy is what SIGKILL, or the
machine's end, would leave there. Where the launcher dies alone, it is killed. `PADDOCK_KILLS=N` (default 1: at one step
of each kind) kills N times at every step; from the second time on once more, at a random step of what was to finish.
"""

import json
import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
        spared: it does not die, they do.
        jailed: files are moved by git in a jail, as an agent's are.
        copies: where the scene is copied to as it is before steps; "" for nowhere.
        kinds: before one step of each of these kinds, in the middle of them; before each where there are none.
    """

    action: str
    root: str
    state: str
    names: tuple[str, ...] = ()
    run: str = ""
    kill_at: int = 0
    everything: bool = False
    spared: bool = False
    jailed: bool = False
    copies: str = ""
    kinds: tuple[str, ...] = ()


class Outcome(NamedTuple):
    """What a fork has come to.

    Attributes:
        steps: the kind of each: what it is before or after.
        said: state of the run, or the Refusal.
        beside: the steps at which processes of git lived beside the launcher.
    """

    steps: list[str]
    said: str
    beside: list[int]


def forked(task: Task) -> Outcome | None:
    """Does it in a fork: what came of it; None when it has killed itself."""
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
    return Outcome(*json.loads(answer))


def _done(task: Task) -> Outcome:
    """Changes functions of this process for good."""
    steps: list[str] = []
    beside = []

    def step(kind: str) -> None:
        steps.append(kind)
        children = _children()
        beside.extend([len(steps)] if children else [])
        if task.copies and (not task.kinds or (kind in task.kinds and steps.count(kind) < 3)):
            if task.kinds and (earlier := Path(task.copies, str(steps.index(kind) + 1))).exists():
                shutil.rmtree(earlier)  # of three repositories the second is between
            shutil.copytree(Path(task.root).parent, Path(task.copies, str(len(steps))), symlinks=True)
        if len(steps) == task.kill_at:
            for child in children if task.everything or task.spared else ():
                os.kill(child, signal.SIGKILL)
            if not task.spared:
                os.kill(os.getpid(), signal.SIGKILL)

    def stepping(owner: object, name: str) -> None:
        before = getattr(owner, name)

        def after(*words: object, **options: object) -> object:
            step(f"before {name}")
            done: object = before(*words, **options)
            step(f"after {name}")
            return done

        setattr(owner, name, after)

    for owner, name in _STEPS:
        stepping(owner, name)
    run_git = Git.run

    def run(self: Git, *words: str, **options: object) -> Completed:
        if words[0] in _WRITERS and "-n" not in words:
            step(words[0])
        return run_git(self, *words, **options)  # type: ignore[arg-type]  # passed on as they are

    Git.run = run  # type: ignore[method-assign]
    try:
        answer = _act(task)
    except Refusal as refusal:
        answer = f"{refusal.reference}: {refusal.message} {refusal.context} {refusal.hint}"
    return Outcome(steps, answer, beside)


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


# What is after one of them is before the next: only where a commit has begun to count both are tried.
_TRANSACTIONS = ("before prepare", "before commit", "after commit", "before close")
_FILES = ("read-tree", "update-index", "checkout-index", "before _publish")
"""What git does, or has done, in a jail where an agent writes."""
# All that is written is written by `put`, which has made an empty file by then.
_KINDS = (*_TRANSACTIONS, *_FILES, "update-ref", "before write_all", "before lock", "before unlock")

_BACK = (*_TRANSACTIONS, "read-tree", "before _publish", "before write_all", "before unlock")
"""Of going back, which moves refs and files by what going on does."""

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
        self.root = root
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
        self.done = Outcome([], "", [])

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
        lines = ground.git("show-ref", "--head", "--heads").splitlines()
        return {name: oid for oid, name in map(str.split, lines)}

    def do(self, action: str, *, run: str = "", **more: Any) -> Outcome | None:  # noqa: ANN401  # of `Task`
        """Merges, resumes or rolls back in a process of its own."""
        return forked(Task(action, str(self.main.root), str(self.state), ("one", "two"), run, **more))

    def cut_off(self, action: str, copies: Path, kinds: tuple[str, ...], **more: Any) -> Iterator[int]:  # noqa: ANN401
        """The scene as it was before steps of an action, one after the other, and each step's number."""
        copies.mkdir()
        done = self.do(action, copies=str(copies), kinds=() if ROUNDS > 1 else kinds, **more)
        assert done is not None
        self.done = done
        for number in sorted(int(copy.name) for copy in copies.iterdir()):
            shutil.rmtree(self.root)
            (copies / str(number)).rename(self.root)
            yield number

    def run_id(self) -> str:
        """The name of the only run."""
        (file,) = self.state.glob("merges/*/2*.json")
        return file.stem


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, dict[str, object]]:
    """How a merge goes, and what it gives, when nothing disturbs it."""
    scene = Scene(tmp_path_factory.mktemp("after"))
    done = scene.do("merge")
    assert done is not None
    assert done.said == "done"
    assert scene.all()["status"] == ["?? mine"]
    assert not scene.all()["locks"]
    assert scene.do("rollback", run=scene.run_id()) is not None
    assert scene.all() == scene.before
    # The commits do not depend on the time, so another copy has the same.
    scene.do("merge")
    return done, scene.all()


def finished(scene: Scene, new: dict[str, object], kill: int) -> bool:
    """Resumes a merge; whether all is new. It is all old otherwise, and nothing is left."""
    done = scene.do("resume")
    assert done is not None
    assert done.said in ("done", "abandoned", "nothing"), (kill, done)
    found = scene.all()
    moved = found["refs repo"] == new["refs repo"]
    assert found == (new if done.said == "done" or moved else scene.before), f"killed before step {kill}: {done.said}"
    return moved


@pytest.mark.parametrize("jailed", [False, True], ids=["git", "git-in-a-jail"])
def test_a_merge_that_is_killed_with_its_git_ends_all_old_or_all_new(
    after: tuple[Outcome, dict[str, object]], tmp_path: Path, jailed: bool
) -> None:
    """After `--resume`, refs and files of all repositories are either as before or as after, and nothing is left."""
    scene = Scene(tmp_path / "scene")
    kills = scene.cut_off("merge", tmp_path / "copies", _FILES if jailed else _KINDS, jailed=jailed)
    assert {finished(scene, after[1], kill) for kill in kills} == {False, True}


def test_a_merge_whose_git_outlives_it_ends_all_old_or_all_new(
    after: tuple[Outcome, dict[str, object]], tmp_path: Path
) -> None:
    """The same where the launcher alone is killed, while transactions of git wait for its word."""
    (steps, _, beside), new = after
    chance = random.Random(7)
    seen = set()
    of_kinds = [at for at in beside if steps[at - 1] in _TRANSACTIONS and steps[:at].count(steps[at - 1]) == 2]
    for kill in range(1, len(steps) + 1) if ROUNDS > 1 else of_kinds:
        for number in range(ROUNDS):
            scene = Scene(tmp_path / f"{kill}-{number}")
            assert scene.do("merge", kill_at=kill) is None
            if number:
                scene.do("resume", kill_at=chance.randint(1, len(steps)), everything=bool(number % 2))
            seen.add(finished(scene, new, kill))
            shutil.rmtree(scene.root)
    assert seen == {False, True}


def test_a_merge_whose_git_is_killed_says_how_it_is_ended(
    after: tuple[Outcome, dict[str, object]], tmp_path: Path
) -> None:
    """The launcher lives: once the first repository has moved, the run goes forward by `--resume`, which it names."""
    (steps, _, _), new = after
    kill = [number for number, kind in enumerate(steps, 1) if kind == "before commit"][1]
    scene = Scene(tmp_path / "scene")
    done = scene.do("merge", kill_at=kill, spared=True)
    assert done is not None
    assert done.said.startswith("git-failed: the branches could not be moved in "), done
    assert "git was ended by signal 9" in done.said
    assert f"paddock merge --resume, or paddock merge --rollback {scene.run_id()}" in done.said
    assert finished(scene, new, kill)


def test_a_killed_rollback_ends_all_old(after: tuple[Outcome, dict[str, object]], tmp_path: Path) -> None:
    """Killed while everything is taken back: `--resume` takes the rest back."""
    _, new = after

    def check(kill: object) -> None:
        done = scene.do("resume")
        assert done is not None
        found = scene.all()
        moved = done.said != "nothing" or found["refs repo"] != new["refs repo"]
        assert found == (scene.before if moved else new), kill

    scene = Scene(tmp_path / "scene")
    scene.do("merge")
    for kill in scene.cut_off("rollback", tmp_path / "copies", _BACK, run=scene.run_id()):
        check(kill)
    between = [at for at in scene.done.beside if scene.done.steps[:at].count("after commit") == 1]
    for kill in scene.done.beside if ROUNDS > 1 else between[:1]:
        scene = Scene(tmp_path / str(kill))
        scene.do("merge")
        assert scene.do("rollback", run=scene.run_id(), kill_at=kill) is None
        check(("alone", kill))
        shutil.rmtree(scene.root)


def test_an_unfinished_merge_can_be_taken_back(after: tuple[Outcome, dict[str, object]], tmp_path: Path) -> None:
    """Instead of forward, `--rollback` goes backward from wherever a run was killed."""
    scene = Scene(tmp_path / "scene")
    for kill in scene.cut_off("merge", tmp_path / "copies", _TRANSACTIONS):
        done = scene.do("rollback", run=scene.run_id())
        assert done is not None
        if done.said.startswith("merge-not-done"):  # nothing had moved: `--resume` clears it away
            scene.do("resume")
        assert scene.all() == scene.before, (kill, done)
