"""One direction of the bridge: lines in, lines out, in order, and those that must be judged, judged.

A line ends with a newline (https://agentclientprotocol.com/protocol/transports). Whole lines without any word that
matters pass as the bytes they are. A line too long to be held is passed piece by piece as long as no such word comes;
when one does, the line is cut there: what has left is no policed message, and the rest never leaves.
"""

from collections.abc import Callable

from launcher.bridges.acp.outcome import Outcome
from launcher.bridges.acp.scan import LONGEST, Scan

MOST_HELD = 8 << 20
"""Bytes of one line that are held to be judged as a whole."""

_FREE, _PASSING, _DROPPING = range(3)
_SPLIT = 3  # bytes of a character of UTF-8 that may lie before the end of a piece


class Way:
    """One direction. Gets bytes by `feed`, keeps what is to be written in `out`.

    Attributes:
        out: what the other side gets next; whoever writes it takes it away from the front.
        owed: bytes in `out` that are replies of the bridge's own, at most.
    """

    def __init__(
        self,
        scan: Scan,
        judge: Callable[[bytes], Outcome],
        unreadable: Callable[[str], Outcome] | None,
        most: int = MOST_HELD,
    ) -> None:
        """Prepares one direction.

        Args:
            scan: tells which lines are judged.
            judge: judges a line that has its newline.
            unreadable: answers a line that is too long to be judged; None: such lines pass.
            most: bytes of a line that are held.
        """
        self.out = bytearray()
        self.owed = 0
        self._scan = scan
        self._judge = judge
        self._unreadable = unreadable
        self._most = most
        self._rest = bytearray()
        self._looked = 0  # bytes of the rest that are known to hold no newline
        self._state = _FREE
        self._waiting: list[bytes] = []
        self._reply: Callable[[bytes], None] = self.reply

    def replies_to(self, other: "Way") -> None:
        """Sends what is answered to a line back by the other direction."""
        self._reply = other.reply

    def feed(self, data: bytes) -> None:
        """Takes what has been read."""
        self._rest += data
        end = self._rest.rfind(b"\n", self._looked) + 1
        if end == 0:
            self._looked = len(self._rest)
            if self._state != _FREE or len(self._rest) > self._most:
                self._piece()
            return
        if self._state != _FREE:
            first = self._rest.find(b"\n") + 1
            self._last_piece(first)
            end -= first
        self._looked = 0
        if end:
            lines = bytes(self._rest[:end])
            del self._rest[:end]
            self._lines(lines)
        if len(self._rest) > self._most:
            self._looked = len(self._rest)
            self._piece()

    def end(self) -> None:
        """There is no more to come. A last line without its newline is a line."""
        if self._state != _FREE:
            self._last_piece(len(self._rest))
        elif self._rest:
            lines = bytes(self._rest)
            self._rest.clear()
            self._lines(lines)
        self._release()

    def reply(self, data: bytes) -> None:
        """Puts whole lines of the bridge's own between the others."""
        self.owed += len(data)
        if self._state == _PASSING:
            self._waiting.append(data)
        else:
            self.out += data

    def written(self, count: int) -> None:
        """Takes bytes that have been written off the front of `out`."""
        del self.out[:count]
        if not self.out and not self._waiting:
            self.owed = 0

    def _lines(self, lines: bytes) -> None:
        if not self._is_suspicious(lines):
            self.out += lines
            return
        start = 0
        while start < len(lines):
            end = lines.find(b"\n", start) + 1 or len(lines)
            line = lines[start:end]
            start = end
            if not self._is_suspicious(line):
                self.out += line
            elif len(line) <= self._most:
                self._judged(line)
            elif self._unreadable is None:
                self.out += line
            else:
                self._refuse_long()

    def _judged(self, line: bytes) -> None:
        outcome = self._judge(line)
        self.out += outcome.on
        if outcome.back:
            self._reply(outcome.back)

    def _is_suspicious(self, data: bytes) -> bool:
        return self._scan.has_word(data) or not self._scan.is_sound(data)

    def _refuse_long(self) -> None:
        if self._unreadable is not None:
            self._reply(self._unreadable(f"the line is longer than {self._most} bytes").back)

    def _piece(self) -> None:
        """A piece of a line that is too long to be held is at hand."""
        if self._state == _DROPPING:
            self._rest.clear()
            self._looked = 0
            return
        cut = _boundary(self._rest, len(self._rest) - LONGEST)
        if self._unreadable is not None and (
            self._scan.has_word(self._rest) or not self._scan.is_sound(self._rest[:cut])
        ):
            self._cut()
            self._rest.clear()
            self._looked = 0
            return
        self._state = _PASSING
        self.out += self._rest[:cut]
        del self._rest[:cut]
        self._looked = len(self._rest)

    def _last_piece(self, end: int) -> None:
        """The end of a line that is too long to be held is at hand."""
        piece = bytes(self._rest[:end])
        del self._rest[:end]
        if self._state == _PASSING:
            if self._unreadable is not None and self._is_suspicious(piece):
                self._cut()
            else:
                self.out += piece
        self._state = _FREE
        self._release()

    def _cut(self) -> None:
        """Ends the line where it is: what has left of it holds no word, so no parser makes a policed message of it."""
        if self._state == _PASSING:
            self.out += b"\n"
        self._state = _DROPPING
        self._release()
        self._refuse_long()

    def _release(self) -> None:
        for data in self._waiting:
            self.out += data
        self._waiting.clear()


def _boundary(data: bytearray, at: int) -> int:
    """The nearest place at or before `at` that is no continuation of a character (RFC 3629)."""
    at = max(at, 0)
    for back in range(_SPLIT + 1):
        if at - back <= 0:
            return max(at - back, 0)
        if data[at - back] & 0xC0 != 0x80:
            return at - back
    return at
