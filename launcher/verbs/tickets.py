"""`paddock tickets`: many tickets, each in a worktree of its own, merged at the end."""

import json
import os
import signal
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from launcher import cli
from launcher.service import ticket_words
from launcher.service.client import Client, run_path
from launcher.service.schema import Reason, SessionState
from launcher.service.ticket_schema import Agent, Merger, Orchestrator, Ticket, TicketRequest, TicketState
from launcher.session import messages, places
from launcher.vcs import worktree_words
from launcher.verbs import session_request, style, table
from launcher.verbs.table import ago, client, counted, show_json
from policy.errors import Refusal, in_rows, printable
from policy.pasted import joined, quoted

if TYPE_CHECKING:
    from launcher.vcs.history import History

_MOST_SHOWN = 3
"""Commits, and files, of a ticket that are named."""


# A ticket run for people: what became of each ticket, where its worktree is, what to do next, how to undo it.


def described(found: dict[str, Any]) -> list[str]:
    """A run as lines."""
    result = found["result"] or {}
    agents = result.get("agents", ())
    aggregation = result.get("aggregation") or {}
    merged = {each["agent_result_id"]: each for each in aggregation.get("merged", ())}
    state = found["state"]
    lines = [f"{found['name']}  {_state(found)}"]
    if "aggregation" in result:
        count = len([agent for agent in agents if agent["session_id"] in merged])
        lines[0] += f": {count} of {len(found['tickets'])} merged into {ticket_words.landed(result) or result['trunk']}"
        conflicts = [agent for agent in agents if ticket_words.conflict(agent, result) is not None]
        lines[0] += f", {counted(len(conflicts), 'conflict', 'conflicts')}" if conflicts else ""
    own = result.get("orchestrator")
    if own is not None:
        merged |= {own["session_id"]: result["landed"]["status"]} if ticket_words.landed(result) else {}
        agents = [own, *agents]
    attempts = {each["ticket"]: each["attempt"] for each in found["steps"]}
    width = max((len(agent["ticket"]) for agent in agents), default=0)
    brought = _brought({name: each for name, each in merged.items() if own is None or name != own["session_id"]})
    for agent in agents:
        again = f" (started {attempts[agent['ticket']]} times)" if attempts.get(agent["ticket"], 1) > 1 else ""
        lines.append(f"  {agent['ticket']:<{width}}  {ticket_words.fate(agent, merged, result)}{again}")
        if agent["session_id"] in brought:
            lines += [
                f"  {'':<{width}}    {line}" for line in brought[agent["session_id"]].lines(_MOST_SHOWN, style.path)
            ]
        lines += [f"  {'':<{width}}    {line}" for line in _details(agent, result)]
    if refusal := result.get("refusal"):
        lines.append(f"  {refusal['message']} [{refusal['errorType']}]")
        lines += [f"    {line}" for line in refusal["context"].split("\n")]
        if refusal["hint"]:
            lines.append(f"    hint: {refusal['hint']}")
    if state == TicketState.CREATED or state not in tuple(TicketState)[-3:]:
        lines.append(f"next: paddock tickets show {found['name']}")
    lines += _after(found, result, agents, merged)
    return [printable(line, width + 16) for line in lines]


def _state(found: dict[str, Any]) -> str:
    """A run's state for people: one in which nothing but conflicts is left to do has not failed."""
    result = found["result"] or {}
    agents = ticket_words.agents_of(result)
    well = all((each["state"], each["reason"], ticket_words.rejection(each)) == _WELL for each in agents)
    conflicts = any(ticket_words.conflict(each, result) is not None for each in agents)
    only = found["state"] == TicketState.FAILED and well and conflicts and not result.get("refusal")
    return "conflicted" if only else str(found["state"])


_WELL = (SessionState.ENDED, Reason.EXITED, None)


def _brought(merged: Mapping[str, Mapping[str, Any]]) -> "dict[str, History]":
    """What the merged tickets have brought, by session id; read only where there are some."""
    if not merged:
        return {}
    from launcher.vcs import history

    return history.of_merges({name: each["merge_descriptor"] for name, each in merged.items()})


