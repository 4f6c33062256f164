"""Questions on the last line of a terminal: which keys answer, what else comes from a terminal, what is drawn."""

import fcntl
import os
import socket
import struct
import termios
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from launcher import wire
from launcher.service.screen import Screen
from launcher.session import last_line
from launcher.session.last_line import LastLine
from policy import asking
from policy.asking import Question

QUESTION = Question(1, "files.example.org", 443, "curl")
PREFIX = b"\x1d"


class Margined(Screen):
    """One with left and right margins, too (DECLRMM, DECSLRM), within which lines wrap."""

    left, right = 0, 0

    def _sequence(self, private: str, parameters: str, between: str, final: str) -> None:
        if self.right and final == "s" and not private:
            self.left, self.right = (int(each or 0) for each in parameters.split(";"))
            self.left -= 1
            self._go(0, 0)
        else:
            super()._sequence(private, parameters, between, final)

    def _mode(self, private: str, given: list[int], *, on: bool) -> None:
        super()._mode(private, given, on=on)
        if private and 69 in given:
            self.left, self.right = 0, self.columns if on else 0
            self._go(0, 0)

    def _draw(self, text: str) -> None:
        for char in text:
            if self.right and self.x == self.right and self._wraps:
                self._down()
                self.x = self.left
            super()._draw(char)


class Terminal:
    """A last line, its proxy, a window, and a clock that stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows: int = 10, columns: int = 80) -> None:
        self.now = 1000.0
        monkeypatch.setattr(last_line, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(last_line, "READ_SECONDS", 0.09)
        monkeypatch.setenv("TERM", "xterm")
        ours, self.proxy = socket.socketpair()
        self._master, self._slave = os.openpty()
        self.allowed: list[Question] = []
        self.failure = ""
        self.reports = True
        self.line = LastLine(ours.detach(), self._slave, self._allow)
        self.screen = Margined(rows, columns)
        self.resize(rows, columns)

    def _allow(self, question: Question) -> str:
        self.allowed.append(question)
        return self.failure

    def resize(self, rows: int, columns: int) -> None:
        """Another size of the window."""
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def ask(self, question: Question = QUESTION, *, foreground: bool = True) -> None:
        """The proxy asks; it is drawn, and seen for a while."""
        self.send(asking.ASKED, question.packed(), foreground=foreground)
        self.settle()
        self.now += 1

    def send(self, kind: bytes, payload: bytes, *, foreground: bool = True) -> None:
        """The proxy says something."""
        self.proxy.sendall(wire.frame(kind, payload))
        self.line.hear(foreground=foreground)

    def settle(self) -> None:
        """Nothing is said for a moment: what is due is drawn."""
        self.now += 0.1
        self._draw()

    def _draw(self) -> None:
        if self.line.is_due():
            drawing = self.line.drawing()
            self.screen.feed(drawing.decode())
            for _ in range(drawing.count(b"\x1b[5n") * self.reports):
                assert self.line.typed(b"\x1b[0n") == b""

    def output(self, data: bytes) -> None:
        """The command says something."""
        self.screen.feed(self.line.passing(data).decode())

    def type(self, *pieces: bytes, apart: float = 0.2) -> bytes:
        """Input in pieces; what of it is the command's."""
        passed = b""
        for piece in pieces:
            self.now += apart / 2
            if self.line.awaits_key:
                self._draw()
            self.now += apart / 2
            passed += self.line.typed(piece)
        return passed

    def said(self) -> list[tuple[bytes, bytes]]:
        """What the proxy has been told."""
        self.proxy.setblocking(False)
        try:
            return list(wire.Decoder().feed(self.proxy.recv(4096)))
        except BlockingIOError:
            return []
        finally:
            self.proxy.setblocking(True)

    def rows(self) -> list[str]:
        """What the window shows."""
        return [row.text.rstrip() for row in self.screen.rows]

    def close(self) -> None:
        """Closes everything."""
        self.proxy.close()
        if self.line.fd != -1:
            os.close(self.line.fd)
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """One of 10 rows and 80 columns."""
    made = Terminal(monkeypatch)
    yield made
    made.close()


