"""`paddock explain`: the Plan in words, or what it says about one path."""

import json
import os

from launcher import cli
from launcher.session import messages, places, planning
from launcher.verbs import question
from policy import verdict
from policy.derive import canonical_form
from policy.errors import printable

SYNOPSIS = "[PATH | --plan] [options] [-- COMMAND [ARGUMENT]...]"
EXTRA = (
    ("--plan", cli.FLAG, "", "show the whole plan (default without PATH)"),
    ("--json", cli.FLAG, "", "print JSON"),
)
EXAMPLES = (
    ("paddock explain ~/.ssh/id_ed25519", "why it cannot be read, and what would allow it"),
    ("paddock explain --rw ../shared ../shared/notes.md", "what changes with one more option"),
    ("paddock explain --plan --provider codex -- codex", "everything that is decided for a launch"),
)
STATUSES = "Exit status: 0; with PATH, 1 when nothing is allowed there; 125 when paddock refused or failed."


def main(argv: list[str]) -> int:
    """Prints the plan, or the verdict on a path (exit status 0 if anything is allowed there, else 1)."""
    options, path, command = question.parse(argv, EXTRA, verb="explain", one="PATH, or --plan")
    if "--help" in options:
        print(question.page("explain", SYNOPSIS, EXAMPLES, EXTRA, STATUSES))
        return 0
    if path == "":
        raise cli.usage("PATH is empty", "explain")
    if path is not None and "--plan" in options:
        raise cli.usage("explain takes one PATH, or --plan", "explain")
    cwd = places.current_directory()
    if path is None:
        planned = planning.make(options, command, cwd, places.places(os.environ))
        if "--json" in options:
            messages.show(json.dumps(dict(zip(planned.plan.FIELDS, planned.plan.to_data(), strict=True)), indent=2))
        else:
            messages.show("\n".join(printable(line) for line in question.plan_lines(planned.plan)))
        return 0
    planned, refused = question.planned(options, command, cwd)
    canonical = canonical_form(os.path.join(cwd, path), planned.machine)
    found = question.grantable(verdict.decide(planned.plan, canonical), planned.machine)
    if "--json" in options:
        messages.show(json.dumps({**_as_dict(path, found), **question.refused(refused)}, indent=2))
    else:
        messages.show("\n".join(printable(line) for line in (*found.describe(), *question.told(refused))))
    return 0 if found.access else 1


def _as_dict(asked: str, found: verdict.Verdict) -> dict[str, object]:
    return {
        "asked": asked,
        "path": found.path,
        "allowed": [verdict.NAMES[letter] for letter in found.access],
        "rules": [{"path": path, "access": access, "source": source} for path, access, source in found.rules],
        "limits": [{"path": path, "kind": kind, "source": source} for path, kind, source in found.limits],
        "hint": found.hint,
        "risk": found.risk,
    }
