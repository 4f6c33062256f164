"""What verbs print alike: columns, ages, sizes, JSON."""

import json
import os
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from launcher.session import messages, places
from policy.errors import printable

if TYPE_CHECKING:
    from launcher.service.client import Client


def some(names: Sequence[str], count: int) -> str:
    """The first of `count` things by name, and how many more there are."""
    return ", ".join(names) + (f" and {count - len(names)} more" if count > len(names) else "")


def lines(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Columns as wide as what is in them, the heading first; the last column is as long as it likes.

    Args:
        heading: names of the columns, in capitals.
        rows: a cell for each column. Control characters are made visible; an empty cell is shown as ``-``.
    """
    cells = [list(heading), *([printable(str(cell)) or "-" for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heading) - 1)]
    return [
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in cells
    ]


class Line:
    """A line on how far something is: written over at a terminal, elsewhere again when it has changed and time passed.

    Args:
        quiet: nothing is shown.
    """

    _BETWEEN = 10
    """Seconds between two lines that are not written over each other."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._here = os.isatty(2) and not quiet
        self._shown = ""
        self._next = 0.0

    def show(self, line: str, *, now: bool = False) -> None:
        """Shows a line; `now`: however short ago the last one was."""
        if self._quiet or line == self._shown or (not self._here and time.monotonic() < self._next and not now):
            return
        self._shown, self._next = line, time.monotonic() + self._BETWEEN
        if self._here:
            messages.say(f"\r\033[K{printable(line)}", end="")
        else:
            messages.say(f"paddock: {printable(line)}")

    def end(self) -> None:
        """Leaves the terminal's line free."""
        if self._here and self._shown:
            messages.say("\r\033[K", end="")


def client() -> "Client":
    """Asks the service of this user."""
    from launcher.service.client import Client

    return Client(places.places(os.environ))


def show_json(content: object) -> None:
    """Prints JSON."""
    messages.show(json.dumps(content, indent=2))


def ago(moment: float | None, now: float | None = None) -> str:
    """How long ago a moment was, in one or two units: ``4m``, ``2h10``."""
    if moment is None:
        return "-"
    seconds = max(0, int((time.time() if now is None else now) - moment))
    for size, unit, below, divisor in ((86_400, "d", "h", 3_600), (3_600, "h", "", 60), (60, "m", "", 1)):
        if seconds >= size:
            rest = seconds % size // divisor
            return f"{seconds // size}{unit}" + (f"{rest:02d}{below}" if rest else "")
    return f"{seconds}s"


def size(count: int) -> str:
    """Bytes for people."""
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if count >= unit:
            return f"{count / unit:.1f}{name}"
    return str(count)


def amount(count: int) -> str:
    """A number of things for people."""
    for unit, name in ((10**6, "M"), (10**3, "k")):
        if count >= unit:
            return f"{count / unit:.1f}{name}"
    return str(count)


def tokens(session: "dict[str, Any]") -> str:
    """What a session's keys have taken, and their budget, for a column."""
    usage = session["usage"] or {}
    used, most = usage.get("tokens", 0), usage.get("token_budget", 0)
    return f"{amount(used)}/{amount(most)}" if most else amount(used) if used else "-"


def columns() -> int:
    """How many columns a line has: the terminal's; without one, enough for most."""
    return os.get_terminal_size(1).columns if os.isatty(1) else 160


def cut(text: str, room: int) -> str:
    """`text` in so many columns at most."""
    return text if len(text) <= room else text[: room - 1] + "…"


def counted(number: int, what: str, several: str) -> str:
    """A number and what is counted."""
    return f"{number} {what if number == 1 else several}"


def brief_ending(session: dict[str, Any]) -> str:
    """Why a session ended, for a column; a refusal by its name alone."""
    refusal = (session.get("outcome") or {}).get("refusal")
    return f"refused: {refusal['errorType']}" if refusal else ending(session)


def ending(session: dict[str, Any]) -> str:
    """Why a session ended, in few words."""
    outcome = session.get("outcome")
    if not outcome:
        return ""
    if outcome["refusal"]:
        return f"refused: {outcome['refusal']['message']} [{outcome['refusal']['errorType']}]"
    words = {"limit": f"limit: {outcome['limit']}", "signalled": f"signal {outcome['signal']}"}
    text = words.get(outcome["reason"], str(outcome["reason"]))
    return text if outcome["status"] is None else f"{text} ({outcome['status']})"
