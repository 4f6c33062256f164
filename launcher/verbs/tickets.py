"""`paddock tickets`: many tickets, each in a worktree of its own, merged at the end."""

import json
import os
import tomllib
from typing import Annotated, Any

import typer

from launcher.session import messages, places
from launcher.verbs import help_page, typer_verb
from launcher.verbs.service_common import Json, ago, client, show_json
from policy.errors import EXIT_REFUSED, Refusal, printable

RUN_EXAMPLES = (
    ("paddock tickets run tickets.toml", "worktrees, agents, merge; waits for the end"),
    ("paddock tickets run tickets.toml --parallel 8 --no-merge", "eight at the same time; their branches stay"),
    ("paddock tickets run tickets.toml --json", "what the service says of it, with the merge's aggregation"),
)
LIST_EXAMPLES = (("paddock tickets list", "runs, the newest first"),)
STOP_EXAMPLES = (("paddock tickets stop run-1a2b", "end its agents, merge nothing"),)
EXAMPLES = (RUN_EXAMPLES[0], *LIST_EXAMPLES, *STOP_EXAMPLES)
SUBCOMMANDS: dict[str, tuple[str, tuple[tuple[str, str], ...], str]] = {
    # name -> (its function here, its examples, summary)
    "run": ("run", RUN_EXAMPLES, "make worktrees, run the agents, merge what they commit"),
    "list": ("list_runs", LIST_EXAMPLES, "list the runs, the newest first"),
    "stop": ("stop", STOP_EXAMPLES, "end a run's agents, and merge nothing"),
}
_WAIT = 300
_MOST_BYTES = 4 << 20


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
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the run.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for its end.")] = False,
    as_json: Json = False,
) -> int:
    """Makes a worktree for each ticket of FILE, runs its command there in a jail, and merges what was committed.

    FILE has `goal` and, for each ticket, a table `[[tickets]]` with `ticket`, `command` (a list of words), `details`
    and `options` (of `paddock run`). The service must run: paddock serve.
    """
    body = _read(file)
    body["repository"] = os.path.abspath(repository or body.get("repository") or places.current_directory())
    body.setdefault("environment", dict(os.environ))
    for key, value in (("parallel", parallel), ("name", name)):
        if value is not None:
            body[key] = value
    if no_merge:
        body["merge"] = False
    service = client()
    found = service.call("POST", "/v1/ticket-runs", body)
    if not detach:
        if not as_json:
            messages.say(f"paddock: ticket run {found['name']}: {len(found['tickets'])} tickets")
        while found["ended"] is None:
            found = service.call("GET", f"/v1/ticket-runs/{found['name']}", query={"wait": _WAIT})
    if as_json:
        show_json(found)
    else:
        messages.show("\n".join(printable(line) for line in described(found)))
    return 0 if found["state"] == "ended" or detach else 1


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES).decode()
        content = json.loads(text) if path.endswith(".json") else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise Refusal("tickets-unreadable", f"{path} cannot be read", context=str(error),
                      hint="paddock tickets run --help says what is in it") from None  # fmt: skip
    if not isinstance(content, dict):
        raise Refusal("tickets-unreadable", f"{path} holds no table", hint="paddock tickets run --help")
    return content


def described(found: dict[str, Any]) -> list[str]:
    """A run as lines."""
    lines = [f"{found['name']}  {found['state']}"]
    result = found["result"] or {}
    for agent in result.get("agents", ()):
        status = "" if agent["status"] is None else f" ({agent['status']})"
        lines.append(f"  {agent['ticket']:<20} {agent['reason']}{status}  {agent['worktree']}")
    lines += [f"  {line}" for line in result.get("summary", "").splitlines()]
    if refusal := result.get("refusal"):
        lines.append(f"  {refusal['message']} [{refusal['errorType']}]")
        lines += [f"    {line}" for line in refusal["context"].splitlines()]
    return lines


def list_runs(as_json: Json = False) -> int:
    """Lists ticket runs, the newest first."""
    runs = client().call("GET", "/v1/ticket-runs")["ticket_runs"]
    if as_json:
        show_json(runs)
    elif not runs:
        messages.show("there were no ticket runs yet")
    else:
        messages.show("\n".join(
            printable(f"{each['name']}  {each['state']:<9}  {ago(each['created']):>6}  {len(each['tickets'])} tickets")
            for each in runs
        ))  # fmt: skip
    return 0


def stop(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.", show_default=False)],
    as_json: Json = False,
) -> int:
    """Stops a ticket run: its agents end, nothing is merged."""
    service = client()
    service.call("POST", f"/v1/ticket-runs/{name}/stop")
    found = service.call("GET", f"/v1/ticket-runs/{name}", query={"wait": _WAIT})
    if as_json:
        show_json(found)
    else:
        messages.show("\n".join(printable(line) for line in described(found)))
    return 0
