"""What the proxy reads of TLS: client hellos, and the handshakes that they begin."""

import asyncio
import ssl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.egress import hello
from launcher.egress.exchange import ACCESS_DENIED
from tests.support.proxied import lines, opened, proxy, run, server


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


ALERT = b"\x15\3\1\0\2\1\x5a"
MYSQL = b"\x14\1\0\1\x85\xa6\xff\x19" + bytes(272)
"""What logs a client in (HandshakeResponse41), 276 bytes long."""
MONGO = b"\x14\1\0\0\1\0\0\0\0\0\0\0\xdd\7\0\0" + bytes(260)
"""What greets a server (OP_MSG), 276 bytes long."""
STARTTLS = b"\0\0\0\x08\x04\xd2\x16\x2f"
"""PostgreSQL's (SSLRequest), which the server answers with `S`."""


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
    "data",
    [
        *(b"SSH-2.0-x\r\n", b"GET / HTTP/1.1\r\n", b"\x05", b"\x14\x20", b"\x80\x0b\0\0", b"\xff\xfb\x1f", b"\xd0\x9f"),
        *(MYSQL, MONGO, b"\x16" + MONGO[1:], b"\x15" + MONGO[1:], b"\x15\0\0\0\x64\xff\xff\0 \0\0\x08\x009P2000.L"),
        *(b"\x80\0\x01\x03" + bytes(259), b"\x80\0\0\x28" + bytes(40)),
    ],
)
def test_what_is_not_tls_is_told_apart(data: bytes) -> None:
    """Such tunnels carry no server name; some of them begin with a length that is a number of TLS's."""
    assert hello.read(data) is False


@pytest.mark.parametrize(
    "data",
    [
        *(ALERT, b"\x14\3\3\0\1\1", b"\x17\3\3\0\3abc", b"\x18\3\3\0\3abc", b"\x16\3\1\0\0", b"\x16\3\1\0\4\0\0\0\0"),
        *(b"\x15\x0f\xff\0\2\1\0", b"\x15\0\0\0\2\1\0", b"\x80\x2e\x01\x03\x01", b"\x80\x2e\x01\0\2"),
    ],
)
def test_nothing_of_tls_comes_in_front_of_a_hello(data: bytes) -> None:
    """Some servers pass over an alert, say, or take records of versions that never were, or the hello of SSL 2."""
    for opening in (data, data + client_hello("example.com")):
        with pytest.raises(hello.Malformed):
            hello.read(opening)


@pytest.mark.parametrize("version", [b"\2\1", b"\0\0", b"\x0f\xff"])
def test_a_hello_in_a_record_of_no_version_is_malformed(version: bytes) -> None:
    """Go's servers read it all the same."""
    data = client_hello("example.com")
    with pytest.raises(hello.Malformed):
        hello.read(data[:1] + version + data[3:])


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
        return "another name" if isinstance(found, hello.Hello) and found.server_name not in (name, None) else ""

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
    """By its hello, byte by byte and behind an alert; what it says before is no answer."""
    first = client_hello("example.com")
    for said in (TAKEN, b"\x15\x03\x03\x00\x02\x01\x70" + TAKEN, RETRY + BETWEEN[1] + TAKEN):
        watched = handshake()
        watched.server(b"220 a banner\r\n")
        assert not watched.done
        assert watched.client(first) == first
        needed = said.index(TAKEN) + 43
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


def odd(data: bytes) -> tuple[bytes, ...]:
    """A hello as some servers take it, and others do not."""
    pieces = cut(data, 90)
    return (
        data[:1] + b"\2\1" + data[3:],
        data[:1] + b"\0\0" + data[3:9] + b"\0\0" + data[11:],
        pieces[:95] + ALERT + pieces[95:],
        data[:3] + (len(data) - 1).to_bytes(2, "big") + data[5:] + b"\x10\0\0\0",
    )


