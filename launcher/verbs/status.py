"""`paddock status`: how the service is."""

from typing import Any

from launcher.session import messages
from launcher.verbs import typer_verb
from launcher.verbs.service_common import Json, ago, client, show_json, size
from policy.errors import printable

EXAMPLES = (
    ("paddock status", "whether it runs, since when, with how many sessions"),
    ("paddock status --json", "for programmes; with its settings"),
)


def main(argv: list[str]) -> int:
    """Exit status 0 when it answers, 125 when nobody does."""
    return typer_verb.run("status", status, argv, examples=EXAMPLES)


def status(as_json: Json = False) -> int:
    """Shows how the service of this user is doing."""
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
        f"{bounds['most_merges']} of each at most; work that no branch has: {bounds['lost_days']:g} days"
    )


def _remembered(health: dict[str, Any]) -> str:
    """Ticket runs and contexts, with their bounds."""
    known, bounds = health["remembered"], health["settings"]
    days = f"{bounds['keep_seconds'] / 86_400:g} days"
    return (
        f"{known['ticket_runs']} of {bounds['most_ticket_records']} ticket runs, "
        f"{known['contexts']} of {bounds['most_contexts']} contexts, for {days} at most"
    )