def described_progress(found: dict[str, Any]) -> str:
    """How far a run is, as one line."""
    states = [each["state"] for each in found["steps"]]
    counts = [
        (len(states) - states.count("waiting"), "prepared"),
        (states.count("running"), "running"),
        (sum(states.count(each) for each in ("ended", "merged", "conflicted")), "ended"),
        (states.count("failed"), "failed"),
        (states.count("merged"), "merged"),
        (states.count("reviewing"), "being reviewed"),
        (states.count("resolving"), "being resolved"),
        (states.count("conflicted"), "in conflict"),
    ]
    told = [
        f"{number} {what}" for number, what in counts if number or what in ("prepared", "running", "ended", "merged")
    ]
    own = found["orchestrator"]
    orchestrator = "" if own is None else f"orchestrator {own['state']}; "
    return f"{_state(found)}: {orchestrator}of {counted(len(states), 'ticket', 'tickets')} " + ", ".join(told)


def _details(agent: dict[str, Any], result: dict[str, Any]) -> list[str]:
    """The rest of what is to be known of a ticket."""
    lines = []
    if (refusal := agent["refusal"]) is not None:
        lines += [f"why:  {line}" for line in refusal["context"].split("\n")[:5]]
        lines += [f"hint: {refusal['hint']}"] if refusal["hint"] else []
    if (conflicted := ticket_words.conflict(agent, result)) is not None:
        descriptor = conflicted["merge_descriptor"]
        lines += [f"in {style.path(path)}" for path in descriptor["conflict_files"][:20]]
        lines += [descriptor["error_message"]] if descriptor["error_message"] else []
    harvest = agent["harvest"] or {}
    if harvest.get("errorType"):
        lines.append(f"its commits are not harvested: {harvest['message']} [{harvest['errorType']}]; "
                     f"paddock worktree harvest {quoted(agent['worktree'])}")  # fmt: skip
    lines += [
        f"{counted(part['commits'], 'commit', 'commits')} on {part['kept'] or part['ref'].removeprefix('refs/heads/')}"
        + (f" of {part['name']}" if part["name"] else "")
        for part in harvest.get("parts", ())
        if part["commits"]
    ]
    if (review := ticket_words.rejection(agent)) is not None:
        lines += [f"next: paddock logs {review['session']} # the review's output"] if review["log"] else []
        lines += [f"hint: {review['refusal']['hint']}"] if (review["refusal"] or {}).get("hint") else []
    stays = result.get("removed", {}).get(agent["session_id"])
    gone = not os.path.lexists(agent["worktree"])  # with its merge, or by anybody since
    if gone:
        lines += [f"worktree removed: {style.path(agent['worktree'])}"] if agent["worktree"] else []
    else:
        lines.append(f"worktree {style.path(agent['worktree'])}" + (f" is kept: {stays}" if stays else ""))
    if left := result.get("uncommitted", {}).get(agent["session_id"]):
        lines.append(
            f"not committed there: {left['problem'] or table.some([*map(style.path, left['files'])], left['count'])}"
        )
    if agent.get("next"):
        lines += [f"log {style.path(agent['log'])}"] if agent["log"] else []
        steps = [step for step in agent["next"] if not gone or quoted(agent["worktree"]) not in step["command"]]
        lines += [f"next: {step['command']}   # {step['about']}" for step in steps]
    return lines


_OF_COMMANDS = ("command-not-found", "command-not-executable")


