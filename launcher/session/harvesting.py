"""Harvest as sessions and verbs see it: with the worktree's own hand-off patterns, and told in words.

Not on the launch path: a session comes here only when something is to be harvested.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from launcher.session import obeyed, places, repositories
from launcher.session.machine import Machine
from launcher.session.places import Places
from launcher.vcs import checkout
from launcher.vcs.disk import Present
from launcher.vcs.harvest import further
from launcher.vcs.harvest.harvest import harvest
from launcher.vcs.harvest.parts import FileChange, HarvestResult, Limits
from launcher.vcs.private import record as records
from launcher.vcs.private import withheld
from policy.errors import Refusal, printable
from policy.handoff import PROTECT, Patterns
from policy.pasted import cited, quoted
from policy.plan import beneath

if TYPE_CHECKING:
    from launcher.vcs.git import Git
    from launcher.vcs.merge.merges import WorktreeMergeService
    from launcher.vcs.merge.moving import Follow
    from launcher.vcs.merge.target import Target

_SHOWN = 12


def take(
    directory: str,
    patterns: Iterable[tuple[str, str]],
    *,
    strict: bool | None = None,
    sign: bool | None = None,
    limits: Limits | None = None,
    branches: Mapping[str, str] | None = None,
    dismiss: Sequence[str] = (),
    step: Callable[[str], None] = lambda what: None,
) -> HarvestResult:
    """Harvests a worktree's private git directory.

    Args:
        directory: `record.directory_of` the worktree.
        patterns: hand-off patterns with their modes, as `Plan.handoff_patterns` has them.
        strict: refuse commits that change hand-off files. A user who harvests by hand decides; None for what the
            sessions that left the work were told (see `harvest.harvest`).
        sign: with the user's own signature; None for what the sessions that made the work were told.
        limits: bounds; the default ones when None.
        branches, dismiss: see `harvest.harvest`.

    Refusals: the work stays where it is, for the reason that it gives.
    """
    known = Patterns((*patterns, *_obeyed(directory)))

    def handoff(change: FileChange) -> tuple[str, str, str] | None:
        mode = known.mode(change.path)
        return None if mode is None else (change.change, change.path, mode)

    try:
        result = harvest(
            directory,
            limits=limits,
            branches=branches,
            handoff=handoff,
            strict=strict,
            sign=sign,
            dismiss=dismiss,
            step=step,
        )
    except Refusal as refusal:
        if not branches:  # which the user has asked for; the work of the session itself may have been taken over
            _note(directory, f"{refusal.message} [{refusal.reference}]")
        raise
    except OSError as error:
        raise Refusal(
            "harvest-failed",
            "the work could not be harvested",
            context=f"{error.filename or directory}: {error.strerror or error}",
            hint="it is kept; once the cause is fixed: paddock worktree harvest (the service retries by itself)",
        ) from error
    if result.state != "busy":  # where the agent's branch is gone, the first note says so
        _note(directory, result.notes[0] if result.state == "gone" else "")
    return result


def _note(directory: str, reason: str) -> None:
    """Keeps why a harvest was refused, unless the disk is full: who asks next finds the work itself."""
    with suppress(OSError):
        withheld.note(directory, reason)


def _obeyed(directory: str) -> tuple[tuple[str, str], ...]:
    """What of the worktree the user's git and shells obey now (`session.obeyed`)."""
    record = records.read(directory)
    if record is None:
        return ()
    machine = Machine(os.environ)
    places = [(each.path, each.git_dir, each.common_dir) for each in record.repositories]
    return obeyed.patterns(
        record.worktree, places, repositories.worktrees(record.worktree, places[0][2], machine), machine
    )


def report_lines(result: HarvestResult, *, once: bool = False, place: str = "") -> list[str]:
    """A result as lines for people; none when nothing happened that anybody has to know.

    Args:
        once: leave out what an earlier harvest has told: work that it had kept already.
        place: how the user names the worktree; "" for its directory.
    """
    lines = []
    known = {part.note for part in result.parts if part.again}
    for part in result.parts:
        where = f"{cited(part.name)}: " if part.name else ""
        name = part.ref.removeprefix("refs/heads/").replace("refs/tags/", "tag ", 1)
        commits = f"{part.commits} commit{'' if part.commits == 1 else 's'}"
        if not (part.commits or part.kept or part.old):
            lines.append(f"{where}{name} is new, at {part.new[:10]}")
            continue
        if part.again:
            lines += [] if once else [f"{where}commits are still kept in {part.kept}, not on {name}"]
            continue
        if part.kept:
            lines.append(f"{where}{commits} kept in {part.kept}, not on {name}")
            continue
        line = f"{where}{commits} harvested to {name} ({part.old[:10] or 'new'}..{part.new[:10]})"
        if part.rewritten:
            line += f"; it was rewritten; its old tip is {part.backup}"
        lines.append(line)
    lines += [note for note in result.notes if not (once and note in known)]
    if result.branches:
        shown = ", ".join(map(quoted, result.branches[:_SHOWN])) + (" ..." if len(result.branches) > _SHOWN else "")
        name = result.branches[0]  # another name outside: its own may be taken there
        taken = f"{name}={further.prefix_of(result.worktree)}/{name.rpartition(':')[2]}"
        command = f"paddock worktree harvest --branch {quoted(taken)} {quoted(place or result.worktree)}"
        lines.append(f"further branches of the agent: {shown}; to take one: {command}")
    # The more dangerous kind by itself: however many of the other kind there are, none of these hides behind them.
    protected = [(change, cited(path)) for change, path, mode in result.handoff if mode == PROTECT]
    for change, path in protected[:_SHOWN]:
        lines.append(f"commits have {change} {path}: other tools execute or obey it outside the jail; read it first")
    if len(protected) > _SHOWN:
        lines.append(f"and {len(protected) - _SHOWN} more of this kind: git diff --name-only lists all changes")
    reported = [path for _, path, mode in result.handoff if mode != PROTECT]
    if reported:
        named = ", ".join(map(cited, reported[:_SHOWN]))
        more = f" and {len(reported) - _SHOWN} more" if len(reported) > _SHOWN else ""
        lines.append(f"hand-off files (other tools execute or obey them) in the commits: {named}{more}")
    return [printable(line) for line in lines]


