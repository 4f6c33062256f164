"""A session's private git directory: taken before its jail is built.

Launch path: `os`. What looks for something to harvest is loaded at the end, when nobody waits for it.
"""

from launcher.lean import os
from launcher.session import handoff_changes, inputs, messages
from launcher.session.places import Places, made
from launcher.vcs.private import lease, lock, record
from launcher.vcs.private.lease import Lease
from launcher.vcs.private.record import KEEP, SIGN, STRICT, SWAPPED, directory_of
from policy.errors import Refusal, printable
from policy.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from launcher.session.handoff_changes import Change

STRICT_REFUSAL = "handoff-strict"
BUSY = "another session is running in this worktree: commits are harvested when the last one ends"
DROPPED = "the command made commits, which are dropped: {} hands nothing over"


class Finished:
    """How the use of a private git directory ended.

    Attributes:
        lines: what to tell the user.
        data: the harvest's result or refusal for the report; None when there was nothing to harvest.
        refusal: of a strict hand-off.
    """

    __slots__ = ("data", "lines", "refusal")

    def __init__(self, lines: list[str], data: "dict[str, Any] | None", refusal: Refusal | None = None) -> None:
        self.lines = lines
        self.data = data
        self.refusal = refusal


def take(places: Places, plan: Plan, slots: dict[str, str], own: str, *, strict: bool = False) -> Lease:
    """Makes the worktree's private git directory ready, adds its slot, and tells what the user should know.

    A review has one in `own`, the session's directory, and ends with that. A strict hand-off is noted there before the
    command starts, since the session's end may be a kill.

    Refusals: state-not-ours, state-unusable, and those of `lease.take`.
    """
    if plan.review:
        slots["git"] = made(f"{own}/review")
        return _told(lease.take(slots["git"], plan))
    directory = made(directory_of(places.state, plan.worktree_id))
    if lock.is_of_another(plan.repositories[0][2], directory):
        _make_room(places.state, plan)
        made(directory)
    slots["git"] = inputs.resolved(directory) or directory
    if any(os.path.lexists(f"{slots['git']}/{name}") for name in (STRICT, *(() if plan.sign else (SIGN,)))):
        _unless_waiting(slots["git"], sign=plan.sign, strict=strict)
    taken = lease.take(slots["git"], plan)
    try:
        if plan.follow:
            record.forget(slots["git"], KEEP)
        else:
            record.note(slots["git"], KEEP)
    except OSError as error:
        taken.close()
        raise record.unusable(slots["git"], error) from None
    if plan.sign or strict:
        from launcher.vcs.private import withheld

        try:
            if plan.sign:
                record.note(slots["git"], SIGN)
            if strict:
                taken.mark = withheld.demand_strictness(slots["git"])
        except OSError as error:
            taken.close()
            raise record.unusable(slots["git"], error) from None
    return _told(taken)


def _told(taken: Lease) -> Lease:
    for warning in taken.warnings:
        messages.say(f"paddock: warning: {printable(warning)}")
    return taken


def _make_room(state: str, plan: Plan) -> None:
    """Gives up the private git directory of an earlier worktree; git has made another one at its place."""
    from launcher.session import packages

    packages.enable()
    from launcher.vcs.harvest.outstanding import waiting
    from launcher.vcs.worktrees import at_stake
    from launcher.vcs.worktrees.models import kept_aside

    directory = directory_of(state, plan.worktree_id)
    aside = at_stake.clear_earlier(state, plan.worktree, plan.worktree_id, lambda _: waiting(directory))
    if aside:
        messages.say(
            f"paddock: warning: git has made another worktree at {printable(plan.worktree)}; "
            f"{printable(kept_aside(aside))}"
        )


def _unless_waiting(directory: str, *, sign: bool, strict: bool) -> None:
    """Forgets that sessions wanted signatures or a strict hand-off, where nothing of them waits and none lives.

    Not so where this one wants the same, or is strict and a strict one has refused: its files may still lie there.
    """
    from launcher.vcs.harvest import agent_refs
    from launcher.vcs.private import withheld

    try:
        descriptor = lock.opened(directory)
        try:
            if lock.alone(descriptor, wait=False) and not agent_refs.harvest_due(directory):
                if not sign:
                    record.forget(directory, SIGN)
                if not (strict and withheld.has_refused(directory)):
                    record.forget(directory, STRICT)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise record.unusable(directory, error) from None


