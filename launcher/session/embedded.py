"""Repositories that a session has made inside its worktree.

Whoever runs git there, an editor included, obeys their configuration: a file system monitor, a pager, hooks. A bare one
needs no `.git` to be found (git-config(1), safe.bareRepository). What is made is known by the time of its last change,
which nobody can set back.

Not on the launch path: a walk over the worktree, at the end of sessions that lasted.
"""

import os

MOST_ENTRIES = 500_000
"""Entries of the worktree that are looked at; large trees of dependencies are part of it."""

_BARE = ("HEAD", "objects", "refs")


def made_since(root: str, known: frozenset[str], since: int) -> tuple[str, ...]:
    """Paths, relative to `root`, of git directories and pointers in the worktree that are newer than `since`.

    Args:
        root: canonical root of the worktree.
        known: roots of the worktree itself and of its submodules, whose own `.git` is none of these.
        since: nanoseconds since the epoch, by the file system's clock.

    Returns:
        Sorted; a bare repository is named by its directory. The last one is "..." when the tree is too large.
    """
    found: list[str] = []
    pending = [root]
    seen = 0
    while pending:
        here = pending.pop()
        names: set[str] = set()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    seen += 1
                    names.add(entry.name)
                    if entry.name == ".git":
                        if here not in known and _newer(entry.path, since):
                            found.append(entry.path)
                    elif entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except OSError:
            continue  # the command took its own rights away, and git's with them
        if names.issuperset(_BARE) and _newer(f"{here}/HEAD", since):
            found.append(here)
        if seen > MOST_ENTRIES:
            found.append(f"{root}/...")
            break
    return tuple(sorted(path[len(root) + 1 :] for path in found))


def _newer(path: str, since: int) -> bool:
    """Whether a file, or any of the first entries of a directory, changed after `since`."""
    try:
        entry = os.lstat(path)
        if entry.st_ctime_ns >= since:
            return True
        if entry.st_mode & 0o170000 != 0o040000:
            return False
        return any(
            os.lstat(f"{path}/{name}").st_ctime_ns >= since
            for name in ("config", "HEAD", "hooks", "commondir")
            if os.path.lexists(f"{path}/{name}")
        )
    except OSError:
        return True
