"""Logs of sessions: what they wrote, line by line with its time, without credentials, rotated.

``<logs>/<session>/log.jsonl``: one JSON object a line, ``{"time", "stream", "text"}``; older parts end in ``.1``
and so on. Bytes that are no UTF-8 are kept as surrogate escapes (``\\udcff``). ``"more": true`` says that the line is
not over: the next of its stream goes on with it. The stream ``terminal`` holds sizes of the session's terminal, rows
and columns, and ``new`` behind them where it is another terminal.
"""

import base64
import errno
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from launcher.session.places import made

# Credential values that must not come into a log, and taking them out of it.

REPLACEMENT = "[redacted]"
LEAST = 6
"""Shorter values are words of any text: a log without them would say more about them, not less."""

_TELLING = re.compile(
    r"(^|_)(KEY|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|CREDENTIALS?|AUTH|COOKIE|PAT|DSN)(_|$)",
    re.IGNORECASE,
)

_UNSEEN = re.compile(
    rb"\x1b\[[0-?]*[ -/]*(?:[@-~]|\Z)"
    rb"|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\|\Z)"
    rb"|\x1b[ -/]*(?:[0-OQ-WYZ\\`-~]|\Z)"
    rb"|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]"
)
"""What may stand between two characters that a terminal shows side by side."""


def secrets(environment: Mapping[str, str], given: Iterable[str], declared: Iterable[str] = ()) -> tuple[str, ...]:
    """The values to be taken out, in every form that they are likely to be printed in, the longest first.

    A value in `given`, ``NAME=VALUE`` of `--env`, counts as a secret too: it was typed for this session alone.
    """
    from urllib.parse import quote  # a shim whose session has no secrets does without

    names = set(declared)
    values = {value for name, value in environment.items() if name in names or _TELLING.search(name)}
    values |= {value for item in given for value in (item.partition("=")[2],) if value}
    forms: set[str] = set()
    for value in values:
        if len(value) >= LEAST:
            forms |= {value, quote(value, safe=""), base64.b64encode(value.encode(errors="surrogateescape")).decode()}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


class Redactor:
    """Takes the forms of secrets out of text.

    Attributes:
        longest: bytes of the longest form: who cuts text into pieces must not cut closer to an end than this.
    """

    def __init__(self, forms: Iterable[str]) -> None:
        """Args: from `secrets`."""
        self._forms = tuple(form.encode(errors="surrogateescape") for form in forms)
        self.longest = max(map(len, self._forms), default=0)
        self._pattern = re.compile(b"|".join(map(re.escape, self._forms))) if self._forms else None

    def __call__(self, data: bytes) -> bytes:
        """`data` without them, also where something that a terminal does not show stands in between."""
        if self._pattern is None:
            return data
        data = self._pattern.sub(REPLACEMENT.encode(), data)
        if self._pattern.search(_UNSEEN.sub(b"", data)):
            seen, at = _visible(data)
            for found in reversed(list(self._pattern.finditer(seen))):
                data = data[: at[found.start()]] + REPLACEMENT.encode() + data[at[found.end() - 1] + 1 :]
        return data

    def certain(self, data: bytes) -> int:
        """How many bytes of `data` can be written before what follows is known: none of them begins a secret."""
        seen, at = _visible(data)
        begun = max((size for form in self._forms for size in range(1, len(form)) if seen.endswith(form[:size])),
                    default=0)  # fmt: skip
        end = at[-begun] if begun else len(data)
        for found in self._pattern.finditer(data) if self._pattern is not None else ():
            if found.start() < end < found.end():
                return found.start()
        return end


def _visible(data: bytes) -> tuple[bytes, list[int]]:
    """What a terminal shows of `data`, and where each of these bytes stands in it."""
    at: list[int] = []
    last = 0
    for found in _UNSEEN.finditer(data):
        at += range(last, found.start())
        last = found.end()
    at += range(last, len(data))
    return bytes(data[index] for index in at), at


