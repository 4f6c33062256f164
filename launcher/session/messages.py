"""What Paddock itself says: on standard error beside the command's own words, on standard output where it was asked.

Launch path: `sys` only.
"""

import sys

from policy.errors import Refusal


def say(text: str, end: str = "\n") -> None:
    """Writes a line to standard error. One that is full or gone is no reason for another ending."""
    try:
        sys.stderr.write(text + end)
        sys.stderr.flush()
    except OSError:
        drop(2)


def show(text: str = "") -> None:
    """Writes `text` (and what was printed before) to standard output, now.

    Refusals: output-unwritable. BrokenPipeError when its reader has left.
    """
    try:
        if text:
            sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritable(error) from None


def unwritable(error: OSError) -> Refusal:
    """The Refusal for a standard output that takes no more; what is left for it is dropped."""
    drop(1)
    return Refusal("output-unwritable", "standard output cannot be written", context=error.strerror or str(error))


def drop(descriptor: int) -> None:
    """Sends the rest of a stream nowhere, or the interpreter would try again at its end, and change the exit status."""
    import os

    null = os.open("/dev/null", os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
