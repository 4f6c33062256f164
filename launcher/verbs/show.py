"""`paddock show`: all about one session of the service."""

import time
from typing import Any

from launcher.service.client import session_path
from launcher.session import messages
from launcher.verbs import typer_verb
from launcher.verbs.service_common import Json, Name, ago, client, counted, ending, show_json, size
from policy.errors import printable
from policy.pasted import joined

EXAMPLES = (
    ("paddock show fix-17", "its life, its processes, what it uses, how it ended"),
    ("paddock show fix-17 --json", "for programmes"),
)


def main(argv: list[str]) -> int:
    """Exit status 0."""
    return typer_verb.run("show", show, argv, examples=EXAMPLES)


def show(session: Name, as_json: Json = False) -> int:
    """Shows all about one session."""
    found = client().call("GET", session_path(session))
    if as_json:
        show_json(found)
    else:
        messages.show("\n".join(printable(line) for line in described(found)))
    return 0


def described(session: dict[str, Any]) -> list[str]:
    """A session as lines."""
    lines = [
        f"session   {session['name']}  {session['state']}"
        + (f", {ending(session)}" if session["outcome"] and session["state"] != "running" else ""),
        f"command   {joined(session['command'])}",
        f"worktree  {session['worktree'] or session['directory']}",
    ]
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
    if outcome := session["outcome"]:
        lines += _outcome(outcome)
    if session["log_note"]:
        lines.append(f"log       {session['log_note']}")
    lines += [f"{_time(move['time'])}  {move['before']} -> {move['after']}: {move['why']}"
              for move in session["transitions"]]  # fmt: skip
    lines += [f"  {process['pid']:>8}  {process['status']:<9} {size(process['memory']):>8}  {process['name']}"
              for process in session["processes"]]  # fmt: skip
    return lines


def _outcome(outcome: dict[str, Any]) -> list[str]:
    lines = [f"denials   {outcome['denials']}"] if outcome["denials"] else []
    if harvest := outcome["harvest"]:
        lines.append(f"harvest   {harvest.get('state') or harvest.get('message')}")
    lines += [f"changed   {path} ({what}; {mode})" for what, path, mode in outcome["handoff"]]
    lines += [f"note      {note}" for note in outcome["notes"]]
    if outcome["refusal"] and outcome["refusal"]["hint"]:
        lines.append(f"hint      {outcome['refusal']['hint']}")
    return lines


def _time(moment: float) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(moment))} ({ago(moment)} ago)"
