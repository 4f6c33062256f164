"""Trees in which commits of submodules are named by their signed counterparts.

Signing makes a submodule's commit anew, under another id, so what names it has to be made anew as well. Only gitlinks
that new commits have put are replaced; that nothing else differs is checked on the result.
Formats: "tree" in git-ls-tree(1) and git-mktree(1).
"""

import os
from collections.abc import Mapping

from launcher.vcs.git import Git
from launcher.vcs.gitlinks import of_tree
from policy.errors import Refusal

_GITLINK = b"160000"

Links = Mapping[str, Mapping[str, str]]
"""Path of a submodule -> (commit that is named there -> the one to name instead)."""


def retreed(git: Git, tree: str, links: Links, where: Mapping[str, str]) -> list[str]:
    """Makes a tree with other gitlinks.

    Args:
        git: on the trusted repository.
        tree: object id.
        links: what is to be replaced.
        where: names the quarantine, where new trees go.

    Returns:
        Object ids of all trees that were made, the whole last; [] when nothing is to be replaced.

    Raises:
        Refusal: harvest-sign.
        GitFailed: git failed.
    """
    changes: dict[bytes, bytes] = {}
    for path, oid in of_tree(git, tree, links, where).items():
        new = links.get(path, {}).get(oid)
        if new is not None:
            changes[os.fsencode(path)] = new.encode()
    if not changes:
        return []
    made = _made(git, tree, changes, where)
    _check(git, tree, made[-1], changes, where)
    return made


def _made(git: Git, tree: str, changes: Mapping[bytes, bytes], where: Mapping[str, str]) -> list[str]:
    """The trees of all directories that lead to a changed path, each behind those in it: they may be thousands deep."""
    parts = [path.split(b"/")[:-1] for path in changes]
    directories = {tuple(part[:length]) for part in parts for length in range(len(part) + 1)}
    new = dict(changes)
    made: list[str] = []
    for names in sorted(directories, key=len, reverse=True):
        directory = b"/".join(names)
        lines: list[bytes] = []
        listing = git.run("ls-tree", "-z", "--full-tree", f"{tree}:{os.fsdecode(directory)}", environment=where).out
        for entry in filter(None, listing.split(b"\0")):
            info, _, name = entry.partition(b"\t")
            mode, kind, oid = info.split(b" ")
            path = b"%s/%s" % (directory, name) if directory else name
            lines.append(b"%s %s %s\t%s\0" % (mode, kind, new.get(path, oid), name))
        new[directory] = git.run("mktree", "-z", input=b"".join(lines), environment=where).out.strip()
        made.append(new[directory].decode())
    return made


def _check(git: Git, old: str, new: str, changes: Mapping[bytes, bytes], where: Mapping[str, str]) -> None:
    words = ("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--ignore-submodules=none")
    fields = iter(git.run(*words, old, new, "--", environment=where).out.split(b"\0"))
    differing = {}
    for record in filter(None, fields):
        before, after, _, oid, _ = record[1:].split(b" ")
        differing[next(fields)] = oid if before == after == _GITLINK else b""
    if differing != changes:
        raise Refusal(
            "harvest-sign",
            f"the tree {old} cannot name signed commits of submodules, so nothing is taken over",
            context="git would write more of it anew: it has entries that git does not write",
            hint="paddock worktree harvest --no-sign",
        )
