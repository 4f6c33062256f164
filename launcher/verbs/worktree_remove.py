"""`paddock worktree remove`."""

import json
from typing import Annotated

import typer

from launcher.verbs import typer_verb
from launcher.verbs.worktree_common import Json, Repository, service, start
from policy.errors import printable

EXAMPLES = (
    ("paddock worktree remove PROJ-17", "by ticket, branch, id or directory"),
    ("paddock worktree remove PROJ-17 --force", "with work that is nowhere else; a backup ref keeps it"),
    ("git show refs/paddock/backup/ID/TIME", "look at such a backup; ID and TIME are what remove printed"),
)


def remove(argv: list[str]) -> int:
    """Exit status 0 when it is gone, 125 when it is not."""
    return typer_verb.run("worktree remove", _remove, argv, examples=EXAMPLES)


def _remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Ticket, branch, id or directory.", show_default=False)],
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Also with work that is nowhere else, after a backup of it.")
    ] = False,
    keep_branch: Annotated[
        bool, typer.Option("--keep-branch", help="Keep the branch, though all its commits are elsewhere too.")
    ] = False,
    repository: Repository = None,
    as_json: Json = False,
) -> int:
    """Removes a worktree with its submodules and its private home.

    Refused while it holds uncommitted work, commits that were not harvested, or processes, while a session may write
    it, and while its directory is missing, because it may have been moved. A branch goes only when Paddock made it and
    all its commits are elsewhere too. Files that git ignores go without a question, and are named.
    """
    known = service(quiet=as_json)
    done = known.remove(known.find(start(repository), name), force=force, keep_branch=keep_branch)
    if as_json:
        pairs = {
            "backups": [{"git_dir": where, "ref": ref} for where, ref in done.backups],
            "branches_deleted": [{"git_dir": where, "branch": branch} for where, branch in done.branches_deleted],
            "refs_kept": [{"git_dir": where, "ref": ref} for where, ref in done.refs_kept],
            "stashes": [{"git_dir": where, "ref": ref} for where, ref in done.stashes],
            "branches_kept": [{"git_dir": where, "branch": branch} for where, branch in done.branches_kept],
        }
        head = {"worktree_id": done.worktree.worktree_id, "path": done.worktree.path}
        print(json.dumps({**head, **pairs, "ignored": done.ignored, "set_aside": done.set_aside}, indent=2))
        return 0
    print(f"removed {printable(done.worktree.path)}")
    for line in done.lines():
        print(f"  {printable(line)}")
    return 0
