"""The bridge's codec: what passes unread, what is read in the strictest way, lines cut anywhere, lines without end."""

import json
import os
import random
import tempfile

import pytest

from launcher.bridges.acp import rpc
from launcher.bridges.acp.rpc import Outcome
from launcher.bridges.acp.way import Kept, ToAgent, ToClient, Way

POLICED = b'{"jsonrpc":"2.0","id":1,"method":"fs/write_text_file","params":{}}'


@pytest.mark.parametrize(
    "line",
    [
        POLICED,
        POLICED.replace(b"fs/", b"fs\\/"),
        POLICED.replace(b"fs/", b"\\u0066s/"),
        POLICED.replace(b"fs/", b"f\\u0073/"),
        POLICED.replace(b"fs/", b"fs\\u002F"),
        POLICED.replace(b"fs/", b"f\xffs/"),
        POLICED.replace(b"fs/", b"f\0s/"),
        POLICED.replace(b"fs/", b"\xc1\xa6s/"),
        POLICED.replace(b"fs/write_text_file", b"terminal/create"),
        POLICED.replace(b"fs/write_text_file", b"mcp/message"),
        b'{"id":1,"result":{"authMethods":[]}}',
        POLICED.replace(b"fs/", b" fs/"),
        POLICED.replace(b"fs/", b" fs\\/"),
        POLICED.decode().encode("utf-16"),
    ],
)
def test_no_spelling_of_what_is_policed_passes_unread(line: bytes) -> None:
    """Escapes, bytes that a sloppy decoder leaves out, other encodings: all are found."""
    look = ToClient()
    assert look.has_word(line) or not look.is_sound(line)


@pytest.mark.parametrize(
    "line",
    [
        b'{"method":"session/update","params":{"text":"see fs/read and terminal/x \\u001b[0m \xe2\x82\xac"}}',
        b"Starting up ...",
        b'{"id":1,"result":{}}',
    ],
)
def test_what_is_streamed_passes_unread(line: bytes) -> None:
    """Text, escapes of control characters, replies that nobody awaits."""
    look = ToClient()
    assert not look.has_word(line)
    assert look.is_sound(line)


def test_replies_are_read_while_one_is_awaited() -> None:
    """And no longer."""
    look = ToClient()
    look.awaited = True
    assert look.has_word(b'{"id":1,"result":{}}')


@pytest.mark.parametrize(
    "line",
    [
        b'{"method":"a","method":"fs/read_text_file"}',
        b'{"a":{"b":1,"\\u0062":2}}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":"\xff"}',
        b'{"a":NaN}',
        b'{"a":-1e400}',
        b'{"a":1e1}\r{"b":2}',
        b'{"a":\r1}',
        b'{"a":"\t"}',
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 300 + b"1" + b"}" * 300,
        b'{"a":1}{"b":2}',
        b"{'a':1}",
        b'{"a":1,}',
        b'{"a":' + b"9" * 5000 + b"}",
        b"",
    ],
)
def test_what_two_parsers_could_read_differently_is_refused(line: bytes) -> None:
    """Duplicate names, byte order marks, carriage returns, depth, what is no JSON."""
    with pytest.raises(rpc.Ambiguous):
        rpc.parse(line)


def test_plain_json_is_read() -> None:
    """With either line ending, with characters beyond ASCII."""
    assert rpc.parse('{"a":["\u20ac",1.5,null,true]}\r\n'.encode()) == {"a": ["\u20ac", 1.5, None, True]}


def test_line_separators_of_other_readers_are_escaped() -> None:
    """The value stays the same, and nobody ends the line early."""
    value = {"text": "a\u2028b\u2029c\x85d\u20ac"}
    line = json.dumps(value, ensure_ascii=False).encode() + b"\n"
    other = rpc.unmistakable(line)
    assert json.loads(other) == value
    assert len(other.decode().splitlines()) == 1
    assert "\u20ac".encode() in other


def test_what_is_encoded_is_one_ascii_line() -> None:
    """Also with lone surrogates."""
    assert rpc.encode({"a": "\u2028\ud800"}) == b'{"a":"\\u2028\\ud800"}\n'


# One direction


