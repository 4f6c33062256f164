"""`paddock events`: what happens in the service, as it happens."""

import json
import time
from typing import Annotated, Any

import typer

from launcher.service.client import session_name
from launcher.session import messages
from launcher.verbs import typer_verb
from launcher.verbs.service_common import client
from policy.errors import printable

EXAMPLES = (
    ("paddock events", "states of sessions, denials, harvests, steps of ticket runs, what is wrong: as they come"),
    ("paddock events --session fix-17 --kind harvest", "of one session, of one kind"),
    ("paddock events --since 0 --no-follow --json", "all that is kept, one JSON object a line; each has an id"),
)


def main(argv: list[str]) -> int:
    """Exit status 0."""
    return typer_verb.run("events", events, argv, examples=EXAMPLES)


def events(
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="Only service, session, denials, harvest, ticket or condition."),
    ] = None,
    session: Annotated[
        list[str] | None, typer.Option("--session", metavar="SESSION", help="Only those of this session.")
    ] = None,
    since: Annotated[
        int | None, typer.Option("--since", metavar="ID", min=0, help="First those that came after this one.")
    ] = None,
    no_follow: Annotated[bool, typer.Option("--no-follow", help="End when all that has happened is told.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> int:
    """Shows what happens in the service."""
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
        return f"{session} was refused something {data['number']} times"
    if kind == "harvest":
        return f"{data['worktree']}: {data.get('message') or data['result']}"
    if kind == "condition":
        return f"{'degraded' if data['raised'] else 'mended'}: {data['what']} [{data['id']}]"
    if kind == "missed":
        return f"events after {data['since']} are not kept any more"
    return json.dumps(data)
