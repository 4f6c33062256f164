"""One merge, resume or rollback in a process of its own, that may kill itself at any step.

A fork, not a new interpreter: hundreds of them have to be cheap. Steps are all calls that change something on disk, or
that let git do so: writes of the journal, locks, git processes that move refs or files, and each exchange with a
transaction.
"""

import json
import os
import signal
from typing import NamedTuple

from launcher.vcs import journal
from launcher.vcs.git import Completed, Git
from launcher.vcs.merge import files, work
from launcher.vcs.merge.models import Source
from launcher.vcs.merge.moves import Follow
from launcher.vcs.merge.target import find
from launcher.vcs.transaction import Transaction
from policy.errors import Refusal

_WRITERS = {"read-tree", "update-index", "checkout-index", "update-ref"}
_STEPS: tuple[tuple[type, str], ...] = (
    (journal.Journal, "_put"),
    (files.Files, "lock"),
    (files.Files, "unlock"),
    (files.Files, "_publish"),
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

    def stepping(owner: type, name: str) -> None:
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
