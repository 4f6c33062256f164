"""Who is at work in a worktree: processes that have their current directory in it."""

import os
from collections.abc import Iterable

from launcher.jail.processes import parent


def at_work(root: str) -> tuple[int, ...]:
    """Processes whose current directory lies below `root`, as far as this user may see them (proc(5))."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                here = os.readlink(f"/proc/{name}/cwd")
            except OSError:
                continue  # ended, or somebody else's
            if here == root or here.startswith(f"{root}/"):
                found.append(int(name))
    return tuple(sorted(found))


def named(ids: Iterable[int]) -> list[str]:
    """Processes with what they run, for people: ``bash (4711)``; this one says that it is this command."""
    found = []
    for pid in ids:
        try:
            with open(f"/proc/{pid}/comm", encoding="utf-8", errors="backslashreplace") as file:
                command = file.read().rstrip("\n")
        except OSError:
            command = "ended meanwhile"
        found.append(f"{'this command' if pid == os.getpid() else command} ({pid})")
    return found


def are_callers(ids: Iterable[int]) -> bool:
    """Whether all of these are this command and those that it was started from, such as the user's shell."""
    known = {os.getpid()}
    above = os.getppid()
    while above > 1 and above not in known:
        known.add(above)
        above = parent(above)
    return known.issuperset(ids)
