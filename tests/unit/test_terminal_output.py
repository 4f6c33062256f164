"""What a command writes to a terminal: what passes, and what sets back what it has set."""

import pytest

from launcher.session.terminal_output import TerminalOutput

PASSES = (
    b"text\r\n\t\x08\x07",
    "caf\N{LATIN SMALL LETTER E WITH ACUTE} \N{COPYRIGHT SIGN} \N{EIGHT SPOKED ASTERISK}".encode(),
    b"\x1b[1;38;2;1;2;3;48:5:6m\x1b[4:3m\x1b[2J\x1b[H\x1b[3;9r\x1b[5S\x1b7\x1b8\x1b[s\x1b[u\x1bM\x1b[3b",
    b"\x1b[?1049h\x1b[?25l\x1b[?1000;1006;2004h\x1b[?2026h\x1b[?2031h\x1b[?69h\x1b[2;9s\x1b[?7l\x1b[4h",
    b"\x1b[>1u\x1b[<u\x1b[=5;1u\x1b[?u\x1b[>4;2m\x1b[6n\x1b[c\x1b[>c\x1b[>0q\x1b[?2026$p\x1b[2 q\x1b[!p",
    b"\x1b[22;0t\x1b[14t\x1b[18t\x1b(0\x0e\x0f\x1b(B\x1b#6\x1b=\x1b>\x1b%G\x1b[?1;9J",
    "\x1b]0;\N{EIGHT SPOKED ASTERISK} title\x07\x1b]8;id=1;https://a.example\x1b\\link\x1b]8;;\x1b\\".encode(),
    b"\x1b]52;c;aGk=\x1b\\\x1b]9;4;1;50\x07\x1b]133;A\x07\x1b]7;file://h/d\x07\x1b]12;#ff0000\x07\x1b]112\x07",
    b"\x1b]10;?\x07\x1b]11;?\x1b\\\x1b]4;1;?;2;?\x07\x1bP$qm\x1b\\\x1bP$q q\x1b\\",
    b"\x1b[22;2t\x1b[23;2t\x1b]22;pointer\x07\x1b]99;i=1:d=0;done\x1b\\\x1b]99;;what?\x1b\\\x1b]99;c=0:i=1;c=1\x1b\\",
)


@pytest.mark.parametrize("data", PASSES)
@pytest.mark.parametrize("size", [1, 4096])
def test_what_programmes_say_passes(data: bytes, size: int) -> None:
    """In whatever pieces it comes."""
    output = TerminalOutput()
    assert b"".join(output.passing(data[at : at + size]) for at in range(0, len(data), size)) == data


COLOURS = (
    b"\x1b]10;#000000\x07", b"\x1b]11;#000\x1b\\", b"\x1b]10;?;#000\x07", b"\x1b]4;0;#000\x07", b"\x1b]104\x07",
    b"\x1b]5;3;#000\x07", b"\x1b]6;3;1\x07", b"\x1b]17;#000\x07", b"\x1b]12;#000;#000\x07", b"\x1b]4;1;?;0;#00\x07",
    b"\x1b]21;foreground=#000\x1b\\", b"\x1b]708;#000\x07", b"\x1b]1337;SetColors=fg=000\x07", b"\x1b]P0000000",
    b"\x1b]R", b"\x1b[1;7;0,|", b"\x1bP2$p1;2;0;0;0\x1b\\", b"\x1b[#Q", b"\x1b[>30;2:5:0 q", b"\x1b]010;#000\x07",
)  # fmt: skip
FONTS_AND_PICTURES = (
    b"\x1b]50;cursor\x07", b"\x1b]710;x\x07", b"\x1b]60;x\x07", b"\x1b]66;s=2;x\x07", b"\x1bP1;1;1{ B~~\x1b\\",
    b"\x1b_Ga=T;AAAA\x1b\\", b"\x1bPq#0~\n~\x1b\\", b"\x1b]1337;File=inline=1:AAAA\x07", b"\x1b]20;x.png\x07",
    b"\x1bPtmux;\x1b\x1b]11;#000\x07\x1b\\",
)  # fmt: skip
OTHER_TERMINALS = (
    b"\x1b[?2l", b"\x1b[?3h", b"\x1b[?40h", b"\x1b[?38h", b"\x1b[?1;2l", b"\x1b[?02l", b"\x1b[?2501h", b"\x1b[?64l",
    b"\x1b[3h", b"\x1b[8l", b"\x1b[2 k", b"\x1b[5i", b"\x1b[?5i", b"\x1b[8;24;50t", b"\x1b[40t", b"\x1b[50$|",
    b"\x1b[1$}", b"\x1b[2$~", b"\x1b[U", b"\x1b[2 P", b'\x1b[61"p', b"\x1b%@", b"\x1bN", b"\x1bV", b"\x1b[12;2]",
    b"\x1b[1*z", b"\x1bP1$tx\x1b\\", b"\x1bX\x1b\\", b"\x1b^x\x1b\\", b"\x1bktitle\x1b\\",
)  # fmt: skip

