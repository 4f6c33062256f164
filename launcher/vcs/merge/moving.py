"""Which refs and worktrees follow when the trunk goes from one commit to another: submodules' first."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import NamedTuple, Protocol

from launcher.vcs import gitlinks
from launcher.vcs.added_packs import sweep
from launcher.vcs.git import Git
from launcher.vcs.gitlinks import Gitlink
from launcher.vcs.jailed_git import JailedGit, many
from launcher.vcs.merge.engine import Engine, Level
from launcher.vcs.merge.runs import Journal, Move, Run, State
from launcher.vcs.merge.target import Place, Target, checked_out_at, refuse_when_busy
from launcher.vcs.merge.worktree_files import AgentFiles, Files
from launcher.vcs.refs import AGAIN, Update, clear_locks, prepared
from policy.errors import Refusal, in_rows
from policy.pasted import cited


class Moves(NamedTuple):
    """What is to be moved, innermost first, the main repository last; and what is left for the user to do."""

    moves: tuple[Move, ...]
    notes: tuple[str, ...]


class Follow(NamedTuple):
    """How the files of the target follow.

    Attributes:
        files: those of the worktree (and of submodules in it) are moved.
        jailed: by git in a jail, because an agent wrote them.
        agent: the agent's private git directory, where there is one.
    """

    files: bool
    jailed: bool = False
    agent: str | None = None

    def of(self, *, name: str, target: Target, old: str, new: str) -> Move:
        """The move of one repository, its files with it."""
        root = target.worktree if self.files else None
        agent = Path(self.agent) if self.agent is not None and root is not None else None
        return Move(
            name=name, git_dir=Path(target.git_dir), work_tree=None if root is None else Path(root), ref=target.ref,
            old=old, new=new, jailed=self.jailed and root is not None, agent=agent,
        )  # fmt: skip


FILES = Follow(files=True)
"""A user's own worktree."""


def moves(engine: Engine, target: Target, new: str, sources: Sequence[Place], follow: Follow) -> Moves:
    """Everything that follows from moving `target` to `new`.

    Args:
        sources: worktrees that commits of submodules may have to be taken from.

    Refusals: submodule-moved: a submodule that has to follow is checked out somewhere else; trunk-busy.
    """
    found: list[Move] = []
    notes: list[str] = []
    top = Level("", "", "", engine.place, tuple(sources))
    _below(engine, top, (target.commit, new), found, notes, follow)
    main = follow.of(name="", target=target, old=target.commit, new=new)
    return Moves((*found, main), tuple(notes))


def _below(
    engine: Engine, level: Level, commits: tuple[str, str], found: list[Move], notes: list[str], follow: Follow
) -> None:
    store, here = engine.store(level.place), level.place.worktree
    before, after = (engine.links(store, commit) for commit in commits)
    recorded = engine.recorded(store, commits[1]) if before.keys() - after.keys() else {}
    # What has another name or none, and is where it was, goes on in the checkout that is there.
    kept = {
        name: link._replace(commit=recorded[link.path])
        for name, link in before.items()
        if name not in after and link.path in recorded
    }
    for key, link in (after | kept).items():
        full, where = level.named(key), f"{level.prefix}{link.path}"
        old = before.get(key)
        if old is None:
            notes.append(f"submodule {cited(full)} is new: {gitlinks.how_to_populate(here, link.path, where)}")
            continue
        if old.commit == link.commit and old.path == link.path:
            continue
        place = level.place.submodule(key, old.path)
        if place is None:
            continue  # nobody has it here
        if old.path != link.path and place.worktree is not None:
            notes.append(
                f"submodule {cited(full)} has moved to {where}: {gitlinks.how_to_populate(here, link.path, where)}"
            )
        inner = level.inside(link, link.path, place)
        if not engine.fetch(inner, link.commit):
            notes.append(
                f"submodule {cited(full)} is unchanged: commit {link.commit[:12]} is in no repository on this machine"
            )
            continue
        if not engine.store(place).has_commit(old.commit):
            notes.append(f"submodule {cited(full)} is unchanged: its old commit {old.commit[:12]} is missing")
            continue
        follows = follow.files and place.worktree is not None and old.path == link.path
        # Where nothing is checked out, the commits are held all the same; there is nothing for the user to do.
        how, said = (follow, notes) if follows else (Follow(files=False), [])
        _below(engine, inner, (old.commit, link.commit), found, said, how)
        if old.commit != link.commit:
            found.append(_move(place, full, old, link, how))


