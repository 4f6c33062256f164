"""`paddock prune`: removes what merges, harvests and worktrees that are gone have left in repositories."""

import json
import os
from typing import Annotated

import typer

from launcher.session import messages, places
from launcher.vcs import checkout
from launcher.vcs.disk import Present
from launcher.vcs.worktrees import retention
from launcher.verbs import typer_verb
from policy.errors import Refusal, printable

EXAMPLES = (
    ("paddock prune --dry-run", "what nothing needs any more, and why"),
    ("paddock prune", "remove it"),
    ("paddock prune --keep-days 7 --keep 20 --json", "keep less of what branches have too; say it as JSON"),
)
_DEFAULT = retention.Bounds()


def main(argv: list[str]) -> int:
    """Exit status 0; 1 when a repository could not be looked at."""
    return typer_verb.run("prune", prune, argv, examples=EXAMPLES)


def prune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    days: Annotated[float, typer.Option("--keep-days", metavar="N", help="Days for merges and backups.")] = (
        _DEFAULT.days
    ),
    most: Annotated[int, typer.Option("--keep", metavar="N", help="How many of each repository or worktree.")] = (
        _DEFAULT.most
    ),
    lost_days: Annotated[
        float, typer.Option("--keep-lost-days", metavar="N", help="Days for work that no branch has.")
    ] = _DEFAULT.lost_days,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Removes refs and merge journals of Paddock's that nothing needs any more, in all repositories that it knows.

    Kept are the newest merges and backups, what an unfinished merge needs, and what belongs to a worktree that is
    there. Work that no branch, tag or remote-tracking branch has is kept longer.

    Exit status: 0; 1 when a repository could not be looked at.
    """
    if min(days, most, lost_days) < 0:
        raise Refusal("usage", "bounds cannot be negative", hint="paddock prune --help")
    own = []
    try:
        own = [checkout.find(places.current_directory(), Present(), exact=False).common_dir]
    except Refusal:
        pass  # started in no repository
    state = places.made(places.places(os.environ).state)
    done = retention.prune(state, own, retention.Bounds(days, most, lost_days), dry_run=dry_run)
    if as_json:
        removed = [each.as_dict() for each in done.removed]
        messages.show(json.dumps({"dry_run": dry_run, "removed": removed, "notes": done.notes}, indent=2))
    else:
        word = "would remove" if dry_run else "removed"
        lines = [f"{word} {each.name} in {each.repository}: {each.why}" for each in done.removed]
        messages.show("\n".join(printable(line) for line in (*lines, *done.notes)) or "nothing to remove")
    return 1 if done.notes else 0
