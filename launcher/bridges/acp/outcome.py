"""What becomes of one line."""

from typing import NamedTuple


class Outcome(NamedTuple):
    """Whole lines, or nothing.

    Attributes:
        on: goes on to the other side.
        back: goes back to the side that the line came from.
    """

    on: bytes = b""
    back: bytes = b""