def _move(place: Place, name: str, old: Gitlink, new: Gitlink, follow: Follow) -> Move:
    if not follow.files:
        # Only kept from being collected as garbage: what is checked out there is not ours to move.
        return Move(name=name, git_dir=Path(place.common_dir), ref="", old=old.commit, new=new.commit)
    assert place.worktree is not None
    target = checked_out_at(place.git_dir, place.common_dir, place.worktree)
    if target.commit not in (old.commit, new.commit):
        raise Refusal(
            "submodule-moved",
            f"submodule {cited(name)} is not checked out at the commit that the trunk records",
            context=f"{place.worktree} is at {target.commit[:12]}, recorded is {old.commit[:12]}, "
            f"and the merge needs to take it to {new.commit[:12]}",
            hint="commit the submodule in the trunk, or reset it: git submodule update",
        )
    refuse_when_busy(target)
    if target.commit == new.commit:
        return Move(name=name, git_dir=Path(place.common_dir), ref="", old=old.commit, new=new.commit)
    return follow.of(name=name, target=target, old=old.commit, new=new.commit)


# Carrying out what was decided, in all repositories or in none; and finishing or undoing it after a crash.
#
# Order: indexes locked and checkouts tried; refs locked and compared; the journal says "committing"; files; refs, the
# main repository last; the journal says "committed"; locks away. Before "committing" nothing has moved, after it
# everything will.

KEPT = "refs/paddock/merge"
"""Below it, each run keeps the commits before and after it from being collected as garbage."""


class Checkout(Protocol):
    """The files of a worktree that follow its branch: a user's (`Files`), or an agent's, whose own git follows too."""

    def lock(self) -> None:
        """Keeps others from changing what is checked out; may be called again by the same run."""
        ...

    def check(self, old: str, new: str) -> None:
        """Refuses when `apply` would."""
        ...

    def apply(self, old: str, new: str) -> None:
        """Moves the files. Where it fails, some may have been moved."""
        ...

    def take_back(self) -> None:
        """Undoes `apply`, whole or failed; does nothing where that has written nothing."""
        ...

    def recover(self, old: str, new: str, *, back: bool) -> None:
        """Moves the files after a crash in any of the other calls; `back`: to where the run has begun."""
        ...

    def unlock(self) -> None:
        """Ends `lock`, if this run holds it."""
        ...


class _Part(NamedTuple):
    move: Move
    git: Git
    files: Checkout | None


@many()
def carry_out(journal: Journal, run: Run, *, hold: Sequence[int]) -> Run:
    """Moves files and refs of a prepared run.

    Args:
        journal: locked.
        run: in the state "prepared"; written here.
        hold: descriptors that git processes inherit: the journal's lock.

    Refusals: trunk-dirty, trunk-locked, refs-moved, checkout-impossible, checkout-failed. Nothing has been moved then,
    or it has been taken back, and the run is abandoned. checkout-stuck: it could not; the run is unfinished.
    """
    run = journal.write(run)
    parts = _parts(run, hold)
    with ExitStack() as stack:
        try:
            for files, old, new in _checkouts(parts):
                files.lock()
                files.check(old, new)
            for part in parts:
                _keep(part, run)
            move_refs = stack.enter_context(_prepared(parts, run))
        except Exception as error:
            _abandon(journal, run, parts, _reason(error))
            raise
        run = journal.advance(run, State.COMMITTING)
        begun: list[Checkout] = []
        try:
            for files, old, new in _checkouts(parts):
                begun.append(files)
                files.apply(old, new)
        except Exception as error:
            # Somebody has edited a file since `check`, the disk is full, or git was killed. Where going back fails too,
            # the run stays "committing".
            for files in reversed(begun):
                files.take_back()
            _abandon(journal, run, parts, _reason(error))
            raise
        move_refs()
    return _finish(journal, run, parts, State.DONE)


