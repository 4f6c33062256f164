"""Listing a directory."""

import os
import stat

from launcher.bridges.files.answers import MOST_TEXT, Answer
from launcher.bridges.files.beneath import open_beneath
from launcher.bridges.files.scope import Place
from policy.errors import printable
from policy.violation import escaped

MOST_ENTRIES = 2000
_MOST_SEEN = 200_000


def listing(place: Place) -> Answer:
    """The names in a directory, one a line, with a mark for what they are.

    Raises:
        OSError: it is no directory, or cannot be listed.
    """
    fd = open_beneath(place.root, place.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        names: list[tuple[str, str]] = []
        more = False
        with os.scandir(fd) as entries:
            for entry in entries:
                if len(names) == _MOST_SEEN:
                    more = True
                    break
                names.append((entry.name, _mark(entry)))
    finally:
        os.close(fd)
    names.sort()
    lines: list[str] = []
    room = MOST_TEXT
    for name, mark in names[:MOST_ENTRIES]:
        line = shown(name) + mark
        room -= len(line.encode()) + 1
        if room < 0:
            break
        lines.append(line)
    note = ""
    if len(lines) < len(names) or more:
        count = f"more than {len(names)}" if more else str(len(names))
        note = f"the first {len(lines)} of {count} entries; use glob for the others"
    return Answer("\n".join(lines), note)


def shown(name: str) -> str:
    """A name on one line: control characters and bytes that are not UTF-8 are escaped."""
    return printable(escaped(name))


def _mark(entry: "os.DirEntry[str]") -> str:
    if entry.is_symlink():
        return "@"
    if entry.is_dir(follow_symlinks=False):
        return "/"
    if entry.is_file(follow_symlinks=False):
        return ""
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except OSError:
        return ""
    return "|" if stat.S_ISFIFO(mode) else "=" if stat.S_ISSOCK(mode) else ""