@pytest.mark.parametrize(("key", "word"), [(b"n", "no"), (b"o", "once"), (b"s", "session"), (b"a", "always")])
def test_two_keys_answer_and_neither_reaches_the_command(terminal: Terminal, key: bytes, word: str) -> None:
    """What is typed before, and after, does."""
    terminal.ask()
    assert terminal.type(b"ls", b"\r") == b"ls\r"
    assert terminal.type(PREFIX) == b""
    assert terminal.line.awaits_key
    assert terminal.type(key) == b""
    assert not terminal.line.awaits_key
    assert terminal.said() == [(asking.ANSWER, asking.answer(1, word))]
    assert terminal.allowed == ([QUESTION] if word == "always" else [])
    assert terminal.type(key, PREFIX) == key + PREFIX


@pytest.mark.parametrize(
    "prefix", [PREFIX, b"\x1b[93;5u", b"\x1b[93;133u", b"\x1b[93;5:1u", b"\x1b[93::;5u", b"\x1b[27;5;93~"]
)
@pytest.mark.parametrize("key", [b"s", b"\x1b[115u", b"\x1b[115;1u", b"\x1b[115;1:1u"])
def test_keys_are_known_in_terminals_newer_forms(terminal: Terminal, prefix: bytes, key: bytes) -> None:
    """The command may have switched them on; that a key was released is no key."""
    terminal.ask()
    assert terminal.type(prefix, b"\x1b[93;5:3u", key) == b""
    assert terminal.said() == [(asking.ANSWER, b"1 session")]


@pytest.mark.parametrize(
    ("pieces", "apart"),
    [
        ((PREFIX + b"s",), 0.2),  # a paste
        ((PREFIX, b"s"), 0.001),  # one in pieces
        ((b"x", PREFIX, b"s"), 0.001),
        ((b"\x1b[200~" + PREFIX + b"s\x1b[201~",), 0.2),
        ((b"\x1b]l" + PREFIX + b"s\x1b\\",), 0.2),  # a title, reported
        ((b"\x1b]52;c;HXM=\x1b\\",), 0.2),  # the clipboard
        ((b"\x1bP1$r" + PREFIX + b"\x1b\\", b"s"), 0.2),  # DECRQSS
        ((b"\x1b[5;93R", b"\x1b[115;1R"), 0.2),  # the cursor's position
        ((b"\x1b[?93;5u", b"\x1b[115u"), 0.2),  # the keyboard's flags
        ((b"\x1b[93;5:3u", b"s"), 0.2),
        ((b"\x1b[93;6u", b"s"), 0.2),
        ((b"s",), 0.2),
        ((b"a", b"o", b"n", b"y", b"\r"), 0.2),
    ],
)
def test_nothing_else_that_comes_from_a_terminal_answers(
    terminal: Terminal, pieces: tuple[bytes, ...], apart: float
) -> None:
    """What the command makes a terminal send, what is pasted, and what was being typed."""
    terminal.ask()
    terminal.now += 1
    terminal.type(*pieces, apart=apart)
    assert terminal.said() == []
    terminal.now += 3
    terminal.type(PREFIX, b"s")
    assert terminal.said() == [(asking.ANSWER, b"1 session")]


def test_what_is_typed_for_one_question_does_not_answer_the_next(terminal: Terminal) -> None:
    """A question that has just appeared takes no answer, and the letter of one that has gone is nobody's."""
    terminal.ask()
    terminal.type(PREFIX)
    terminal.send(asking.GONE, b"1")
    assert not terminal.line.awaits_key
    terminal.send(asking.ASKED, QUESTION._replace(number=2, host="other.example").packed())
    terminal.settle()
    assert terminal.type(b"s") == b""
    assert terminal.type(PREFIX, b"s") == PREFIX + b"s"
    assert terminal.said() == []
    terminal.now += 1
    terminal.type(PREFIX, b"x", b"s")  # another letter leaves it
    assert terminal.said() == []
    terminal.type(PREFIX, b"n")
    assert terminal.said() == [(asking.ANSWER, b"2 no")]


def test_what_a_mouse_or_a_window_sends_leaves_the_question_open(terminal: Terminal) -> None:
    """While a letter is awaited; Escape by itself leaves it, and so does another letter."""
    terminal.ask()
    reports = (b"\x1b[<35;10;5M", b"\x1b[I", b"\x1b[24;1R", b"\x1b]l\x1dn\x1b\\")
    assert terminal.type(PREFIX, *reports) == b""
    assert terminal.line.awaits_key
    assert terminal.type(b"\x1b") == b""
    assert not terminal.line.awaits_key
    assert terminal.said() == []
    assert terminal.type(PREFIX, b"\x1b[I", b"o") == b""
    assert terminal.said() == [(asking.ANSWER, b"1 once")]


