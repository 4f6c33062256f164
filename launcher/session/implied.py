"""Inputs that need not be asked for one by one, because an unchanged directory answers for them.

Most of what a Plan was made from is absence: some two hundred files and tool directories that are not there. As long as
a directory is the same and nothing was made, removed or renamed in it, none of them can have appeared. When it did
change, the inputs are asked for as ever; a new file in the home directory invalidates nothing by itself.

Not on the warm launch path: there, `inputs.unchanged` reads what is made here.
"""

import marshal
import os
import stat
import time
from typing import Any

from launcher.session import inputs

SETTLED = 2_000_000_000
"""Nanoseconds since a directory's last change before it may answer for what is in it: the coarsest steps in which file
systems count time. Two changes within one step would leave the same mark."""


def grouped(recorded: tuple[inputs.Input, ...], *, settled: int = SETTLED) -> tuple[inputs.Input, ...]:
    """The same inputs with those that a directory implies put behind it; see `inputs.IMPLIED`.

    Args:
        recorded: from `Machine.recorded`: canonical paths come with every directory above them.
        settled: nanoseconds.
    """
    kept: list[inputs.Input] = []
    groups: dict[str, tuple[object, list[inputs.Input]]] = {}
    marks: dict[str, object] = {}
    now = time.time_ns()
    for entry in recorded:
        directory = _implying(*entry)
        if directory is None:
            kept.append(entry)
            continue
        if directory not in marks:
            marks[directory] = _mark(directory, now - settled)
        if marks[directory] is None:
            kept.append(entry)
        else:
            groups.setdefault(directory, (marks[directory], []))[1].append(entry)
    for directory, (mark, members) in groups.items():
        # Only what is behind the same mark before and after it was looked at belongs to it.
        if len(members) > 1 and _mark(directory, now - settled) == mark and inputs.unchanged(tuple(members), {}):
            data: Any = tuple(members)  # typeshed names no type for what marshal takes
            kept.append((inputs.IMPLIED, directory, (mark, marshal.dumps(data, 2))))
        else:
            kept += members
    return tuple(kept)


def mark(path: str, *, settled: int = SETTLED) -> object:
    """What changes with what a path leads to; None when it has changed too short a time ago to tell by that.

    Args:
        path: of a file or directory.
        settled: nanoseconds.
    """
    return _mark(path, time.time_ns() - settled)


def _implying(kind: str, subject: str, answer: object) -> str | None:
    """The directory whose entries decide about this answer, if one does."""
    if kind not in (inputs.IDENTITY, inputs.CONTENT, inputs.RESOLVED) or not subject.startswith("/"):
        return None
    if subject != os.path.normpath(subject) or subject == "/":
        return None
    if answer is None:
        return _nearest(subject)
    # A name that is no link, in a directory whose own name is checked: only a new entry could lead elsewhere.
    # What is mounted over it later has no say in where the name leads, which is all that was asked.
    if kind == inputs.RESOLVED and isinstance(answer, tuple) and answer[0] == subject:
        return os.path.dirname(subject)
    return None


def _nearest(path: str) -> str | None:
    """The directory in which the way to an absent `path` ends; None when it ends for another reason than absence."""
    while True:
        parent = os.path.dirname(path)
        try:
            os.lstat(path)
        except FileNotFoundError:
            try:
                return parent if stat.S_ISDIR(os.stat(parent).st_mode) else None
            except FileNotFoundError:
                path = parent
                continue
            except (OSError, ValueError):
                return None
        except (OSError, ValueError):
            return None
        return None  # it is there: a link that leads nowhere, or it has just appeared


def _mark(directory: str, before: int) -> object:
    """What changes with the directory's entries; None when it has changed too short a time ago."""
    mark = inputs.ask(inputs.CONTENT, directory, {})
    try:
        found = os.stat(directory)
    except (OSError, ValueError):
        return None
    return mark if max(found.st_mtime_ns, found.st_ctime_ns) < before else None
