"""One session's worker: takes calls from standard input, answers on standard output, ends when its router does.

Started inside the session's jail, as ``python -I -m launcher.bridges.files.file_worker``.
"""

import ctypes
import encodings.unicode_escape  # noqa: F401
import errno
import os
import sys
import unicodedata  # noqa: F401

import landlock
from pydantic import ValidationError

from launcher import wire
from launcher.bridges.files import reading, searching, tool_calls, writing
from launcher.bridges.files.scope import Gate, Place, Scope
from launcher.bridges.files.tool_calls import (
    CALLS,
    Answer,
    Call,
    Edit,
    ErrorType,
    Glob,
    Grep,
    List,
    PathDenied,
    Read,
    Shell,
    ToolFailed,
    Write,
    denied,
    error,
)
from launcher.jail import syscalls
from launcher.safefs.walk import open_beneath
from policy.violation import escaped

# A worker that has narrowed itself loads no further module. These two Python would load on use: `printable` names the
# one, a regular expression with `\N{...}` needs the other.
#
# The file tools themselves: one call in, one answer out, whatever happens (contracts section 5, FR-014, FR-019).
#
# Runs in the worker, inside the session's jail. Not for threads: searching starts a process.


_KINDS = {
    errno.ENOENT: ErrorType.NOT_FOUND,
    errno.ENOTDIR: ErrorType.NOT_A_DIRECTORY,
    errno.EISDIR: ErrorType.NOT_A_FILE,
    errno.EACCES: ErrorType.ACCESS_DENIED,
    errno.EPERM: ErrorType.ACCESS_DENIED,
    errno.EROFS: ErrorType.ACCESS_DENIED,
    errno.EBUSY: ErrorType.ACCESS_DENIED,  # rename(2) onto a file that the jail has mounted read-only
}
_WORDS = {
    errno.ENOENT: "there is no such file or directory",
    errno.EROFS: "the jail keeps it read-only",
    errno.EBUSY: "the jail protects it from changes",
}

_FS = landlock.FSAccess
# All that `writing` does is done by new files, link(2) and rename(2) within one directory: neither O_TRUNC nor a move
# to another directory, and nothing is executed. ABI 1 knows each of these, so no kernel with Landlock lacks one.
_RIGHTS = _FS.READ_FILE | _FS.READ_DIR | _FS.WRITE_FILE | _FS.MAKE_REG | _FS.MAKE_DIR | _FS.REMOVE_FILE


class FileTools:
    """All tools for one session; of the shell only where it starts."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._gate = Gate(scope)

    def answer(self, call: Call) -> Answer:
        """Does what `call` asks for. Nothing is raised for what a path, a file or the kernel does."""
        try:
            with self._gate.place(call.path, call.operation) as place:
                return self._act(place, call)
        except PathDenied as refused:
            return denied(refused.verdict)
        except ToolFailed as failed:
            return self._error(failed.kind, failed.message, call)
        except (OSError, ValueError) as failure:
            return self._failure(failure, call)

    def sweep(self, call: Call) -> None:
        """Removes what an earlier worker may have left that was killed during `call`. What it cannot reach stays."""
        try:
            with self._gate.place(call.path, call.operation) as place:
                writing.sweep(place)
        except (PathDenied, OSError):
            return

    def _act(self, place: Place, call: Call) -> Answer:
        if isinstance(call, Read):
            return reading.read(place, call)
        if isinstance(call, Write):
            return writing.write(place, call)
        if isinstance(call, Edit):
            return writing.edit(place, call)
        if isinstance(call, List):
            return reading.listing(place)
        if isinstance(call, Glob):
            return searching.glob(place, call, self._gate)
        if isinstance(call, Grep):
            return searching.grep(place, call, self._gate)
        if isinstance(call, Shell):
            return _directory(place)
        raise ToolFailed(ErrorType.UNKNOWN_TOOL, f"{call.tool} is not a file tool")

    def _failure(self, failure: OSError | ValueError, call: Call) -> Answer:
        number = failure.errno if isinstance(failure, OSError) else None
        if number in (errno.ELOOP, errno.EXDEV) and self.scope.context is not None:
            return denied(self._gate.swapped(call.path, call.operation).verdict)
        kind = _KINDS.get(number or 0, ErrorType.IO_ERROR)
        words = _WORDS.get(number or 0) or (os.strerror(number) if number else str(failure))
        return self._error(kind, words, call)

    def _error(self, kind: ErrorType, message: str, call: Call) -> Answer:
        return error(kind, message, path=call.path, root=self.scope.root, operation=call.operation.value)


def _directory(place: Place) -> Answer:
    """The canonical path of the directory in which a command shall start; who runs it is the router."""
    fd = open_beneath(place.root, place.path, os.O_PATH | os.O_DIRECTORY)
    os.close(fd)
    return Answer(os.path.join(os.readlink(f"/proc/self/fd/{place.root}"), place.path).rstrip("/") or "/")


def main() -> int:
    """Serves one router; returns the exit status."""
    # Nobody of this user may look into it or trace it, where Landlock does not see to that already.
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    reading, writing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what anything prints by mistake is no answer
    return serve(reading, writing)


def serve(reading: int, writing: int) -> int:
    """Answers calls until the pipe ends: first the scope, then requests, one at a time."""
    messages = tool_calls.received(reading)
    first = next(messages, None)
    if first is None:
        return 1
    scope = Scope.model_validate_json(first)
    tools = FileTools(scope)
    if scope.context is not None and scope.narrow:
        try:
            _narrow(scope.root)
        except (OSError, landlock.LandlockError) as failure:
            why = failure.strerror if isinstance(failure, OSError) else failure
            print(f"the kernel cannot confine the file tools to {scope.root}: {why}", file=sys.stderr)
            return 1
    wire.write(writing, tool_calls.packed(tool_calls.Hello(ready=True, pid=os.getpid())))
    for data in messages:
        request = tool_calls.Request.model_validate_json(data)
        answer = _answer(tools, request)
        reply = tool_calls.Reply(
            number=request.number, text=escaped(answer.text), note=answer.note, failed=answer.failed
        )
        try:
            wire.write(writing, tool_calls.packed(reply))
        except BrokenPipeError:
            break
    return 0


def _narrow(root: str) -> None:
    """Has Landlock hold this process to the worktree, for good: a hole in the validator is none in the kernel.

    The session's own domain goes on to hold, with the rights that the package does not know (those of ABI 6 and later)
    and with what is excepted below the root, which no rule can take out again.
    """
    searching.memory_sizes()  # while it can be opened
    # As `Gate.place` opens it: the package follows symbolic links, so it gets a descriptor's name.
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        ctypes.set_errno(0)  # the package takes one left over from an earlier call for a failure of its own
        ruleset = landlock.Ruleset()
        ruleset.allow(f"/proc/self/fd/{top}", rules=_RIGHTS)
        ruleset.apply()
    finally:
        os.close(top)


def _answer(tools: FileTools, request: tool_calls.Request) -> Answer:
    try:
        call = CALLS[request.tool].model_validate(request.arguments)
    except (KeyError, ValidationError) as refused:
        return error(ErrorType.INVALID_ARGUMENT, str(refused), root=tools.scope.root)
    if request.sweep:
        tools.sweep(call)
        return Answer("")
    return tools.answer(call)


if __name__ == "__main__":
    sys.exit(main())