@given(
    st.sampled_from([STARTTLS, b"EHLO x\r\nSTARTTLS\r\n", b"\x16" * 40, client_hello("example.com"), MYSQL]),
    st.sampled_from([b"", b"S", b"220 go ahead\r\n"]), st.lists(st.integers(1, 700), max_size=60), st.integers(0, 5),
    st.sampled_from(["example.com", "evil.example"]),
)  # fmt: skip
def test_a_hello_behind_something_in_clear_is_judged(
    before: bytes, answer: bytes, pieces: list[int], how: int, name: str
) -> None:
    """However it is cut up, and whether the server has answered by then: no other server gets all of its hello."""
    found, watched = client_hello(name), handshake()
    said = found if how == 0 else cut(found, 7) if how == 1 else odd(found)[how - 2]
    rest, passed = before + said, b""
    allowed = name == "example.com" and how < 2
    try:
        for size in (len(before), *pieces, len(rest)) if answer else (*pieces, len(rest)):
            passed += watched.client(rest[:size])
            rest = rest[size:]
            watched.server(answer)
    except (hello.Unwanted, hello.Malformed):
        assert not allowed
        assert len(passed) < len(before + said.removesuffix(b"\x10\0\0\0"))
    else:
        assert allowed
        assert passed == before + said


@pytest.mark.parametrize("name", ["localhost", "evil.example"])
def test_a_tunnel_that_turns_to_tls_is_held_to_its_servers_name(tmp_path: Path, name: str) -> None:
    """The database's own front end gets its hello whole; that of another tenant is denied, and ends the tunnel."""
    said = client_hello(name)
    got = answer = b""

    async def database(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        assert await reader.readexactly(len(STARTTLS)) == STARTTLS
        writer.write(b"S")
        while len(got) < len(said) and (data := await reader.read(65536)):
            got += data
        writer.write(TAKEN)
        writer.close()

    async def test() -> None:
        nonlocal answer
        async with server(database) as to, proxy(tmp_path) as port:
            reader, writer = await opened(port, "localhost", to)
            writer.write(STARTTLS)
            assert await reader.readexactly(1) == b"S"
            writer.write(said)
            answer = await reader.read()
            writer.close()

    run(test())
    denied = [line["reason"] for line in lines(tmp_path) if line["decision"] == "deny"]
    if name == "localhost":
        assert (got, answer, denied) == (said, TAKEN, [])
    else:
        why = "the tunnel is for localhost, its TLS handshake for evil.example"
        assert (got, answer, denied) == (b"", ACCESS_DENIED, [why])


def test_numbers_that_look_like_the_beginning_of_a_hello_pass() -> None:
    """As MySQL's for the first prepared statement with one number (COM_STMT_EXECUTE) do, again and again."""
    watched, execute = handshake(), b"\x16\0\0\0\x17\1\0\0\0\0\1\0\0\0\0\1\x08\0" + bytes(8)
    assert watched.client(MYSQL) == MYSQL
    for said in (execute, execute * 100, execute[:20], execute[20:]):
        assert watched.client(said) == said
    with pytest.raises(hello.Malformed):
        watched.client(b"\x16\3\1\x40\0\1\0\x3f\xff\3\3" * 70)


def test_a_protocol_in_clear_is_searched_for_so_long() -> None:
    """A hello that has begun by then is judged, however long it is; behind that, nothing costs time."""
    words, other = b"words" * 13000, client_hello("evil.example")
    watched = handshake()
    assert watched.client(words + other[:60]) == words + other[:60]
    with pytest.raises(hello.Unwanted):
        watched.client(other[60:])
    for record in (100, 16384):
        watched, endless = handshake(), cut(b"\x16\3\1\0\0\1\1\xff\0\3\3" + bytes(0x1FF00), record)
        assert watched.client(words) == words
        assert watched.client(endless[:50000]) == endless[:50000]
        with pytest.raises(hello.Malformed):
            watched.client(endless[50000:90000])
    watched = handshake()
    assert watched.client(words + b"words" * 108) == words + b"words" * 108
    assert watched.done


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