class Log:
    """A judge that takes notes, and answers what it is told to."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.too_long = 0

    def judge(self, line: bytes) -> Outcome:
        self.lines.append(line)
        return Outcome(on=b"judged\n")

    def unreadable(self, why: str) -> Outcome:
        assert why
        self.too_long += 1
        return Outcome(back=b"too long\n")


def way(log: Log, most: int = 1000, *, most_kept: int = 1 << 20) -> Way:
    return Way(
        ToClient(),
        log.judge,
        log.unreadable,
        most,
        keep=lambda: Kept(tempfile.gettempdir()),
        most_kept=most_kept,
    )


def written(one: Way) -> bytes:
    """All that leaves a way, in portions as a slow reader takes them."""
    found = bytearray()
    while one.out:
        found += one.out[:1000]
        one.written(len(one.out[:1000]))
    return bytes(found)


@pytest.mark.parametrize("seed", range(20))
def test_lines_may_come_in_any_pieces(seed: int) -> None:
    """The result does not depend on where reads end."""
    chance = random.Random(seed)
    plain = '{"text":"\u20ac"}\n'.encode()
    data = (plain + POLICED + b"\n" + plain * 3 + POLICED + b"\n\n") * 3
    log = Log()
    one = way(log)
    at = 0
    while at < len(data):
        step = chance.randint(1, 40)
        one.feed(data[at : at + step])
        at += step
    one.end()
    assert bytes(one.out) == (plain + b"judged\n" + plain * 3 + b"judged\n\n") * 3
    assert log.lines == [POLICED + b"\n"] * 6


def test_the_last_line_needs_no_newline() -> None:
    """What the end cuts off is judged all the same."""
    log = Log()
    one = way(log)
    one.feed(b"plain\n" + POLICED)
    assert bytes(one.out) == b"plain\n"
    one.end()
    assert (bytes(one.out), log.lines) == (b"plain\njudged\n", [POLICED])


@pytest.mark.parametrize("step", [1, 7, 100, 1_000_000])
def test_a_long_line_passes_whole_when_it_is_harmless(step: int) -> None:
    """Nothing of it leaves before its end has come, no more of it is in memory than is needed, and the order stays."""
    log = Log()
    one = way(log)
    data = b'{"text":"' + "\u20acuro".encode() * 2000 + b'"}\n'
    for at in range(0, len(data) - 1, step):
        one.feed(data[at : min(at + step, len(data) - 1)])
        assert not one.out
    one.reply(b"a reply\n")
    one.feed(data[-1:] + b"next\n" + POLICED + b"\n")
    assert one.waiting == len(b"a reply\n") + len(data) + len(b"next\njudged\n")
    assert len(one.out) < 1 << 17
    assert written(one) == b"a reply\n" + data + b"next\njudged\n"
    assert (one.waiting, one.owed, log.too_long) == (0, 0, 0)


@pytest.mark.parametrize("step", [1, 13, 100, 100_000])
@pytest.mark.parametrize("bad", [POLICED, b"\xff", b"\\u0066s/", b'"fs\\/x"'])
@pytest.mark.parametrize("rest", [b"y" * 5000 + b'"}', b""])
def test_a_long_line_with_a_word_leaves_nothing(step: int, bad: bytes, rest: bytes) -> None:
    """Not a byte of it comes, wherever the word stands; it is answered once; the next line comes."""
    log = Log()
    one, other = way(log), way(Log())
    one.replies_to(other)
    data = b'{"text":"' + b"x" * 5000 + bad + rest + b"\nnext\n"
    for at in range(0, len(data), step):
        one.feed(data[at : at + step])
    assert written(one) == b"next\n"
    assert bytes(other.out) == b"too long\n"
    assert log.lines == []


def test_a_line_longer_than_a_file_may_be_is_refused() -> None:
    """And so is one for which there is no place: it is answered, and the next line comes."""
    log = Log()
    one, other = way(log, most_kept=4000), way(Log())
    full = Way(ToClient(), log.judge, log.unreadable, 1000, keep=lambda: Kept("/nonexistent"))
    for each in (one, full):
        each.replies_to(other)
        for _ in range(10):
            each.feed(b"x" * 1000)
        each.feed(b"\nnext\n")
        assert written(each) == b"next\n"
    assert bytes(other.out) == b"too long\n" * 2


def test_what_is_kept_is_given_up_with_the_conversation() -> None:
    """Neither a line that is not whole nor one that is not written yet leaves an open file behind."""
    before = os.listdir("/proc/self/fd")
    one = way(Log())
    one.feed(b"x" * 200_000)
    one.feed(b"\n" + b"y" * 200_000)
    one.feed(b"y")
    assert len(os.listdir("/proc/self/fd")) == len(before) + 2
    one.close()
    assert os.listdir("/proc/self/fd") == before
    assert one.waiting == 0


def test_replies_do_not_cut_a_line_that_passes_in_pieces() -> None:
    """Towards the agent, whose jail holds, nothing is kept: what the bridge says itself waits for the line's end."""
    one = Way(ToAgent(), Log().judge, None, 1000)
    one.feed(b"x" * 5000)
    one.reply(b"reply\n")
    assert b"reply" not in one.out
    one.feed(b"y\n")
    assert bytes(one.out) == b"x" * 5000 + b"y\nreply\n"
    assert one.owed == 6
    one.written(len(one.out))
    assert one.owed == 0
