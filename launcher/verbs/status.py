"""`paddock status`: how the service is."""

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
    lines = [
        f"service   {health['status']} for {ago(health['started'])}, process {health['pid']}, user {health['uid']}",
        f"sessions  {counts or 'none yet'}",
        f"helpers   {health['helpers']} ready",
        f"uses      {size(health['memory'])} of memory at most, {health['descriptors']} descriptors",
        f"groups    {health['groups'] or 'none: ' + health['groups_note']}",
        *(f"note      {note}" for note in health["notes"]),
    ]
    messages.show("\n".join(printable(line) for line in lines))
    return 0
