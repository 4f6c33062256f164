"""A ticket run for people: what became of each ticket, where its worktree is, what to do next, how to undo it."""

import os
from typing import Any

from launcher.service.models import Reason
from launcher.service.states import SessionState
from launcher.service.ticket_models import TicketState
from launcher.verbs import table
from launcher.verbs.service_common import counted
from policy.pasted import joined, quoted


def described(found: dict[str, Any]) -> list[str]:
    """A run as lines."""
    result = found["result"] or {}
    agents = result.get("agents", ())
    aggregation = result.get("aggregation") or {}
    merged = {each["agent_result_id"]: each for each in aggregation.get("merged", ())}
    state = found["state"]
    lines = [f"{found['name']}  {state}"]
    if "aggregation" in result:
        count = len([agent for agent in agents if agent["session_id"] in merged])
        lines[0] += f": {count} of {len(found['tickets'])} merged into {result['trunk']}"
    width = max((len(agent["ticket"]) for agent in agents), default=0)
    for agent in agents:
        lines.append(f"  {agent['ticket']:<{width}}  {_fate(agent, merged, result)}")
        lines += [f"  {'':<{width}}    {line}" for line in _details(agent, result)]
    if refusal := result.get("refusal"):
        lines.append(f"  {refusal['message']} [{refusal['errorType']}]")
        lines += [f"    {line}" for line in refusal["context"].splitlines()]
        if refusal["hint"]:
            lines.append(f"    hint: {refusal['hint']}")
    if state == TicketState.CREATED or state not in tuple(TicketState)[-3:]:
        lines.append(f"next: paddock tickets show {found['name']}")
    lines += _after(result, agents, merged, aggregation)
    if state in (TicketState.FAILED, TicketState.LOST):
        lines.append(f"next: paddock tickets resume {found['name']}   # starts again who did not end well, and merges")
    return lines


def described_progress(found: dict[str, Any]) -> str:
    """How far a run is, as one line."""
    states = [each["state"] for each in found["steps"]]
    counts = [
        (len(states) - states.count("waiting"), "prepared"),
        (states.count("running"), "running"),
        (sum(states.count(each) for each in ("ended", "merged", "conflicted")), "ended"),
        (states.count("failed"), "failed"),
        (states.count("merged"), "merged"),
        (states.count("conflicted"), "in conflict"),
    ]
    told = [f"{number} {what}" for number, what in counts if number or what not in ("failed", "in conflict")]
    return f"{found['state']}: of {counted(len(states), 'ticket', 'tickets')} " + ", ".join(told)


def _fate(agent: dict[str, Any], merged: dict[str, Any], result: dict[str, Any]) -> str:
    """What became of a ticket, in few words."""
    status = "" if agent["status"] is None else f" ({agent['status']})"
    if agent["session_id"] in merged:
        descriptor = merged[agent["session_id"]]["merge_descriptor"] or {}
        main = descriptor.get("main_worktree_merge_result") or {}
        if main.get("no_op") or not main.get("commit_id"):
            return "merged: it has committed nothing"
        return f"merged as {main['commit_id'][:12]}"
    if agent["refusal"]:
        return f"refused: {agent['refusal']['message']} [{agent['refusal']['errorType']}]"
    if _conflict(agent, result) is not None:
        return "conflicts"
    pending = (result.get("aggregation") or {}).get("pending", ())
    if agent["session_id"] in {each["agent_result_id"] for each in pending}:
        return "not merged: an earlier one conflicts"
    if agent["reason"] == Reason.EXITED and not agent["status"]:
        return "done"
    if agent["state"] == SessionState.CREATED:
        return f"not begun: {agent['why']}"
    why = f": {agent['why']}" if agent.get("why") else ""
    return f"{'failed' if agent['reason'] == Reason.EXITED else agent['reason']}{status}{why}"


