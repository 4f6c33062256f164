"""The lines of a diff, with what looks secret in them, and their colours: the confined process behind a review.

It reads what `git diff --raw -z --patch` printed of an agent's files, strictly and bounded, and prints JSON.
"""

import functools
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from launcher.jail import cell
from launcher.vcs.git import parsed_changes
from policy import review_marks

_MOST_LINE = 600
_MEMORY = 1 << 30
_SHADE_SECONDS = 4.0
"""For the colours of all files: an agent writes what is read for them. What is left then has none."""
_SHADES = (("Comment", "c"), ("Keyword", "k"), ("Literal.String", "s"), ("Literal.Number", "m"), ("Name.Function", "n"),
           ("Name.Class", "n"), ("Name.Decorator", "n"), ("Name.Tag", "k"), ("Name.Attribute", "n"))  # fmt: skip


def serve(most: int) -> NoReturn:
    """Reads a diff on standard input, confined, and prints its files: pairs of a path and what `read` says of it.

    Args:
        most: lines of each file.
    """
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        cell.confine("paddock-review")
        found = read(sys.stdin.buffer.read(), most)
        shade(found)
        json.dump(found, sys.stdout)
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
        cut = os.fsencode(text[:_MOST_LINE]).decode(errors="backslashreplace")  # as it is shown, for `shade` counts
        hunk["lines"].append([kind.decode("ascii", "replace") or " ", old, new, cut,
                              max(0, len(os.fsencode(text[_MOST_LINE:]))), secret])  # fmt: skip
        shown += 1
    if lines.peek().startswith(b"\\"):
        lines.next()
    if hunk["lines"]:
        file["hunks"].append(hunk)


class _Late(Exception):
    """There is no more time for colours."""


def shade(files: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Adds to each line of files whose language is known its colours: pairs of a length and a letter of `_SHADES`.

    Pygments reads what the lines of each side of a hunk say, as if they were a file, for at most `_SHADE_SECONDS`.
    """

    def late(*_: object) -> NoReturn:
        raise _Late

    before = signal.signal(signal.SIGALRM, late)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, _SHADE_SECONDS)  # a single expression can take that long
            _shade(files)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Exception:  # whatever a lexer makes of it: a review without colours is one, too
        pass
    signal.signal(signal.SIGALRM, before)


def _shade(files: Sequence[tuple[str, dict[str, Any]]]) -> None:
    from pygments.lexers import find_lexer_class_for_filename  # type: ignore[import-untyped]

    for path, file in files:
        lexer = find_lexer_class_for_filename(os.path.basename(path))
        for hunk in file["hunks"] if lexer is not None else ():
            for gone in (True, False):  # lines that stay are read with both sides: the new one has the last word
                lines = [line for line in hunk["lines"] if line[0] in (" -" if gone else " +")]
                shades = list(_shades(lexer(), [line[3] for line in lines]))
                for line, found in zip(lines, shades, strict=True):
                    line[6:] = [found]


def _shades(lexer: Any, lines: Sequence[str]) -> Iterator[list[tuple[int, str]]]:  # noqa: ANN401  # pygments has no types
    """For each line its stretches, which together are as long as it is."""
    letters: list[str] = []
    for at, kind, value in lexer.get_tokens_unprocessed("".join(f"{line}\n" for line in lines)):
        letters += [""] * (at - len(letters))
        letters[at : at + len(value)] = [_letter(str(kind))] * len(value)
    at = 0
    for line in lines:
        stretches: list[tuple[int, str]] = []
        own = letters[at : at + len(line)]
        for letter in own + [""] * (len(line) - len(own)):
            if stretches and stretches[-1][1] == letter:
                stretches[-1] = stretches[-1][0] + 1, letter
            else:
                stretches.append((1, letter))
        yield stretches
        at += len(line) + 1


@functools.cache
def _letter(kind: str) -> str:
    return next((letter for name, letter in _SHADES if kind.startswith(f"Token.{name}")), "")


def _range(text: bytes) -> tuple[int, int]:
    """First line and number of lines of ``-3,4`` or ``+3``."""
    first, comma, count = text[1:].partition(b",")
    return int(first), int(count) if comma else 1
