"""`paddock providers`: the known agents, and what Paddock does for one of them."""

import json
import os
from typing import Annotated

import typer

from launcher.session import messages, places
from launcher.session import providers as known_providers
from launcher.verbs import table, typer_verb
from policy.errors import printable
from policy.providers.registry import SandboxTranslationRegistry
from policy.providers.strategy import DeclaredStrategy
from policy.providers.words import document, paragraphs

EXAMPLES = (
    ("paddock providers", "the known agents, with the commands that they are recognised by"),
    ("paddock providers codex", "what codex is told, what it may reach, which files it gets, what to know"),
    ("paddock providers --json", "all of them as JSON"),
)


def main(argv: list[str]) -> int:
    """Exit status 0; 125 when there is no such provider, or a file of one is wrong."""
    return typer_verb.run("providers", show, argv, examples=EXAMPLES)


def show(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Explain this one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Lists the known agents, or explains one: how it is recognised, what it is told, and what it may reach."""
    where = places.places(os.environ)
    known = known_providers.load(where)
    names = known.names() if name is None else (known.require(name).provider_name,)
    if as_json:
        rows = [document(known.require(one)) for one in names]
        messages.show(json.dumps(rows[0] if name is not None else rows, indent=2))
    elif name is not None:
        messages.show("\n".join(printable(line) for line in paragraphs(known.require(name))))
    else:
        _list(known)
        own = known_providers.own_directory(where)
        messages.show(f"\nyour own: {printable(str(own))}/*.toml; paddock providers NAME explains one")
    return 0


def _list(known: SandboxTranslationRegistry) -> None:
    rows = []
    for name in known.names():
        found = known.require(name)
        if isinstance(found, DeclaredStrategy):
            spec = found.spec
            shown = [word for word in (*spec.commands, *spec.adapters) if not word.startswith("@")]
            rows.append((name, spec.title, ", ".join(shown)))
        else:
            rows.append((name, "(a plug-in's own strategy)", ""))
    messages.show("\n".join(table.lines(("PROVIDER", "AGENT", "RECOGNISED BY"), rows)))