# Merges as the command, the service and the workflow begin them: with this user's sessions and records in view.


def by_contexts(
    where: Places, caller: Mapping[str, str], only: Mapping[str, str] | None = None
) -> "WorktreeMergeService":
    """What merges worktrees by their contexts.

    Args:
        where: places of the user whose sessions and worktrees they are.
        caller: environment that names author and committer.
        only: see `WorktreeMergeService`.
    """
    from launcher.vcs.merge.merges import WorktreeMergeService  # 90 ms of pydantic, which no harvest needs

    return WorktreeMergeService(places.made(where.state), caller, only=only)


def refuse_unread(root: str, common_dir: str, trunk: str, config_file: str | None = None) -> None:
    """Refuses a commit whose `.paddock.toml` is not the trunk's, where a command is to judge it: such a file bounds
    the jail of that command, and could deny it what it has to see. So does one that `--config` names in the commit.

    Args:
        root: of a worktree with the files of the commit.
        common_dir: of the repository.
        trunk: its commit, for which people answer now.
        config_file: the `--config` option of what judges it, which begins at the root.

    Refusals: config-unread; those of `configuration.load`.
    """
    from launcher.session import configuration
    from launcher.vcs.git import Git

    git = Git(common_dir)
    before = git.run("cat-file", "blob", f"{trunk}:{configuration.PROJECT_NAME}", ok=(0, 128))
    known = before.out if before.status == 0 else None
    changed = "" if configuration.is_read(root, known, os.environ) else configuration.PROJECT_NAME
    named = os.path.normpath(os.path.join(root, config_file)) if config_file else ""
    if named and beneath(named, root) and not changed:
        commit = Git(checkout.find(root, Present(), exact=True).git_dir).ref("HEAD")
        path = os.path.relpath(named, root)
        changed = "" if _is_the_same(git, path, commit, trunk) else path
    if changed:
        raise Refusal(
            "config-unread",
            f"its {printable(changed)} is not the trunk's, and bounds what may judge it",
            context="such a file can deny a command the files that it has to see",
            hint="read it; commit it to the trunk yourself if it is right, or merge the trunk into the work if the "
            "trunk's is newer; and try again",
        )


def _is_the_same(git: "Git", path: str, commit: str, trunk: str) -> bool:
    """Whether two commits have the same at a path that leads through no symbolic link (but maybe into a submodule)."""
    while path:
        entry, before = (git.run("ls-tree", "-z", "--full-tree", each, "--", path).out for each in (commit, trunk))
        if entry:
            return entry == before and not entry.startswith(b"120000 ")
        path = os.path.dirname(path)
    return False


@contextmanager
def into(target: "Target", where: Places, say: Callable[[str], None], *, files: bool = True) -> "Iterator[Follow]":
    """Prepares a merge into a branch: how the files of its worktree follow, with no agent at work on them.

    An agent in a linked worktree is to be at rest, and what it has committed is harvested first. A session that was
    granted the worktree beside its own may go on, and so may any in a main checkout, which is the user's.

    Args:
        say: told what was harvested.
        files: they are to follow.

    Refusals: as `sessions.at_rest`.
    """
    from launcher.session import configuration
    from launcher.vcs.merge import sessions
    from launcher.vcs.merge.moving import Follow

    def harvest(directory: str) -> HarvestResult:
        record = records.read(directory)
        assert record is not None
        result = take(directory, configuration.handoff_patterns(record.worktree, os.environ))
        for line in report_lines(result, place=record.worktree):
            say(line)
        return result

    linked = target.worktree is not None and target.git_dir != target.common_dir
    with sessions.at_rest(where.state, target.worktree or "", harvest, own=True) if linked else nullcontext() as agent:
        yield Follow(files=files, jailed=agent is not None, agent=agent)
