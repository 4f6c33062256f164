"""Words of commands that people paste into a shell: on one line, whatever a file name holds."""

import os
import shlex
from collections.abc import Iterable


def quoted(word: str) -> str:
    r"""A word as bash, zsh and ksh read it back; sh(1) does where it is printable.

    Control characters and bytes that are no text go into ``$'...'``, which POSIX.1-2024 has (XCU 2.2.4): shown as they
    are they would break the line, and escaped by whoever prints them they would be another word.

    Args:
        word: any; a path as `os.fsdecode` gives it, or text of JSON, which can hold half a surrogate pair (RFC 8259).
    """
    if word.isprintable():
        return shlex.quote(word)  # noqa: TID251  # this is where it is done
    return "$'" + "".join(map(_escaped, word)) + "'"


def joined(words: Iterable[str]) -> str:
    """A command, each word `quoted`."""
    return " ".join(map(quoted, words))


def pathspec(path: str) -> str:
    """A path as git's commands take it when they mean no pattern, as one word of a shell's.

    See gitglossary(7), pathspec.
    """
    return quoted(f":(literal){path}" if path.startswith(":") or any(char in path for char in "*?[\\") else path)


_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./~@+%,-")
_LONGEST = 300


def cited(text: str) -> str:
    r"""What somebody else has chosen, for a sentence of Paddock's: as it is where it is one plain word, else in quotes.

    No option, no end of a sentence (``: ``), no space that fills a row, and no quotation mark is outside of quotes or
    ends them. A shell reads the whole of it as one word, if not as the same.

    Args:
        text: a path, a process's name, what was sent as a host; of a long one the beginning is shown.
    """
    if text and not text.startswith("-") and _PLAIN.issuperset(text):
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    inner = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[:_LONGEST])
    inner = inner.replace("'", "\\x27").replace("  ", " \\x20")
    return f"'{inner}'" + ("..." if len(text) > _LONGEST else "")


def cited_words(text: str) -> str:
    """`text` as it is where it consists of plain words, which name no option; else `cited`."""
    words = text.replace("(", "").replace(")", "").split(" ")
    return text if all(word and cited(word) == word for word in words) else cited(text)


def _escaped(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    try:
        data = os.fsencode(char)
    except UnicodeEncodeError:
        data = char.encode("utf-8", "surrogatepass")  # no file has such a name; an agent asks for it all the same
    return "".join(f"\\{byte:03o}" for byte in data)