def _abandon(journal: Journal, run: Run, parts: Sequence[_Part], why: str) -> Run:
    _unlock(parts)
    for part in parts:
        lines = "".join(f"delete {KEPT}/{run.run_id}/{name}\n" for name in ("old", "new"))
        part.git.run("update-ref", "--stdin", input=lines.encode())
    return journal.advance(run, State.ABANDONED, why)


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, Refusal) else str(error)


def _keep(part: _Part, run: Run) -> None:
    """Makes the refs that hold the commits before and after the run, whatever becomes of it from now on."""
    oids = (("old", part.move.old), ("new", part.move.new))
    lines = "".join(f"update {KEPT}/{run.run_id}/{name} {oid}\n" for name, oid in oids)
    part.git.run("update-ref", "--stdin", "-m", f"paddock merge {run.run_id}", input=lines.encode())


@many()
def resume(journal: Journal, run: Run, *, hold: Sequence[int]) -> Run:
    """Finishes what a crash has left: backward where nothing had been decided yet, else forward.

    Refusals: merge-halted (somebody else has moved a ref since: nothing more is moved), trunk-dirty, trunk-locked,
    refs-moved.
    """
    parts = _parts(run, hold)
    _clear_locks(parts, run)
    if run.state is State.PREPARED:
        return _abandon(journal, run, parts, "interrupted before anything was moved")
    if run.state is State.COMMITTED:
        return _finish(journal, run, parts, State.DONE)
    if run.state is State.COMMITTING:
        return _again(journal, run, parts, State.DONE)
    if run.state is State.ROLLING_BACK:
        return _again(journal, run, [_turned(part) for part in parts], State.ROLLED_BACK)
    return run


@many()
def roll_back(journal: Journal, run: Run, *, hold: Sequence[int]) -> Run:
    """Takes every ref and worktree of a run back to where they were; all of them or none.

    Refusals: merge-not-done (it has moved nothing, or has been rolled back), merge-halted (a ref is not where the run
    has put it), trunk-dirty, trunk-locked, refs-moved.
    """
    if run.state in (State.PREPARED, State.ABANDONED, State.ROLLED_BACK):
        raise Refusal(
            "merge-not-done",
            f"run {run.run_id} has nothing to roll back",
            context=f"it is {run.state}" + (f": {run.note}" if run.note else ""),
        )
    parts = [_turned(part) for part in _parts(run, hold)]
    complete = run.state in (State.DONE, State.COMMITTED)
    if not complete:
        _clear_locks(parts, run)
    if complete:
        _refuse_newer(journal, run, parts)
    _refuse_foreign(run, parts, allow_new=not complete)
    if complete:
        # Before the journal says so, and without a lock, which a crash would leave to a run that is done.
        for files, old, new in _checkouts(parts):
            files.check(old, new)
    run = journal.advance(run, State.ROLLING_BACK)
    return _again(journal, run, parts, State.ROLLED_BACK)


def _again(journal: Journal, run: Run, parts: list[_Part], state: State) -> Run:
    """Moves whatever has not been moved yet."""
    _refuse_foreign(run, parts, allow_new=True)
    try:
        for files, _, _ in _checkouts(parts):
            files.lock()
        with _prepared(parts, run) as move_refs:
            for files, old, new in _checkouts(parts):
                files.recover(old, new, back=state is State.ROLLED_BACK)
            move_refs()
    except Refusal as refusal:
        if refusal.reference != "checkout-stuck":  # else nobody is to commit the half of it
            _unlock(parts)
        raise
    return _finish(journal, run, parts, state)


def _finish(journal: Journal, run: Run, parts: list[_Part], state: State) -> Run:
    if state is State.DONE:
        run = journal.advance(run, State.COMMITTED)
    _unlock(parts)
    return journal.advance(run, state)