NAME = "log.jsonl"
MOST_LINE = 64 << 10
"""Bytes of a line; a longer one is cut into several."""


class LogWriter:
    """The log of one session. Its file is made with the first line."""

    def __init__(self, directory: str, redact: Redactor, *, most_bytes: int, files: int) -> None:
        """Prepares."""
        self._directory = directory
        self._redact = redact
        self._most = most_bytes
        self._files = files
        self._fd = -1
        self._size = 0
        self._partial: dict[str, bytes] = {}
        self._window = ""
        self._torn = False
        self.lost = ""

    def write(self, stream: str, data: bytes) -> None:
        """Takes what came over `stream`. Lines are written when they are whole."""
        lines = (self._partial.pop(stream, b"") + data).split(b"\n")
        rest = lines.pop()
        self._lines(stream, lines)
        while len(rest) > MOST_LINE + self._redact.longest:
            # Redacted before it is cut, and not cut through what may be the beginning of a credential.
            rest = self._redact(rest)
            if len(rest) <= MOST_LINE + self._redact.longest:
                break
            self._lines(stream, [rest[:MOST_LINE]], more=True)
            rest = rest[MOST_LINE:]
        if rest:
            self._partial[stream] = rest

    def settle(self) -> None:
        """Writes what there is of lines that are not whole: a programme at a terminal may end none for hours."""
        for stream, line in list(self._partial.items()):
            if certain := self._redact.certain(line):
                self._lines(stream, [line[:certain]], more=True)
                if certain == len(line):
                    del self._partial[stream]
                else:
                    self._partial[stream] = line[certain:]

    def window(self, rows: int, columns: int, *, new: bool) -> None:
        """Writes the size of the session's terminal, in front of what is written there now."""
        self.settle()
        self._window = f"{rows} {columns}"
        self._lines("terminal", [(self._window + (" new" if new else "")).encode()])

    def flush(self) -> None:
        """Writes lines that will not become whole any more."""
        for stream, line in self._partial.items():
            self._lines(stream, [line])
        self._partial = {}

    def note(self, text: str) -> None:
        """Writes a line of the service's own."""
        self._lines("paddock", [text.encode(errors="surrogateescape")])

    def close(self) -> None:
        """Writes the remaining bytes and closes the file."""
        self.flush()
        if self._fd != -1:
            os.close(self._fd)
            self._fd = -1

    def _lines(self, stream: str, lines: list[bytes], *, more: bool = False) -> None:
        """Writes lines, many at a time: a command may print without end."""
        begin = f'{{"time": {round(time.time(), 3)}, "stream": "{stream}", "text": '
        end = ', "more": true}\n' if more else "}\n"
        content = b"".join(
            f"{begin}{json.dumps(self._redact(line).decode(errors='surrogateescape'))}{end}".encode() for line in lines
        )
        try:
            while content:
                self._open()
                # Behind what a full disk has cut off, a line of its own begins.
                content, self._torn = (b"\n" if self._torn else b"") + content, False
                whole = content.rfind(b"\n", 0, max(1, self._most - self._size)) + 1 or content.find(b"\n") + 1
                written = os.write(self._fd, content[:whole])
                self._size += written
                self._torn = written < whole
                content = content[written:]
                if self._torn:
                    raise OSError(errno.ENOSPC, "the disk is full")
                if self._size >= self._most:
                    self._rotate()
        except OSError as error:  # a session does not end because its log cannot be written; `show` tells
            self.lost = self.lost or f"{error.strerror}: the log is not complete"

    def _open(self) -> None:
        if self._fd == -1:
            made(self._directory)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(f"{self._directory}/{NAME}", flags, 0o600)
            self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        os.close(self._fd)
        self._fd = -1
        path = f"{self._directory}/{NAME}"
        if not self._files:
            os.unlink(path)
        for number in range(self._files, 0, -1):
            older = path if number == 1 else f"{path}.{number - 1}"
            if os.path.lexists(older):
                os.replace(older, f"{path}.{number}")
        if self._window:
            self._lines("terminal", [self._window.encode()])  # so that no part is without it


