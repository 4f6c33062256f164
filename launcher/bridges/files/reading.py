"""Reading text files, by lines, of any size."""

import os
import stat

from launcher.bridges.files.scope import Place
from launcher.bridges.files.tool_calls import MOST_TEXT, Answer, ErrorType, Read, ToolFailed
from launcher.safefs.walk import open_beneath
from policy.errors import printable
from policy.violation import escaped

# O_NONBLOCK: a FIFO without a writer, and some devices, would make open(2) wait for ever.
REGULAR = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY

MOST_SKIPPED = 512 << 20
"""Bytes in front of the first wanted line."""

_BLOCK = 1 << 16
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def kind_of(mode: int) -> str:
    """What a file is that is no regular one, in words."""
    return next((name for test, name in _KINDS if test(mode)), "something else")


def no_file(mode: int) -> ToolFailed:
    """The failure for what is no regular file."""
    hint = "; use list" if stat.S_ISDIR(mode) else ""
    return ToolFailed(ErrorType.NOT_A_FILE, f"this is {kind_of(mode)}, not a regular file{hint}")


def open_regular(place: Place) -> tuple[int, os.stat_result]:
    """A descriptor of the regular file at `place` (the caller owns it), and what fstat(2) says of it.

    Raises:
        ToolFailed: it is something else. Nothing has waited for it.
        OSError: it cannot be opened.
    """
    try:
        fd = open_beneath(place.root, place.path, REGULAR)
    except OSError as error:
        if error.errno != 6:  # ENXIO: a socket, or a device without a driver
            raise
        raise ToolFailed(ErrorType.NOT_A_FILE, "this is a socket or a device, not a regular file") from None
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise no_file(found.st_mode)
    return fd, found


def read(place: Place, call: Read) -> Answer:
    """The wanted lines of a file.

    Raises:
        ToolFailed: binary, no regular file, or too far into it.
        OSError: it cannot be read.
    """
    fd, found = open_regular(place)
    try:
        if call.offset == 1 and call.limit is None and found.st_size <= MOST_TEXT:
            data = _all(fd)
            if len(data) <= MOST_TEXT:  # else it has grown meanwhile, or is one of /proc, whose size is 0
                return _decoded(data, found.st_size, "")
            os.lseek(fd, 0, os.SEEK_SET)
        with open(fd, "rb", buffering=_BLOCK, closefd=False) as file:
            skipped = 0
            line = 1
            while line < call.offset:
                piece = file.readline(_BLOCK)
                skipped += len(piece)
                if not piece:
                    raise ToolFailed(
                        ErrorType.INVALID_ARGUMENT, f"the file has only {line - 1} line{'' if line == 2 else 's'}"
                    )
                if skipped > MOST_SKIPPED:
                    raise ToolFailed(
                        ErrorType.TOO_LARGE, f"line {call.offset} is more than {MOST_SKIPPED >> 20} MiB into the file"
                    )
                line += piece.endswith(b"\n")
            lines: list[bytes] = []
            room = MOST_TEXT
            note = ""
            while call.limit is None or len(lines) < call.limit:
                piece = file.readline(room + 1)
                if not piece:
                    break
                if len(piece) > room:
                    if lines:
                        note = _continuation_note(call.offset, len(lines))
                    else:
                        lines.append(piece[:room])
                        note = f"line {call.offset} is longer than {MOST_TEXT >> 10} KiB; this is its beginning"
                    break
                lines.append(piece)
                room -= len(piece)
            else:
                note = _continuation_note(call.offset, len(lines)) if file.read(1) else ""
        return _decoded(b"".join(lines), found.st_size, note)
    finally:
        os.close(fd)


def _continuation_note(first: int, count: int) -> str:
    last = first + count - 1
    return f"lines {first} to {last}; the file continues at offset {last + 1}"


def _all(fd: int) -> bytes:
    pieces = []
    size = 0
    while size <= MOST_TEXT and (piece := os.read(fd, MOST_TEXT + 1)):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _decoded(data: bytes, size: int, note: str) -> Answer:
    if b"\0" in data:
        raise ToolFailed(
            ErrorType.BINARY_FILE, f"the file is binary ({size} bytes); view it with a command, such as xxd(1)"
        )
    try:
        return Answer(data.decode(), note)
    except UnicodeDecodeError as error:
        if note and error.end == len(data):  # cut within a character
            return _decoded(data[: error.start], size, note)
        more = "the file is not UTF-8: its other bytes are shown as \\xNN, and cannot be used in an edit"
        return Answer(data.decode(errors="backslashreplace"), f"{note}; {more}" if note else more)


# Listing a directory.


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