def nothing_new(taken: Lease) -> bool:
    """Whether the agent has committed nothing that a harvest would take. Starts no process; in doubt False."""
    try:
        from launcher.vcs.harvest import agent_refs

        return not agent_refs.harvest_due(taken.directory)
    except (Refusal, OSError, ImportError):  # the last one while Paddock is being upgraded: `finish` says so
        return False


def finish(
    taken: Lease, plan: Plan, *, strict: bool = False, changes: "tuple[Change, ...]" = (), nothing: bool = False
) -> Finished:
    """Ends the use of the private git directory; the last session in the worktree harvests. For after the jail's end.

    A harvest that is refused is no failure of the session: the work stays where it is.

    Args:
        strict: nothing is taken over when hand-off files have changed. So it is for a session that is not, too, where
            strict ones have left some of the work.
        changes: of hand-off files in the worktree.
        nothing: there is nothing to take over, as `nothing_new` said when the jail was empty.
    """
    lines: list[str] = []
    bound = not plan.review and (strict or (not nothing and os.path.lexists(f"{taken.directory}/{STRICT}")))
    hold = handoff_changes.refused(changes) if bound and changes else None
    try:
        # Before another one's end, which may be at this moment, can harvest.
        if hold is not None or taken.record.form != SWAPPED:
            _note_end(taken, hold)
        taken.close()
    except Refusal as refusal:
        messages.say(str(refusal))
        return Finished(lines, refusal.as_dict())
    if plan.review:
        return Finished([] if nothing else [DROPPED.format("--cow" if plan.cow else "--review")], None)
    if taken.record.form == SWAPPED and not os.path.lexists(plan.worktree):
        lines = [
            f"{plan.worktree} no longer exists; if it was moved, its .git points to what the agent writes: run no "
            "git there before: paddock worktree repair DIR"
        ]
    if replaced := [docked for docked in taken.docked if docked.aside]:
        from launcher.vcs.private import swap

        lines += swap.report_lines(replaced)
        if bound and hold is None:
            changed = [f"{docked.path}/.git"[len(plan.worktree) + 1 :] for docked in replaced]
            hold = handoff_changes.refused(tuple(("changed", path, "protect") for path in changed))
            _note_end(taken, hold)
    if hold is not None:
        if strict:
            return Finished(lines, None, hold)
        messages.say(str(hold))
        return Finished(lines, hold.as_dict())
    if taken.record.form == SWAPPED:
        _note_end(taken, None)
    if nothing:
        return Finished(lines, None)
    from launcher.vcs.harvest import agent_refs

    try:
        if not agent_refs.harvest_due(taken.directory):
            return Finished(lines, None)
        from launcher.session import packages

        packages.enable()
        from launcher.session import harvesting

        result = harvesting.take(taken.directory, plan.handoff_patterns)
        lines += [BUSY] if result.state == "busy" else []
        return Finished([*lines, *harvesting.report_lines(result, once=True)], result.as_dict())
    except Refusal as refusal:
        if strict and refusal.reference == STRICT_REFUSAL:
            return Finished(lines, refusal.as_dict(), refusal)
        messages.say(str(refusal))
        return Finished(lines, refusal.as_dict())


def _note_end(taken: Lease, hold: Refusal | None) -> None:
    """Notes what keeps others from taking over the work of a strict session, or that nothing does.

    Where that cannot be noted, the session counts as one that was killed.
    """
    if hold is None and not taken.mark:
        return
    from launcher.vcs.private import withheld

    try:
        if hold is not None:
            withheld.hold(taken.directory, hold)
        else:
            withheld.release(taken.directory, taken.mark)
    except OSError as error:
        messages.say(f"paddock: warning: {taken.directory}: {error.strerror}")
