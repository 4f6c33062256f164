"""Words of commands that people paste into a shell: on one line, whatever a file name holds."""

import os
import shlex


def quoted(word: str) -> str:
    r"""A word as bash, zsh and ksh read it back; sh(1) does where it is printable.

    Control characters and bytes that are no text go into ``$'...'``, which POSIX.1-2024 has (XCU 2.2.4): shown as they
    are they would break the line, and escaped by whoever prints them they would be another word.

    Args:
        word: any; a path as `os.fsdecode` gives it.
    """
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(char))
