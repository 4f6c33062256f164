"""Children into the trunk, one after another, as objects; up to the first that cannot be merged."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from launcher.vcs.git import Git, GitFailed
from launcher.vcs.merge import rewinds
from launcher.vcs.merge.descriptors import Outcome, Source, SubmoduleStatus
from launcher.vcs.merge.engine import Engine, undone
from launcher.vcs.merge.object_store import Relation, changes
from policy.errors import Refusal

# Which commits the trunk already holds: asked of git once for all children, then answered without a process each.


class History:
    """The commits that are reachable from some tips and not from the base, as a graph.

    Args:
        base: the trunk's commit before the run.
        parents: per commit outside of the base's history, its parents.
    """

    def __init__(self, base: str, parents: dict[str, tuple[str, ...]]) -> None:
        self._base = base
        self._parents = parents
        self._held: set[str] = set()

    @classmethod
    def of(cls, git: Git, base: str, tips: Iterable[str]) -> "History":
        """Reads the graph; one process whatever the number of tips.

        Raises:
            GitFailed: an object is missing.
        """
        lines = "".join(f"{tip}\n" for tip in dict.fromkeys(tips)) + f"^{base}\n"
        output = git.run("rev-list", "--parents", "--stdin", input=lines.encode()).out.decode()
        graph = {}
        for line in output.splitlines():
            commit, *parents = line.split(" ")
            graph[commit] = tuple(parents)
        return cls(base, graph)

    def contains(self, commit: str) -> bool:
        """Whether the trunk holds `commit`, with all that has been added so far."""
        return commit not in self._parents or commit in self._held

    def extends(self, commit: str) -> bool:
        """Whether `commit` holds the base, so that the trunk as it was could simply move forward to it."""
        return any(self._base in self._parents[each] for each in self._ancestors(commit)) or commit == self._base

    def add(self, commit: str) -> None:
        """The trunk now holds `commit` and all before it."""
        self._held.update(self._ancestors(commit))

    def _ancestors(self, commit: str) -> set[str]:
        """`commit` and its ancestors outside of the base and of what was added."""
        found: set[str] = set()
        todo = [commit]
        while todo:
            each = todo.pop()
            if each in self._parents and each not in found and each not in self._held:
                found.add(each)
                todo.extend(self._parents[each])
        return found


Gate = Callable[[str, str], str]
"""Asked after each merge with the child's label and the merged commit; answers "" or why it must not stay."""

Progress = Callable[[int, int, str], None]
"""Told before each child: how many are done, of how many, and which is next."""


class Merged(NamedTuple):
    """One child and what came of it; `before` is the trunk's commit it was merged into."""

    source: Source
    outcome: Outcome
    before: str


class Batch(NamedTuple):
    """All that was tried, in order: everything but the last has succeeded, and that too unless there was a conflict.

    Attributes:
        tried: one entry per child.
        commit: the trunk's commit after the successful ones.
    """

    tried: tuple[Merged, ...]
    commit: str


def title(label: str, target: str) -> str:
    """The message of a merge commit, as `git merge` would put it."""
    into = "" if target in ("main", "master") else f" into {target}"
    return f"Merge branch '{label}'{into}\n"


def merge(
    engine: Engine,
    base: str,
    sources: Sequence[Source],
    target: str,
    *,
    gate: Gate | None = None,
    progress: Progress | None = None,
    rewind: Collection[str] | None = (),
) -> Batch:
    """Merges every source into what the earlier ones have made of `base`.

    What is the same for all is asked of git once: the history that the trunk lacks, and which children touch
    attributes or submodules. Then a merge costs two processes.

    Args:
        engine: for the repository.
        base: the trunk's commit.
        sources: in order.
        target: the trunk's name, for messages.
        gate: see `Gate`.
        progress: see `Progress`.
        rewind: names of submodules that may go back (see `rewinds.refused`); None: all of them.

    Raises:
        GitFailed: what is asked for all failed; for one child, it is its outcome.
    """
    commits = [source.commit for source in sources]
    history = History.of(engine.main.git, base, commits)
    differences = changes(engine.main, base, commits)
    if any(change.attributes for change in differences):
        engine.main.attributes_may_differ()
    else:
        engine.main.attributes_stay(base)
    # Not child by child: what one brings in can meet what another took from their common past.
    submodules = any(change.submodules for change in differences)
    now = base
    tried: list[Merged] = []
    for number, source in enumerate(sources):
        if progress is not None:
            progress(number, len(sources), source.label)
        outcome = _one(engine, now, source, history, base, target, submodules=submodules)
        if submodules or source.heads:
            outcome = _forward(engine, now, source, outcome, rewind)
        if outcome.commit and outcome.commit != now and gate is not None:
            engine.show()
            reason = gate(source.label, outcome.commit)
            if reason:
                outcome = Outcome("", error=reason, submodules=undone(outcome.submodules, SubmoduleStatus.ROLLED_BACK))
        tried.append(Merged(source, outcome, now))
        if not outcome.commit:
            break
        now = outcome.commit
        history.add(source.commit)
    return Batch(tuple(tried), now)


def _forward(engine: Engine, now: str, source: Source, outcome: Outcome, rewind: Collection[str] | None) -> Outcome:
    if rewind is None:
        return outcome
    try:
        return rewinds.refused(engine, now, source, outcome, rewind)
    except Refusal as error:
        return Outcome("", error=f"whether submodules would go back cannot be told: {error.message}\n{error.context}")


def _one(
    engine: Engine, now: str, source: Source, history: History, base: str, target: str, *, submodules: bool
) -> Outcome:
    if history.contains(source.commit):
        relation = Relation(1, 0)
    elif now == base and history.extends(source.commit):
        relation = Relation(0, 1)
    else:
        relation = Relation(1, 1)
    try:
        return engine.merge(
            now,
            source,
            title(source.label, target),
            relation=relation,
            submodules=submodules or source.heads,
        )
    except GitFailed as error:
        return Outcome("", error=f"git failed: {error.message}\n{error.context}")
    except Refusal as error:
        return Outcome("", error=error.message)
