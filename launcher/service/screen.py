"""A terminal's rendering of what a session wrote there: the confined process behind `paddock logs`.

An emulator of the terminal that TERM=xterm promises, as far as it decides which text stands where: colours, titles
and questions to the terminal mean nothing here. Lines that leave the screen at its top are printed, whole where the
terminal wrapped them; what is on the screen at the end is printed then. An alternate screen is printed as it was when
it was left, above what follows it.

Of its own because of what it reads: pyte, the library for this, takes two minutes for 200 KB of combining characters,
ends with errors on random bytes (its issue 209), and has no alternate screen. It is the oracle of the tests.
"""

import codecs
import gc
import json
import os
import re
import resource
import select
import time
import unicodedata
from collections import deque
from itertools import groupby
from typing import NoReturn

from launcher.jail import cell

WINDOW = (24, 80)
_MOST_WINDOW = (200, 500)
"""Rows and columns where none are known, and at most."""
QUIET = 0.5
"""Seconds without output, after which what is on the screen is printed by a rendering that follows."""
_MEMORY = 512 << 20
_PIECE = 64 << 10
_TAB = 8
_MOST_MARKS = 8
"""Combining characters on one cell; further ones are dropped."""
_MOST_UNFINISHED = 4 << 10
_MOST_JOINED = 64 << 10
_MOST_STRING = 64 << 10
"""Characters of an escape sequence that is not whole, of a line that the terminal wrapped, and of a string (a title, a
picture) before the next line ends it: one that nothing ends would hide all that follows."""

_TOKEN = re.compile(
    r"(?P<text>[^\x00-\x1f\x7f-\x9f]+)"
    r"|\x1b\[(?P<private>[<=>?]?)(?P<parameters>[0-9:;]*)(?P<between>[ -/]*)(?P<final>[@-~])"
    r"|(?P<string>\x1b[P\]X^_])"
    r"|\x1b(?P<escape>[ -/]+[0-~]|[0-OQ-WYZ\\`-~])"
    r"|(?P<control>[\x00-\x1a\x1c-\x1f\x7f-\x9f])"
)
_UNFINISHED = re.compile(r"\x1b(\[[<=>?]?[0-9:;]*[ -/]*|[ -/]*)\Z")
_STRING_ENDS = re.compile("[\x07\x18\x1a\x1b\x9c]")
_LINES = str.maketrans("`afgjklmnopqrstuvwxyz{|}~", "◆▒°±┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·")
"""DEC's special graphics."""


class Row:
    """A row of the screen: one string for each cell that was written, "" behind a wide character.

    Attributes:
        joined: the next row continues it.
        time: when it was last written to.
        shown: what was printed of it.
    """

    __slots__ = ("cells", "joined", "shown", "time")

    def __init__(self) -> None:
        """Blank."""
        self.cells: list[str] = []
        self.joined = False
        self.time = 0.0
        self.shown: str | None = None

    @property
    def text(self) -> str:
        """Without the blanks at its end."""
        return "".join(self.cells).rstrip(" ")

    def erase(self, begin: int, end: int) -> None:
        """Blanks cells."""
        if end >= len(self.cells):
            del self.cells[begin:]
            self.joined = False
        else:
            self.cells[begin:end] = " " * (end - begin)