def test_a_question_that_was_not_drawn_yet_takes_no_answer(terminal: Terminal) -> None:
    """Whatever is typed meanwhile."""
    terminal.send(asking.ASKED, QUESTION.packed())
    terminal.now += 1
    assert terminal.type(PREFIX, b"s") == PREFIX + b"s"
    assert terminal.said() == []


def test_a_terminal_that_is_late_takes_no_answer(terminal: Terminal) -> None:
    """It may show another question yet. The letter is nobody's, and counts once the terminal has reported."""
    terminal.ask()
    terminal.reports = False
    assert terminal.type(PREFIX, b"s", b"s") == b""
    terminal.settle()
    assert terminal.rows()[-1] == "paddock: send data to files.example.org:443? the terminal is late; wait"
    assert terminal.type(b"\x1b[0n", b"s") == b""  # of two that were asked for: of this picture, and of the one before
    assert terminal.type(b"\x1b[0ns") == b""  # at once
    terminal.settle()
    assert terminal.rows()[-1].endswith("[n]o [o]nce [s]ession [a]lways")
    assert terminal.type(b"s") == b""
    assert terminal.said() == []
    terminal.settle()
    terminal.reports = True
    assert terminal.type(b"\x1b[0n", b"\x1b[0n", b"s") == b""
    assert terminal.said() == [(asking.ANSWER, b"1 session")]
    assert terminal.type(b"ls", b"\x1b[0n") == b"ls\x1b[0n"  # nobody has asked for this one
    assert terminal.line.passing(b"a\x1b[5n\x1b[6n\x1b[05n").endswith(b"a\x1b[6n")


