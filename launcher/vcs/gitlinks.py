"""Gitlinks in trees: where commits of submodules are recorded, and which (git-ls-tree(1))."""

import os
from collections.abc import Collection, Mapping

from launcher.vcs.git import Git

_MODE = b"160000"
_MOST_PATHS = 100
"""Paths up to which only these are looked at. There may be more in an agent's `.gitmodules` than execve(2) takes."""


def of_tree(
    git: Git, tree: str, paths: Collection[str] = (), environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The gitlinks of a tree at any depth: path -> commit.

    Args:
        git: on the repository.
        tree: names it, or a commit.
        paths: what is asked for; nothing for all. More may be found than that.
        environment: says where its objects are.

    Raises:
        GitFailed: git failed.
    """
    words = ("ls-tree", "-r", "-z", "--full-tree", tree, "--", *(paths if len(paths) <= _MOST_PATHS else ()))
    found: dict[str, str] = {}
    for entry in git.run(*words, environment=environment).out.split(b"\0"):
        info, _, path = entry.partition(b"\t")
        mode, _, oid = info.rpartition(b" ")
        if mode.startswith(_MODE):
            found[os.fsdecode(path)] = oid.decode("ascii")
    return found
