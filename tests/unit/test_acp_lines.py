"""The bridge's codec: lines read in the strictest way, cut anywhere, without end."""

import random
import time

import pytest

from launcher.bridges.acp import rpc
from launcher.bridges.acp.lines import Lines
from launcher.bridges.acp.rpc import Outcome

POLICED = b'{"jsonrpc":"2.0","id":1,"method":"fs/write_text_file","params":{}}'


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
        b"[" + b"[]," * 1_000_000 + b"[]]",
        b'[{"a":1}]',
        b'"text"',
        b'{"Id":1}',
        b'{"method":["a"]}',
        b'{"method":"' + b"a" * (rpc.MOST_NAME + 1) + b'"}',
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


def test_a_line_is_refused_as_quickly_as_it_is_read() -> None:
    """The time that a key given twice takes to be named grows as the line does."""
    names = b",".join(b'"%06d":0' % number for number in range(20_000))
    began = time.process_time()
    assert len(rpc.parse(b"{" + names + b"}")) == 20_000
    read = time.process_time() - began
    with pytest.raises(rpc.Ambiguous, match=r"the key '019999' is listed twice"):
        rpc.parse(b"{" + names + b',"019999":0}')
    assert time.process_time() - began - read < 50 * read


def test_a_method_may_be_long() -> None:
    """As long as any that a peer could name."""
    name = "a" * rpc.MOST_NAME
    assert rpc.parse(b'{"method":"' + name.encode() + b'"}') == {"method": name}


def test_what_is_encoded_is_one_ascii_line() -> None:
    """Also with lone surrogates."""
    assert rpc.encode({"a": "\u2028\ud800"}) == b'{"a":"\\u2028\\ud800"}\n'


# One direction


class Log:
    """A judge that takes notes, and answers what it is told to."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def judge(self, line: bytes) -> Outcome:
        self.lines.append(line)
        return Outcome(on=b"judged\n", back=b"back\n" if line == POLICED else b"")

    def unreadable(self, why: str) -> Outcome:
        assert "longer than" in why
        return Outcome(back=b"too long\n")


def lines(log: Log, most: int = 1000) -> Lines:
    return Lines(log.judge, log.unreadable, most)


@pytest.mark.parametrize("seed", range(20))
def test_lines_may_come_in_any_pieces(seed: int) -> None:
    """Every line is judged, wherever reads end, and nothing but what the judge returns goes on."""
    chance = random.Random(seed)
    plain = '{"text":"\u20ac"}\n'.encode()
    data = (plain + POLICED + b"\n" + b"x" * 1001 + b"\n" + plain * 3 + b"\n") * 3
    log, other = Log(), lines(Log())
    one = lines(log)
    one.replies_to(other)
    at = 0
    while at < len(data):
        step = chance.choice((chance.randint(1, 40), chance.randint(1, 3000)))
        one.feed(data[at : at + step])
        at += step
    one.end()
    assert log.lines == [plain[:-1], POLICED, plain[:-1], plain[:-1], plain[:-1], b""] * 3
    assert bytes(one.out) == b"judged\n" * 18
    assert bytes(other.out) == b"back\ntoo long\n" * 3
    assert other.owed == len(other.out)


def test_the_last_line_needs_no_newline() -> None:
    """What the end cuts off is judged all the same, and what is too long without an end is answered."""
    log = Log()
    one = lines(log)
    one.feed(b"plain\n" + b"cut")
    assert bytes(one.out) == b"judged\n"
    one.end()
    assert (bytes(one.out), log.lines) == (b"judged\n" * 2, [b"plain", b"cut"])
    long = lines(log)
    long.feed(b"x" * 1001)
    long.end()
    assert bytes(long.out) == b"too long\n"


def test_a_line_that_is_too_long_is_not_held() -> None:
    """However much of it comes, and in whatever pieces."""
    one = lines(Log())
    for _ in range(1000):
        one.feed(b"x" * 1000)
        assert len(one._line) <= 1000
    one.feed(b"\nnext\n")
    assert bytes(one.out) == b"too long\njudged\n"
