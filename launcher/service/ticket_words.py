"""Words of ticket runs: what became of a ticket, for the terminal and for the page; what an orchestrator is called."""

from typing import Any

from launcher.service.schema import Reason, SessionState


def orchestrator_of(run: str) -> str:
    """The session id of who hands out the tickets of a run."""
    return f"{run}/tickets"


def landed(result: dict[str, Any]) -> str:
    """Where the work of all tickets is, when their orchestrator's worktree was merged; else ""."""
    found = result.get("landed")
    return found["trunk"] if found and found["status"]["merge_descriptor"]["successful"] else ""


def merged_of(result: dict[str, Any]) -> dict[str, Any]:
    """What was merged, by session id."""
    merged = {each["agent_result_id"]: each for each in (result.get("aggregation") or {}).get("merged", ())}
    own = result.get("orchestrator")
    return merged | ({own["session_id"]: result["landed"]["status"]} if own is not None and landed(result) else {})


def agents_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The orchestrator's, where there is one, and those of the tickets."""
    own = result.get("orchestrator")
    return [*([own] if own is not None else []), *result.get("agents", ())]


def fate(agent: dict[str, Any], merged: dict[str, Any], result: dict[str, Any]) -> str:
    """What became of a ticket, in few words."""
    status = "" if agent["status"] is None else f" ({agent['status']})"
    if agent["session_id"] in merged:
        descriptor = merged[agent["session_id"]]["merge_descriptor"] or {}
        main = descriptor.get("main_worktree_merge_result") or {}
        if main.get("no_op") or not main.get("commit_id"):
            return "merged: it committed nothing"
        return f"merged as {main['commit_id'][:12]}"
    if agent["refusal"]:
        return f"refused: {agent['refusal']['message']} [{agent['refusal']['errorType']}]"
    if conflict(agent, result) is not None:
        return "conflicts"
    if (review := rejection(agent)) is not None:
        if review["refusal"]:
            return (
                f"not merged: its review was refused: {review['refusal']['message']} [{review['refusal']['errorType']}]"
            )
        how = f"status {review['status']}" if review["reason"] == Reason.EXITED else review["why"] or review["reason"]
        return f"not merged: its review ended with {how}"
    pending = (result.get("aggregation") or {}).get("pending", ())
    if agent["session_id"] in {each["agent_result_id"] for each in pending}:
        return "not merged: an earlier ticket conflicts"
    if agent["reason"] == Reason.EXITED and not agent["status"]:
        return "done"
    if agent["state"] == SessionState.CREATED:
        return f"not started: {agent['why']}"
    why = f": {agent['why']}" if agent.get("why") else ""
    return f"{'failed' if agent['reason'] == Reason.EXITED else agent['reason']}{status}{why}"


def rejection(agent: dict[str, Any]) -> dict[str, Any] | None:
    """The review that rejected a ticket's work; None where none did."""
    review: dict[str, Any] | None = agent.get("review")
    if review is None or (review["state"], review["reason"]) == (SessionState.ENDED, Reason.EXITED):
        return None
    return review


def conflict(agent: dict[str, Any], result: dict[str, Any]) -> dict[str, Any] | None:
    """Why a ticket could not be merged; None where it was, or was not tried."""
    found = [*(result.get("conflicts") or [(result.get("aggregation") or {}).get("conflicted")])]
    if "landed" in result and not landed(result):
        found.append(result["landed"]["status"])
    return next((each for each in found if each and each["agent_result_id"] == agent["session_id"]), None)
