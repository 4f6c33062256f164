"""What the sub-commands of `paddock worktree` share: the service for this user, progress, JSON of a worktree."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from launcher.session import messages, places
from launcher.vcs import checkout
from launcher.vcs.disk import Present
from launcher.vcs.harvest.outstanding import waiting
from launcher.vcs.quarantine import record, swap
from launcher.vcs.worktrees import user_config
from launcher.vcs.worktrees.models import Worktree
from launcher.vcs.worktrees.naming import worktree_id
from launcher.vcs.worktrees.service import WorktreeService
from launcher.vcs.worktrees.store import WorktreeRepository
from policy.errors import Refusal, printable

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Repository = Annotated[
    str | None,
    typer.Option(
        "--repo", metavar="DIR", help="A worktree of the repository (default: the one around this directory)."
    ),
]


def service(*, quiet: bool = False) -> WorktreeService:
    """The service of this user; it says on standard error what takes time, unless `quiet`."""
    where = places.places(os.environ)
    state = places.made(where.state)
    user = user_config.read(where.home, os.path.dirname(where.config))

    def unharvested(root: Path) -> tuple[str, ...]:
        return waiting(record.directory_of(state, worktree_id(os.fspath(root))))

    def say(line: str) -> None:
        if not quiet and sys.stderr.isatty():
            messages.say(f"paddock: {printable(line)}")

    def warn(line: str) -> None:
        messages.say(f"paddock: warning: {printable(line)}")

    return WorktreeService(state, unharvested=unharvested, user=user, say=say, warn=warn)


def start(repository: str | None) -> str:
    """The directory from which the repository is found."""
    return os.path.abspath(repository) if repository is not None else places.current_directory()


def root_of(name: str, rows: list[Worktree]) -> str | None:
    """Root of the one worktree that a ticket, branch or id means; None when there is none.

    Raises:
        Refusal: worktree-ambiguous.
    """
    named = [row for row in rows if name in (row.worktree_id, row.ticket, row.main.branch)]
    if len(named) > 1:
        context = "\n".join(f"{row.worktree_id} in {row.path}" for row in named)
        raise Refusal("worktree-ambiguous", f"several worktrees are meant by {name}", context=context,
                      hint="name one by its directory")  # fmt: skip
    return named[0].path if named else None


def directory_named(word: str) -> str:
    """The absolute directory that `word` is, or else the root of the worktree that it names, here before elsewhere.

    Only Paddock's own list is asked: in a worktree that an agent has left, no git is to look at anything yet.

    Raises:
        Refusal: worktree-unknown: it is neither; worktree-ambiguous; cwd-unusable.
    """
    path = os.path.join(places.current_directory(), word)
    if "/" in word or os.path.lexists(path):
        return os.path.abspath(path)
    state = places.made(places.places(os.environ).state)
    rows = WorktreeRepository(state).all()
    root = root_of(word, _of_this_repository(rows, state)) or root_of(word, rows)
    if root is None:
        raise Refusal(
            "worktree-unknown",
            f"{word} is neither a directory here nor a worktree that Paddock knows",
            context="known: " + (", ".join(dict.fromkeys(row.ticket for row in rows)) or "none"),
            hint="paddock worktree list --all; or name the directory: paddock worktree ... ../DIR",
        )
    return root


def _of_this_repository(rows: list[Worktree], state: str) -> list[Worktree]:
    """Those of the repository that the current directory lies in, if it lies in one: a ticket there is meant first."""
    try:
        here = checkout.find(places.current_directory(), Present(swap.originals(state)), exact=False)
    except Refusal:
        return []  # in none, or in one that cannot be trusted
    return [row for row in rows if os.fspath(row.main.common_dir) == here.common_dir]


def document(worktree: Worktree) -> dict[str, Any]:
    """A worktree as JSON: what is kept of it, and the context that an agent in it works in."""
    kept = worktree.model_dump(mode="json", exclude={"staging"})
    return {"worktree_id": worktree.worktree_id, **kept, "context": worktree.context().model_dump(mode="json")}
