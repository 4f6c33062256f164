"""What the sub-commands of `paddock worktree` share: the service for this user, progress, JSON of a worktree."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from launcher.session import messages, places
from launcher.vcs.harvest import ending
from launcher.vcs.quarantine import record
from launcher.vcs.worktrees import user_config
from launcher.vcs.worktrees.models import Worktree
from launcher.vcs.worktrees.naming import worktree_id
from launcher.vcs.worktrees.service import WorktreeService
from policy.errors import printable

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

    def unharvested(root: Path) -> bool:
        return ending.due(record.directory_of(state, worktree_id(os.fspath(root))))

    def say(line: str) -> None:
        if not quiet and sys.stderr.isatty():
            messages.say(f"paddock: {printable(line)}")

    return WorktreeService(state, unharvested=unharvested, user=user, say=say)


def start(repository: str | None) -> str:
    """The directory from which the repository is found."""
    return os.path.abspath(repository) if repository is not None else places.current_directory()


def document(worktree: Worktree) -> dict[str, Any]:
    """A worktree as JSON: what is kept of it, and the context that an agent in it works in."""
    kept = worktree.model_dump(mode="json", exclude={"staging"})
    return {"worktree_id": worktree.worktree_id, **kept, "context": worktree.context().model_dump(mode="json")}
