"""The submodules of a commit, and where their objects are: read from the object stores, nothing is checked out."""

import os
from collections.abc import Iterator
from typing import NamedTuple

from launcher.vcs import gitlinks
from launcher.vcs.git import Git

NOT_GRANTED = "not granted"
_DEEPEST = 16


class Module(NamedTuple):
    """A submodule of a commit, nested ones too.

    Attributes:
        name: its name in `.gitmodules`; a nested one is ``outer/inner``.
        path: relative to the root of the outermost worktree.
        commit: what the gitlink names.
        common_dir: its store below the superproject's ``modules``.
        problem: why it cannot be checked out; empty when it can.
    """

    name: str
    path: str
    commit: str
    common_dir: str
    problem: str


def of_commit(git: Git, commit: str) -> list[Module]:
    """All submodules of a commit, each behind the one that it is nested in.

    What lies in `.gitmodules` may have been written by an agent: names that lead elsewhere are refused as git does
    (CVE-2018-11235), and only paths that really are gitlinks in the tree are taken.
    """
    return list(_of_commit(git, commit, "", "", 0))


def _of_commit(git: Git, commit: str, name_prefix: str, path_prefix: str, depth: int) -> Iterator[Module]:
    names = _names(git, commit)
    if not names:
        return
    for path, oid in sorted(gitlinks.of_tree(git, commit).items()):
        name = names.get(path)
        if name is None:
            continue  # a gitlink without a name is no submodule for git either
        common_dir = f"{git.common_dir}/modules/{name}"
        problem = _problem(name, common_dir, oid, depth)
        yield Module(name_prefix + name, path_prefix + path, oid, common_dir, problem)
        if not problem:
            yield from _of_commit(Git(common_dir), oid, f"{name_prefix}{name}/", f"{path_prefix}{path}/", depth + 1)


_MOST_KNOWN = 64
_known: dict[str, dict[str, str]] = {}
"""By commit: many worktrees begin with the same one."""


def _names(git: Git, commit: str) -> dict[str, str]:
    """path -> name, from the `.gitmodules` of a commit."""
    if commit not in _known:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[commit] = _read(git, commit)
    return _known[commit]


def _read(git: Git, commit: str) -> dict[str, str]:
    if git.run("cat-file", "-e", f"{commit}:.gitmodules", ok=(0, 128)).status:
        return {}
    words = ("config", "--null", "--list", f"--blob={commit}:.gitmodules")
    ended = git.run(*words, ok=(0, 3, 128))  # what git cannot parse names no submodule
    result: dict[str, str] = {}
    for entry in os.fsdecode(ended.out).split("\0"):
        key, _, value = entry.partition("\n")
        section, _, rest = key.partition(".")
        name, _, last = rest.rpartition(".")
        if section == "submodule" and last == "path" and name:
            result[value.rstrip("/")] = name
    return result


def _problem(name: str, common_dir: str, commit: str, depth: int) -> str:
    parts = name.split("/")
    if ".." in parts or name.startswith(("/", "-")) or not name.isprintable() or ".git" in (p.lower() for p in parts):
        return "its name in .gitmodules leads elsewhere"
    if depth >= _DEEPEST:
        return f"it is nested more than {_DEEPEST} deep"
    if not os.path.isdir(f"{common_dir}/objects"):
        return "it was never fetched here (git submodule update --init --recursive, in the main checkout)"
    known = not os.path.islink(common_dir)
    if not known or Git(common_dir).run("cat-file", "-e", f"{commit}^{{commit}}", ok=(0, 1, 128)).status:
        return f"its commit {commit[:12]} was never fetched here (git submodule update, in the main checkout)"
    return ""