def _after(
    found: dict[str, Any], result: dict[str, Any], agents: list[dict[str, Any]], merged: dict[str, Any]
) -> list[str]:
    """Commands that may come next: one way forward, and others behind "or"."""
    lines = []
    aggregation = result.get("aggregation") or {}
    resume = f"paddock tickets resume {found['name']}"
    refused = [each["errorType"] for each in (result.get("refusal"), *(each["refusal"] for each in agents)) if each]
    failed = [agent for agent in agents if agent["session_id"] not in merged and agent["state"] != "ended"]
    for agent in [each for each in failed if not each["refusal"] and not each.get("next")][:1]:
        lines.append(f"next: paddock logs {agent['session']} # the output of {agent['ticket']}")
    trunk = quoted(result.get("trunk", "."))
    if aggregation.get("conflicted"):
        place = aggregation["conflicted"]["agent_result_id"]
        left = {each["agent_result_id"] for each in aggregation.get("pending", ())}
        waiting = [
            agent["worktree"]
            for agent in agents
            if agent["session_id"] == place or (agent["session_id"] in left and _has_commits(agent))
        ]
        roots = {agent["session_id"]: quoted(agent["worktree"]) for agent in agents}
        conflicts = result.get("conflicts") or [aggregation["conflicted"]]
        lines += [f"next: in {roots[each['agent_result_id']]}: {_solution(each)}" for each in conflicts]
        lines[-1] += f"; then: {resume}"
        lines.append(f"or:   cd {trunk} && paddock merge {joined(waiting)} # in place of tickets resume")
    elif "landed" in result and not ticket_words.landed(result):
        where = quoted(result["orchestrator"]["worktree"])
        lines.append(f"next: in {where}: {_solution(result['landed']['status'])}; then: {resume}")
    elif any(each in _OF_COMMANDS for each in refused):
        lines.append("next: correct the command in the file, then run that: paddock tickets run FILE")
        lines.append(f"or:   {resume} # once the command is installed")
    elif found["state"] == TicketState.FAILED:
        lines.append(f"next: {resume} # restarts agents that failed, then merges")
    if "trunk" in result and "aggregation" not in result and "landed" not in result:
        done = [
            agent["worktree"]
            for agent in agents
            if agent["state"] == SessionState.ENDED and agent["reason"] == Reason.EXITED and _has_commits(agent)
        ]
        if done:
            lines.append(f"next: in {trunk}: paddock merge {joined(done)}")
    landed = ticket_words.landed(result)
    trunk = quoted(landed) if landed else trunk
    statuses = [result["landed"]["status"]] if landed else merged.values()
    runs = [(each["merge_descriptor"] or {}).get("run_id") for each in statuses]
    for run in dict.fromkeys(each for each in reversed(runs) if each):
        lines.append(f"undo: in {trunk}: paddock merge --rollback {run}")
    return lines


def _solution(status: dict[str, Any]) -> str:
    """What a person does about a conflict, in the worktree of who conflicts."""
    hint = status["merge_descriptor"]["hint"] or ""
    return hint.partition(": ")[2].partition("; then merge again")[0] or "fix that"


def _has_commits(agent: dict[str, Any]) -> bool:
    """Whether a ticket's session had commits to harvest."""
    return bool((agent["harvest"] or {}).get("state", "nothing") != "nothing")


# The file of `paddock tickets run`: read and checked before the service is asked, so that a mistake has its place.


_MOST_BYTES = 4 << 20
_HINT = 'a ticket is [[tickets]], then ticket = "PROJ-17", then command = ["claude", "-p", "Fix it."]'


def read_file(path: str) -> dict[str, Any]:
    """The content of a ticket file as the service's request.

    Raises:
        Refusal: tickets-unreadable.
    """
    kind = "JSON" if path.endswith(".json") else "TOML"
    try:
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise Refusal("tickets-unreadable", f"{path} cannot be read", context=error.strerror or str(error),
                      hint="for its format: paddock tickets run --help") from None  # fmt: skip
    if len(content) > _MOST_BYTES:
        raise Refusal("tickets-unreadable", f"{path} is too large", context=f"the limit is {_MOST_BYTES >> 20} MiB",
                      hint="split it into several runs")  # fmt: skip
    try:
        found = json.loads(content) if kind == "JSON" else tomllib.loads(content.decode())
    except ValueError as error:
        raise Refusal("tickets-unreadable", f"{path} is not {kind}", context=str(error), hint=_HINT) from None
    if not isinstance(found, dict):
        raise Refusal("tickets-unreadable", f"{path} has no table", hint=_HINT)
    return found


