"""What the proxy reads of TLS: client hellos, and the handshakes that they begin."""

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.egress import hello


def client_hello(server_name: str | None) -> bytes:
    """What the TLS library of this Python says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=server_name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("name", ["example.com", "a" * 63 + ".example", None])
def test_the_server_name_of_a_real_hello_is_read(name: str | None) -> None:
    """Complete, it is found; one byte short, more is asked for."""
    data = client_hello(name)
    assert hello.read(data) == hello.Hello(name)
    assert hello.read(data + b"more") == hello.Hello(name)
    for length in range(len(data)):
        assert hello.read(data[:length]) is None


def test_a_hello_in_many_records_is_put_together() -> None:
    """A name cannot hide behind the border of two records."""
    data = client_hello("example.com")
    message = data[5:]
    pieces = b"".join(
        b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part
        for part in (message[at : at + 7] for at in range(0, len(message), 7))
    )
    assert hello.read(pieces) == hello.Hello("example.com")


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-x\r\n", b"GET / HTTP/1.1\r\n", b"\x80\x2e\x01\x03\x01", b"\x16\x02", b"\x05"]
)
def test_what_is_not_tls_is_told_apart(data: bytes) -> None:
    """Such tunnels carry no server name."""
    assert hello.read(data) is False


def test_two_server_names_are_no_hello() -> None:
    """A second name, a second extension, or an alert in the middle could mean something else to a server."""
    data = bytearray(client_hello("example.com"))
    at = data.index(b"example.com")
    twice = b"\x00\x00\x0bexample.com" * 2
    extension = b"\x00\x00" + (len(twice) + 2).to_bytes(2, "big") + len(twice).to_bytes(2, "big") + twice
    start = at - 9
    assert data[start : start + 2] == b"\x00\x00"
    body = bytes(data[5 + 4 : start]) + extension + bytes(data[at + 11 :])
    for changed in (body, bytes(data[9 : at + 11]) + data[start : at + 11] + data[at + 11 :]):
        with pytest.raises(hello.Malformed):
            hello.read(_framed(_lengths(changed)))
    with pytest.raises(hello.Malformed):
        hello.read(bytes(data[:5]) + b"\x02" + bytes(data[6:]))
    with pytest.raises(hello.Malformed):
        hello.read(b"\x16\x03\x01\x00\x02\x01\x00" + b"\x15\x03\x01\x00\x02\x02\x00")


def _lengths(body: bytes) -> bytes:
    """`body` of a hello with the length of its extensions put right."""
    at = 2 + 32
    at += 1 + body[at]
    at += 2 + int.from_bytes(body[at : at + 2], "big")
    at += 1 + body[at]
    return body[:at] + (len(body) - at - 2).to_bytes(2, "big") + body[at + 2 :]


def _framed(body: bytes) -> bytes:
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message


def answer(random: bytes) -> bytes:
    """A server hello with this random, in a record."""
    body = b"\x03\x03" + random + b"\x00\x13\x01\x00" + b"\x00\x00"
    message = b"\x02" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x03" + len(message).to_bytes(2, "big") + message


RETRY, TAKEN = answer(hello._RETRY), answer(bytes(32))
BETWEEN = (b"", b"\x14\x03\x03\x00\x01\x01", b"\x17\x03\x03\x00\x05early" * 2)


def handshake(name: str = "example.com") -> hello.Handshake:
    """What holds a tunnel to `name`."""

    def objection(found: hello.Hello | bool) -> str:
        return "" if isinstance(found, hello.Hello) and found.server_name in (name, None) else "another name"

    return hello.Handshake(objection, 65536)


def cut(data: bytes, record: int) -> bytes:
    """A message in records of at most so many bytes."""
    parts = (data[at : at + record] for at in range(5, len(data), record))
    return b"".join(b"\x16\x03\x03" + len(part).to_bytes(2, "big") + part for part in parts)


@given(
    st.sampled_from(["example.com", "evil.example", "", None]), st.integers(1, 600), st.sampled_from(BETWEEN),
    st.lists(st.integers(1, 900), max_size=60), st.integers(0, 2),
)  # fmt: skip
def test_a_second_hello_is_judged_like_the_first(
    name: str | None, record: int, between: bytes, pieces: list[int], retry: int
) -> None:
    """However it is cut up, whatever comes in front, and whether the server has asked for it yet or not."""
    first, watched = client_hello("example.com"), handshake()
    again = cut(client_hello(name or None), record)
    assert watched.client(first) == first
    watched.server((b"", RETRY[:7], RETRY)[retry])
    assert not watched.done
    passed, rest = b"", between + again
    try:
        for size in pieces:
            passed += watched.client(rest[:size])
            rest = rest[size:]
        passed += watched.client(rest)
    except (hello.Unwanted, hello.Malformed):
        assert name != "example.com"
        assert between.startswith(passed) or passed == between
        return
    assert name == "example.com"
    assert passed == between + again
    watched.server(TAKEN)
    assert watched.done
    assert watched.client(b"\x17\x03\x03anything") == b"\x17\x03\x03anything"


def test_a_handshake_is_over_when_the_server_has_taken_the_hello() -> None:
    """By its hello, byte by byte and behind an alert, or by not being TLS; what it says before is no answer."""
    first = client_hello("example.com")
    for said in (TAKEN, b"\x15\x03\x03\x00\x02\x01\x70" + TAKEN, RETRY + BETWEEN[1] + TAKEN, b"HTTP/1.1 400 Bad"):
        watched = handshake()
        watched.server(b"220 a banner\r\n")
        assert not watched.done
        assert watched.client(first) == first
        needed = 1 if said[:1] == b"H" else said.index(TAKEN) + 43
        for at, byte in enumerate(said[:needed]):
            assert not watched.done, at
            watched.server(bytes((byte,)))
        assert watched.done


def test_a_second_hello_cannot_hide_behind_the_first() -> None:
    """In the same record, in pieces with something between them, in a record that is none, or in an endless answer."""
    first, other = client_hello("example.com"), client_hello("evil.example")
    both = first[5:] + other[5:]
    together = b"\x16\x03\x01" + len(both).to_bytes(2, "big") + both
    halves = cut(other, 300)
    mixed = first + halves[:305] + BETWEEN[1] + halves[305:]
    for said in (together, mixed, first + b"\x18\x03\x03\x00\x01x" + other, first + b"\x17\x03\x03\xff\xff" + other):
        passed = b""
        watched = handshake()
        with pytest.raises(hello.Malformed):
            passed = watched.client(said)
        assert passed == b""
    watched = handshake()
    watched.client(first)
    cookie = b"\x16\x03\x03\x40\x00\x02\x01\x00\x00" + RETRY[9:43] + bytes(0x4000 - 38)
    for _ in range(3):
        watched.server(cookie)
    with pytest.raises(hello.Malformed):
        watched.server(cookie)


@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_break_the_reader_of_hellos(data: bytes, framed: bool) -> None:
    """A hello, not TLS, incomplete or malformed: nothing else comes out."""
    try:
        hello.read(_framed(data) if framed else data)
    except hello.Malformed:
        return


@given(st.integers(0, 400), st.binary(min_size=1, max_size=4))
def test_no_change_of_a_real_hello_breaks_the_reader(at: int, change: bytes) -> None:
    """Nor does it ever invent a name: one is found only if it stands there."""
    data = bytearray(client_hello("example.com"))
    data[at : at + len(change)] = change
    try:
        found = hello.read(bytes(data))
    except hello.Malformed:
        return
    if isinstance(found, hello.Hello) and found.server_name is not None:
        assert found.server_name.encode() in bytes(data)
