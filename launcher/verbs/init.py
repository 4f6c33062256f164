"""`paddock init`: write a commented .paddock.toml at the root of the current worktree."""

import json
import os
from typing import Annotated

import typer

from launcher.session import configuration, places
from launcher.session.machine import Machine
from launcher.vcs import checkout
from launcher.verbs import typer_verb
from policy.errors import printable

EXAMPLES = (
    ("paddock init", "write .paddock.toml; an existing one is left as it is"),
    ("paddock init --force", "replace an existing one by the example"),
)


def main(argv: list[str]) -> int:
    """Exit status 0 when the file was written."""
    return typer_verb.run("init", init, argv, examples=EXAMPLES)


def init(
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Writes a commented .paddock.toml at the root of the current git worktree."""
    root = checkout.find(places.current_directory(), Machine(os.environ), exact=False).root
    path = configuration.write_example(root, force=force)
    if as_json:
        print(json.dumps({"path": path, "written": True}, indent=2))
        return 0
    print(f"wrote {printable(path)}; every rule in it is a comment, so nothing has changed yet")
    print("next: edit it, then `paddock explain --plan` shows the outcome")
    print("      `paddock trust .paddock.toml` accepts what loosens a rule")
    return 0
