"""The lines of a diff, with what looks secret in them: the confined process behind a review.

It reads what `git diff --raw -z --patch` printed of an agent's files, strictly and bounded, and prints JSON.
"""

import json
import os
import resource
import sys
from typing import Any, NoReturn

from launcher.jail import cell
from launcher.vcs.git import parsed_changes
from policy import review_marks

_MOST_LINE = 600
_MEMORY = 1 << 30


def serve(most: int) -> NoReturn:
    """Reads a diff on standard input, confined, and prints its files: pairs of a path and what `read` says of it.

    Args:
        most: lines of each file.
    """
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        cell.confine("paddock-review")
        json.dump(read(sys.stdin.buffer.read(), most), sys.stdout)
        sys.stdout.flush()
        status = 0
    finally:
        os._exit(status)


def read(out: bytes, most: int) -> list[tuple[str, dict[str, Any]]]:
    """The files of ``--raw -z --patch``, which come in the order of their records; a change of type has two.

    How long a hunk is its head says, so nothing in it is taken for the head of another.
    """
    records, patch = parsed_changes(out)
    lines = _Lines(patch)
    found = []
    for change in records:
        file: dict[str, Any] = {"hunks": [], "left": 0, "note": "", "added": 0, "removed": 0, "secrets": 0}
        found.append((change.path, file))
        for _ in range(2 if change.kind == "T" else 1):
            if not lines.peek().startswith(b"diff --git "):
                break
            lines.next()
            while not lines.done and not lines.peek().startswith((b"@@ ", b"diff --git ")):
                if lines.next().startswith((b"Binary files ", b"GIT binary patch")):
                    file["note"] = "binary"
            while lines.peek().startswith(b"@@ "):
                _hunk(lines, file, most)
    return found


class _Lines:
    """The lines of a patch, one after the other; they end with LF alone."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def done(self) -> bool:
        return self._at >= len(self._content)

    def _end(self) -> int:
        found = self._content.find(b"\n", self._at)
        return len(self._content) if found < 0 else found

    def peek(self) -> bytes:
        """The beginning of the next line."""
        return self._content[self._at : min(self._end(), self._at + 64)]

    def next(self) -> bytes:
        """The next line."""
        end = self._end()
        line = self._content[self._at : end]
        self._at = end + 1
        return line


def _hunk(lines: _Lines, file: dict[str, Any], most: int) -> None:
    head = lines.next()
    _, before, after, *rest = head.split(b" ", 4)
    at_old, left_old = _range(before)
    at_new, left_new = _range(after)
    title = rest[1] if len(rest) > 1 else b""
    hunk: dict[str, Any] = {"title": os.fsdecode(title[:_MOST_LINE]), "lines": []}
    shown = sum(len(each["lines"]) for each in file["hunks"])
    while (left_old > 0 or left_new > 0) and not lines.done:
        line = lines.next()
        kind = line[:1]
        old = at_old if kind in (b" ", b"-", b"") else None
        new = at_new if kind in (b" ", b"+", b"") else None
        if kind == b"\\":
            continue
        left_old, at_old = (left_old - 1, at_old + 1) if old is not None else (left_old, at_old)
        left_new, at_new = (left_new - 1, at_new + 1) if new is not None else (left_new, at_new)
        file["added"] += kind == b"+"
        file["removed"] += kind == b"-"
        secret = review_marks.secret_in(os.fsdecode(line[1:])) if kind == b"+" else ""
        file["secrets"] += bool(secret)
        if shown >= most:
            file["left"] += 1
            continue
        text = os.fsdecode(line[1:])
        hunk["lines"].append([kind.decode("ascii", "replace") or " ", old, new, text[:_MOST_LINE],
                              max(0, len(os.fsencode(text[_MOST_LINE:]))), secret])  # fmt: skip
        shown += 1
    if lines.peek().startswith(b"\\"):
        lines.next()
    if hunk["lines"]:
        file["hunks"].append(hunk)


def _range(text: bytes) -> tuple[int, int]:
    """First line and number of lines of ``-3,4`` or ``+3``."""
    first, comma, count = text[1:].partition(b",")
    return int(first), int(count) if comma else 1