TYPED_BACK = (
    b"\x1b[20t", b"\x1b[21t", b"\x1b[21;0t", b"\x1b]52;c;?\x07", b"\x1b]52;;?\x1b\\", b"\x1b]22;?__current__\x07",
    b"\x1b]99;i=rm:p=?;\x1b\\", b"\x1b]99;i=rm:a=focus,report;x\x1b\\", b"\x1b]99;c=1:i=rm;x\x1b\\", b"\x05",
    *(b"\x1b]99;i=rm:%s;x\x1b\\" % close for close in (b"c=2", b"c=", b"c=01", b"c=0:c=1", b" c = 1", b"c=0 ")),
    b"\x1bP$q;rm -rf ~\x1b\\", b"\x1bP+qrm -rf ~\x1b\\", b"\x1bP+q6161;dead\x1b\\",
)  # fmt: skip
"""Questions whose answers the terminal types, with a text that the command or the user has chosen."""


UNDONE_BY_NOTHING = (
    b"\x1b[?1003;5;1047s", b"\x1b[?1003;5;1047r", b"\x1b[?s", b"\x1b[?2r", b"\x1b[>3p", b"\x1b[>0t", b"\x1b[>0T",
    b"\x1b[>1s", b"\x1b[3q", b"\x1b[>4;1f", b"\x1b[>1;3m", b"\x1b[>2n", b"\x1b G", b"\x1b[?5n",
)  # fmt: skip


@pytest.mark.parametrize("data", [*COLOURS, *FONTS_AND_PICTURES, *OTHER_TERMINALS, *UNDONE_BY_NOTHING, *TYPED_BACK])
@pytest.mark.parametrize("size", [3, 4096])
def test_what_would_show_later_text_otherwise_does_not_pass(data: bytes, size: int) -> None:
    """And could not be set back; the text around it does."""
    output = TerminalOutput()
    data = b"a" + data + b"b"
    passed = b"".join(output.passing(data[at : at + size]) for at in range(0, len(data), size))
    assert b"\x1b" not in passed
    assert b"\x05" not in passed
    if size > 3:
        assert passed == b"ab"


@pytest.mark.parametrize(
    "data",
    [
        b"\xc2\x9d11;#000\x07", b"\xc2\xc2\x9b\x9b?2l", b"\xc2\x1b[?2l\x9b?2l", b"\x1b[?\n2l", b"\x1b[?2\x7fl",
        b"\x1b[?2\x18l", b"\x1b\x1b]11;#000\x07", b"\x1b]0;\x1b]11;#000\x07", b"\x1b]0;a\xc2\x9c\xc2\x9d11;#000\x07",
        b"\x1b]0;a\x18\x1b]11;#000\x07", b"\x1b]0;\x01\x07", b"\x1b]0;" + b"x" * (2 << 20),
    ],
)  # fmt: skip
def test_what_terminals_read_in_different_ways_does_not_pass(data: bytes) -> None:
    """C1 characters, controls within a sequence or a string, a string that is too long."""
    passed = TerminalOutput().passing(data)
    assert b"\x1b" not in passed
    assert b"\xc2" not in passed


@pytest.mark.parametrize("size", [1, 4096])
def test_what_is_frequent_is_followed_as_all_else_is(size: int) -> None:
    """A link, a mode by itself, a margin: set back, and only where they were left so."""
    output = TerminalOutput()
    data = b"\x1b[?25l\x1b[?25h\x1b(B\x1b[2;5r\x1b[?1003h\x1b]8;;http://a.example/\x1b\\x"
    assert b"".join(output.passing(data[at : at + size]) for at in range(0, len(data), size)) == data
    undoing = output.undoing()
    for undone in (b"\x1b[?1003l", b"\x1b]8;;\x1b\\", b"\x1b[r", b"\x1b(B"):
        assert undone in undoing
    assert b"?25" not in undoing


def test_everything_that_was_set_is_set_back() -> None:
    """Modes of all numbers, keys, characters, margins, the cursor's form; nothing where nothing was."""
    output = TerminalOutput()
    assert output.passing(b"plain\r\n")
    assert output.undoing() == b""
    output.passing(
        b"\x1b[?1049h\x1b[?1003;1006h\x1b[?2004h\x1b[?25l\x1b[>1u\x1b[>1u"
        b"\x1b[?69h\x1b[4h\x1b(0\x1b[?2031h\x1b[?5h\x1b[3 q"
    )
    assert output.alternate
    undoing = output.undoing()
    for number in (1003, 1006, 2004, 69, 2031, 5, 1049):
        assert b"\x1b[?%dl" % number in undoing
    for undone in (b"\x1b[?25h", b"\x1b[<99u", b"\x1b[4l", b"\x1b(B", b"\x1b[0 q", b"\x1b[r"):
        assert undone in undoing
    before, _, after = undoing.partition(b"\x1b[?1049l")
    assert b"\x1b[<99u" in before  # either screen has its own
    assert b"\x1b[<99u" in after


def test_what_the_command_has_set_back_is_left_alone() -> None:
    """The other screen above all, whose end moves the cursor."""
    output = TerminalOutput()
    output.passing(b"\x1b[?1049h\x1b[?25l\x1b[?1003h\x1b[?1003;1049l\x1b[?25h")
    assert not output.alternate
    undoing = output.undoing()
    for number in (b"1049", b"1003", b"?25"):
        assert number not in undoing
    output.passing(b"\x1b[?1047h\x1b[?1000h\x1bc")
    assert not output.alternate
    assert output.undoing() == undoing