class Screen:
    """The terminal. `feed` it; what leaves it is in `gone`."""

    def __init__(self, rows: int = WINDOW[0], columns: int = WINDOW[1]) -> None:
        """Blank, the cursor at home."""
        self.gone: list[Row] = []
        self.now = 0.0
        self._rest = ""
        self._in_string = False
        self._skipped = 0
        self.columns = columns
        self.rows = [Row() for _ in range(rows)]
        self._reset()

    def _reset(self) -> None:
        self.x = self.y = 0
        self._saved = (0, 0)
        self._primary: tuple[list[Row], int, int] | None = None
        self._top, self._bottom = 0, len(self.rows) - 1
        self._wraps, self._inserts = True, False
        self._graphics = [False, False]
        self._set = 0
        self._last = ""

    @property
    def alternate(self) -> bool:
        """Whether the alternate screen is shown."""
        return self._primary is not None

    def resize(self, rows: int, columns: int) -> None:
        """Another size: rows that the cursor's needs go out at the top. Text is not wrapped anew."""
        rows, columns = max(1, min(rows, _MOST_WINDOW[0])), max(2, min(columns, _MOST_WINDOW[1]))
        self.columns = columns
        self.rows, self.y = self._cut(self.rows, rows, self.y, self.gone if self._primary is None else [])
        if self._primary is not None:
            kept, x, y = self._primary
            kept, y = self._cut(kept, rows, y, self.gone)
            self._primary = kept, min(x, columns - 1), y
        self.x = min(self.x, columns - 1)
        self._top, self._bottom = 0, rows - 1

    @staticmethod
    def _cut(found: list[Row], count: int, y: int, gone: list[Row]) -> tuple[list[Row], int]:
        over = max(0, y + 1 - count)
        gone += found[:over]
        found = found[over : over + count]
        return found + [Row() for _ in range(count - len(found))], y - over

    def feed(self, text: str) -> None:
        """Takes what was written; a sequence may be whole with the next call only."""
        text = self._rest + text
        self._rest = ""
        at = 0
        while at < len(text):
            if self._in_string:
                end = _STRING_ENDS.search(text, at)
                until = len(text) if end is None else end.start()
                line = text.find("\n", at + max(0, _MOST_STRING - self._skipped), until)
                if line != -1:
                    self._skipped += line - at
                    at = line
                    self._end_string()
                elif end is None:
                    self._skipped += until - at
                    return
                else:
                    self._in_string = False
                    at = until if end[0] == "\x1b" else end.end()
                continue
            found = _TOKEN.match(text, at)
            if found is None:
                if len(text) - at < _MOST_UNFINISHED and _UNFINISHED.match(text, at):
                    self._rest = text[at:]
                    return
                at += 1  # ESC, of no sequence
                continue
            at = found.end()
            kind = found.lastgroup
            if kind == "text":
                self._draw(found[0])
            elif kind == "control":
                self._control(found[0])
            elif kind == "final":
                self._sequence(found["private"], found["parameters"], found["between"], found["final"])
            elif kind == "string":
                self._in_string, self._skipped = True, 0
            else:
                self._escape(found["escape"])

    def _end_string(self) -> None:
        """Goes on as if a string without an end had one, and says so."""
        self._in_string = False
        if self._skipped:
            self._draw(f"[{self._skipped} characters of a sequence without an end: --raw shows them]")

    # Text

    def _draw(self, text: str) -> None:
        self._last = text[-1]
        if text.isascii():
            self._run(text, 1)
            return
        for width, run in groupby(text, _width):
            self._run("".join(run), width)

    def _run(self, text: str, width: int) -> None:
        """Characters of one width, as much of a row at once as there is room for: a few bytes make many (REP)."""
        if self._graphics[self._set]:
            text = text.translate(_LINES)
        if width == 0:
            for char in text[:_MOST_MARKS]:
                self._mark(char)
            return
        cells = text if width == 1 else [cell for char in text for cell in (char, "")]
        at = 0
        while at < len(cells):
            self._wrap(width)
            until = at + (self.columns - self.x) // width * width
            self._put(cells[at:until])
            at = until if self._wraps else max(until, len(cells) - width)  # the last cell is written again and again

    def _wrap(self, width: int) -> None:
        if self.x + width > self.columns:
            if self._wraps:
                self.rows[self.y].joined = True
                self.x = 0
                self._down()
            else:
                self.x = self.columns - width

    def _put(self, cells: str | list[str]) -> None:
        row = self.rows[self.y]
        row.time, row.joined = self.now, False
        have = row.cells
        if self.x > len(have):
            have += " " * (self.x - len(have))
        end = self.x + len(cells)
        if self._inserts:
            have[self.x : self.x] = cells
            del have[self.columns :]
        else:
            if self.x < len(have) and have[self.x] == "":
                have[self.x - 1] = " "  # half of a wide character is none
            if end < len(have) and have[end] == "":
                have[end] = " "
            have[self.x : end] = cells
        self.x = end

    def _mark(self, char: str) -> None:
        cells, at = self.rows[self.y].cells, self.x - 1
        while 0 < at < len(cells) and cells[at] == "":
            at -= 1
        if 0 <= at < len(cells) and len(cells[at]) <= _MOST_MARKS:
            cells[at] += char

    # Moves

    def _down(self) -> None:
        if self.y == self._bottom:
            if self._top == 0 and self._primary is None:
                self.gone.append(self.rows[0])
            self._delete(self._top, 1)
        elif self.y < len(self.rows) - 1:
            self.y += 1

    def _up(self) -> None:
        if self.y == self._top:
            self._insert(self._top, 1)
        elif self.y:
            self.y -= 1

    def _scroll(self, count: int) -> None:
        """Moves rows out at the top. Blank ones around the text on them are not printed: a few bytes make many."""
        if self._top == 0 and self._primary is None:
            out = self.rows[: min(count, self._bottom + 1)]
            filled = [at for at, row in enumerate(out) if row.cells and row.text]
            self.gone += out[filled[0] : filled[-1] + 1] if filled else []
        self._delete(self._top, count)

    def _delete(self, at: int, count: int) -> None:
        count = min(count, self._bottom + 1 - at)
        del self.rows[at : at + count]
        self.rows[self._bottom + 1 - count : self._bottom + 1 - count] = [Row() for _ in range(count)]

    def _insert(self, at: int, count: int) -> None:
        count = min(count, self._bottom + 1 - at)
        del self.rows[self._bottom + 1 - count : self._bottom + 1]
        self.rows[at:at] = [Row() for _ in range(count)]

    def _go(self, y: int, x: int) -> None:
        self.y, self.x = max(0, min(y, len(self.rows) - 1)), max(0, min(x, self.columns - 1))

    # Sequences

    def _control(self, control: str) -> None:
        if control == "\r":
            self.x = 0
        elif control in "\n\v\f\x84":
            self._down()
        elif control == "\b":
            self.x = max(0, min(self.x, self.columns - 1) - 1)
        elif control == "\t":
            self.x = min((self.x // _TAB + 1) * _TAB, self.columns - 1)
        elif control in "\x0e\x0f":
            self._set = int(control == "\x0e")

    def _escape(self, what: str) -> None:
        if what == "7":
            self._saved = (self.y, self.x)
        elif what == "8":
            self._go(*self._saved)
        elif what in "DE":
            self.x = 0 if what == "E" else self.x
            self._down()
        elif what == "M":
            self._up()
        elif what == "c":
            self._leave()
            self._erase(2)
            self._reset()
        elif what[0] in "()" and len(what) == 2:
            self._graphics[what[0] == ")"] = what[1] == "0"

    def _sequence(self, private: str, parameters: str, between: str, final: str) -> None:
        if between or (private and (private, final) not in (("?", "h"), ("?", "l"), ("?", "J"), ("?", "K"))):
            return
        given = [int(part[:5]) if part.isdigit() else 0 for part in parameters.split(";", 16)[:16]]
        first = given[0]
        count = max(1, first)
        row = self.rows[self.y]
        if final in "AF":
            self._go(max(self.y - count, self._top if self.y >= self._top else 0), 0 if final == "F" else self.x)
        elif final in "BEe":
            bottom = self._bottom if self.y <= self._bottom else len(self.rows) - 1
            self._go(min(self.y + count, bottom), 0 if final == "E" else self.x)
        elif final in "Ca":
            self._go(self.y, self.x + count)
        elif final == "D":
            self._go(self.y, min(self.x, self.columns - 1) - count)
        elif final in "G`":
            self._go(self.y, count - 1)
        elif final == "d":
            self._go(count - 1, self.x)
        elif final in "Hf":
            self._go(count - 1, (given[1] if len(given) > 1 else 1) - 1)
        elif final == "J":
            self._erase(first)
        elif final == "K":
            row.erase(0 if first else self.x, self.x + 1 if first == 1 else self.columns)
        elif final == "X":
            row.erase(self.x, self.x + count)
        elif final == "P":
            del row.cells[self.x : self.x + count]
        elif final == "@" and self.x < len(row.cells):
            row.cells[self.x : self.x] = " " * min(count, self.columns - self.x)
            del row.cells[self.columns :]
        elif final in "LM" and self._top <= self.y <= self._bottom:
            (self._insert if final == "L" else self._delete)(self.y, count)
            self.x = 0
        elif final == "S":
            self._scroll(count)
        elif final == "T":
            self._insert(self._top, count)
        elif final == "b" and self._last:
            self._run(self._last * min(count, self.columns), _width(self._last))
        elif final == "r" and not private:
            top, bottom = count - 1, min((given[1] if len(given) > 1 else 0) or len(self.rows), len(self.rows)) - 1
            if top < bottom:
                self._top, self._bottom = top, bottom
                self._go(0, 0)
        elif final == "s":
            self._saved = (self.y, self.x)
        elif final == "u":
            self._go(*self._saved)
        elif final in "hl":
            self._mode(private, given, on=final == "h")

    def _erase(self, what: int) -> None:
        if what == 0:
            self.rows[self.y].erase(self.x, self.columns)
        elif what == 1:
            self.rows[self.y].erase(0, self.x + 1)
        begin, end = {0: (self.y + 1, len(self.rows)), 1: (0, self.y), 2: (0, len(self.rows))}.get(what, (0, 0))
        for row in self.rows[begin:end]:
            if row.cells or row.joined:
                row.erase(0, self.columns)

    def _mode(self, private: str, given: list[int], *, on: bool) -> None:
        if not private:
            self._inserts = on if 4 in given else self._inserts
            return
        self._wraps = on if 7 in given else self._wraps
        if 1048 in given and on:
            self._saved = (self.y, self.x)
        elif 1048 in given:
            self._go(*self._saved)
        if {47, 1047, 1049} & set(given):
            if on and self._primary is None:
                self._primary = (self.rows, self.x, self.y)
                self.rows = [Row() for _ in self.rows]
            elif not on:
                self._leave()

    def _leave(self) -> None:
        """Back to the primary screen, on which the alternate one is from now on a part of what was above."""
        if self._primary is None:
            return
        last = self.filled()
        self.rows, self.x, self.y = self._primary
        self._primary = None
        self._top, self._bottom = 0, len(self.rows) - 1
        if last:
            self.gone += [*self.rows[: self.y], *last]
            self._delete(0, self.y)
            self.y = 0

    def filled(self) -> list[Row]:
        """The screen's rows, as far down as there is text."""
        last = len(self.rows)
        while last and not self.rows[last - 1].text:
            last -= 1
        return self.rows[:last]

    def finish(self) -> list[Row]:
        """Everything that is still on the screen; it is blank then, as a new terminal."""
        if self._in_string:
            self._end_string()
        self._leave()
        found, self.gone = [*self.gone, *self.filled()], []
        self.rows = [Row() for _ in self.rows]
        self._rest, self._in_string = "", False
        self._reset()
        return found


def _width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


_AS_OURS = re.compile(r"\W*" + "".join(f"(?:{letter}|[^\\W\\x00-\\x7f])" for letter in "paddock") + r"(?!\w)", re.I)
"""A line that begins with Paddock's name, or with letters that may look like it."""


def marked(text: str) -> str:
    """A line of a session's: none is read as a note of the service's, which begins with `paddock: `."""
    return f"| {text}" if _AS_OURS.match(text) else text


class Rendering:
    """Prints records of a log (`launcher.service.log_files`) as lines."""

    def __init__(self, descriptor: int, *, tail: int | None, times: bool) -> None:
        """Args: where lines go; the options of `paddock logs`."""
        self._descriptor = descriptor
        self._times = times
        self._screen = Screen()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._joined, self._at = "", 0.0
        self._past: deque[bytes] | None = None if tail is None else deque(maxlen=tail)
        self._waiting: list[bytes] = []
        self._size = 0

    def take(self, record: dict[str, object]) -> None:
        """One record."""
        text, stream = str(record["text"]), record["stream"]
        moment = float(str(record["time"]))
        if stream == "terminal":
            rows, columns, *new = text.split(" ")
            self._print(self._screen.finish() if new else [])
            if int(rows) and int(columns):  # else its size is not known
                self._screen.resize(int(rows), int(columns))
        elif stream == "paddock":
            self.settle(all_of_it=True)
            self._line(f"paddock: {text}", moment)
        else:
            self._screen.now = moment
            data = text.encode("utf-8", "surrogateescape") + (b"" if record.get("more") else b"\n")
            self._screen.feed(self._decoder.decode(data))
        gone, self._screen.gone = self._screen.gone, []
        self._print(gone)

    def settle(self, *, all_of_it: bool = False) -> None:
        """Prints what is new on the primary screen, but for a line that the cursor is at the end of."""
        screen = self._screen
        rows = [] if screen.alternate else screen.filled()
        while rows and not all_of_it and (len(rows) == screen.y + 1 or rows[-1].joined):
            rows.pop()
        first = next((at for at, row in enumerate(rows) if row.shown != row.text), len(rows))
        for row in rows[first:]:
            row.shown = None
        self._print(rows[first:])
        for row in rows[first:]:
            row.shown = row.text

    def catch_up(self) -> None:
        """What was printed so far is the past, of which there may be a tail only."""
        if self._past is not None:
            self._waiting += self._past
            self._past = None
        self.flush()

    def end(self) -> None:
        """Prints the rest."""
        self._print(self._screen.finish())
        self._end_line()
        self.catch_up()

    def _print(self, rows: list[Row]) -> None:
        for row in rows:
            if row.shown == row.text:
                self._end_line()
                continue
            self._joined += "".join(row.cells) if row.joined else row.text
            self._at = row.time
            if not row.joined or len(self._joined) > _MOST_JOINED:
                self._end_line(blank=True)

    def _end_line(self, *, blank: bool = False) -> None:
        if self._joined or blank:
            self._line(marked(self._joined), self._at)
            self._joined = ""

    def _line(self, text: str, moment: float) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S ", time.localtime(moment)) if self._times else ""
        line = f"{stamp}{text}\n".encode(errors="replace")
        if self._past is not None:
            self._past.append(line)
            return
        self._waiting.append(line)
        self._size += len(line)
        if self._size > _PIECE:
            self.flush()

    def flush(self) -> None:
        """Writes what is printed."""
        data, self._waiting, self._size = b"".join(self._waiting), [], 0
        while data:
            data = data[os.write(self._descriptor, data) :]


def serve(*, follow: bool, tail: int | None, times: bool) -> NoReturn:
    """Renders records on standard input, one a line, to standard output, confined.

    An empty line stands between what was there and what comes.
    """
    status = 1
    try:
        gc.freeze()
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        cell.confine("paddock-render")
        _render(Rendering(1, tail=tail, times=times), follow=follow)
        status = 0
    except BrokenPipeError:
        status = 0  # nobody reads any more
    finally:
        os._exit(status)


def _render(rendering: Rendering, *, follow: bool) -> None:
    waiting = b""
    while True:
        if follow and not select.select([0], [], [], QUIET)[0]:
            rendering.settle()
            rendering.catch_up()
        data = os.read(0, _PIECE)
        if not data:
            break
        *lines, waiting = (waiting + data).split(b"\n")
        for line in lines:
            if line:
                rendering.take(json.loads(line))
            else:
                rendering.catch_up()
        rendering.flush()
    rendering.end()
