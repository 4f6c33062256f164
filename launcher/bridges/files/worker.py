"""One session's worker: takes calls from standard input, answers on standard output, ends when its router does.

Started inside the session's jail, as ``python -I -m launcher.bridges.files.worker``.
"""

import os
import sys
from typing import BinaryIO

from pydantic import ValidationError

from launcher.bridges.files import frames
from launcher.bridges.files.answers import Answer, ErrorType, error
from launcher.bridges.files.calls import CALLS
from launcher.bridges.files.scope import Scope
from launcher.bridges.files.tools import FileTools
from launcher.jail import syscalls
from policy.violation import escaped


def main() -> int:
    """Serves one router; returns the exit status."""
    # Nobody of this user may look into it or trace it, where Landlock does not see to that already.
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    reading, writing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what anything prints by mistake is no answer
    with open(reading, "rb") as stream:
        return serve(stream, writing)


def serve(stream: BinaryIO, writing: int) -> int:
    """Answers calls until the stream ends: first the scope, then requests, one at a time."""
    first = frames.received(stream)
    if first is None:
        return 1
    tools = FileTools(Scope.model_validate_json(first))
    frames.send(writing, frames.packed(frames.Hello(ready=True, pid=os.getpid())))
    while (data := frames.received(stream)) is not None:
        request = frames.Request.model_validate_json(data)
        answer = _answer(tools, request)
        reply = frames.Reply(number=request.number, text=escaped(answer.text), note=answer.note, failed=answer.failed)
        try:
            frames.send(writing, frames.packed(reply))
        except BrokenPipeError:
            break
    return 0


def _answer(tools: FileTools, request: frames.Request) -> Answer:
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