def _details(agent: dict[str, Any], result: dict[str, Any]) -> list[str]:
    """The rest of what is to be known of a ticket."""
    lines = []
    if (refusal := agent["refusal"]) is not None:
        lines += [f"why:  {line}" for line in refusal["context"].splitlines()[:5]]
        lines += [f"hint: {refusal['hint']}"] if refusal["hint"] else []
    if (conflicted := _conflict(agent, result)) is not None:
        descriptor = conflicted["merge_descriptor"]
        lines += [f"in {path}" for path in descriptor["conflict_files"][:20]]
        lines += [descriptor["error_message"]] if descriptor["error_message"] else []
    harvest = agent["harvest"] or {}
    if harvest.get("errorType"):
        lines.append(f"its commits wait: {harvest['message']} [{harvest['errorType']}]; "
                     f"paddock worktree harvest {quoted(agent['worktree'])}")  # fmt: skip
    lines += [
        f"{counted(part['commits'], 'commit', 'commits')} on {part['kept'] or part['ref'].removeprefix('refs/heads/')}"
        + (f" of {part['name']}" if part["name"] else "")
        for part in harvest.get("parts", ())
        if part["commits"]
    ]
    stays = result.get("removed", {}).get(agent["session_id"])
    gone = not os.path.lexists(agent["worktree"])  # with its merge, or by anybody since
    if gone:
        lines += [f"worktree removed: {agent['worktree']}"] if agent["worktree"] else []
    else:
        lines.append(f"worktree {agent['worktree']}" + (f" stays: {stays}" if stays else ""))
    if left := result.get("uncommitted", {}).get(agent["session_id"]):
        lines.append(f"not committed there: {left['problem'] or table.some(left['files'], left['count'])}")
    if agent.get("next"):
        lines += [f"log {agent['log']}"] if agent["log"] else []
        steps = [step for step in agent["next"] if not gone or quoted(agent["worktree"]) not in step["command"]]
        lines += [f"next: {step['command']}   # {step['about']}" for step in steps]
    return lines


def _conflict(agent: dict[str, Any], result: dict[str, Any]) -> dict[str, Any] | None:
    """Why a ticket could not be merged; None where it was, or was not tried."""
    found = result.get("conflicts") or [(result.get("aggregation") or {}).get("conflicted")]
    return next((each for each in found if each and each["agent_result_id"] == agent["session_id"]), None)


def _after(
    result: dict[str, Any], agents: list[dict[str, Any]], merged: dict[str, Any], aggregation: dict[str, Any]
) -> list[str]:
    """Commands that may come next."""
    lines = []
    failed = [agent for agent in agents if agent["session_id"] not in merged and agent["state"] != "ended"]
    for agent in [each for each in failed if not each["refusal"] and not each.get("next")][:1]:
        lines.append(f"next: paddock logs {agent['session']}   # what {agent['ticket']} has written")
    trunk = quoted(result.get("trunk", "."))
    if aggregation.get("conflicted"):
        place = aggregation["conflicted"]["agent_result_id"]
        left = {each["agent_result_id"] for each in aggregation.get("pending", ())}
        waiting = [
            agent["worktree"]
            for agent in agents
            if agent["session_id"] == place or (agent["session_id"] in left and _has_commits(agent))
        ]
        where = quoted(next(agent["worktree"] for agent in agents if agent["session_id"] == place))
        hint = aggregation["conflicted"]["merge_descriptor"]["hint"] or ""
        how = hint.partition(": ")[2].partition("; then merge again")[0] or "mend that"
        lines.append(f"next: in {where}: {how}")
        lines.append(f"next: cd {trunk} && paddock merge {joined(waiting)}   # after that")
    elif "trunk" in result and "aggregation" not in result:
        done = [
            agent["worktree"]
            for agent in agents
            if agent["state"] == SessionState.ENDED and agent["reason"] == Reason.EXITED and _has_commits(agent)
        ]
        if done:
            lines.append(f"next: in {trunk}: paddock merge {joined(done)}")
    runs = [(each["merge_descriptor"] or {}).get("run_id") for each in merged.values()]
    for run in dict.fromkeys(each for each in reversed(runs) if each):
        lines.append(f"undo: in {trunk}: paddock merge --rollback {run}")
    return lines


def _has_commits(agent: dict[str, Any]) -> bool:
    """Whether a ticket's session has brought commits; a session that had none says nothing of a harvest."""
    return bool((agent["harvest"] or {}).get("state", "nothing") != "nothing")
