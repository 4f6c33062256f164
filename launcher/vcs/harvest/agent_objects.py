"""A look at an agent's object directory before git reads it, even in a jail: plain files and directories only.

Git opens what bears an object's name. A FIFO in its place would never answer, and the harvest would wait for it.
Layout: gitrepository-layout(5).
"""

import os

from launcher.jail import syscalls
from policy.errors import Refusal
from policy.pasted import quoted

MOST_ENTRIES = 4_000_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MOST_DEPTH = 3  # objects, pack, and what tools of git put below it (pack/multi-pack-index.d)


def check(tree: str, below: str) -> None:
    """Refuses (harvest-git-replaced) an object directory that holds anything but files and directories.

    Args:
        tree: a directory of ours; nothing that leads to it is the agent's.
        below: the object directory's name below it.
    """
    top = os.open(tree, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        seen = 0
        packs = f"{below}/pack"
        pending = [(below, 0)]
        while pending:
            here, depth = pending.pop()
            for name, kind in _listing(top, tree, here):
                seen += 1
                path = f"{tree}/{here}/{name}"
                if seen > MOST_ENTRIES:
                    raise _refused(f"{path} is one too many")
                if here == packs and name.endswith(".keep"):
                    continue  # git asks whether it is there (access(2)), and never opens it
                if kind == "other":
                    raise _refused(f"{path} is neither a file nor a directory",
                                   f"git makes no such thing: rm {quoted(path)}; paddock worktree harvest")  # fmt: skip
                if kind == "dir" and depth < _MOST_DEPTH:
                    pending.append((f"{here}/{name}", depth + 1))
    finally:
        os.close(top)


def _listing(top: int, tree: str, here: str) -> list[tuple[str, str]]:
    try:
        descriptor = syscalls.open_inside(top, here, _DIRECTORY)
    except OSError as error:
        raise _refused(f"{tree}/{here}: {error.strerror}") from None
    try:
        with os.scandir(descriptor) as entries:
            return [(entry.name, _kind(entry)) for entry in entries]
    finally:
        os.close(descriptor)


def _kind(entry: "os.DirEntry[str]") -> str:
    if entry.is_file(follow_symlinks=False):
        return "file"
    return "dir" if entry.is_dir(follow_symlinks=False) else "other"


def _refused(why: str, step: str = "") -> Refusal:
    told = (
        "the agent has replaced or damaged them; nothing of the main repository has changed, and files in the worktree "
        "are as it left them"
    )
    return Refusal(
        "harvest-git-replaced",
        "the private git directory's objects cannot be read",
        context=why,
        hint=f"{step}\n{told}" if step else told,
    )
