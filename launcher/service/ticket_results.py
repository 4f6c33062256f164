"""What became of one ticket of a run: why its command ended, where worktree and log are, what may come next."""

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.service.schema import Outcome, Reason, Session, SessionState
from launcher.vcs.merge.descriptors import MergeAggregation
from policy.pasted import quoted

TIMEOUT = "timeout"
"""The reason of a ticket whose session took too long."""
STOPPED_BEFORE = "the run was stopped before it started"


def agent(
    ticket: str,
    session: Session | None,
    *,
    name: str,
    session_id: str,
    worktree: str,
    log: str,
    trunk: str,
    harvest: Mapping[str, Any] | None = None,
    refusal: Mapping[str, Any] | None = None,
    unfinished: Reason = Reason.LOST,
    timeout: float | None = None,
) -> dict[str, Any]:
    """One entry of a run's result.

    Args:
        ticket: what it is called.
        session: of its command; None when there was none.
        name: what that session is, or would have been called.
        session_id: of its context.
        worktree: made for it; "" when none was.
        log: directory of the session's log.
        trunk: the worktree that the run began with.
        harvest: what became of its commits, where that is not the session's to say.
        refusal: why there was no session, or none that started.
        unfinished: the reason for a session that has no outcome yet.
        timeout: seconds after which it was stopped, because it took longer.
    """
    outcome = session.outcome if session is not None else None
    refusal = refusal if outcome is None else outcome.refusal
    if session is None:
        state, reason = (SessionState.FAILED, Reason.REFUSED) if refusal else (SessionState.CREATED, Reason.STOPPED)
    else:
        state, reason = session.state, unfinished if outcome is None else outcome.reason
    found: dict[str, Any] = {
        "ticket": ticket, "session": name, "session_id": session_id, "worktree": worktree, "state": state,
        "reason": reason, "status": outcome.status if outcome is not None else None,
        "harvest": harvest if harvest is not None or outcome is None else outcome.harvest,
        "refusal": refusal, "why": "", "log": "" if session is None else log, "next": [],
    }  # fmt: skip
    well = state == SessionState.ENDED and reason is Reason.EXITED
    if timeout is not None:
        found |= {"state": SessionState.FAILED, "reason": TIMEOUT}
    if not well:
        found["why"] = _why(reason, outcome, begun=session is not None)
        if timeout is not None:
            found["why"] = f"it took longer than {timeout:g} s"
        found["next"] = [{"command": command, "about": about} for command, about in _next(found, trunk)]
    return found


def aggregation(
    merged: Sequence[dict[str, Any]], conflicted: Sequence[dict[str, Any]], pending: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The aggregation of several merges (`launcher.vcs.merge.descriptors.MergeAggregation`), with a summary.

    ``aggregation`` names the first who conflicts; ``conflicts`` all of them.
    """
    first = conflicted[0] if conflicted else None
    waiting = [each | {"merge_descriptor": None} for each in conflicted[1:]]
    found = MergeAggregation.model_validate({"merged": merged, "pending": [*waiting, *pending], "conflicted": first})
    return {
        "aggregation": found.model_dump(mode="json"),
        "conflicts": list(conflicted),
        "summary": found.pretty_print(),
        "clean": found.all_successful,
    }


def _why(reason: Reason, outcome: Outcome | None, *, begun: bool) -> str:
    """Why a command failed; "" where its status or the refusal says so."""
    if reason is Reason.STOPPED:
        return "it was stopped on request" if begun else STOPPED_BEFORE
    if reason is Reason.SERVICE_STOPPED:
        return "the service was stopped"
    if reason is Reason.LOST:
        return "its launcher was killed"
    if reason is Reason.LIMIT:
        limit = outcome.limit if outcome is not None else None
        return f"it passed its limit of {limit}; its options can raise it: --limit {limit}=..."
    if reason is Reason.SIGNALLED and outcome is not None:
        return f"{outcome.signal} ended its command"
    return ""


def _next(found: Mapping[str, Any], trunk: str) -> list[tuple[str, str]]:
    """Commands that may come next, each with what it is good for."""
    steps = []
    harvest = found["harvest"] or {}
    worktree = quoted(found["worktree"])  # not the ticket: an earlier run's worktree may go by that name
    there = f"cd {quoted(trunk)} && paddock"
    if found["log"]:
        steps.append((f"paddock logs {found['session']}", "its output"))
    if harvest.get("errorType"):
        steps.append((f"paddock worktree harvest {worktree}", "harvest its commits"))
    elif harvest.get("state") == "harvested":
        steps.append((f"{there} merge {worktree}", "merge what it committed"))
    if found["worktree"]:
        if harvest or not found["refusal"]:  # else it was refused before its start
            steps.append((f"cd {worktree} && git status", "what it left"))
        steps.append((f"{there} worktree remove {worktree}", "remove it, unless something would be lost"))
    return steps