def check_tickets(path: str, body: Mapping[str, Any]) -> None:
    """Looks whether a run can be asked for with `body`, which was made of the file at `path`."""
    try:
        TicketRequest.model_validate(body)
    except ValidationError as error:
        lines = [_line(each["loc"], each["type"], each["msg"], body) for each in error.errors()]
        more = f"and {len(lines) - 10} more" if len(lines) > 10 else ""
        raise Refusal("tickets-invalid", f"{path}: {lines[0]}", context=in_rows(*lines[1:10], more),
                      hint=_HINT) from None  # fmt: skip


_TABLES: dict[str | int, type[Agent | Orchestrator | Merger]] = {
    "agent": Agent, "review": Agent, "context_manager": Agent, "orchestrator": Orchestrator, "merger": Merger
}  # fmt: skip


def _line(where: tuple[int | str, ...], kind: str, message: str, body: Mapping[str, Any]) -> str:
    """One mistake in the words of the file."""
    words = [str(word) for word in where]
    known = TicketRequest.model_fields
    place = ""
    if len(where) > 1 and where[0] == "tickets" and isinstance(where[1], int):
        known = Ticket.model_fields
        table = body["tickets"][where[1]]
        name = table.get("ticket") if isinstance(table, dict) else None
        place = f"ticket {where[1] + 1}" + (f" ({name})" if isinstance(name, str) else "")
        words = words[2:]
    elif len(where) > 1 and where[0] in _TABLES:
        known, place, words = _TABLES[words[0]].model_fields, f"[{words[0]}]", words[1:]
    key = words[0] if words else ""
    if kind == "extra_forbidden":
        near = get_close_matches(key, known, n=1)
        text = f"there is no key {key}" + (f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}")
    elif kind == "missing":
        text = f"{key} is missing"
    else:
        said = message.removeprefix("Value error, ")
        said = said.replace("Input should be a valid list", 'it must be a list of words, as ["make", "test"]')
        text = f"{key}: {said.replace('Input should be', 'it must be')}" if key else said.replace("Input", "it")
    return f"{place}: {text}" if place else text


_WAIT = 300
_LOOK = 5
"""Seconds of one look at a run that is followed: a signal that comes right before one is answered after it."""


def tickets_run(
    file: str,
    *,
    repo: str | None,
    parallel: int | None,
    no_merge: bool,
    keep: bool,
    on_conflict: str | None,
    timeout: float | None,
    name: str | None,
    key: str | None,
    engine: str | None,
    address: str | None,
    detach: bool,
    as_json: bool,
) -> int:
    """Exit status 0 when all went well; 1 when an agent failed, or its work conflicts."""
    body = read_file(file)
    named = repo or body.get("repository") or places.current_directory()
    unbent = worktree_words.directory(named, places.current_directory()) if isinstance(named, str) else named
    body["repository"] = unbent
    body.setdefault("environment", session_request.environment())
    given = {"parallel": parallel, "name": name, "on_conflict": on_conflict, "timeout": timeout, "engine": engine,
             "address": address}  # fmt: skip
    body |= {field: value for field, value in given.items() if value is not None}
    if no_merge:
        body["merge"] = False
    if keep:
        body["remove"] = False
    check_tickets(file, body)
    service = client()
    found = service.call("POST", "/v1/ticket-runs", body, headers={"Idempotency-Key": key} if key else None)
    return _to_its_end(service, found, detach=detach, as_json=as_json)


def tickets_resume(name: str, *, on_conflict: str | None, detach: bool, as_json: bool) -> int:
    """Exit status 0."""
    service = client()
    body = {"environment": session_request.environment(), "on_conflict": on_conflict}
    found = service.call("POST", run_path(name, "resume"), body)
    return _to_its_end(service, found, detach=detach, as_json=as_json)


def _to_its_end(service: Client, found: dict[str, Any], *, detach: bool, as_json: bool) -> int:
    """Follows a run, and shows what came of it; the exit status."""
    status = 0
    if not detach:
        progress = Progress(as_json=as_json)
        if not as_json:
            messages.say(f"paddock: ticket run {found['name']}: {counted(len(found['tickets']), 'ticket', 'tickets')}")
        try:
            found, status = _followed(service, found, progress)
        finally:
            progress.end()
    if as_json and not detach:
        messages.show(json.dumps({"event": "end", **_with_history(found)}))
    else:
        _shown(found, as_json=as_json)
    return status or (0 if found["state"] == "ended" or detach else 1)


