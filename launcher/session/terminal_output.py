"""What a command writes to the user's terminal, where more is at stake than its own picture.

A terminal keeps much of what it is told, and shows by it what is written later: margins, colours, fonts. Where a person
is asked something (`last_line`), and where the terminal is given back before the command ends (`paddock attach`), a
sequence passes if it only changes what stands there now, if Paddock sets anew what it sets, or if it matters to nobody.
So everything else is left out: the palette and the default colours, fonts, pictures, which lie above the text, another
terminal's mode (VT52, Tektronix), pages, printers, the window's size. Only what is whole passes, in the one form that
all terminals read alike: no control characters within, no C1.

A terminal types its answers, and one that comes late is typed at the user's prompt. So only those questions pass whose
answers are numbers, or words of the terminal's own: none that gives back what the command has chosen (the title, the
clipboard, the name of a notification, of a capability).
"""

import re

_ENQUIRY = b"\x05"
"""Which terminals answer with a text that their user has set, and no programme of our time asks."""

_MOST_SEQUENCE = 4 << 10
_MOST_STRING = 1 << 20
"""Bytes of a sequence, and of a string (a title, the clipboard), that are waited for."""

_MODE = rb"(?:[1456789]|1[234]|25|30|4[1257]|6[679]|1[0-9]{3}|20[0-9]{2})"