def test_a_letter_counts_when_the_question_has_stood_there(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """For half a second after the report. A letter before is nobody's, and begins that time again."""
    monkeypatch.undo()
    assert last_line.READ_SECONDS == 0.5
    monkeypatch.setattr(last_line, "time", SimpleNamespace(monotonic=lambda: terminal.now))
    monkeypatch.setenv("TERM", "xterm")
    terminal.ask()
    assert terminal.type(PREFIX, b"o", b"o", b"o", b"o", apart=0.4) == b""
    assert terminal.line.awaits_key
    assert terminal.said() == []
    terminal.reports = False
    terminal.resize(10, 90)
    assert terminal.type(b"o", apart=2) == b""  # drawn anew a second ago, and not reported
    terminal.settle()
    assert terminal.type(b"\x1b[0n", b"\x1b[0n", apart=1) == b""
    assert terminal.said() == []
    terminal.reports = True
    terminal.settle()
    assert terminal.type(b"o", apart=0.6) == b""
    assert terminal.said() == [(asking.ANSWER, b"1 once")]


def test_a_report_may_come_in_pieces(terminal: Terminal) -> None:
    """None of which is a letter, or the command's; keys that begin alike are."""
    terminal.ask()
    terminal.reports = False
    assert terminal.type(PREFIX) == b""
    terminal.settle()
    assert terminal.type(b"\x1b[", b"0", b"n", b"n") == b""
    assert terminal.said() == [(asking.ANSWER, b"1 no")]
    terminal.ask(QUESTION._replace(number=2))
    assert terminal.type(PREFIX) == b""
    terminal.settle()
    assert terminal.type(b"\x1b", b"\x1b[", b"A") == b"\x1b[A"  # Escape leaves it


def test_a_lost_report_takes_no_later_answer(terminal: Terminal) -> None:
    """Nor does one that was late answer for the next: it says that a terminal shows what has stood there before."""
    terminal.ask()
    terminal.reports = False
    terminal.type(PREFIX)
    terminal.settle()
    terminal.type(b"x", PREFIX)
    terminal.settle()
    assert terminal.type(b"\x1b[0n", b"s") == b""  # the late one
    assert terminal.said() == []
    terminal.type(b"x")
    terminal.settle()
    terminal.reports = True  # the others are lost
    assert terminal.type(PREFIX, b"s") == b""
    assert terminal.said() == [(asking.ANSWER, b"1 session")]


def test_a_terminal_that_never_reports_is_not_asked_any_more(terminal: Terminal) -> None:
    """After a few tries, and that is told at the end."""
    terminal.ask()
    terminal.reports = False
    for _ in range(6):
        terminal.type(PREFIX, b"x")
    assert terminal.said() == [(asking.PASS, b"1")]
    assert [text.partition(" (")[0] for text in terminal.line.said] == ["the terminal does not report what it shows"]
    terminal.ask(QUESTION._replace(number=2))
    assert terminal.said() == [(asking.PASS, b"2")]


def test_a_question_that_a_smaller_window_has_erased_takes_no_answer(terminal: Terminal) -> None:
    """The letter is the command's; once there is room again, it can be answered."""
    terminal.ask()
    assert terminal.type(PREFIX) == b""
    terminal.settle()
    terminal.resize(10, 59)
    terminal.settle()
    assert terminal.type(b"s") == b"s"
    assert not terminal.line.awaits_key
    assert terminal.said() == []
    terminal.resize(10, 80)
    terminal.settle()
    terminal.now += 1
    assert terminal.type(PREFIX, b"o") == b""
    assert terminal.said() == [(asking.ANSWER, b"1 once")]


@pytest.mark.parametrize(
    "pieces",
    [(b"\x1b[200~", PREFIX, b"a", b"\x1b[201~"), (b"\x1b[200~x", PREFIX, b"s", b"y\x1b[201~")],
)
def test_a_paste_in_pieces_answers_nothing(terminal: Terminal, pieces: tuple[bytes, ...]) -> None:
    """However slowly it comes; after it, keys are keys. One that begins behind Ctrl-] leaves the question."""
    terminal.ask()
    assert terminal.type(*pieces, apart=0.6) == b"".join(pieces)
    assert terminal.type(PREFIX) == b""
    assert terminal.type(b"\x1b[200~", b"s", b"\x1b[201~", apart=0.6) == b"\x1b[200~s\x1b[201~"
    assert terminal.said() == []
    assert terminal.type(PREFIX, b"o") == b""
    assert terminal.said() == [(asking.ANSWER, b"1 once")]


def test_what_cannot_be_written_holds_for_the_session(terminal: Terminal) -> None:
    """And is told at the end."""
    terminal.ask()
    terminal.failure = "the disk is full"
    terminal.type(PREFIX, b"a")
    assert terminal.said() == [(asking.ANSWER, b"1 session")]
    assert terminal.line.said == ["files.example.org:443 is allowed for this session only: the disk is full"]


def test_a_terminal_that_does_not_know_its_size_is_asked(terminal: Terminal) -> None:
    """As a serial line: on its last row, wherever that is, and a long host on the one above it, within 60 columns."""
    fcntl.ioctl(terminal._slave, termios.TIOCSWINSZ, bytes(8))
    terminal.ask(QUESTION._replace(host="a.example"))
    assert terminal.rows()[-2:] == ["paddock: a.example:443", 'paddock: "curl" asks for it; Ctrl-] to answer']
    terminal.type(PREFIX, b"n")
    terminal.settle()
    assert terminal.said() == [(asking.ANSWER, b"1 no")]
    host = "a-rather-long-name.other-than-good.example.com"
    terminal.output(b"\x1b[10;10r\x1b[9;10r\x1b[9;1Hpaddock: send data to good.example:443")
    terminal.ask(QUESTION._replace(host=host))
    terminal.type(PREFIX)
    terminal.settle()
    armed = [f"paddock: {host}:443", "paddock: send data there? [n]o [o]nce [s]ession [a]lways"]
    assert terminal.rows()[-2:] == armed
    assert max(map(len, armed)) < 60
    terminal.type(b"n")
    terminal.settle()
    assert terminal.rows()[-2:] == ["", ""]
    terminal.ask(QUESTION._replace(host=f"another.{host}"))
    assert terminal.said() == [(asking.ANSWER, b"1 no"), (asking.PASS, b"1")]


@pytest.mark.parametrize("size", [(3, 80), (10, 59)])
def test_nobody_is_asked_where_there_is_no_room(terminal: Terminal, size: tuple[int, int]) -> None:
    """Whatever the question is."""
    terminal.resize(*size)
    terminal.ask()
    assert terminal.said() == [(asking.PASS, b"1")]


def test_nobody_is_asked_where_it_could_not_be_answered(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the background, about a name that does not fit a row, at a terminal that obeys nothing."""
    terminal.ask(foreground=False)
    terminal.ask(QUESTION._replace(host="x" * 63 + ".example"))
    monkeypatch.setenv("TERM", "dumb")
    terminal.ask()
    assert [kind for kind, _ in terminal.said()] == [asking.PASS] * 3
    monkeypatch.setenv("TERM", "xterm")
    terminal.ask()
    assert terminal.said() == []
    terminal.line.give_up()
    assert terminal.said() == [(asking.PASS, b"1")]


@pytest.mark.parametrize(
    "data", [b"Q\xff\xff\xff\xff", wire.frame(b"Q", b"1 x\x1b[2J 443 curl"), wire.frame(b"G", b"x"), b""]
)
def test_a_proxy_that_says_something_else_is_not_heard_any_more(terminal: Terminal, data: bytes) -> None:
    """Its questions are over, and the line is the command's."""
    terminal.ask()
    if data:
        terminal.proxy.sendall(data)
    else:
        terminal.proxy.shutdown(socket.SHUT_WR)
    terminal.line.hear(foreground=True)
    assert terminal.line.fd == -1
    terminal.settle()
    assert terminal.rows()[-1] == ""
    assert terminal.type(PREFIX, b"s") == PREFIX + b"s"


def test_the_question_stands_below_what_a_command_prints(terminal: Terminal) -> None:
    """Nothing of the output is lost, and nothing of the question is left in it."""
    terminal.output("".join(f"line {number}\r\n" for number in range(20)).encode() + b"$ curl x")
    terminal.ask()
    assert terminal.rows()[-3:] == [
        "line 19",
        "$ curl x",
        'paddock: "curl" asks for files.example.org:443; Ctrl-] to answer',
    ]
    terminal.output(b"\r\n")
    assert "paddock" not in "".join(terminal.rows())
    terminal.output(b"more\r\nand")
    terminal.settle()
    assert terminal.rows()[-4:-1] == ["$ curl x", "more", "and"]
    terminal.type(PREFIX)
    terminal.settle()
    assert terminal.rows()[-1] == "paddock: send data to files.example.org:443? [n]o [o]nce [s]ession [a]lways"
    terminal.type(b"o")
    terminal.settle()
    assert terminal.rows()[-4:] == ["$ curl x", "more", "and", ""]
    terminal.output(b" on\r\n")
    assert terminal.rows()[-3:] == ["more", "and on", ""]


def test_a_full_screen_keeps_its_place(terminal: Terminal) -> None:
    """The command's window is one row smaller, and nothing scrolls."""
    size = struct.pack("HHHH", 10, 80, 0, 0)
    assert terminal.line.left_of(size) == size
    terminal.output(b"\x1b[?1049h\x1b[2J\x1b[1;1Htop\x1b[2;9r\x1b[9;1Hbottom")
    terminal.ask()
    assert terminal.line.left_of(size) == struct.pack("HHHH", 9, 80, 0, 0)
    assert (terminal.rows()[0], terminal.rows()[8]) == ("top", "bottom")
    assert terminal.rows()[9].startswith("paddock: ")
    terminal.output(b"!")
    assert (terminal.rows()[8], terminal.rows()[9]) == ("bottom!", "")
    terminal.send(asking.GONE, b"1")
    terminal.settle()
    assert terminal.line.left_of(size) == size
    assert terminal.rows()[9] == ""


def test_what_the_command_has_begun_swallows_no_question(terminal: Terminal) -> None:
    """A title without an end would take in all that follows it."""
    for begun in (b"\x1b]0;title", b"\x1b[3", b"\x1bP1$r", b"\x1b(0\x0e", b"\x1b[?6h\x1b[8m"):
        terminal.output(begun)
        terminal.ask()
        assert "files.example.org:443" in terminal.rows()[-1], begun
        terminal.send(asking.GONE, b"1")
        terminal.settle()


def test_no_margin_hides_a_part_of_the_host(terminal: Terminal) -> None:
    """A line that wraps over itself would show its end alone. Afterwards the margins are the command's again."""
    terminal.resize(24, 130)
    terminal.output(b"\x1b[?7h\x1b[1;23r\x1b[?69h\x1b[23;67s\x1b[3;1Hx")
    terminal.ask(QUESTION._replace(host="x" * 45 + "good.example"))
    terminal.type(PREFIX)
    terminal.settle()
    assert terminal.rows()[-1] == f"paddock: send data to {'x' * 45}good.example:443? [n]o [o]nce [s]ession [a]lways"
    assert (terminal.screen.left, terminal.screen.right) == (22, 67)
    terminal.type(b"n")
    terminal.settle()
    terminal.output(b"y" * 70)
    assert terminal.rows()[2:4] == ["x" + "y" * 66, " " * 22 + "yyyy"]


def test_what_decides_how_the_line_looks_is_set_each_time(terminal: Terminal) -> None:
    """Before its text; what the command has of it comes back afterwards."""
    terminal.output(b"\x1b[?7l\x1b[?2026h\x1b[?6h\x1b[2;9r\x1b[4h\x1b[8;11m\x1b(0\x0e\x1bV")
    terminal.send(asking.ASKED, QUESTION.packed())
    terminal.now += 1
    drawn = terminal.line.drawing()
    before, text, after = drawn.partition(b"paddock: ")
    for reset in (b"?2026l", b"?69l", b"?7l", b"?6l", b"(B", b"#5", b"[0;10m", b"\x0f"):
        assert reset in before
    assert text
    assert b"\x1b[?7h" not in after
    terminal.output(b"\x1b[?7h")
    assert b"\x1b[?7h\x1b8" in terminal.line.drawing()


def test_a_question_that_was_drawn_for_another_window_takes_no_answer(terminal: Terminal) -> None:
    """Until it is drawn anew: of what a window cuts off, nobody knows what it was."""
    terminal.ask()
    assert terminal.type(PREFIX) == b""
    terminal.settle()
    terminal.resize(10, 79)
    terminal.now += 1
    assert terminal.line.typed(b"s") == b""
    assert terminal.said() == []
    terminal.settle()
    assert terminal.type(b"o") == b""
    assert terminal.said() == [(asking.ANSWER, b"1 once")]


def test_a_long_host_has_a_row_of_its_own(terminal: Terminal) -> None:
    """Whole: which of its labels decide about who owns it, nobody here knows. The command has a row less."""
    size = struct.pack("HHHH", 10, 80, 0, 0)
    host = "www.bbc.co.uk-news-and-weather-and-sports.co.uk"
    terminal.output("".join(f"line {number}\r\n" for number in range(20)).encode() + b"$ curl x")
    terminal.ask(QUESTION._replace(host=host))
    assert terminal.line.left_of(size) == struct.pack("HHHH", 8, 80, 0, 0)
    asked = ["line 19", "$ curl x", f"paddock: {host}:443", 'paddock: "curl" asks for it; Ctrl-] to answer']
    assert terminal.rows()[-4:] == asked
    terminal.type(PREFIX)
    terminal.settle()
    armed = "paddock: send data there? [n]o [o]nce [s]ession [a]lways"
    assert terminal.rows()[-4:] == [*asked[:3], armed]
    terminal.resize(10, 61)
    terminal.settle()
    assert terminal.rows()[-2:] == [f"paddock: {host}:443", armed]
    terminal.type(b"n")
    terminal.settle()
    assert terminal.rows()[-4:] == [*asked[:2], "", ""]
    assert terminal.line.left_of(size) == size
    terminal.ask(QUESTION._replace(host=f"a.{host}"))
    assert terminal.said() == [(asking.ANSWER, b"1 no"), (asking.PASS, b"1")]  # it does not fit a row


def test_one_is_shown_at_a_time(terminal: Terminal) -> None:
    """The oldest; how many there are beside it is told."""
    terminal.ask()
    terminal.ask(QUESTION._replace(number=2, host="other.example", process=""))
    assert terminal.rows()[-1].endswith("files.example.org:443; Ctrl-] to answer (1 more)")
    terminal.type(PREFIX, b"n")
    terminal.settle()
    assert terminal.rows()[-1] == "paddock: the command asks for other.example:443; Ctrl-] to answer"


def test_a_window_that_is_drawn_to_all_the_time_shows_it_too(terminal: Terminal) -> None:
    """After half a second, between two pieces."""
    terminal.send(asking.ASKED, QUESTION.packed())
    drawn: list[bool] = []
    for number in range(100):
        terminal.output(f"{number}\r\n".encode())
        terminal.now += 0.01
        drawn.append(terminal.line.is_due())
        if drawn[-1]:
            terminal.screen.feed(terminal.line.drawing().decode())
    assert sum(drawn) in (1, 2)
