"""Work that may take too long, in a process that the kernel ends in time.

A regular expression can take ages over one line, and Python cannot be interrupted within a match: SIGALRM with its
default action can. For a process without threads, as the worker is one.
"""

import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from launcher.bridges.files.answers import MOST_TEXT, ErrorType, ToolFailed
from launcher.jail import syscalls

SECONDS = 10.0
MOST_MEMORY = 512 << 20
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


def lines_of(work: Callable[[], Iterable[str]], most: int, *, seconds: float = SECONDS) -> Found:
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
                ended = "there is more; narrow the search down"
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


def _bound_memory() -> None:
    with open("/proc/self/statm", encoding="ascii") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = size + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
