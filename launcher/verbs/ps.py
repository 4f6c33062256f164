"""The verbs that ask the service about sessions, or end them: ps, show, events, stop, status."""

import json
import os
import time
from typing import Any

from launcher.service.client import session_name, session_path
from launcher.session import messages
from launcher.session import places as paddock_places
from launcher.verbs import table
from launcher.verbs.table import ago, brief_ending, client, columns, counted, cut, ending, show_json, size, tokens
from policy.errors import printable
from policy.pasted import cited, joined

_HEADING = ("SESSION", "STATE", "AGE", "CPU", "MEMORY", "TOKENS", "WORKTREE", "ENDED BY", "COMMAND")
_TOKENS = _HEADING.index("TOKENS")
_COMMAND, _ENDING, _WORKTREE = 24, 40, 30
"""Columns that the command has at least, and the reason of an end and the worktree at most."""


def ps(*, every: bool, limit: int, as_json: bool) -> int:
    """Exit status 0."""
    found = client().call("GET", "/v1/sessions", query={"live": not every, "limit": limit})["sessions"]
    if as_json:
        show_json(found)
        return 0
    if not found:
        ended = 0 if every else sum(client().call("GET", "/v1/health")["sessions"].values())
        start = "no session is running; to start one: paddock run --supervised -- COMMAND"
        some = f"no session is running; {ended} ended: paddock ps --all"
        messages.show("no sessions yet" if every else some if ended else start)
        return 0
    messages.show("\n".join(session_lines(found)))
    return 0


def session_lines(sessions: list[dict[str, Any]]) -> list[str]:
    """Sessions as lines, a heading first."""
    rows: list[tuple[str, ...]] = []
    places = worktrees(sessions)
    for session in sessions:
        usage = session["usage"]
        rows.append((
            session["name"],
            session["state"],
            ago(session["created"]),
            f"{usage['cpu_percent']:.0f}%" if usage else "-",
            size(usage["memory"]) if usage else "-",
            tokens(session),
            cut(short_place(places, session), _WORKTREE) or "-",
            cut(brief_ending(session), _ENDING) or "-",
            joined(session["command"]),
        ))  # fmt: skip
    heading: tuple[str, ...] = _HEADING
    if all(row[_TOKENS] == "-" for row in rows):
        heading, *rows = ((*row[:_TOKENS], *row[_TOKENS + 1 :]) for row in (heading, *rows))
    widths = [max(len(row[column]) for row in (heading, *rows)) for column in range(len(heading) - 1)]
    room = max(_COMMAND, columns() - sum(widths) - 2 * len(widths))
    return table.lines(heading, [(*row[:-1], cut(row[-1], room)) for row in rows])


