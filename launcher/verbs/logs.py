"""`paddock logs`: what a session of the service has written."""

import json
import time
from typing import Annotated

import typer

from launcher.service.client import session_path
from launcher.session import messages
from launcher.verbs import typer_verb
from launcher.verbs.service_common import Name, client
from policy.errors import printable

EXAMPLES = (
    ("paddock logs fix-17", "all that is kept; credentials are not"),
    ("paddock logs fix-17 --follow --tail 20", "the last lines, and what comes"),
    ("paddock logs fix-17 --stream stderr --times", "one stream, with times"),
    ("paddock logs fix-17 --json", "one JSON object a line: time, stream, text"),
)


def main(argv: list[str]) -> int:
    """Exit status 0."""
    return typer_verb.run("logs", logs, argv, examples=EXAMPLES)


def logs(
    session: Name,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it is over.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", metavar="N", min=0, help="Only the last N lines.")] = None,
    stream: Annotated[
        list[str] | None,
        typer.Option("--stream", metavar="NAME", help="Only stdout, stderr or paddock (what the service says)."),
    ] = None,
    times: Annotated[bool, typer.Option("--times", "-t", help="With the time of each line.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> int:
    """Shows what a session has written. Control characters are made visible; attach to see the bytes themselves."""
    query = {"follow": "true" if follow else None, "tail": tail, "stream": stream or []}
    for line in client().lines(session_path(session, "logs"), query):
        if as_json:
            messages.show(json.dumps(line))
            continue
        stamp = time.strftime("%Y-%m-%d %H:%M:%S ", time.localtime(line["time"])) if times else ""
        mark = "paddock: " if line["stream"] == "paddock" else ""
        messages.show(f"{stamp}{mark}{'	'.join(printable(part) for part in line['text'].split('	'))}")
    return 0
