"""The one way Paddock says no.

Only the standard library's built-ins are used: this module is on the launch path.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Exit statuses of the launcher itself (env(1), nohup(1) and POSIX use the same three).
EXIT_REFUSED = 125
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


class Refusal(Exception):
    """A request that Paddock will not carry out.

    Args:
        reference: stable kebab-case identifier, for scripts and for searching the documentation.
        message: what is refused, one sentence without a final full stop.
        context: where and why; one row, unless they are several (`in_rows`).
        hint: what to do next, ready to paste where it is a command; the same.
        exit_code: the status the launcher ends with (125 unless the caller knows better).
    """

    def __init__(
        self,
        reference: str,
        message: str,
        *,
        context: str = "",
        hint: str = "",
        exit_code: int = EXIT_REFUSED,
    ) -> None:
        super().__init__(message)
        self.reference = reference
        self.message = message
        self.context = str(in_rows(context))
        self.hint = str(in_rows(hint))
        self.exit_code = exit_code

    def __str__(self) -> str:
        """The whole text, as people read it on stderr; control characters are made visible."""
        lines = [f"paddock: {printable(self.message)} [{self.reference}]"]
        for label, text in (("why", self.context), ("hint", self.hint)):
            if text:
                first, *rest = text.split("\n")
                lines.append(f"  {label + ':':6}{printable(first)}")
                lines.extend(f"        {printable(line)}" for line in rest)
        return "\n".join(lines)

    def as_dict(self) -> dict[str, str | int | bool]:
        """The same facts for programmes (`--json`)."""
        return {
            "error": True,
            "errorType": self.reference,
            "message": self.message,
            "context": self.context,
            "hint": self.hint,
            "exitCode": self.exit_code,
        }

    @classmethod
    def of(cls, facts: "dict[str, Any]") -> "Refusal":
        """The refusal that `as_dict` was called of."""
        context, hint, status = facts["context"], facts["hint"], facts["exitCode"]
        return cls(facts["errorType"], facts["message"], context=Rows(context), hint=Rows(hint), exit_code=status)


class Rows(str):
    """Text whose newlines separate rows; in any other string they are part of a name that somebody has chosen."""

    __slots__ = ()


def in_rows(*texts: str) -> Rows:
    """Each of `texts` as a row, whatever it holds; those that are several already stay so, and empty ones are none."""
    return Rows("\n".join(text if isinstance(text, Rows) else text.replace("\n", "\\n") for text in texts if text))


_UNSEEN = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0\U00013441\U00013442\U00016fe4\U0001d159"
)
_SELECTORS = (("\ufe00", "\ufe0f"), ("\U000e0100", "\U000e01ef"))
_MARKS = (
    ("\u0300", "\u036f"), ("\u0483", "\u0489"), ("\u1ab0", "\u1aff"), ("\u1dc0", "\u1dff"), ("\u20d0", "\u20ff"),
    ("\ufe20", "\ufe2f"),
)  # fmt: skip
"""What `str.isprintable` lets through and nobody can see: fillers, selectors, and marks that pile up on one letter."""

_LABEL = 16
"""Columns in which a line of Paddock's is indented, or has a label."""


def unseen(text: str, indented: int = 0) -> set[int]:
    """Where `text` holds what nobody can see, or what fills a row: whoever prints it prints an escape there.

    Control characters, those that turn the direction of writing, blanks other than the space, invisible ones, bytes
    that are no text, marks that pile up on one letter; and spaces behind a space, as the row that they fill lets what
    follows them look like a line of its own.

    Args:
        text: file names, say, which come from agents.
        indented: columns at its beginning in which spaces may follow each other; then two may stand before a bracket,
            which Paddock's lines have around a source.
    """
    if text.isascii() and text.isprintable() and "  " not in text:
        return set()
    found: set[int] = set()
    marks = 0
    before = ""
    for at, char in enumerate(text):
        marks = marks + 1 if any(first <= char <= last for first, last in _MARKS) else 0
        if marks > 2:
            found.update((at - 2, at - 1, at))
        elif char == before == " ":
            if at >= indented and not (indented and text[at + 1 : at + 2] == "["):
                found.add(at)
        elif not char.isprintable() or char in _UNSEEN or any(first <= char <= last for first, last in _SELECTORS):
            found.add(at)
        before = char
    return found


def printable(text: str, label: int = _LABEL) -> str:
    """A line of Paddock's, or a part of one, with an escape for all that is `unseen`.

    File names come from agents; a raw escape sequence in an error message could drive the terminal.

    Args:
        label: columns in which spaces may follow each other.
    """
    found = unseen(text, label)
    return "".join(escape(char) if at in found else char for at, char in enumerate(text)) if found else text


def escape(char: str) -> str:
    """A character as Python writes it in a string where it cannot be printed."""
    return "\\x20" if char == " " else char.encode("unicode_escape", "surrogatepass").decode("ascii")


def unusable(path: str, error: OSError) -> Refusal:
    """The Refusal for a directory or file of Paddock's own that cannot be made, read or written."""
    return Refusal(
        "state-unusable",
        f"cannot use {path}",
        context=error.strerror or str(error),
        hint="free some space or make it writable, or point XDG_STATE_HOME (and XDG_CACHE_HOME) elsewhere",
    )
