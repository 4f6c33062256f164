"""Questions about refused hosts on the last line of the user's terminal, while the command goes on above it.

The command can write whatever it likes to that terminal, have it send reports and pastes, and draw a question of its
own. So an answer takes two keys, each alone in time: Ctrl-], as in `paddock attach`, and a letter. Between the two the
command's output is held and the question is drawn anew, so what is answered is what stands there. All other keys are
the command's, whose user may be typing when a question comes. No report of a terminal is a single character, and what
is pasted comes at once.

A terminal may be late by as much as the command likes (slow sequences), and show what has long been another question.
So it is asked for a report behind the question (DSR), and no letter counts before that has come, and the question has
stood there for a moment: until then the screen may have shown the command's. One that comes too early is nobody's.

How the line looks is Paddock's alone: what decides it, it sets itself each time, and what it cannot set, the command
cannot, either (`terminal_output`). The host stands there whole, on a row of its own where it is long; where there is no
room, nobody is asked.

Loaded beside the terminal (`own_terminal`), outside of the jail. What it is sent comes from the confined proxy.
"""

import fcntl
import re
import termios
import time

from launcher import wire
from launcher.lean import os
from launcher.session.terminal_output import TerminalOutput
from policy import asking
from policy.asking import Question

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_LETTERS = {word[0]: word for word in asking.ANSWERS}
_PREFIX = "\x1d"
_KEY = re.compile(rb"\x1b\[(\d+)(?::\d*)*(?:;(\d+)(?::1)?)?u|\x1b\[27;(\d+);(\d+)~")
"""A key that is pressed, in terminals' newer forms: of the kitty protocol, and of xterm's modifyOtherKeys."""
_RELEASED = re.compile(rb"\x1b\[\d+(?::\d*)*;\d+:3u")
_REPORT, _REPORTED = b"\x1b[5n", b"\x1b[0n"
"""Asks a terminal how it is, and what it says when it has done all before; the command's question does not pass."""
_BEGUN = re.compile(rb"\x1b\[0?\Z")
_PASTE, _PASTED = b"\x1b[200~", b"\x1b[201~"
_CTRL, _LOCKS = 4, 64 | 128  # modifiers, of which one more than the sum is sent

_GRACE = 0.7
"""Seconds for which a question is seen before it can be answered: a key may have been meant for the one before."""
READ_SECONDS = 0.5
"""Seconds for which the question stands there before a letter counts: whoever looks has seen the host by then."""
_APART = 0.08
"""Seconds without input before each of the two keys: nobody types so, and everything else comes in one piece."""
_FORGOTTEN = 2.0
"""Seconds in which a letter for a question that has gone does not reach the command."""
_CALM = 0.02
"""Seconds without output after which the line is drawn: not between the parts of what the command draws."""
_LONG = 0.5
"""Seconds after which it is drawn all the same."""
_ROWS, _COLUMNS = 4, 60
"""The smallest window in which there is room to ask."""
_ROWS_UNKNOWN = 999
"""Of a terminal that does not know its size, as a serial line: a row beyond its last one means that (ECMA-48, CUP)."""
_MOST_REPORTS = 16
"""Reports that may be missing: who sends none is not asked any more."""

# What the command may have begun is ended (CAN, ST): a title, say, would take in what follows. Output is shown at once,
# without margins; what is too long for the window after all is cut off, not wrapped; positions are those of the window.
_OWN = b"\x18\x1b\\\x1b7\x1b[?2026l\x1b[?69l\x1b[?7l\x1b[?6l\x0f\x1b(B\x1b[0;10m"
_PLAIN_SIZE = b"\x1b#5"
_LAST_ROW, _UP = b"\x1b[%d;1H", b"\x1b[A"  # never by number: which row is above an unknown last one, nobody knows
_ROOM = b"\x18\x1b\\%s\x1b[%dA"  # on the last line everything moves up, elsewhere nothing