def worktrees(sessions: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Root of each session's worktree -> (ticket, branch that is checked out), "" for what it has not."""
    roots = {session["worktree"] for session in sessions if session["worktree"]}
    from launcher.vcs.worktrees.store import labels_of

    return labels_of(paddock_places.places(os.environ).state, roots)


def short_place(places: dict[str, tuple[str, str]], session: dict[str, Any]) -> str:
    """A session's worktree for a column: ticket or directory, and the branch unless it says the same."""
    root = session["worktree"] or ""
    ticket, branch = places.get(root, ("", ""))
    name = ticket or os.path.basename(root)
    return printable(name if not branch or branch in (name, f"agent/{name}") else f"{name} ({branch})")


def show(session: str, *, as_json: bool) -> int:
    """Exit status 0."""
    found = client().call("GET", session_path(session))
    if as_json:
        show_json(found)
    else:
        messages.show("\n".join(printable(line) for line in described(found)))
    return 0


def described(session: dict[str, Any]) -> list[str]:
    """A session as lines."""
    lines = [
        f"session   {session['name']}, {session['state']}"
        + (f", {ending(session)}" if session["outcome"] and session["state"] != "running" else ""),
        f"command   {joined(session['command'])}",
        f"worktree  {session['worktree'] or session['directory']}",
    ]
    ticket, branch = worktrees([session]).get(session["worktree"] or "", ("", ""))
    lines += [f"ticket    {ticket}"] if ticket else []
    lines += [f"branch    {branch}"] if branch else []
    if session["options"]:
        lines.append(f"options   {joined(session['options'])}")
    if session["backend"]:
        lines.append(f"jail      {session['backend']}, network {session['network']}")
    lines.append(
        f"asked     {_time(session['created'])} by user {session['client_uid']}, {session['attached']} attached"
    )
    if session["spawn_seconds"] is not None:
        lines.append(f"started   in {session['spawn_seconds'] * 1000:.1f} ms, attempt {session['attempt']}")
    lines += [f"label     {name}={value}" for name, value in session["labels"].items()]
    if usage := session["usage"]:
        count = counted(usage["processes"], "process", "processes")
        lines.append(f"uses      {count}, {size(usage['memory'])} of memory, "
                     f"{usage['cpu_seconds']:.1f} s of processor time ({usage['cpu_percent']:.0f}% now)")  # fmt: skip
        most = usage.get("token_budget", 0)
        taken = f"{usage['tokens']:,}" + (f"/{most:,}" if most else "")
        lines += [f"tokens    {taken}, by keys that stay outside"] if usage["tokens"] or most else []
    if outcome := session["outcome"]:
        lines += _outcome(outcome)
    if session["log_note"]:
        lines.append(f"log       {session['log_note']}")
    lines += [f"{_time(move['time'])} {move['before']} -> {move['after']}: {move['why']}"
              for move in session["transitions"]]  # fmt: skip
    lines += [f"process   {process['pid']} {cited(process['name'])}, {process['status']}, {size(process['memory'])}"
              for process in session["processes"]]  # fmt: skip
    return lines


def _outcome(outcome: dict[str, Any]) -> list[str]:
    lines = [f"denials   {outcome['denials']}"] if outcome["denials"] else []
    if harvest := outcome["harvest"]:
        lines.append(f"harvest   {harvest.get('state') or harvest.get('message')}")
    lines += [f"changed   {cited(path)} ({what}; {mode})" for what, path, mode in outcome["handoff"]]
    lines += [f"note      {note}" for note in outcome["notes"]]
    if outcome["refusal"] and outcome["refusal"]["hint"]:
        lines.append(f"hint      {outcome['refusal']['hint']}")
    return lines


def _time(moment: float) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(moment))} ({ago(moment)} ago)"


def events(*, kind: list[str], session: list[str], since: int | None, no_follow: bool, as_json: bool) -> int:
    """Exit status 0."""
    names = [session_name(name) for name in session or ()]
    query = {"kind": kind or [], "session": names, "since": since, "follow": "false" if no_follow else None}
    for event in client().events(query):
        messages.show(json.dumps(event) if as_json else line(event))
    return 0


def line(event: dict[str, Any]) -> str:
    """One event for people."""
    try:
        text = _text(event["kind"], event["session"], event["data"])
    except KeyError:  # an event of another version, or too large a one
        text = json.dumps(event["data"])
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["time"]))
    return f"{stamp}  {event['kind']:9}  {printable(text)}"


def _text(kind: str, session: str, data: dict[str, Any]) -> str:
    if kind == "service":
        return f"the service {data['state']}"
    if kind == "session":
        return f"{session} is {data['state']}: {data['why']}"
    if kind == "denials":
        return f"{session}: {counted(data['number'], 'denial', 'denials')}"
    if kind == "harvest":
        return f"{data['worktree']}: {data.get('message') or data['result']}"
    if kind == "condition":
        return f"{'degraded' if data['raised'] else 'recovered'}: {data['what']} [{data['id']}]"
    if kind == "missed":
        return f"events after {data['since']} are no longer kept"
    return json.dumps(data)


