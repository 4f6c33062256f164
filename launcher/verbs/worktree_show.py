"""`paddock worktree list` and `paddock worktree status`."""

import json
import os
from typing import Annotated

import typer

from launcher.vcs.worktrees import condition, progress, removal
from launcher.vcs.worktrees.condition import Condition
from launcher.vcs.worktrees.models import State, Worktree
from launcher.vcs.worktrees.progress import Progress, Work
from launcher.verbs import table, typer_verb
from launcher.verbs.worktree_common import Json, Repository, document, service, start
from policy.errors import Refusal, printable

LIST_EXAMPLES = (
    ("paddock worktree list", "of the repository around this directory"),
    ("paddock worktree list --all --json", "of all repositories, as JSON"),
)
STATUS_EXAMPLES = (
    ("paddock worktree status", "all of this repository"),
    ("paddock worktree status PROJ-17 --json", "one, as JSON; by ticket, branch, id or directory"),
)


NONE = "Paddock has no worktrees here; paddock worktree add TICKET makes one, adopt takes on one of git's"


def list_all(argv: list[str]) -> int:
    """Exit status 0, also when there are none."""
    return typer_verb.run("worktree list", _list, argv, examples=LIST_EXAMPLES)


def status(argv: list[str]) -> int:
    """Exit status 0 when nothing is at stake, 1 when something is."""
    return typer_verb.run("worktree status", _status, argv, examples=STATUS_EXAMPLES)


def _list(
    everywhere: Annotated[bool, typer.Option("--all", help="Of all repositories.")] = False,
    repository: Repository = None,
    as_json: Json = False,
) -> int:
    """Lists the worktrees that Paddock made or adopted, and whether their work is merged.

    Merged is what the branch of the repository's main checkout contains.
    What a crash left half done is finished or undone first.
    """
    if everywhere and repository is not None:
        raise Refusal("usage", "--all and --repo exclude each other", hint="paddock worktree list --help")
    known = service()
    rows = known.everywhere() if everywhere else known.of_repository(start(repository))
    far = progress.of(rows)
    if as_json:
        documents = [{**document(row), "work": far[row.worktree_id]._asdict()} for row in rows]
        print(json.dumps(documents, indent=2))
        return 0
    if not rows:
        print(NONE)
        return 0
    cells = [
        (row.ticket, row.state, str(far[row.worktree_id]), row.main.branch or "detached", row.path) for row in rows
    ]
    print("\n".join(table.lines(("TICKET", "STATE", "WORK", "BRANCH", "DIRECTORY"), cells)))
    return 0


def _status(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Ticket, branch, id or directory.", show_default=False)
    ] = None,
    repository: Repository = None,
    as_json: Json = False,
) -> int:
    """Shows what in the worktrees would be lost with them: uncommitted work, and commits that were not harvested."""
    known = service()
    here = start(repository)
    rows = known.of_repository(here) if name is None else [known.find(here, name)]
    found = [(row, _without_this(known.status(row))) for row in rows]
    far = progress.of(rows)
    if as_json:
        documents = [
            {**now.model_dump(mode="json"), "work": far[row.worktree_id]._asdict(), "at_stake": now.at_stake()}
            for row, now in found
        ]
        print(json.dumps(documents, indent=2))
    else:
        for row, now in found:
            _print(row, now, far[row.worktree_id])
        if not rows:
            print(NONE)
    return int(any(now.at_stake() for _, now in found))


def _without_this(now: Condition) -> Condition:
    """The same condition; this command itself does not count as being at work there."""
    return now.model_copy(update={"in_use": tuple(pid for pid in now.in_use if pid != os.getpid())})


def _print(row: Worktree, now: Condition, far: Progress) -> None:
    print(f"{printable(row.path)} ({printable(row.ticket)})")
    if now.state is not State.READY:
        print(f"  {now.state}")
    for part in now.parts:
        where = f"submodule {printable(part.name)}: " if part.name else ""
        count = f"{part.ahead} commit{'' if part.ahead == 1 else 's'}" if part.ahead else "no commit"
        at = f"{part.branch or 'detached'} at {(part.head or 'nothing')[:12]}"
        came = {
            Work.OPEN: f", to merge into {printable(far.into)}",
            Work.MERGED: f", merged into {printable(far.into)}",
        }
        print(f"  {where}{at}, {count} since the worktree was made" + ("" if part.name else came.get(far.work, "")))
    stake = now.at_stake()
    print("  at stake: " + printable("; ".join(stake)) if stake else "  nothing is at stake")
    if (named := now.uncommitted())[0]:
        print(f"  not committed: {printable(table.some(*named))}")
    for line in now.lagging():
        print(f"  {printable(line)}")
    for text in now.ignored():
        print(f"  ignored by git, so it would go without a question: {printable(text)}")
    for one in now.beside():
        if now.state is State.READY:
            print(f"  to join them: {printable(one.join)}")
        else:
            print(f"  to give them a branch: {printable(one.name)}")
    for one in now.stashes:
        print(f"  a stash of the agent's is kept; to apply it: {printable(one.apply)}")
    if now.state is State.MISSING:
        print("\n".join(f"  {printable(way)}" for way in removal.if_missing(row, unharvested=now.unharvested)))
    if now.in_use:
        print("  in use by " + printable(", ".join(condition.named_processes(now.in_use))))
    if now.locked is not None:
        print(f"  locked: {printable(now.locked) or 'without a reason'}")
