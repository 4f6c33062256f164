"""`paddock worktree add`: make a worktree for a ticket."""

import json
from typing import Annotated

import typer

from launcher.vcs.worktrees.request import Options
from launcher.verbs import typer_verb
from launcher.verbs.worktree_common import Json, Repository, document, service, start
from policy.errors import printable

EXAMPLES = (
    ("paddock worktree add PROJ-17", "a sibling directory on the new branch agent/PROJ-17, submodules too"),
    ("paddock worktree add fix --from origin/main --path ../fix", "another start, another place"),
    ("paddock worktree add PROJ-17 --branch agent/PROJ-17", "go on with a branch that exists"),
    ("paddock worktree add big --sparse src --sparse docs", "two directories (and the files at the top) only"),
    ("paddock worktree add PROJ-17 --copy .env --json", "with an untracked file of this worktree; say it as JSON"),
)
_FILTER = "Let this filter of your git configuration run (for git-lfs: lfs); none runs otherwise."
_COPY = "Copy untracked files that match, from this worktree; the agent can then read them."


def add(argv: list[str]) -> int:
    """Exit status 0 when it is made, 125 when not; then nothing is left of it."""
    return typer_verb.run("worktree add", _add, argv, examples=EXAMPLES)


def _add(
    ticket: Annotated[
        str,
        typer.Argument(
            metavar="TICKET",
            help="A name for the task; the directory and the branch are named after it.",
            show_default=False,
        ),
    ],
    branch: Annotated[
        str | None,
        typer.Option("--branch", "-b", metavar="NAME", help="Its branch (default: agent/TICKET, made anew)."),
    ] = None,
    start_at: Annotated[
        str | None, typer.Option("--from", metavar="COMMIT", help="The commit to start from (default: HEAD).")
    ] = None,
    path: Annotated[
        str | None, typer.Option("--path", metavar="DIR", help="Its directory (default: beside this worktree).")
    ] = None,
    submodule: Annotated[
        list[str] | None, typer.Option("--submodule", metavar="NAME", help="Populate only this submodule.")
    ] = None,
    no_submodules: Annotated[bool, typer.Option("--no-submodules", help="Leave all submodules empty.")] = False,
    copy: Annotated[list[str] | None, typer.Option("--copy", metavar="PATTERN", help=_COPY)] = None,
    sparse: Annotated[
        list[str] | None,
        typer.Option("--sparse", metavar="DIR", help="Check out only this directory, and the files at the top."),
    ] = None,
    filters: Annotated[list[str] | None, typer.Option("--filter", metavar="NAME", help=_FILTER)] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", min=1, max=64, help="How many processes write files.")
    ] = None,
    repository: Repository = None,
    as_json: Json = False,
) -> int:
    """Makes a worktree for TICKET beside this one, on a branch of its own, with a worktree for every submodule.

    No hook and no filter runs, and the network is not used. An agent started there is held to it:
    `cd` there, then `paddock run -- COMMAND`.
    """
    if submodule and no_submodules:
        raise typer.BadParameter("--submodule and --no-submodules exclude each other")
    options = Options(
        branch=branch,
        start=start_at,
        path=path,
        submodules=() if no_submodules else tuple(submodule) if submodule else None,
        copy=tuple(copy or ()),
        sparse=tuple(sparse) if sparse else None,
        filters=tuple(filters or ()),
        workers=workers,
    )
    made = service(quiet=as_json).add(start(repository), ticket, options)
    if as_json:
        print(json.dumps(document(made), indent=2))
        return 0
    print(f"{printable(made.path)} on branch {made.main.branch}, from {made.main.base[:12]}")
    for part in made.submodules:
        print(f"  submodule {printable(part.name)} on branch {part.branch}, from {part.base[:12]}")
    for left in made.unpopulated:
        print(f"  submodule {printable(left.name)} is empty: {left.why}")
    return 0
