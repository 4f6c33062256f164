"""`paddock worktree adopt` and `paddock worktree repair`."""

import json
from typing import Annotated

import typer

from launcher.verbs import typer_verb
from launcher.verbs.worktree_common import Json, document, service, start
from policy.errors import printable

ADOPT_EXAMPLES = (("paddock worktree adopt ../topic --ticket PROJ-18", "one that `git worktree add` made"),)
REPAIR_EXAMPLES = (
    ("paddock worktree repair", "of the repository around this directory"),
    ("paddock worktree repair ../moved", "one that was moved by hand"),
)


def adopt(argv: list[str]) -> int:
    """Exit status 0 when it is known from now on."""
    return typer_verb.run("worktree adopt", _adopt, argv, examples=ADOPT_EXAMPLES)


def repair(argv: list[str]) -> int:
    """Exit status 0."""
    return typer_verb.run("worktree repair", _repair, argv, examples=REPAIR_EXAMPLES)


def _adopt(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Root of the worktree.", show_default=False)],
    ticket: Annotated[
        str | None, typer.Option("--ticket", metavar="TICKET", help="A name for its task (default: the directory's).")
    ] = None,
    as_json: Json = False,
) -> int:
    """Takes on a linked worktree that git made, with its submodules. Its branch will never be deleted with it."""
    adopted = service(quiet=as_json).adopt(start(directory), ticket)
    print(json.dumps(document(adopted), indent=2) if as_json else f"adopted {printable(adopted.path)}")
    return 0


def _repair(
    directory: Annotated[
        str | None, typer.Argument(metavar="[DIR]", help="Inside the repository, or moved by hand.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> int:
    """Brings what Paddock knows together with what git says: finishes or undoes what a crash left, follows moves.

    A worktree whose directory is missing stays known, with everything that git keeps of it: if it was moved, name its
    new DIR; if it is gone for good, `paddock worktree remove --force`. Every command does the first part by itself.
    """
    done = service(quiet=as_json).repair(start(directory))
    if as_json:
        print(json.dumps({"done": done}, indent=2))
        return 0
    for line in done or ["nothing to do"]:
        print(printable(line))
    return 0