class LastLine:
    """The questions that are open, what the last line shows, and which keys are for them.

    Attributes:
        fd: to be polled for reading; -1 when nobody asks any more.
        said: what the user is to be told at the end.
    """

    def __init__(self, fd: int, terminal: int, allow: "Callable[[Question], str]") -> None:
        """Takes over the socket that the proxy asks by.

        Args:
            fd: of it.
            terminal: the user's, for its size.
            allow: see `own_terminal.enter`.
        """
        self.fd = fd
        self.said: list[str] = []
        self._terminal = terminal
        self._allow = allow
        self._decoder = wire.Decoder(asking.MOST_BYTES)
        self._open: list[Question] = []
        self._seen: tuple[Question | None, float] = (None, 0.0)
        self._armed: Question | None = None
        self._swallows = 0.0
        self._typed = self._spoke = self._wished = 0.0
        self._drawn = b""
        self._stood = 0.0
        self._reports = self._awaited = 0
        self._asks = 0
        self._begun = b""
        self._late = False
        self._pastes = False
        self._output = TerminalOutput()

    # What the proxy says.

    def hear(self, *, foreground: bool) -> None:
        """Takes what has come. In the background nobody can be asked."""
        try:
            data = wire.receive_piece(self.fd, [])
            for kind, payload in self._decoder.feed(data):
                if kind == asking.ASKED:
                    self._take(asking.unpacked(payload), foreground=foreground)
                elif kind == asking.GONE:
                    self._forget(int(payload))
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data = b""
        if not data:
            self.end()
            os.close(self.fd)
            self.fd = -1

    def _take(self, question: Question, *, foreground: bool) -> None:
        able = self._reports < _MOST_REPORTS and os.environ.get("TERM", "dumb") not in ("", "dumb")
        if foreground and able and self._rows(question, armed=True):
            self._open.append(question)
            self._wished = time.monotonic()
        else:
            self._say(asking.PASS, str(question.number).encode())

    def _forget(self, number: int) -> None:
        if self._armed is not None and self._armed.number == number:
            self._armed, self._swallows = None, time.monotonic() + _FORGOTTEN
        self._open = [question for question in self._open if question.number != number]
        self._wished = time.monotonic()

    def give_up(self) -> None:
        """Nobody can be asked for now."""
        for question in self._open:
            self._say(asking.PASS, str(question.number).encode())
        self.end()

    def end(self) -> None:
        """All questions are over."""
        self._open, self._armed = [], None

    def _say(self, kind: bytes, payload: bytes) -> None:
        try:
            wire.send(self.fd, wire.frame(kind, payload))
        except OSError:
            return  # the proxy has ended, and refused everything

    # What is typed.

    @property
    def awaits_key(self) -> bool:
        """Whether the next key is an answer, and what the command says is held."""
        return self._armed is not None

    def typed(self, data: bytes) -> bytes:
        """What of the user's input is the command's."""
        now = time.monotonic()
        data = self._without_reports(data, now)
        if not data:
            return b""
        alone, self._typed = now - self._typed >= _APART, now
        begin, end = data.rfind(_PASTE), data.rfind(_PASTED)
        pasting = self._pastes or begin >= 0
        if max(begin, end) >= 0:
            self._pastes = begin > end
        if pasting or (self._armed is not None and not self._rows(self._armed, armed=True)):
            self._armed = None  # pasted, in however many pieces; or the window has become too small for the question
            self._wished = now
            return data
        if self._armed is not None or now < self._swallows:
            if _RELEASED.fullmatch(data) or (data[:1] == b"\x1b" and len(data) > 1 and not _pressed(data)):
                return b""  # of a key, a mouse, a window: no letter, and no change of mind
            word = _LETTERS.get(_pressed(data))
            shown = not self._awaited and not self._differs() and now - self._stood >= READ_SECONDS
            if self._armed is not None and alone and word and not shown:
                self._stood, self._late = now, self._awaited > 0
                return b""
            question, self._armed, self._swallows = self._armed, None, 0.0
            if question is not None and alone and word:
                self._answer(question, word)
            return b""
        seen, since = self._seen
        if seen in self._open and alone and now - since >= _GRACE and _pressed(data) == _PREFIX:
            self._arm(seen)
            return b""
        return data

    def _arm(self, question: Question | None) -> None:
        if self._reports >= _MOST_REPORTS:
            self.said.append("the terminal does not report what it shows (DSR 5), so nobody was asked there any more")
            self.give_up()
            return
        self._armed, self._late, self._awaited = question, False, 0
        # A report that is missing is lost, or on its way. So many are asked for, and awaited, that one is a new one.
        self._asks = self._reports + 1

    def _without_reports(self, data: bytes, now: float) -> bytes:
        """`data` without the reports that were asked for, which may come in pieces. Escape alone is a key."""
        data, self._begun = self._begun + data, b""
        while self._reports and _REPORTED in data:
            data = data.replace(_REPORTED, b"", 1)
            self._reports, self._awaited = self._reports - 1, max(0, self._awaited - 1)
            self._stood = now
            self._late = self._late and self._awaited > 0
        if self._reports and (begun := _BEGUN.search(data)):
            data, self._begun = data[: begun.start()], begun[0]
        return data

    def _answer(self, question: Question, word: str) -> None:
        if word == asking.ALWAYS and (failure := self._allow(question)):
            self.said.append(f"{question.where} is allowed for this session only: {failure}")
            word = asking.SESSION
        self._say(asking.ANSWER, asking.answer(question.number, word))
        self._forget(question.number)
        self._swallows = 0.0

    # What is shown.

    @property
    def height(self) -> int:
        """Rows that it takes from the command."""
        return max(1, len(self._rows(self._open[0], armed=True))) if self._open else 0

    def left_of(self, size: bytes) -> bytes:
        """The window's size (struct winsize) that is left for the command."""
        rows = int.from_bytes(size[:2], "little")  # a command that does not know of any is left without
        return (rows - self.height if rows >= _ROWS else rows).to_bytes(2, "little") + size[2:]

    def passing(self, data: bytes) -> bytes:
        """What is to be written for the command's `data`: the line is its own again, until it pauses."""
        self._spoke = time.monotonic()
        erasing, self._drawn = self._erasing(), b""
        return erasing + self._output.passing(data)

    def is_due(self) -> bool:
        """Whether something else is to be drawn, now."""
        now = time.monotonic()
        return self._differs() and (now - self._spoke >= _CALM or now - self._wished >= _LONG)

    def patience(self, other: int | None) -> int | None:
        """Milliseconds until it is due; `other` where nothing is, or that comes first."""
        if not self._differs():
            return other
        own = int(_CALM * 1000) + 1
        return own if other is None else min(own, other)

    def _differs(self) -> bool:
        """Whether the terminal shows something else, or was not asked yet whether it shows what has been armed."""
        return self._wanted() != self._drawn or (self._armed is not None and self._asks > 0 and self._drawn != b"")

    def drawing(self) -> bytes:
        """What makes the line show what it should."""
        picture, before = self._wanted(), self._erasing()
        self._drawn = picture
        if not picture:
            return before
        self._wished = time.monotonic()
        if self._seen[0] is not self._open[0]:
            self._seen = (self._open[0], time.monotonic())
        room = b"" if self._output.alternate else _ROOM % (b"\x1bD" * self.height, self.height)
        drawing = before + room + self._owned(b"\x1b[7m" + picture)
        if self._armed is None:
            return drawing
        asks, self._asks = self._asks or 1, 0
        self._reports, self._awaited, self._stood = self._reports + asks, self._awaited + asks, time.monotonic()
        return drawing + _REPORT * asks

    def _erasing(self) -> bytes:
        if not self._drawn:
            return b""
        # Blanks, too: what was protected before the command began (SPA), no sequence erases.
        return self._owned(b"".join(self._row(at, "") for at in range(self._drawn.count(_PLAIN_SIZE))))

    def _owned(self, rows: bytes) -> bytes:
        return _OWN + rows + b"\x1b[0m" + self._output.regained() + b"\x1b8"

    def _row(self, above: int, text: str) -> bytes:
        """One row, so many above the last, that shows this and nothing else."""
        rows, columns = self._size()
        return _LAST_ROW % rows + _UP * above + _PLAIN_SIZE + text.ljust(columns - 1).encode() + b"\x1b[K"

    def _wanted(self) -> bytes:
        if not self._open:
            return b""
        return self._picture(self._armed or self._open[0], armed=self._armed is not None)

    def _picture(self, question: Question, *, armed: bool) -> bytes:
        """What is drawn; b"" where the window is too small for it."""
        found = self._rows(question, armed=armed)
        return b"".join(self._row(len(found) - at, text) for at, text in enumerate(found, 1))

    def _rows(self, question: Question, *, armed: bool) -> list[str]:
        """The rows; none where the window is too small for them."""
        rows, columns = self._size()
        letters = "? [n]o [o]nce [s]ession [a]lways"
        whole, above = f"paddock: send data to {question.where}{letters}", f"paddock: {question.where}"
        if rows < _ROWS or columns < max(_COLUMNS, len(above) + 1):
            return []
        is_long = len(whole) >= columns
        if armed:
            last = f"paddock: send data there{letters}" if is_long else whole
            if self._late:
                last = last.removesuffix(letters) + "? the terminal is late; wait"
        else:
            more = f" ({len(self._open) - 1} more)" if len(self._open) > 1 else ""
            asks = f"paddock: {question.who} asks for {'it' if is_long else question.where}"
            refused = "paddock: refused" if is_long else f"paddock: refused: {question.where}"
            end = f"; Ctrl-] to answer{more}"
            last = next(front + end for front in (asks, refused) if front is refused or len(front + end) < columns)
        return [above, last] if is_long else [last]

    def _size(self) -> tuple[int, int]:
        try:
            size = fcntl.ioctl(self._terminal, termios.TIOCGWINSZ, bytes(8))
        except OSError:
            return 0, 0
        rows, columns = int.from_bytes(size[:2], "little"), int.from_bytes(size[2:4], "little")
        return rows or _ROWS_UNKNOWN, columns or _COLUMNS


def _pressed(data: bytes) -> str:
    """The one key that this input is, as the character it has always been; "" for anything else."""
    if len(data) == 1:
        return data.decode("latin-1")
    found = _KEY.fullmatch(data)
    if found is None:
        return ""
    code, modifiers = int(found[1] or found[4]), int(found[2] or found[3] or 1) - 1 & ~_LOCKS
    if modifiers == _CTRL:
        return _PREFIX if code == ord("]") else ""
    return chr(code) if not modifiers and code < 128 else ""
