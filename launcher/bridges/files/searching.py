"""Finding files by name and lines by pattern, below a directory, in bounded time.

The walk goes from descriptor to descriptor and follows no symbolic link. Git's own directories are left out, and so is
what the session may not read.
"""

import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterator
from functools import cache

from launcher.bridges.files import bounded
from launcher.bridges.files.answers import Answer, ErrorType, ToolFailed
from launcher.bridges.files.beneath import open_beneath
from launcher.bridges.files.calls import Glob, Grep
from launcher.bridges.files.listing import shown
from launcher.bridges.files.reading import REGULAR, open_regular
from launcher.bridges.files.scope import Gate, Place
from policy.violation import Operation

MOST_FOUND = 1000
MOST_SHOWN = 500
"""Characters of one line of a file."""

_DEEPEST = 200
_SNIFFED = 8192
_MOST_LINE = 1 << 20

Parts = tuple[str, ...]


def glob(place: Place, call: Glob, gate: Gate) -> Answer:
    """Paths relative to the directory, sorted.

    Raises:
        ToolFailed: the pattern makes no sense, or takes too much memory.
        OSError: it is no directory.
    """
    pattern = _pattern(call.pattern)

    def found() -> Iterator[str]:
        for parts, _, _ in _walk(place, gate):
            if _fits(parts, pattern):
                yield shown("/".join(parts))

    lines, ended = bounded.lines_of(found, MOST_FOUND)
    lines.sort()
    return Answer("\n".join(lines), ended)


def grep(place: Place, call: Grep, gate: Gate) -> Answer:
    """Lines of files as ``PATH:LINE:TEXT``, paths relative to the directory (for a single file: its name).

    Raises:
        ToolFailed: the pattern makes no sense, or takes too much memory.
        OSError: there is no such file or directory.
    """
    wanted = None if call.glob is None else _pattern(call.glob)

    def found() -> Iterator[str]:
        matches = _matcher(call)
        if not _is_directory(place):
            yield from _lines_of_one(place, matches)
            return
        for parts, folder, name in _walk(place, gate):
            if wanted is None or _fits(parts, wanted) or _fits(parts[-1:], wanted):
                try:
                    fd = os.open(name, REGULAR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                except OSError:
                    continue  # as in `_below`
                yield from _lines(fd, shown("/".join(parts)), matches)

    lines, ended = bounded.lines_of(found, call.limit)
    return Answer("\n".join(lines), ended)


def _matcher(call: Grep) -> Callable[[str], object]:
    try:
        return re.compile(call.pattern, re.IGNORECASE if call.ignore_case else 0).search
    except (re.error, OverflowError, RecursionError) as error:
        raise ToolFailed(ErrorType.INVALID_ARGUMENT, f"not a regular expression of Python's: {error}") from None


def _pattern(text: str) -> Parts:
    parts = tuple(part for part in text.split("/") if part not in ("", "."))
    if text.startswith("/") or ".." in parts or not parts:
        raise ToolFailed(
            ErrorType.INVALID_ARGUMENT, "a pattern is about paths below the directory: no / in front, no .."
        )
    return parts


def _fits(parts: Parts, pattern: Parts) -> bool:
    """Whether the whole path matches; ``**`` stands for any number of components, none included."""

    @cache
    def fits(at: int, wanted: int) -> bool:
        if wanted == len(pattern):
            return at == len(parts)
        if pattern[wanted] == "**":
            return fits(at, wanted + 1) or (at < len(parts) and fits(at + 1, wanted))
        return at < len(parts) and fnmatch.fnmatchcase(parts[at], pattern[wanted]) and fits(at + 1, wanted + 1)

    return fits(0, 0)


def _is_directory(place: Place) -> bool:
    fd = open_beneath(place.root, place.path, os.O_PATH)
    try:
        return stat.S_ISDIR(os.fstat(fd).st_mode)
    finally:
        os.close(fd)


def _lines_of_one(place: Place, matches: Callable[[str], object]) -> Iterator[str]:
    """The matching lines of a single file, which must be one and be readable."""
    fd, _ = open_regular(place)
    yield from _lines(fd, shown(place.name), matches)


def _walk(place: Place, gate: Gate) -> Iterator[tuple[Parts, int, str]]:
    """All regular files below `place`: path relative to it, descriptor of the file's directory, name there."""
    top = open_beneath(place.root, place.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield from _below(top, (), place.path, gate)
    finally:
        os.close(top)


def _below(folder: int, parts: Parts, path: str, gate: Gate) -> Iterator[tuple[Parts, int, str]]:
    with os.scandir(folder) as entries:
        found = sorted((entry.name, _kind(entry)) for entry in entries if entry.name != ".git")
    for name, kind in found:
        inside = f"{path}/{name}" if path else name
        if not kind or (gate.has_exceptions and not gate.open_to(inside, Operation.READ)):
            continue
        if kind == "file":
            yield (*parts, name), folder, name
        elif len(parts) < _DEEPEST:
            try:
                fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            except OSError:
                continue  # gone, swapped, or not to be read: a search shows what can be read
            try:
                yield from _below(fd, (*parts, name), inside, gate)
            finally:
                os.close(fd)


def _kind(entry: "os.DirEntry[str]") -> str:
    if entry.is_file(follow_symlinks=False):
        return "file"
    return "directory" if entry.is_dir(follow_symlinks=False) else ""


def _lines(fd: int, title: str, matches: Callable[[str], object]) -> Iterator[str]:
    """The matching lines of an open file, which is closed at the end; none of what is no text."""
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or b"\0" in file.peek(_SNIFFED)[:_SNIFFED]:
            return
        number = 0
        while line := file.readline(_MOST_LINE):
            number += 1
            while not line.endswith(b"\n") and (piece := file.readline(_MOST_LINE)):
                line = (line + piece)[:_MOST_LINE] + b"\n" * piece.endswith(
                    b"\n"
                )  # the rest of a huge line is left out
            text = line.decode(errors="backslashreplace").rstrip("\r\n")
            if matches(text):
                yield f"{title}:{number}:" + "\t".join(map(shown, text[:MOST_SHOWN].split("\t")))
