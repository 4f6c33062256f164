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
        context: where and why; may span several lines.
        hint: what to do next, ready to paste where it is a command.
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
        self.context = context
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self) -> str:
        """The whole text, as people read it on stderr; control characters are made visible."""
        lines = [f"paddock: {printable(self.message)} [{self.reference}]"]
        for label, text in (("why", self.context), ("hint", self.hint)):
            if text:
                first, *rest = text.splitlines()
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
        return cls(facts["errorType"], facts["message"], context=context, hint=hint, exit_code=status)


def printable(text: str) -> str:
    """`text` with control characters and undecodable bytes escaped.

    File names come from agents; a raw escape sequence in an error message could drive the terminal.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode("ascii") for char in text
    )


def unusable(path: str, error: OSError) -> Refusal:
    """The Refusal for a directory or file of Paddock's own that cannot be made, read or written."""
    return Refusal(
        "state-unusable",
        f"cannot use {path}",
        context=error.strerror or str(error),
        hint="free some space or make it writable, or point XDG_STATE_HOME (and XDG_CACHE_HOME) elsewhere",
    )
