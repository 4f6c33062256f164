"""Moving refs of several repositories as one outcome: all are locked and compared before any is moved.

A SIGKILL before the first commit of a transaction leaves every ref as it was; after it, the journal says what is left
to do.
"""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from launcher.vcs import transaction
from launcher.vcs.git import Git
from launcher.vcs.harvest.journal import Entry, Update
from launcher.vcs.transaction import Transaction
from policy.errors import Refusal

Step = Callable[[str], None]
"""Told each step before it is done."""

_MOVED = ("harvest-refs-moved", "try again: paddock worktree harvest")
_PATIENCE = 10.0
_PAUSE = (0.01, 0.2)
"""Seconds. Harvests of other worktrees share a submodule's repository, and may bring the very same commits to it."""


def settle(git: Git, updates: Sequence[Update]) -> list[Update]:
    """What is left of `updates` now: done ones are left out, and those whose ref somebody else has moved go beside."""
    left: list[Update] = []
    for update in updates:
        now = git.ref(update.ref)
        if now == update.new:
            continue
        expected = "" if not update.old.strip("0") else update.old
        if update.old == "" or now == expected:
            left.append(Update(update.ref, now or "0" * len(update.new), update.new, update.beside))
        elif update.beside:
            before = git.ref(update.beside)
            if before != update.new:
                left.append(Update(update.beside, before or "0" * len(update.new), update.new))
    return left


def clear_locks(entries: Sequence[Entry], git_for: Callable[[str], Git]) -> None:
    """Removes what transactions of an earlier `publish` of the same entries have left when they were killed."""
    for entry in entries:
        refs: dict[str, set[str]] = {}
        for update in entry.updates:
            for name in filter(None, (update.ref, update.beside)):
                refs.setdefault(name, set()).add(update.new)
        transaction.clear_locks(git_for(entry.git_dir), refs)


def publish(entries: Sequence[Entry], message: str, step: Step, git_for: Callable[[str], Git]) -> None:
    """Moves the refs of all entries, in their order; may be repeated after a crash.

    Args:
        entries: what is published.
        message: for the reflogs.
        step: told what comes next.
        git_for: git on a trusted git directory.

    Raises:
        Refusal: harvest-refs-moved (a ref is locked, and stays so); what has been moved is right.
    """
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            _publish(entries, message, step, git_for)
            return
        except Refusal as refusal:
            if refusal.reference != _MOVED[0] or time.monotonic() > end:
                raise
        time.sleep(random.uniform(*_PAUSE))  # without locks, and not in step with the others


def _publish(entries: Sequence[Entry], message: str, step: Step, git_for: Callable[[str], Git]) -> None:
    with ExitStack() as stack:
        ready: list[Transaction] = []
        for entry in entries:
            git = git_for(entry.git_dir)
            updates = settle(git, entry.updates)
            if updates:
                step(f"prepare {entry.name or 'worktree'}")
                held = stack.enter_context(Transaction(git, message, moved=_MOVED))
                held.prepare([transaction.Update(each.ref, each.new, each.old) for each in updates])
                ready.append(held)
        for number, held in enumerate(ready):
            step(f"commit {number}")
            held.commit()
