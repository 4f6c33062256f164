"""`paddock tickets`: many tickets, each in a worktree of its own, merged at the end."""

import json
import os
import signal
import time
from typing import Annotated, Any

import typer

from launcher.service.client import Client, run_path
from launcher.service.ticket_models import OnConflict
from launcher.session import messages, places
from launcher.verbs import help_page, session_request, table, tickets_file, typer_verb
from launcher.verbs.service_common import Json, ago, client, counted, show_json
from launcher.verbs.tickets_told import described, described_progress
from policy.errors import EXIT_REFUSED, printable

RUN_EXAMPLES = (
    ("paddock tickets run tickets.toml", "worktrees, agents, merge; waits for the end"),
    ("paddock tickets run tickets.toml --parallel 8 --no-merge", "eight at the same time; their branches stay"),
    ("paddock tickets run tickets.toml --json", "what the service says of it, with the merge's aggregation"),
)
LIST_EXAMPLES = (("paddock tickets list", "runs, the newest first"),)
SHOW_EXAMPLES = (("paddock tickets show run-1a2b", "what became of its tickets"),)
RESUME_EXAMPLES = (
    ("paddock tickets resume run-1a2b", "start agents again that did not end well, then merge"),
    ("paddock tickets resume run-1a2b --on-conflict skip", "merge what merges, and report who conflicts"),
)
STOP_EXAMPLES = (("paddock tickets stop run-1a2b", "end its agents, merge nothing"),)
EXAMPLES = (RUN_EXAMPLES[0], RESUME_EXAMPLES[0], *LIST_EXAMPLES, *SHOW_EXAMPLES, *STOP_EXAMPLES)
Conflict = Annotated[
    OnConflict | None,
    typer.Option("--on-conflict", help="A ticket that conflicts: stop merging there, or skip it (default: stop)."),
]
Detach = Annotated[bool, typer.Option("--detach", help="Do not wait for its end.")]
Lines = Annotated[bool, typer.Option("--json", help="Print JSON, one line for each step; the last one is the result.")]
SUBCOMMANDS: dict[str, tuple[str, tuple[tuple[str, str], ...], str]] = {
    # name -> (its function here, its examples, summary)
    "run": ("run", RUN_EXAMPLES, "make worktrees, run the agents, merge what they commit"),
    "resume": ("resume", RESUME_EXAMPLES, "go on with a run that was interrupted, or did not end well"),
    "list": ("list_runs", LIST_EXAMPLES, "list the runs, the newest first"),
    "show": ("show", SHOW_EXAMPLES, "show what became of a run's tickets, and what to do next"),
    "stop": ("stop", STOP_EXAMPLES, "end a run's agents, and merge nothing"),
}
_WAIT = 300
_LOOK = 5
"""Seconds of one look at a run that is followed: a signal that comes right before one is answered after it."""
_BETWEEN = 10
"""Seconds between two lines on the progress of a run, where they are not written over each other."""


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
    on_conflict: Conflict = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop a ticket's agent after so long (default: never).")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the run.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="The same file with the same key is one run.")
    ] = None,
    detach: Detach = False,
    as_json: Lines = False,
) -> int:
    """Makes a worktree for each ticket of FILE, runs its command there in a jail, and merges what was committed.

    FILE has `goal` and, for each ticket, a table `[[tickets]]` with `ticket`, `command` (a list of words), `details`,
    `options` (of `paddock run`) and `timeout` (seconds). All of it is checked before anything is made, except a command
    that lies in the worktree itself (./test.sh). Worktrees whose work is merged are removed when nothing in them would
    be lost; their branches stay. Ctrl-C stops the run: its agents end, nothing is merged, and what became of each is
    told. A run that was stopped or that failed goes on with paddock tickets resume. The service must run: paddock
    serve.
    """
    body = tickets_file.read(file)
    named = repository or body.get("repository") or places.current_directory()
    body["repository"] = os.path.abspath(named) if isinstance(named, str) else named
    body.setdefault("environment", session_request.environment())
    given = {"parallel": parallel, "name": name, "on_conflict": on_conflict, "timeout": timeout}
    body |= {field: value for field, value in given.items() if value is not None}
    if no_merge:
        body["merge"] = False
    if keep:
        body["remove"] = False
    tickets_file.check(file, body)
    service = client()
    found = service.call("POST", "/v1/ticket-runs", body, headers={"Idempotency-Key": key} if key else None)
    return _to_its_end(service, found, detach=detach, as_json=as_json)


def resume(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.", show_default=False)],
    on_conflict: Conflict = None,
    detach: Detach = False,
    as_json: Lines = False,
) -> int:
    """Goes on with a run that was stopped, failed, conflicts or was cut off, from where it was.

    Worktrees that are there are used; agents that ended well are not started again, those whose session lives are
    awaited; then what is not in the trunk yet is merged. A run that is under way is followed.
    """
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
        messages.show(json.dumps({"event": "end", **found}))
    else:
        _told(found, as_json=as_json)
    return status or (0 if found["state"] == "ended" or detach else 1)


class Progress:
    """Tells how far a run is: one line that is written over at a terminal, else a line when it has changed.

    Args:
        as_json: one JSON object for each step of a ticket and of the run instead.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json
        self._here = os.isatty(2) and not as_json
        self._told: dict[str, str] = {}
        self._line = ""
        self._next = 0.0

    def show(self, found: dict[str, Any]) -> None:
        """Tells of what has changed since the last call."""
        states = {"": found["state"]} | {each["ticket"]: each["state"] for each in found["steps"]}
        moved = {name: state for name, state in states.items() if self._told.get(name) != state}
        self._told = states
        if self._json:
            for name, state in moved.items():
                about = {"ticket": name} if name else {}
                event = {"event": "ticket" if name else "run", "run": found["name"], **about, "state": state}
                messages.show(json.dumps(event))
            return
        line = described_progress(found)
        if line == self._line or (not self._here and time.monotonic() < self._next and "" not in moved):
            return
        self._line, self._next = line, time.monotonic() + _BETWEEN
        if self._here:
            messages.say(f"\r\033[K{printable(line)}", end="")
        else:
            messages.say(f"paddock: {printable(line)}")

    def end(self) -> None:
        """Leaves the terminal's line free."""
        if self._here and self._line:
            messages.say("\r\033[K", end="")


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
    return _told(client().call("GET", run_path(name)), as_json=as_json)


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
    service.call("POST", run_path(name, "stop"))
    found = service.call("GET", run_path(name), query={"wait": _WAIT})
    return _told(found, as_json=as_json)