# The parts of the command's output: text, with what is most frequent in it and needs no undoing but `_PLAIN` (colours,
# the cursor), strings, the rest; a mode and a link are whole at one look. Raw bytes from 80 to 9f are parts of
# characters, in UTF-8.
_TOKEN = re.compile(
    rb"(?P<text>(?:[^\x1b\xc2]+|\xc2[^\x80-\x9f\x1b\xc2]|\x1b(?:\[[0-9:;]*[@-HJ-MPSTXZ`abdefmr]|[78=>M]|\([0B]))+)"
    rb"|\x1b\[\?(?P<mode>MODE)(?:(?P<on>h)|(?P<off>l))"
    rb"|(?P<link>\x1b\]8;[ -~]*(?:\x07|\x1b\\))"
    rb"|(?P<stray>\xc2(?=[\x80-\x9f\x1b\xc2])[\x80-\x9f]?)"
    rb"|\x1b(?P<string>[PX^_k]|\](?=[0-9]))"
    rb"|(?P<palette>\x1b\](?:R|P[0-9A-Fa-f]{7}|(?=[^0-9RP])))"  # the Linux console's, without an end
    rb"|(?P<sequence>\x1b(?:\[[0-?]*[ -/]*[@-~]|[ -/]*[0-OQ-WYZ\\`-jl-~]))".replace(b"MODE", _MODE)
)
_UNFINISHED = re.compile(rb"(?:\x1b(?:\[[0-?]*[ -/]*|[ -/]*|\](?:P[0-9A-Fa-f]{0,6})?)|\xc2)\Z")
_BROKEN = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|[ -/]*)")
_STRING_ENDS = re.compile(rb"[\x07\x18\x1a\x1b]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()  # left out, its neighbours could become one character

_PASSING = re.compile(
    rb"""\x1b(?:
        [6-9<=>DEHMZclmno]
        | \#[34568] | %G | [ ]F                                             # not [ ]G: reports, in another form
        | [()*+./-][ -/]?[0-~]                                              # character sets
        | \[[0-9:;]*(?: [@-MPSTXZ^`a-gmrsux] | [ ][@Aq] | !p | "q | \$[prtvxz{] | \*x | '[}~] | \#[pq{}] )
        | \[[<=>][0-9:;]*[cqu] | \[>m | \[>4(?:;[0-9]*)?[mn]                 # keys, versions
        | \[\?[0-9;]*(?: [JKSWmu] | \$p )                                   # not s and r, which change modes unseen
        | \[\?(?:6|15|25|26|996)n
        | \[\?(?:MODE(?:;MODE)*)[hl]
        | \[6n                                                              # not 5n: an answer to that is for Paddock
        | \[(?:4|20)(?:;(?:4|20))*[hl]                                      # inserting, what a line feed is
        | \[(?:1[1-9]|2[23])(?:;[0-9]*)*t                                   # sizes, the stack of titles
        | \](?: (?:[012789]|133|633|777)(?:;TEXT*)? | 22;(?!\?)TEXT* | 52;[a-z0-9]*;[A-Za-z0-9+/=!]* ) END
        | \](?: 99;(?![^;]*(?:[?]|report|alive|c[ ]*=(?!0[:;])))TEXT* | 12;[#-:A-Za-z0-9]+ | 112 ) END
        | \](?: 4(?:;[0-9]+;\?)+ | 1[0-9](?:;\?)+ ) END                     # what the colours are
        | P\$q(?: [mrst] | [ ]q | "[pq] | \$[|}~] | \*[x|] ) END              # what is set
    )""".replace(b"MODE", _MODE)
    .replace(b"TEXT", rb"(?:[\x20-\x7e\x80-\xc1\xc3-\xff]|\xc2[\xa0-\xbf])")
    .replace(b"END", rb"(?:\x07|\x1b\\)"),
    re.VERBOSE,
)

_MODES = re.compile(rb"\x1b\[\?([0-9;]+)([hl])")
_MARGINS = re.compile(rb"\x1b\[([0-9;]*)s")
_USUALLY_ON = frozenset((7, 8, 25))  # lines wrap, keys repeat, there is a cursor
_ALTERNATE = (1049, 1047, 47)
_WRAPS, _HAS_MARGINS = 7, 69
_OF_SOFT_RESET = (1, 6, _WRAPS, 25, _HAS_MARGINS)
_NO_MODES = frozenset((1048, 2026))  # a cursor that is saved; output that a terminal keeps for a moment

_NO_LINK = b"\x1b]8;;\x1b\\"
_UNDOING = tuple(
    (re.compile(rb"\x1b(?:" + said + rb")"), undone)
    for said, undone in (
        (rb"\[[=>][0-9:;]*u", b"\x1b[=0u\x1b[<99u"),  # keys in the kitty protocol's form
        (rb"\[>4", b"\x1b[>4m"),  # and in xterm's
        (rb"\[[0-9]* q", b"\x1b[0 q"),  # the cursor's form, and its colour
        (rb"\]12;[^?]", b"\x1b]112\x1b\\"),
        (rb"\]22;", b"\x1b]22;\x1b\\"),  # the pointer's
        (rb"\]8;", _NO_LINK),
        (rb"\]9;4;", b"\x1b]9;4;0\x1b\\"),  # progress
        (rb'\[[0-9]*"q', b'\x1b[0"q'),  # what is erased
        (rb"H|\[[0-9;]*g", b"\x1b[?5W"),  # tab stops
    )
)
_PLAIN = (
    b"\x1b[0;10m\x1b(B\x1b)B\x0f\x1b[4l\x1b[20l\x1b>"  # no colours, letters, no inserting, keys as usual
    b"\x1b7\x1b[?69l\x1b[r\x1b8"  # all of it scrolls
)


class TerminalOutput:
    """The output of one command, as it passes, and what the terminal has kept of it."""

    def __init__(self) -> None:
        """Nothing was written yet."""
        self._rest = b""
        self._string: bytearray | None = None
        self._changed: dict[int, bool] = {}
        self._margins = b""
        self._undone: set[bytes] = set()
        self._said = False

    @property
    def alternate(self) -> bool:
        """Whether the alternate screen is shown."""
        return any(mode in self._changed for mode in _ALTERNATE)

    def passing(self, data: bytes) -> bytes:
        """What the terminal gets of `data`; a sequence may be whole with the next call only."""
        data = data.replace(_ENQUIRY, b"")
        if not self._rest and self._string is None and b"\x1b" not in data and b"\xc2" not in data:
            return data
        data, self._rest = self._rest + data, b""
        found: list[bytes] = []
        at = 0
        while at < len(data):
            if self._string is not None:
                at = self._end_string(data, at, found)
                continue
            token = _TOKEN.match(data, at)
            if token is None:
                if len(data) - at < _MOST_SEQUENCE and _UNFINISHED.match(data, at):
                    self._rest = data[at:]
                    break
                broken = _BROKEN.match(data, at)
                at = broken.end() if broken is not None else at + 1
                continue
            at = token.end()
            if token.lastgroup == "text":
                found.append(token[0])
                self._said = self._said or b"\x1b" in token[0]
            elif token.lastgroup in ("on", "off"):
                found.append(token[0])
                self._said = True
                self._change(int(token["mode"]), on=token.lastgroup == "on")
            elif token.lastgroup == "stray":
                found.append(_REPLACEMENT)
            elif token.lastgroup == "string":
                self._string = bytearray(token[0])
            elif token.lastgroup == "sequence":
                self._take(token[0], found)
            elif token.lastgroup == "link":
                found.append(token[0])
                self._said = True
                self._undone.add(_NO_LINK)
        return b"".join(found)

    def _end_string(self, data: bytes, at: int, found: list[bytes]) -> int:
        """Goes on with a string; returns where what follows it begins."""
        assert self._string is not None
        end = _STRING_ENDS.search(data, at)
        until = end.start() if end is not None else len(data)
        if len(self._string) < _MOST_STRING:
            self._string += data[at:until]
        if end is None:
            return until
        if end[0] == b"\x1b" and end.end() == len(data):
            self._rest = b"\x1b"
            return len(data)
        whole = end[0] == b"\x07" or data[end.end() : end.end() + 1] == b"\\"
        stop = b"\x1b\\" if end[0] == b"\x1b" else end[0]
        if whole and len(self._string) < _MOST_STRING:
            self._take(bytes(self._string) + stop, found)
        self._string = None
        return until if end[0] == b"\x1b" and not whole else until + len(stop)

    def _take(self, sequence: bytes, found: list[bytes]) -> None:
        if _PASSING.fullmatch(sequence) is None:
            return
        found.append(sequence)
        self._said = True
        if (modes := _MODES.fullmatch(sequence)) is not None:
            for mode in map(int, modes[1].split(b";")):
                self._change(mode, on=modes[2] == b"h")
        elif (margins := _MARGINS.fullmatch(sequence)) is not None:
            self._margins = margins[1] if _HAS_MARGINS in self._changed else b""
        elif sequence in (b"\x1bc", b"\x1b[!p"):
            for mode in tuple(self._changed) if sequence == b"\x1bc" else _OF_SOFT_RESET:
                self._changed.pop(mode, None)
            self._margins = b""
        else:
            self._undone.update(undone for said, undone in _UNDOING if said.match(sequence))

    def _change(self, mode: int, *, on: bool) -> None:
        if mode == _HAS_MARGINS:
            self._margins = b""
        if on != (mode in _USUALLY_ON) and mode not in _NO_MODES:
            self._changed[mode] = on
        else:
            for each in _ALTERNATE if mode in _ALTERNATE else (mode,):
                self._changed.pop(each, None)

    def regained(self) -> bytes:
        """What sets again, as the command has it, what a question has set (`last_line`). It moves the cursor."""
        wraps = b"\x1b[?7h" if _WRAPS not in self._changed else b""
        if _HAS_MARGINS not in self._changed:
            return wraps
        return wraps + b"\x1b[?69h" + (b"\x1b[%ss" % self._margins if self._margins else b"")

    def undoing(self) -> bytes:
        """What sets back all that the command has set and not set back, as far as a terminal can be told."""
        if not self._said:
            return b""
        undone = b"".join(each for _, each in _UNDOING if each in self._undone)
        for mode, on in self._changed.items():
            if mode not in (*_ALTERNATE, _HAS_MARGINS):  # without which the cursor goes home
                undone += b"\x1b[?%d%s" % (mode, b"l" if on else b"h")
        leaving = [mode for mode in _ALTERNATE if mode in self._changed]
        if leaving:
            undone += b"\x1b[?%dl" % leaving[0] + undone  # either screen has a cursor and keys of its own
        return undone + _PLAIN