def read(directory: str, tail: int | None = None, until: tuple[int, int] | None = None) -> Iterator[dict[str, Any]]:
    """The lines of a log, the oldest first; `until` is an inode and the size that the file had then."""
    lines: list[str] = []
    for path in parts(directory):
        try:
            with open(path, "rb") as file:
                last = until is not None and os.fstat(file.fileno()).st_ino == until[0]
                content = file.read(until[1] if last and until is not None else -1)
        except FileNotFoundError:
            continue  # rotated away meanwhile
        lines += content.decode(errors="replace").splitlines(keepends=True)
        if last:
            break
    for line in lines if tail is None else lines[max(0, len(lines) - tail) :]:
        found = decoded(line)
        if found is not None:
            yield found


def latest(directory: str, room: int) -> list[dict[str, Any]]:
    """The last lines of a log's present file that have `room` bytes together, and before them its terminal's size."""
    try:
        with open(f"{directory}/{NAME}", "rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = file.readline(MOST_LINE) if size > room else b""
            file.seek(max(0, size - room))
            content = file.read(room)
    except FileNotFoundError:
        return []
    lines = content.split(b"\n")
    kept = [first.removesuffix(b"\n"), *lines[1:]] if first else lines
    found = [decoded(line.decode(errors="replace") + "\n") for line in kept[:-1]]
    if first and found and (found[0] is None or found[0].get("stream") != "terminal"):
        found.pop(0)
    return [line for line in found if line is not None]


def parts(directory: str) -> list[str]:
    """The files of a log, the oldest first."""
    try:
        names = [name for name in os.listdir(directory) if name.startswith(NAME)]
    except FileNotFoundError:
        return []
    return [f"{directory}/{name}" for name in sorted(names, key=lambda name: -int(name[len(NAME) + 1 :] or 0))]


def decoded(line: str) -> dict[str, Any] | None:
    """One line; None for one that is just being written."""
    if not line.endswith("\n"):
        return None
    try:
        content = json.loads(line)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


class Tail:
    """What is new in a log while its session writes it, over rotations."""

    def __init__(self, directory: str) -> None:
        """Begins at the present end."""
        self._path = f"{directory}/{NAME}"
        self._inode, self._at = self._stat()
        self._at = self._line_before(self._at)

    def _line_before(self, at: int) -> int:
        """The end of the last whole line: its writer may be in the middle of another one."""
        try:
            with open(self._path, "rb") as file:
                while at > 0:
                    begin = max(0, at - MOST_LINE)
                    file.seek(begin)
                    if (found := file.read(at - begin).rfind(b"\n")) != -1:
                        return begin + found + 1
                    at = begin
        except FileNotFoundError:
            return 0
        return 0

    def before(self, directory: str, tail: int | None = None) -> Iterator[dict[str, Any]]:
        """What the log held when this began; see `read`."""
        return read(directory, tail, until=(self._inode, self._at))

    def _stat(self) -> tuple[int, int]:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return 0, 0
        return found.st_ino, found.st_size

    def new(self) -> list[dict[str, Any]]:
        """The whole lines since the last call."""
        inode, size = self._stat()
        found: list[dict[str, Any]] = []
        if inode != self._inode:
            if self._inode:
                found += self._from(f"{self._path}.1", self._inode)
            self._inode, self._at = inode, 0
        if inode and size > self._at:
            found += self._from(self._path, inode)
        return found

    def _from(self, path: str, inode: int) -> list[dict[str, Any]]:
        found = []
        try:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_ino != inode:
                    return []
                file.seek(self._at)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._at += len(line)
                    content = decoded(line.decode(errors="replace"))
                    if content is not None:  # else a full disk has cut it off
                        found.append(content)
        except FileNotFoundError:
            return found
        return found
