"""What a session has made deep inside its worktree: repositories, and hand-off files in whatever directory.

Whoever runs git there, an editor included, obeys a repository's configuration: a file system monitor, a pager, hooks. A
bare one needs no `.git` to be found (git-config(1), safe.bareRepository). Tools look for their files where they are
started. What is made is known by the time of its last change, which nobody can set back.

Not on the launch path: a walk over the worktree, at the end of sessions that lasted.
"""

import os

from launcher.session.nested import BARE, BORROWING
from policy.handoff import PROTECT, Patterns

MOST_ENTRIES = 500_000
"""Entries of the worktree that are looked at; large trees of dependencies are part of it."""

_OBEYED = ("HEAD", "config", "config.worktree", "commondir", "gitdir")
"""Files of a git directory that say what git executes there, or where to look (gitrepository-layout(5))."""

_OBEYED_BELOW = ("hooks", "info")
_FURTHER = ("modules", "worktrees")
_DEPENDENCIES = frozenset({"node_modules", "site-packages"})
"""Trees of packages, full of files of all kinds that nobody goes to; for hand-off files they are left out."""
_PLAIN, _BEGUN, _PACKAGES = range(3)
"""Kinds of directories: below one with which a pattern begins, each file may be one that it is about."""
_MOST_BELOW = 10_000


def made_since(
    root: str, known: frozenset[str], since: int, patterns: Patterns, compared: frozenset[str]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Paths, relative to `root`, of what is newer than `since`.

    Args:
        root: canonical root of the worktree.
        known: roots of the worktree itself and of its submodules, whose own `.git` is none of these.
        since: nanoseconds since the epoch, by the file system's clock.
        patterns: of hand-off files.
        compared: `.git` and bare repositories of which the caller knows what has changed.

    Returns:
        Git directories and pointers, and files that a pattern protects in whatever directory; both sorted. A bare
        repository is named by its directory, and so is a directory that cannot be looked into since then. The last one
        is "..." when the tree is too large. Then the paths of all repositories that nobody knows, old ones too.
    """
    repositories: list[str] = []
    files: list[str] = []
    unknown: list[str] = []
    pending = [(root, _PLAIN)]
    seen = 0
    while pending:
        here, kind = pending.pop()
        names: set[str] = set()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    seen += 1
                    names.add(entry.name)
                    if entry.name == ".git":
                        if here not in known and entry.path not in compared:
                            unknown.append(entry.path)
                            if _newer(entry.path, since):
                                repositories.append(entry.path)
                        continue
                    begun = kind == _BEGUN or (kind == _PLAIN and patterns.begins(entry.name))
                    if entry.is_dir(follow_symlinks=False):
                        below = _PACKAGES if kind == _PACKAGES or entry.name in _DEPENDENCIES else int(begun)
                        pending.append((entry.path, below))
                    elif begun and _changed(entry.path, since):
                        path = entry.path[len(root) + 1 :]
                        # A link may stand for a whole directory of them.
                        if patterns.mode(path) == PROTECT or entry.is_symlink():
                            files.append(path)
        except OSError:
            # Whoever may not list a directory can still enter it, and git does; its rights are the command's doing.
            if _changed(here, since):
                repositories.append(here)
            continue
        if (names >= BARE or names >= BORROWING) and here not in compared:
            unknown.append(here)
            if _newer(here, since):
                repositories.append(here)
        if seen > MOST_ENTRIES:
            repositories.append(f"{root}/...")
            break
    made = sorted(path[len(root) + 1 :] for path in repositories)
    return tuple(made), tuple(sorted(files)), tuple(sorted(unknown))


def _changed(path: str, since: int) -> bool:
    try:
        return os.lstat(path).st_ctime_ns >= since
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _newer(path: str, since: int) -> bool:
    """Whether a pointer, or what git obeys in a git directory or in one that lies in it, changed after `since`."""
    if _changed(path, since):
        return True
    pending, looked = [path], 0
    try:
        while pending:
            here = pending.pop()
            if any(_changed(f"{here}/{name}", since) for name in _OBEYED):
                return True
            for name in (*_OBEYED_BELOW, *_FURTHER):
                try:
                    below = [f"{here}/{name}/{entry}" for entry in os.listdir(f"{here}/{name}")]
                except (FileNotFoundError, NotADirectoryError):
                    continue
                looked += len(below)
                if looked > _MOST_BELOW or any(_changed(entry, since) for entry in below):
                    return True
                if name in _FURTHER:
                    # A submodule's name may have slashes: what lies between is looked at as if it were one.
                    pending += [entry for entry in below if os.path.isdir(entry) and not os.path.islink(entry)]
            if here != path and not os.path.lexists(f"{here}/HEAD"):
                deeper = [f"{here}/{entry}" for entry in os.listdir(here)]
                looked += len(deeper)
                pending += [entry for entry in deeper if os.path.isdir(entry) and not os.path.islink(entry)]
    except OSError:
        return True
    return looked > _MOST_BELOW
