"""One run: children's branches into a trunk, reported, journalled and carried out. And what can be done with a run."""

import functools
import hashlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from launcher.vcs.added_packs import sweep
from launcher.vcs.git import Git, GitFailed
from launcher.vcs.merge import moving, rewinds, sessions
from launcher.vcs.merge.descriptors import (
    AgentMergeStatus,
    MergeAggregation,
    MergeDescriptor,
    MergeDirection,
    MergeResult,
    Outcome,
    Source,
    SubmoduleMergeResult,
    SubmoduleStatus,
)
from launcher.vcs.merge.engine import Engine, undone
from launcher.vcs.merge.moving import FILES, Follow, moves
from launcher.vcs.merge.object_store import Relation, changes
from launcher.vcs.merge.runs import Journal, Run, State
from launcher.vcs.merge.target import Place, Target, refuse_when_busy, stores_below
from policy.errors import Refusal, printable
from policy.pasted import quoted

# Children into the trunk, one after another, as objects; up to the first that cannot be merged.

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
        """Reads the graph; one process whatever the number of tips."""
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


def merge_in_turn(
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
        target: the trunk's name, for messages.
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
        return Outcome("", error=f"cannot tell whether submodules would go back: {error.message}\n{error.context}")


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


# Who commits a merge, and when: the same inputs give the same commit, byte for byte.


_FORBIDDEN = str.maketrans("", "", "<>\n\0")


def identity_environment(git: Git, caller: Mapping[str, str], *, seconds: int | None = None) -> dict[str, str]:
    """Author and committer of the merge commits of one run, as variables for `Git.run`, found as git(1) finds them.

    The caller's variables come first, then the configuration's `author.*` and `committer.*`, then `user.*`, then EMAIL.
    Of each, the repository's counts before the user's own and the system's. `Git` reads none of the latter, so they
    are asked for here, as files.

    Args:
        caller: the caller's environment (GIT_AUTHOR_NAME and its like, EMAIL, HOME, XDG_CONFIG_HOME, TZ).
        seconds: since the epoch; now when None.

    Refusals: identity-unknown.
    """
    when = f"@{int(time.time()) if seconds is None else seconds} {time.strftime('%z')}"
    configured = _configured(git, caller)
    found: dict[str, str] = {}
    for role in ("AUTHOR", "COMMITTER"):
        for word in ("name", "email"):
            variable = f"GIT_{role}_{word.upper()}"
            last = _plain(caller.get("EMAIL", "")) if word == "email" else ""
            value = _plain(caller.get(variable, "")) or configured(f"{role.lower()}.{word}")
            found[variable] = value or configured(f"user.{word}") or last
            if not found[variable]:
                raise Refusal(
                    "identity-unknown",
                    "merge commits need an author, and git does not know you",
                    context=f"user.{word} is not set, nor is {variable}",
                    hint='git config --global user.name "Your Name"; git config --global user.email you@example.org',
                )
        found[f"GIT_{role}_DATE"] = when
    return found


def _plain(value: str) -> str:
    """A name or an address without what would end it in a commit."""
    return value.translate(_FORBIDDEN).strip()


def _configured(git: Git, caller: Mapping[str, str]) -> Callable[[str], str]:
    """Finds what the repository's, the user's or the system's configuration says; each file is read once."""
    sources: list[tuple[str, ...]] = [("--local",)]
    home = caller.get("HOME", "")
    if home.startswith("/"):
        config = caller.get("XDG_CONFIG_HOME", "")
        config = config if config.startswith("/") else f"{home}/.config"
        sources += [("--file", f"{home}/.gitconfig"), ("--file", f"{config}/git/config")]
    sources.append(("--file", "/etc/gitconfig"))
    wanted = ("--includes", "--null", "--get-regexp", r"^(user|author|committer)\.(name|email)$")

    @functools.cache
    def read(*source: str) -> dict[str, str]:
        listed = git.run("config", *source, *wanted, ok=(0, 1)).out  # 1: none, or no such file
        entries = (entry.partition("\n") for entry in os.fsdecode(listed).split("\0"))
        return {name: _plain(value) for name, _, value in entries}

    return lambda key: next(filter(None, (read(*source).get(key) for source in sources)), "")


Find = Callable[[], Target]
"""Looks for the target; called when nobody else merges, so that what it finds stays true."""


class Settings(NamedTuple):
    """How a run is done.

    Attributes:
        state: directory of Paddock's own state; journals lie below it.
        caller: the caller's environment, for author and committer.
        direction: of the descriptors.
        follow: how the files of the target's worktree follow.
        gate: see `work.Gate`.
        progress: see `work.Progress`.
        rewind: names of submodules that a child may take back.
        seconds: time of the merge commits since the epoch; now when None.
    """

    state: str
    caller: Mapping[str, str]
    direction: MergeDirection = MergeDirection.CHILD_TO_TRUNK
    follow: Follow = FILES
    gate: Gate | None = None
    progress: Progress | None = None
    rewind: frozenset[str] = frozenset()
    seconds: int | None = None


def journal_of(state: str, common_dir: str) -> Journal:
    """The journal of a repository, found by where it lies."""
    name = os.path.basename(os.path.dirname(common_dir) if common_dir.endswith("/.git") else common_dir)
    plain = "".join(char if char.isalnum() or char in "-_." else "_" for char in name)[:40]
    digest = hashlib.sha256(os.fsencode(os.path.realpath(common_dir))).hexdigest()[:16]
    return Journal(f"{state}/merges/{plain}-{digest}")


def merge(find: Find, sources: Sequence[Source], settings: Settings, common_dir: str) -> Run:
    """Merges the sources, in this order, up to the first that cannot be merged; those before it stay merged.

    Returns:
        the run: "done", or "abandoned" when there was nothing to move. `outcome` has all children; from trunk to
        child, `child_outcome` has the one merge there is.

    Refusals: merge-unfinished, merge-running, trunk-busy, trunk-dirty, trunk-locked, refs-moved, submodule-moved,
    identity-unknown. Nothing has been moved then.
    """
    journal = journal_of(settings.state, common_dir)
    with journal.lock() as lock:
        refuse_when_unfinished(journal)
        _sweep(common_dir)
        target = find()
        if settings.follow.files:
            refuse_when_busy(target)
        who = identity_environment(Git(target.git_dir), settings.caller, seconds=settings.seconds)
        place = target.place
        name = journal.new_id()
        with Engine(place, who, hold=(lock,), run=name) as engine:
            down = settings.direction is MergeDirection.TRUNK_TO_CHILD  # what the trunk has gone back to, all follow
            done = merge_in_turn(
                engine, target.commit, sources, target.label, gate=settings.gate, progress=settings.progress,
                rewind=None if down else settings.rewind,
            )  # fmt: skip
            run = Run(run_id=name, state=State.PREPARED, target=target.label)
            run = run.model_copy(update=_reported(engine, done, sources, target, settings.direction, run.run_id))
            if done.commit == target.commit:
                return run.model_copy(update={"state": State.ABANDONED, "note": "nothing to move"})
            places = [each.source.place for each in done.tried if each.source.place is not None]
            planned = moves(engine, target, done.commit, places, settings.follow)
            engine.publish(planned.moves)
            note = "\n".join(map(printable, planned.notes))
            run = run.model_copy(update={"moves": planned.moves, "note": note})
            return moving.carry_out(journal, run, hold=(lock, *engine.held.locks))


def _sweep(common_dir: str) -> None:
    """Removes what killed runs have left in a repository and in its submodules' stores (`added_packs.sweep`)."""
    sweep(common_dir)
    for store in stores_below(common_dir):
        sweep(store)


def _reported(
    engine: Engine,
    done: Batch,
    sources: Sequence[Source],
    target: Target,
    direction: MergeDirection,
    run_id: str,
) -> dict[str, object]:
    """The fields of a run that say what a batch came to."""
    descriptors = [descriptor(engine, each, target, direction, run_id) for each in done.tried]
    if direction is MergeDirection.TRUNK_TO_CHILD:
        (only,) = descriptors
        return {"child_outcome": only}
    statuses = [
        AgentMergeStatus(agent_result_id=each.source.label, merge_descriptor=found)
        for each, found in zip(done.tried, descriptors, strict=True)
    ]
    pending = tuple(AgentMergeStatus(agent_result_id=source.label) for source in sources[len(statuses) :])
    conflicted = statuses.pop() if statuses and not done.tried[-1].outcome.commit else None
    return {"outcome": MergeAggregation(merged=tuple(statuses), pending=pending, conflicted=conflicted)}


def descriptor(engine: Engine, each: Merged, target: Target, direction: MergeDirection, run_id: str) -> MergeDescriptor:
    """What one child came to."""
    outcome = each.outcome
    failed = not outcome.commit
    error = None
    if failed:
        files = {conflict.path for conflict in outcome.conflicts}
        error = outcome.error or f"merge conflicts in {len(files)} file{'s' if len(files) != 1 else ''}"
    inside = [result for result in outcome.submodules if not result.successful]
    main: MergeResult | None = None
    if not failed or not any(result.merge_result and not result.merge_result.successful for result in inside):
        main = outcome.result(
            each.source.label, target.label, each.before,
            repository=target.common_dir, ref=target.ref, error=error or "",
        )  # fmt: skip
    hint, commands = _hint(engine, each, target, direction) if failed else (None, None)
    return MergeDescriptor(
        merge_direction=direction,
        successful=not failed,
        conflict_files=tuple(dict.fromkeys(conflict.path for conflict in outcome.conflicts)),
        submodule_merge_results=_pointers(outcome.submodules, direction),
        main_worktree_merge_result=main,
        error_message=error,
        hint=hint,
        merge_commands=commands,
        run_id=None if failed or outcome.no_op else run_id,
    )


def _pointers(results: tuple[SubmoduleMergeResult, ...], direction: MergeDirection) -> tuple[SubmoduleMergeResult, ...]:
    if direction is MergeDirection.CHILD_TO_TRUNK:
        return results
    return tuple(result.model_copy(update={"pointer_updated": False}) for result in results)


def _hint(engine: Engine, each: Merged, target: Target, direction: MergeDirection) -> tuple[str, str | None]:
    """How to go on, in words; and the commands that begin to resolve a conflict where the child's work is."""
    outcome, source = each.outcome, each.source
    if outcome.hint:
        return outcome.hint, None
    if not outcome.conflicts:
        return f"fix that in {source.label}, and merge again", None
    trunk = engine.place
    there = source.place.worktree if source.place is not None else None
    if direction is MergeDirection.TRUNK_TO_CHILD:
        merge = _merging(engine, trunk, each.before, source.place or trunk, source.commit)
        where = quoted(there) if there else "the child's own worktree"
        return f"in {where}: {merge}, resolve, and commit", merge
    if target.git_dir != target.common_dir and (source.place is None or source.place.git_dir == trunk.common_dir):
        # The trunk goes into an agent's work. The other way round, that would be finished work by its own conflict.
        merge = _merging(engine, trunk, each.before, source.place or trunk, source.commit, name=source.label)
        return f"in {target.worktree}: {merge}, resolve, and commit", None
    merge = _merging(engine, source.place or trunk, source.commit, trunk, each.before)
    where = quoted(there) if there else f"a worktree of {source.label}"
    return f"in {where}: {merge}, resolve, and commit; then merge again", merge


def _merging(engine: Engine, here: Place, mine: str, there: Place, other: str, name: str = "") -> str:
    """The commands that merge `other` (called `name`) where `mine` is checked out, its submodules with it."""
    try:
        behind = rewinds.catch_up_commands(engine, here, mine, there, other)
    except Refusal:
        behind = [rewinds.UPDATE]  # why will be seen there
    return "; ".join((f"git merge {quoted(name or other)}", *behind))


def refuse_when_unfinished(journal: Journal) -> None:
    """Refuses while a run waits to be finished."""
    run = journal.unfinished()
    if run is not None:
        raise Refusal(
            "merge-unfinished",
            f"run {run.run_id} was interrupted and must be finished first",
            context=f"it is {run.state}, into {run.target}",
            hint=f"paddock merge --resume, or paddock merge --rollback {run.run_id}",
        )


def resume(common_dir: str, state: str) -> Run | None:
    """Finishes the interrupted run of a repository; None when there is none.

    Refusals: session-running; see `moving.resume`.
    """
    journal = journal_of(state, common_dir)
    with journal.lock() as lock:
        _sweep(common_dir)
        run = journal.unfinished()
        if run is None:
            return None
        with _undisturbed(state, run):
            return moving.resume(journal, run, hold=(lock,))


def roll_back(common_dir: str, state: str, run_id: str) -> Run:
    """Takes a whole run back.

    Refusals: merge-run-unknown, merge-unfinished (another one), session-running; see `moving.roll_back`.
    """
    journal = journal_of(state, common_dir)
    with journal.lock() as lock:
        run = journal.read(run_id)
        waiting = journal.unfinished()
        if waiting is not None and waiting.run_id != run_id:
            refuse_when_unfinished(journal)
        with _undisturbed(state, run):
            return moving.roll_back(journal, run, hold=(lock,))


def _undisturbed(state: str, run: Run) -> AbstractContextManager[None]:
    roots = [str(move.work_tree) for move in run.moves if move.work_tree is not None]
    return sessions.undisturbed(state, roots, [str(move.agent) for move in run.moves if move.agent is not None])
