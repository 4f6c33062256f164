"""`paddock tickets`: many tickets, each in a worktree of its own, merged at the end."""

import os
import signal
from typing import Annotated, Any
from urllib.parse import quote

import typer

from launcher.service.client import Client
from launcher.session import messages, places
from launcher.verbs import help_page, session_request, table, tickets_file, typer_verb
from launcher.verbs.service_common import Json, ago, client, counted, show_json
from launcher.verbs.tickets_told import described
from policy.errors import EXIT_REFUSED, printable

RUN_EXAMPLES = (
    ("paddock tickets run tickets.toml", "worktrees, agents, merge; waits for the end"),
    ("paddock tickets run tickets.toml --parallel 8 --no-merge", "eight at the same time; their branches stay"),
    ("paddock tickets run tickets.toml --json", "what the service says of it, with the merge's aggregation"),
)
LIST_EXAMPLES = (("paddock tickets list", "runs, the newest first"),)
SHOW_EXAMPLES = (("paddock tickets show run-1a2b", "what became of its tickets"),)
STOP_EXAMPLES = (("paddock tickets stop run-1a2b", "end its agents, merge nothing"),)
EXAMPLES = (RUN_EXAMPLES[0], *LIST_EXAMPLES, *SHOW_EXAMPLES, *STOP_EXAMPLES)
SUBCOMMANDS: dict[str, tuple[str, tuple[tuple[str, str], ...], str]] = {
    # name -> (its function here, its examples, summary)
    "run": ("run", RUN_EXAMPLES, "make worktrees, run the agents, merge what they commit"),
    "list": ("list_runs", LIST_EXAMPLES, "list the runs, the newest first"),
    "show": ("show", SHOW_EXAMPLES, "show what became of a run's tickets, and what to do next"),
    "stop": ("stop", STOP_EXAMPLES, "end a run's agents, and merge nothing"),
}
_WAIT = 300
_LOOK = 5
"""Seconds of one look at a run that is followed: a signal that comes right before one is answered after it."""


def main(argv: list[str]) -> int:
    """Exit status 0 when all went well; 1 when an agent failed, or its work conflicts."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        known = {name: summary for name, (_, _, summary) in SUBCOMMANDS.items()}
        about = "Many tickets, each in a worktree of its own, merged at the end. The service must run: paddock serve."
        print(help_page.of_subcommands("tickets", about, known, EXAMPLES))
        return 0 if argv else EXIT_REFUSED
    if argv[0] not in SUBCOMMANDS:
        raise help_page.unknown_subcommand("tickets", argv[0], tuple(SUBCOMMANDS))
    function, examples, _ = SUBCOMMANDS[argv[0]]
    return typer_verb.run(f"tickets {argv[0]}", globals()[function], argv[1:], examples=examples)


def run(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The tickets, as TOML or JSON.", show_default=False)],
    repository: Annotated[
        str | None,
        typer.Option("--repo", metavar="DIR", help="The worktree to begin with and to merge into (default: this one)."),
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=256, help="How many agents work at the same time.")
    ] = None,
    no_merge: Annotated[bool, typer.Option("--no-merge", help="Leave their work on their branches.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep worktrees that are merged and hold nothing else (else removed).")
    ] = False,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the run.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for its end.")] = False,
    as_json: Json = False,
) -> int:
    """Makes a worktree for each ticket of FILE, runs its command there in a jail, and merges what was committed.

    FILE has `goal` and, for each ticket, a table `[[tickets]]` with `ticket`, `command` (a list of words), `details`
    and `options` (of `paddock run`). All of it is checked before anything is made, except a command that lies in the
    worktree itself (./test.sh). Worktrees whose work is merged are removed when nothing in them would be lost; their
    branches stay. Ctrl-C stops the run: its agents end, nothing is merged, and what became of each is told. The service
    must run: paddock serve.
    """
    body = tickets_file.read(file)
    named = repository or body.get("repository") or places.current_directory()
    body["repository"] = os.path.abspath(named) if isinstance(named, str) else named
    body.setdefault("environment", session_request.environment())
    for key, value in (("parallel", parallel), ("name", name)):
        if value is not None:
            body[key] = value
    if no_merge:
        body["merge"] = False
    if keep:
        body["remove"] = False
    tickets_file.check(file, body)
    service = client()
    found = service.call("POST", "/v1/ticket-runs", body)
    if not detach:
        if not as_json:
            messages.say(f"paddock: ticket run {found['name']}: {counted(len(found['tickets']), 'ticket', 'tickets')}")
        found, status = _followed(service, found)
        if status:
            _told(found, as_json=as_json)
            return status
    _told(found, as_json=as_json)
    return 0 if found["state"] == "ended" or detach else 1


def _followed(service: Client, found: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """A run at its end, and 128+N when signal N came before: Ctrl-C and SIGTERM stop it, a second one leaves it."""
    came: list[int] = []

    def ask(number: int, _: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    path = f"/v1/ticket-runs/{found['name']}"
    try:
        while found["ended"] is None:
            found = service.call("GET", path, query={"wait": _LOOK})
    except KeyboardInterrupt:
        for number in before:
            signal.signal(number, signal.SIG_DFL)
        messages.say(f"paddock: ticket run {found['name']} is stopped: its agents end, and nothing is merged")
        service.call("POST", f"{path}/stop")
        while found["ended"] is None:
            found = service.call("GET", path, query={"wait": _WAIT})
        return found, 128 + came[0]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return found, 0


def list_runs(as_json: Json = False) -> int:
    """Lists ticket runs, the newest first."""
    runs = client().call("GET", "/v1/ticket-runs")["ticket_runs"]
    if as_json:
        show_json(runs)
    elif not runs:
        messages.show("there were no ticket runs yet; paddock tickets run FILE starts one")
    else:
        rows = [(each["name"], each["state"], ago(each["created"]), len(each["tickets"])) for each in runs]
        messages.show("\n".join(table.lines(("RUN", "STATE", "AGE", "TICKETS"), rows)))
    return 0


def show(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Its name.", show_default=False)], as_json: Json = False
) -> int:
    """Shows what became of each ticket of a run, where its worktree is, what comes next, and how to undo the merge."""
    return _told(client().call("GET", f"/v1/ticket-runs/{quote(name, safe='')}"), as_json=as_json)


def _told(found: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        show_json(found)
    else:
        messages.show("\n".join(printable(line) for line in described(found)))
    return 0


def stop(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.", show_default=False)],
    as_json: Json = False,
) -> int:
    """Stops a ticket run: its agents end, nothing is merged."""
    service = client()
    service.call("POST", f"/v1/ticket-runs/{quote(name, safe='')}/stop")
    found = service.call("GET", f"/v1/ticket-runs/{quote(name, safe='')}", query={"wait": _WAIT})
    return _told(found, as_json=as_json)