def _prepared(parts: Sequence[_Part], run: Run) -> AbstractContextManager[Callable[[], None]]:
    """Holds every ref that is not yet where it should be."""
    changes = [(git, [Update(move.ref, move.old, move.new, beside=None)]) for move, git, _ in parts if move.ref]
    hint = in_rows(AGAIN, f"a run that was begun: paddock merge --resume, or paddock merge --rollback {run.run_id}")
    return prepared(changes, f"paddock merge {run.run_id}", moved=("refs-moved", hint))


def _refuse_newer(journal: Journal, run: Run, parts: list[_Part]) -> None:
    """Refuses to take a run back from under a later one, which begins where it ended."""
    moved = {(part.move.git_dir, part.move.ref) for part in parts if part.move.ref}
    if all(part.git.ref(part.move.ref) == part.move.old for part in parts if part.move.ref):
        return
    later = [journal.read(name) for name in journal.runs() if name > run.run_id]
    standing = [
        each.run_id
        for each in later
        if each.state is State.DONE and any((move.git_dir, move.ref) in moved for move in each.moves)
    ]
    if standing:
        several = f"runs {', '.join(standing)} build" if len(standing) > 1 else f"run {standing[0]} builds"
        raise Refusal(
            "merge-not-last",
            f"run {run.run_id} cannot be rolled back: {several} on it",
            context="later merges start from its result",
            hint="roll them back first, newest first: "
            + "; ".join(f"paddock merge --rollback {name}" for name in (*reversed(standing), run.run_id)),
        )


def _refuse_foreign(run: Run, parts: list[_Part], *, allow_new: bool) -> None:
    """Refuses when a ref is neither where the run found it nor where it should be."""
    wrong = []
    for part in parts:
        move = part.move
        if not move.ref:
            continue
        now = part.git.ref(move.ref)
        if now != move.old and not (allow_new and now == move.new):
            wrong.append(f"{move.ref} in {move.git_dir}: {now or 'missing'}, expected {move.old}")
    if wrong:
        raise Refusal(
            "merge-halted",
            f"run {run.run_id} cannot be continued: its branches were moved in the meantime",
            context=in_rows(*wrong),
            hint=f"the commits before and after it are kept: git for-each-ref {KEPT}/{run.run_id}",
        )


def _clear_locks(parts: Sequence[_Part], run: Run) -> None:
    """Removes what transactions of this run have left. Every git of a run has the journal's lock, so none lives."""
    for part in parts:
        values = (part.move.old, part.move.new)
        # Those that are deleted when the run is abandoned have empty locks, and they are nobody's but ours.
        places = [(f"{KEPT}/{run.run_id}/{name}", value) for name in ("old", "new") for value in (*values, "")]
        clear_locks(part.git, places + [(part.move.ref, value) for value in values if part.move.ref])


def _parts(run: Run, hold: Sequence[int]) -> list[_Part]:
    parts = []
    for move in run.moves:
        git = Git(move.git_dir, hold=hold)
        sweep(git.common_dir)
        parts.append(_Part(move, git, _checkout(move, run.run_id, hold)))
    return parts


def _checkout(move: Move, run: str, hold: Sequence[int]) -> Checkout | None:
    if move.work_tree is None:
        return None
    git = JailedGit(str(move.git_dir), str(move.work_tree), hold=hold)
    if not move.jailed:
        return Files(git, run)
    return AgentFiles(git, run, move.ref, None if move.agent is None else str(move.agent))


def _turned(part: _Part) -> _Part:
    return part._replace(move=part.move.model_copy(update={"old": part.move.new, "new": part.move.old}))


def _checkouts(parts: Sequence[_Part]) -> list[tuple[Checkout, str, str]]:
    """Files that follow, each with the commits before and after."""
    return [(part.files, part.move.old, part.move.new) for part in parts if part.files is not None]


def _unlock(parts: Sequence[_Part]) -> None:
    for files, _, _ in _checkouts(parts):
        files.unlock()
