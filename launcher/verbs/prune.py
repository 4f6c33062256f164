"""`paddock prune`: removes what merges, harvests, and worktrees and batches that are gone have left."""

import json
import os

from launcher.engines import base
from launcher.session import messages, places
from launcher.vcs import checkout
from launcher.vcs.disk import Present
from launcher.vcs.worktrees import retention
from launcher.verbs import table
from policy.errors import Refusal, printable


def prune(
    *, dry_run: bool, keep_days: float, keep: int, keep_lost_days: float, keep_gone_days: float, as_json: bool
) -> int:
    """Exit status 0; 1 when a repository could not be looked at, or something not be removed."""
    if min(keep_days, keep, keep_lost_days, keep_gone_days) < 0:
        raise Refusal("usage", "bounds cannot be negative", hint="paddock prune --help")
    own = []
    try:
        own = [checkout.find(places.current_directory(), Present(), exact=False).common_dir]
    except Refusal:
        pass  # started in no repository
    state = places.made(places.places(os.environ).state)
    done = retention.prune(state, own, retention.Bounds(keep_days, keep, keep_lost_days), dry_run=dry_run)
    gone = retention.gone_worktrees(state, {}, keep_gone_days, dry_run=dry_run)
    mirrors, failures = base.prune(keep_days, dry_run=dry_run)
    gone += mirrors
    notes = (*done.notes, *failures)
    if as_json:
        removed = [each.as_dict() for each in (*gone, *done.removed)]
        messages.show(json.dumps({"dry_run": dry_run, "removed": removed, "notes": notes}, indent=2))
    else:
        word = "would remove" if dry_run else "removed"
        lines = [f"{word} {each.name} ({table.size(each.size)}): {each.why}" for each in gone]
        lines += [f"{word} {each.name} in {each.repository}: {each.why}" for each in done.removed]
        messages.show("\n".join(printable(line) for line in (*lines, *notes)) or "nothing to remove")
    return 1 if notes else 0