class Progress:
    """Tells how far a run is: one line that is written over at a terminal, else a line when it has changed.

    Args:
        as_json: one JSON object for each step of a ticket and of the run instead.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json
        self._line = table.Line(quiet=as_json)
        self._shown: dict[str, str] = {}

    def show(self, found: dict[str, Any]) -> None:
        """Tells of what has changed since the last call."""
        own = [] if found["orchestrator"] is None else [found["orchestrator"]]
        states = {"": found["state"]} | {each["ticket"]: each["state"] for each in (*own, *found["steps"])}
        moved = {name: state for name, state in states.items() if self._shown.get(name) != state}
        self._shown = states
        if self._json:
            for name, state in moved.items():
                about = {"ticket": name} if name else {}
                event = {"event": "ticket" if name else "run", "run": found["name"], **about, "state": state}
                messages.show(json.dumps(event))
            return
        self._line.show(described_progress(found), now="" in moved)

    def end(self) -> None:
        """Leaves the terminal's line free."""
        self._line.end()


def _followed(service: Client, found: dict[str, Any], progress: Progress) -> tuple[dict[str, Any], int]:
    """A run at its end, and 128+N when signal N came before: Ctrl-C and SIGTERM stop it, a second one leaves it."""
    came: list[int] = []

    def ask(number: int, _: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    path = run_path(found["name"])
    try:
        progress.show(found)
        while found["ended"] is None:
            found = service.call("GET", path, query={"wait": _LOOK, "seen": found["seen"]})
            progress.show(found)
    except KeyboardInterrupt:
        for number in before:
            signal.signal(number, signal.SIG_DFL)
        progress.end()
        messages.say(f"paddock: ticket run {found['name']} was stopped: its agents are ending, and nothing is merged")
        service.call("POST", f"{path}/stop")
        while found["ended"] is None:
            found = service.call("GET", path, query={"wait": _WAIT})
        return found, 128 + came[0]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return found, 0


def tickets_list(*, as_json: bool) -> int:
    """Exit status 0."""
    runs = client().call("GET", "/v1/ticket-runs")["ticket_runs"]
    if as_json:
        show_json(runs)
    elif not runs:
        messages.show("no ticket runs yet; to start one: paddock tickets run FILE")
    else:
        rows = [(each["name"], _state(each), ago(each["created"]), len(each["tickets"])) for each in runs]
        messages.show("\n".join(table.lines(("RUN", "STATE", "AGE", "TICKETS"), rows)))
    return 0


def tickets_show(name: str, *, prompt: bool, contexts: bool, as_json: bool) -> int:
    """Exit status 0."""
    if prompt and contexts:
        raise cli.usage("--prompt and --contexts exclude each other", "tickets show")
    if prompt:
        found = client().call("GET", run_path(name, "prompts"))["prompts"]
        if as_json:
            show_json(found)
        else:
            messages.show("\n\n".join(each["text"] for each in found))
        return 0
    if contexts:
        found = client().call("GET", run_path(name, "contexts"))["contexts"]
        show_json(found)
        return 0
    return _shown(client().call("GET", run_path(name)), as_json=as_json)


def _shown(found: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        show_json(_with_history(found))
    else:
        messages.show("\n".join(described(found)))
    return 0


def _with_history(found: dict[str, Any]) -> dict[str, Any]:
    """A run with what its merged tickets have brought: commits, authors, dates, files, by session id."""
    merged = ((found["result"] or {}).get("aggregation") or {}).get("merged", ())
    brought = _brought({each["agent_result_id"]: each for each in merged})
    return {**found, "history": {name: each.document() for name, each in brought.items()}} if brought else found


def tickets_stop(name: str, *, as_json: bool) -> int:
    """Exit status 0."""
    service = client()
    service.call("POST", run_path(name, "stop"))
    found = service.call("GET", run_path(name), query={"wait": _WAIT})
    return _shown(found, as_json=as_json)