_WAIT, _SOON = 300, 1
"""Seconds until an end is given up on, and until somebody is told what is waited for."""
_OVER = ("ended", "failed", "lost")


def stop(
    sessions: list[str], *, now: bool, patience: float | None, signal: str | None, forget: bool, as_json: bool
) -> int:
    """Exit status 0 when all of them are over (or were sent the signal); 1 when one is not yet."""
    service = client()
    ended = []
    paths = [
        session_path(name, "stop" if signal is None else "signal") for name in sessions
    ]  # all, before one is ended
    for path in paths:
        if signal is not None:
            service.call("POST", path, {"signal": signal})
            continue
        body = {"term_seconds": 0 if now else patience, "wait": 0, "forget": False}
        ended.append(service.call("POST", path, body))
    for place, session in enumerate(ended):
        path = session_path(session["name"], "stop")
        final = service.call("POST", path, {"wait": _SOON, "forget": False})
        if final["state"] not in _OVER:
            then = "harvesting what it committed" if now else "sent SIGTERM, will be killed"
            messages.say(f"paddock: waiting for {printable(final['name'])}: {then}"
                         + ("" if now else f" {_patience(patience)} (--now kills it at once)"))  # fmt: skip
        if forget or final["state"] not in _OVER:
            final = service.call("POST", path, {"wait": _WAIT, "forget": forget})
        ended[place] = final
        if not as_json:
            messages.show(printable(f"{final['name']}: {final['state']}, {ending(final)}"))
    if as_json:
        show_json(ended)
    return 0 if all(session["state"] in _OVER for session in ended) else 1


def _patience(given: float | None) -> str:
    return "after the service's patience, 10 s by default" if given is None else f"after {given:g} s"


def status(*, as_json: bool) -> int:
    """Exit status 0 when it answers, 125 when nobody does."""
    health = client().call("GET", "/v1/health")
    if as_json:
        show_json(health)
        return 0
    counts = ", ".join(f"{number} {state}" for state, number in health["sessions"].items() if number)
    room = ", ".join(f"{size(free)} free for {name}" for name, free in health["free"].items())
    lines = [
        f"service   {health['status']} for {ago(health['started'])}, process {health['pid']}, user {health['uid']}",
        f"sessions  {counts or 'none yet'}",
        f"tickets   {_remembered(health)}",
        f"merges    {_merges(health)}",
        f"helpers   {health['helpers']} ready",
        f"uses      {size(health['memory'])} of memory at most, {health['descriptors']} descriptors",
        f"disk      {room or 'not known yet'}",
        f"logs      {size(health['logs'])}, at most {size(health['settings']['most_log_bytes'])}",
        f"groups    {health['groups'] or 'none: ' + health['groups_note']}",
        *(
            f"degraded  {reason['what']} [{reason['id']}], for {ago(reason['since'])}; {reason['hint']}"
            for reason in health["reasons"]
        ),
        *(f"note      {note}" for note in health["notes"]),
    ]
    messages.show("\n".join(printable(line) for line in lines))
    return 0


def _merges(health: dict[str, Any]) -> str:
    """Refs of merges and backups, with their bounds."""
    bounds = health["settings"]
    return (
        f"{health['remembered'].get('kept_refs', 0)} refs of merges and backups, for {bounds['merge_days']:g} days and "
        f"{bounds['most_merges']} of each at most; work that is on no branch: {bounds['lost_days']:g} days"
    )


def _remembered(health: dict[str, Any]) -> str:
    """Ticket runs and contexts, with their bounds."""
    known, bounds = health["remembered"], health["settings"]
    days = f"{bounds['keep_seconds'] / 86_400:g} days"
    return (
        f"{known['ticket_runs']} of {bounds['most_ticket_records']} ticket runs, "
        f"{known['contexts']} of {bounds['most_contexts']} contexts, for {days} at most"
    )
