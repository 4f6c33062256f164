"""Changed files at which git was told not to look: `git status` says nothing of them, and they are work all the same.

Users keep settings of their own in tracked files that way (git-update-index(1), ``--skip-worktree`` and
``--assume-unchanged``). Files that a sparse checkout leaves out have the same mark, and are not there.
"""

import os

from launcher.vcs import patience
from launcher.vcs.jailed_git import JailedGit
from launcher.vcs.quarantine.inside import Inside
from launcher.vcs.scratch import Scratch

_SKIPPED = b"S"
_GITLINK = b"160000"


def index(git: JailedGit) -> list[bytes]:
    """The entries of an index, as ``git ls-files -v --stage`` prints them."""
    return git.run("ls-files", "-v", "--stage", "-z").out.split(b"\0")


def gitlinks(entries: list[bytes]) -> list[bytes]:
    """Those of submodules, without the mark in front: as ``git ls-files --stage`` prints them."""
    return [entry[2:] for entry in entries if entry[2:9] == _GITLINK + b" "]


def changed(git: JailedGit, entries: list[bytes]) -> list[bytes]:
    """Such files that are there, and not as the index has them; paths relative to the work tree.

    Args:
        git: with a work tree.
        entries: of `index`.

    Raises:
        Refusal: worktree-obstructed.
        GitFailed: git failed.
    """
    unseen = b""
    with Inside(git.work_tree) as inside:
        for record in entries:
            mark, _, entry = record.partition(b" ")
            told, _, path = entry.partition(b"\t")
            if (mark == _SKIPPED or mark.islower()) and told[:6] != _GITLINK and inside.exists(os.fsdecode(path)):
                unseen += entry + b"\0"
    if not unseen:
        return []
    with Scratch() as scratch:
        own = {"GIT_INDEX_FILE": scratch.path("index")}
        git.repository.run("update-index", "-z", "--index-info", input=unseen, environment=own)
        patience.run(git, "update-index", "-q", "--refresh", ok=(0, 1), environment=own)
        names = git.run("diff-files", "--name-only", "-z", environment=own).out.split(b"\0")
    return [name for name in names if name]
