"""Finding files by name and lines by pattern, below a directory, in bounded time.

The walk goes from descriptor to descriptor and follows no symbolic link. Git's own directories are left out, and so is
what the session may not read.
"""

import fnmatch
import json
import os
import re
import resource
import select
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple

from launcher.bridges.files.reading import REGULAR, open_regular, shown
from launcher.bridges.files.scope import Gate, Place
from launcher.bridges.files.tool_calls import MOST_TEXT, Answer, ErrorType, Glob, Grep, ToolFailed
from launcher.jail import syscalls
from launcher.safefs.walk import open_beneath
from policy.violation import Operation

# Work that may take too long, in a process that the kernel ends in time.
#
# A regular expression can take ages over one line, and Python cannot be interrupted within a match: SIGALRM with
# its default action can. For a process without threads, as the worker is one.


SEARCH_SECONDS = 10.0
SEARCH_MEMORY = 512 << 20
"""Bytes that the process may add to what it has."""

_BLOCK = 1 << 16
_FAILED = b"\0"  # in front of a failure; lines hold no such byte


class Found(NamedTuple):
    """What came back.

    Attributes:
        lines: in the order in which they were found.
        ended: "" when all was looked at; else why not.
    """

    lines: list[str]
    ended: str


def lines_of(work: Callable[[], Iterable[str]], most: int, *, seconds: float = SEARCH_SECONDS) -> Found:
    """The lines that `work` yields, up to `most` of them, `MOST_TEXT` bytes, and `seconds`.

    Args:
        work: runs in a process of its own. A ToolFailed or OSError in it is raised here.
        most: lines.
        seconds: of real time.

    Raises:
        ToolFailed: see `work`; or it ran out of memory.
        OSError: see `work`; or no process can be started.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _child(work, writing, parent, seconds)
    os.close(writing)
    data = bytearray()
    lines = 0
    ended = ""
    deadline = time.monotonic() + seconds + 1  # the kernel's own timer comes first
    try:
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        while True:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                ended = f"stopped after {seconds:g} seconds"
                break
            piece = os.read(reading, _BLOCK)
            if not piece:
                break
            data += piece
            lines += piece.count(b"\n")
            if _FAILED not in piece and (lines > most or len(data) > MOST_TEXT):
                ended = "there is more; narrow the search"
                break
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    whole, failed, failure = bytes(data).partition(_FAILED)
    if failed:
        raise _failure(*json.loads(failure))
    if not ended and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        ended = f"stopped after {seconds:g} seconds"
    elif not ended and status != 0:
        raise ToolFailed(ErrorType.TOO_LARGE, "the search needs too much memory; make the pattern simpler")
    # What stands behind the last line end was under way.
    return Found(whole[:MOST_TEXT].decode(errors="replace").split("\n")[:-1][:most], ended)


def _failure(number: int, kind: str, message: str) -> ToolFailed | OSError:
    return OSError(number, message) if number else ToolFailed(ErrorType(kind), message)


def _child(work: Callable[[], Iterable[str]], writing: int, parent: int, seconds: float) -> None:
    code = 1
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(code)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        _bound_memory()
        try:
            for line in work():
                os.write(writing, line.encode(errors="backslashreplace") + b"\n")
        except ToolFailed as error:
            os.write(writing, _FAILED + json.dumps((0, error.kind, error.message)).encode())
        except OSError as error:
            os.write(writing, _FAILED + json.dumps((error.errno or 5, "", error.strerror or str(error))).encode())
        code = 0
    except MemoryError:
        code = 2
    finally:
        os._exit(code)


@cache
def memory_sizes() -> int:
    """A descriptor of statm in proc(5), opened once: a worker that is held to its worktree could not open it.

    A child reads its parent's, which has the size that the child starts with.
    """
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


def _bound_memory() -> None:
    size = int(os.pread(memory_sizes(), _BLOCK, 0).split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = size + SEARCH_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


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

    lines, ended = lines_of(found, MOST_FOUND)
    lines.sort()
    return Answer("\n".join(lines), ended)


def grep(place: Place, call: Grep, gate: Gate) -> Answer:
    """Lines of files as ``PATH:LINE:TEXT``, paths relative to the directory (for a single file: its name)."""
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

    lines, ended = lines_of(found, call.limit)
    return Answer("\n".join(lines), ended)


def _matcher(call: Grep) -> Callable[[str], object]:
    try:
        return re.compile(call.pattern, re.IGNORECASE if call.ignore_case else 0).search
    except (re.error, OverflowError, RecursionError) as error:
        raise ToolFailed(ErrorType.INVALID_ARGUMENT, f"not a Python regular expression: {error}") from None


def _pattern(text: str) -> Parts:
    parts = tuple(part for part in text.split("/") if part not in ("", "."))
    if text.startswith("/") or ".." in parts or not parts:
        raise ToolFailed(ErrorType.INVALID_ARGUMENT, "a pattern matches paths below the directory: no leading /, no ..")
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
