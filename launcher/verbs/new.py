"""`paddock run --new TICKET`: a worktree for one task, the run in it, and what comes after."""

import os
from collections.abc import Callable

from launcher import cli
from launcher.session import messages, places
from launcher.vcs.worktrees import store
from launcher.vcs.worktrees.condition import Work
from launcher.vcs.worktrees.models import Options, Worktree
from launcher.vcs.worktrees.worktree_service import WorktreeService
from launcher.verbs import merge, worktree
from policy.errors import Refusal, printable
from policy.pasted import cited, quoted

_ELSEWHERE = ("--supervised", "--detach", "--dry-run")
_OUTSIDE = ("--report", "--config", "--root")
"""Options whose paths mean the caller's directory; all others mean the worktree in which the command starts."""


def run(options: cli.Parsed, command: list[str], launch: Callable[[cli.Parsed, list[str]], int]) -> int:
    """Makes the ticket's worktree unless it is there, and runs the command in it.

    Args:
        options: of `paddock run`, with ``--new``.
        command: the command's words.
        launch: `launcher.verbs.run.launch`.

    Returns:
        The command's exit status; where that is 0, the merge's.

    Raises:
        Refusal: nothing was started; or, at the end, the work could not be merged or the worktree not be removed.
    """
    ticket = str(options["--new"])
    _check(options)
    begun = places.current_directory()
    known = worktree.service()
    row = _entered(known, begun, ticket, options)
    made = row is None
    row = row or _made(known, begun, ticket, options)
    _go(row.path, begun)
    kept = {name: value for name, value in options.items() if name not in cli.OF_NEW}
    for name in _OUTSIDE:
        if isinstance(path := kept.get(name), str):
            kept[name] = os.path.join(begun, path)
    try:
        status = launch(kept, command)
    except Refusal as refusal:
        os.chdir(begun)
        if made and row.path in refusal.hint:
            messages.say(f"paddock: {_where(row)}")  # what helps names a file in it
        elif made:
            _unmade(known, row)
        raise
    os.chdir(begun)
    return status if "--detach" in options else _after(row, status, options)


def _check(options: cli.Parsed) -> None:
    if "--worktree" in options or "--directory" in options:
        raise cli.usage("--new makes the worktree, so --worktree and --directory cannot name one", "run")
    elsewhere = next((name for name in _ELSEWHERE if name in options), None)
    later = next((name for name in ("--merge", "--rm") if name in options), None)
    if elsewhere is not None and later is not None:
        raise cli.usage(f"{later} needs the command's end, and {elsewhere} does not wait for it", "run")
    if "--dry-run" in options:
        raise cli.usage("--new makes a worktree, and --dry-run starts nothing: paddock worktree add TICKET", "run")


def _entered(known: WorktreeService, begun: str, ticket: str, options: cli.Parsed) -> Worktree | None:
    """The ticket's worktree, where it is there already."""
    rows = known.of_repository(begun)
    root = store.root_of(ticket, rows)
    row = next((row for row in rows if row.path == root), None)
    if row is not None and ("--from" in options or "--copy" in options):
        raise Refusal(
            "worktree-exists",
            f"the worktree of {ticket} already exists: {row.path}",
            context="--from and --copy apply only to a new one",
            hint="leave them out to run the command in that one",
        )
    return row


def _made(known: WorktreeService, begun: str, ticket: str, options: cli.Parsed) -> Worktree:
    start, copy = options.get("--from"), options.get("--copy", [])
    assert isinstance(copy, list)
    row = known.add(begun, ticket, Options(start=str(start) if start is not None else None, copy=tuple(copy)))
    messages.say(f"paddock: made {printable(row.path)} on branch {row.main.branch}, from {row.main.base[:12]}")
    for left in row.unpopulated:
        messages.say(f"paddock: submodule {cited(left.name)} is empty: {left.why}")
    return row


def _go(root: str, begun: str) -> None:
    """Into the directory of the worktree that the caller's is in its own; into its root where there is none."""
    here = begun
    while not os.path.lexists(f"{here}/.git") and here != "/":
        here = os.path.dirname(here)
    below = begun[len(here) :].strip("/")
    place = os.path.join(root, below)
    os.chdir(place if below and os.path.realpath(place) == place and os.path.isdir(place) else root)


def _unmade(known: WorktreeService, row: Worktree) -> None:
    """Takes back what was made for a command that was never started, unless something is in it after all."""
    try:
        known.remove(row)
    except Refusal:
        messages.say(f"paddock: {_where(row)}")


def _where(row: Worktree) -> str:
    return f"the worktree of {printable(row.ticket)} is kept: {printable(row.path)}"


def _after(row: Worktree, status: int, options: cli.Parsed) -> int:
    """What was asked for after a command that ended well; else the commands that come next."""
    word = quoted(row.ticket)
    far = worktree.progress([row])[row.worktree_id]
    if "--merge" in options and status:
        messages.say(f"paddock: not merged: the command ended with status {status}")
    elif "--merge" in options and far.work is Work.OPEN:
        status = merge.merge(
            [row.path], into=None, every=False, order="given", forecast=False, no_checkout=False, check=None,
            rewind=[], resume=False, rollback=None, as_json=False,
        )  # fmt: skip
        far = worktree.progress([row])[row.worktree_id]
    if "--rm" in options and status == 0 and far.work in (Work.MERGED, Work.NONE):
        return worktree.worktree_remove(row.path, force=False, keep_branch=False, repo=None, as_json=False)
    messages.say(f"paddock: {_where(row)}")
    lines = [f"paddock merge {word}"] if far.work is Work.OPEN else []
    lines += [f"paddock merge {quoted(name)}" for name in far.further]
    lines += [f"paddock run --new {word} -- COMMAND   (run in it again)", f"paddock worktree remove {word}"]
    for title, line in zip(("next:", *[""] * len(lines)), lines, strict=False):
        messages.say(f"  {title:<6}{line}")
    return status
