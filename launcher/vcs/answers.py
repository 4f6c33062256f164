"""Answers of a git process that is talked with, line by line, each with a time to be there."""

import select
import subprocess
import time

PATIENCE = 120.0
"""Seconds to wait for an answer: nothing of what git is asked for takes long, but on a slow disk."""


def line(process: "subprocess.Popen[bytes]", patience: float = PATIENCE) -> str | None:
    """One line of a process's standard output without its newline; shorter when it has ended, None when out of time.

    Args:
        process: with a pipe, of which nothing else has read.
        patience: seconds.
    """
    assert process.stdout is not None
    deadline = time.monotonic() + patience
    found = b""
    while not found.endswith(b"\n"):
        if not select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return None
        byte = process.stdout.raw.read(1)  # type: ignore[attr-defined]  # unbuffered, or select would not see
        if not byte:
            break
        found += byte
    return found.decode(errors="replace").removesuffix("\n")
