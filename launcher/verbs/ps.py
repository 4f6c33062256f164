"""`paddock ps`: the service's sessions."""

from typing import Annotated, Any

import typer

from launcher.session import messages
from launcher.verbs import table as tables
from launcher.verbs import typer_verb
from launcher.verbs.service_common import Json, ago, brief_ending, client, columns, cut, show_json, size
from policy.pasted import joined

EXAMPLES = (
    ("paddock ps", "the sessions that live"),
    ("paddock ps --all", "those that are over, too"),
    ("paddock ps --all --json", "for programmes"),
)
_HEADING = ("SESSION", "STATE", "AGE", "CPU", "MEMORY", "ENDED BY", "COMMAND")
_COMMAND, _ENDING = 24, 40
"""Columns that the command has at least, and the reason of an end at most."""


def main(argv: list[str]) -> int:
    """Exit status 0."""
    return typer_verb.run("ps", ps, argv, examples=EXAMPLES)


def ps(
    every: Annotated[bool, typer.Option("--all", "-a", help="Also those that are over.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="Show so many at most.")
    ] = 200,
    as_json: Json = False,
) -> int:
    """Lists the service's sessions, the newest first."""
    found = client().call("GET", "/v1/sessions", query={"live": not every, "limit": limit})["sessions"]
    if as_json:
        show_json(found)
        return 0
    if not found:
        messages.show("no session lives; paddock run --supervised -- COMMAND starts one" if not every
                      else "there were no sessions yet")  # fmt: skip
        return 0
    messages.show("\n".join(table(found)))
    return 0


def table(sessions: list[dict[str, Any]]) -> list[str]:
    """Sessions as lines, a heading first."""
    rows = []
    for session in sessions:
        usage = session["usage"]
        rows.append((
            session["name"],
            session["state"],
            ago(session["created"]),
            f"{usage['cpu_percent']:.0f}%" if usage else "-",
            size(usage["memory"]) if usage else "-",
            cut(brief_ending(session), _ENDING) or "-",
            joined(session["command"]),
        ))  # fmt: skip
    widths = [max(len(row[column]) for row in (_HEADING, *rows)) for column in range(len(_HEADING) - 1)]
    room = max(_COMMAND, columns() - sum(widths) - 2 * len(widths))
    return tables.lines(_HEADING, [(*row[:-1], cut(row[-1], room)) for row in rows])
