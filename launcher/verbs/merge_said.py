"""What `paddock merge` says beside its result: for people on standard error, for programmes in `--json`."""

import json

from pydantic import BaseModel

from launcher.session import messages
from policy.errors import printable

WARNING = "warning: "
"""In front of what a merge has passed over, and somebody has to look at."""


class Said:
    """Lines about one merge, written to standard error as they come, and kept for the JSON.

    Attributes:
        warnings: what was said, in order, as it stands there without "paddock: " and "warning: ".
        advice: what is left to do that the result itself does not tell, as it stands behind "note" on standard output.
    """

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.advice: list[str] = []

    def say(self, line: str, mark: str = "") -> None:
        """Says a line now.

        Args:
            line: the sentence.
            mark: "" or `WARNING`.
        """
        self.warnings.append(line)
        messages.say(f"paddock: {mark}{printable(line)}")

    def document(self, result: BaseModel | None) -> str:
        """The JSON of a result with what was said; ``null`` where there is neither."""
        if result is None and not self.warnings:
            return "null"
        found = {} if result is None else result.model_dump(mode="json")
        return json.dumps({**found, "warnings": self.warnings, "advice": self.advice}, indent=2)
