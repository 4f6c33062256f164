"""This process's own terminal while it stands for a session's: raw, with a way out that no programme uses.

What is typed goes to the session as it is, Ctrl-C included, whose terminal makes a signal of it there. Leaving is
Ctrl-] and a full stop, as telnet(1) and ssh(1) have something of the kind.
"""

import os
import termios
from types import TracebackType

LEAVE = b"\x1d."
LEAVE_NAME = "Ctrl-] ."


class RawTerminal:
    """Standard input as a raw terminal; a context manager, after which it is as it was."""

    def __init__(self) -> None:
        """Looks how it is now."""
        self._before = termios.tcgetattr(0)
        self._held = b""

    def __enter__(self) -> "RawTerminal":
        self.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    def enter(self) -> None:
        """Makes it raw (termios(3), cfmakeraw), once more after somebody else has had it."""
        wanted = termios.tcgetattr(0)
        wanted[0] &= ~(
            termios.IGNBRK | termios.BRKINT | termios.PARMRK | termios.ISTRIP
            | termios.INLCR | termios.IGNCR | termios.ICRNL | termios.IXON
        )  # fmt: skip
        wanted[1] &= ~termios.OPOST
        wanted[2] = wanted[2] & ~(termios.CSIZE | termios.PARENB) | termios.CS8
        wanted[3] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
        wanted[6][termios.VMIN], wanted[6][termios.VTIME] = 1, 0
        termios.tcsetattr(0, termios.TCSADRAIN, wanted)

    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        found = os.get_terminal_size(0)
        return found.lines, found.columns

    def typed(self, data: bytes) -> tuple[bytes, bool]:
        """What of `data` is for the session, and whether its writer wants to leave.

        The first key of `LEAVE` is held back until the next one has come.
        """
        data = self._held + data
        self._held = b""
        before, found, _ = data.partition(LEAVE)
        if found:
            return before, True
        if data.endswith(LEAVE[:1]):
            self._held = data[-1:]
            return data[:-1], False
        return data, False
