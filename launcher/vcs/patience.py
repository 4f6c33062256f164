"""Git on files that an agent may have written: a name at which it would wait for ever is found soon.

Git opens every `.gitignore` and `.gitattributes` there is, a FIFO too (no other side ever writes into it), and would
wait until its time is over. Looking for one before each command would double the reading of directories, so it is
looked for when git takes long.
"""

import os
import stat
from collections.abc import Iterable, Mapping

from launcher.safefs import walk
from launcher.vcs.git import Completed, GitFailed
from launcher.vcs.jailed_git import JailedGit
from policy.errors import Refusal
from policy.pasted import quoted

SOON = 3.0
"""Seconds that git is given before it is asked why. Most worktrees need a hundredth of it."""

_OPENED = frozenset({".gitattributes", ".gitignore", ".gitmodules"})


def run(
    git: JailedGit, *words: str, ok: Iterable[int] = (0,), environment: Mapping[str, str] | None = None
) -> Completed:
    """Runs a command that only reads, or may be repeated all the same.

    Args:
        git: with a work tree.
        words: the command.
        ok: as for `Git.run`.
        environment: as for `Git.run`.

    Raises:
        Refusal: worktree-obstructed.
        GitFailed: as `Git.run`.
    """
    try:
        return git.run(*words, ok=ok, environment=environment, timeout=min(SOON, git.timeout))
    except GitFailed as failure:
        if failure.reference != "git-timeout":
            raise
    check(git.work_tree)
    index = (environment or {}).get("GIT_INDEX_FILE")
    if index is not None and os.path.lexists(f"{index}.lock"):
        os.unlink(f"{index}.lock")
    return git.run(*words, ok=ok, environment=environment)


def check(root: str) -> None:
    """Refuses (worktree-obstructed) a tree with something that git would wait for.

    Args:
        root: absolute; no link below it is followed.
    """
    found = _obstacle(root)
    if found is not None:
        raise Refusal(
            "worktree-obstructed",
            f"git would wait for ever in {root}",
            context=f"{found} is neither a file nor a directory, and git reads from what has that name",
            hint=f"rm {quoted(found)}",
        )


def _obstacle(root: str) -> str | None:
    # What is closed to us is to git, too.
    found = walk.files(root, lambda name: name == ".git")
    opened = (f"{root}/{path}" for path, entry in found if entry.name in _OPENED)
    return next(filter(_waits, opened), None)


def _waits(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode  # git follows a link to `.gitmodules`
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)
