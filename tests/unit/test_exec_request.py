"""What a client asks of a session survives the way there, and nothing else is taken for a request."""

import contextlib
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import wire
from launcher.jail import minder
from policy.errors import Refusal

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
NAMES = st.text(st.characters(exclude_characters="\0=", exclude_categories=["Cs"]), min_size=1)


@given(
    st.lists(WORDS, min_size=1),
    st.dictionaries(NAMES, WORDS),
    WORDS,
    st.booleans(),
    st.text(st.sampled_from(minder.DIRECT + minder.PTY), min_size=3, max_size=3),
)
def test_a_command_is_decoded_as_it_was_encoded(
    argv: list[str], environment: dict[str, str], cwd: str, insists: bool, streams: str
) -> None:
    """Every word, empty ones included, every variable, and the rest."""
    sent = minder.Command(argv, tuple(environment.items()), cwd=cwd, insists=insists, streams=streams)
    read = minder.Command.decode(sent.encode())
    assert [getattr(read, name) for name in minder.Command.__slots__] == [
        getattr(sent, name) for name in minder.Command.__slots__
    ]


@given(st.binary(max_size=200))
def test_noise_is_refused_or_a_whole_command(payload: bytes) -> None:
    """Decoding ends with a command that encodes to the same bytes, or with a Refusal; never otherwise."""
    with contextlib.suppress(Refusal):
        read = minder.Command.decode(payload)
        assert minder.Command.decode(read.encode()).argv == read.argv


@pytest.mark.parametrize(
    "fields",
    [
        "2 ddd ? / 1 true",
        "1 dd ? / 1 true",
        "1 ddx ? / 1 true",
        "1 ddd  / 1 true",
        "1 ddd ? / 2 true",
        "1 ddd ? / -1 true",
        "1 ddd ? / 0",
        "1 ddd ? / 1 true =value",
        "1 ddd ? / 1 true novalue",
    ],
)
def test_a_command_with_a_wrong_field_is_refused(fields: str) -> None:
    """Version, streams, flag, number of words and variables are all checked."""
    with pytest.raises(Refusal, match="malformed"):
        minder.Command.decode(fields.replace(" ", "\0").encode())


def test_a_word_with_a_nul_is_refused() -> None:
    """It would be two words at the other end."""
    with pytest.raises(Refusal, match="malformed"):
        minder.Command(["a\0b"]).encode()


def test_a_message_is_read_to_its_end_and_no_further() -> None:
    """What follows belongs to the next message."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(wire.frame(minder.SIGNAL, b"\x0f\x00") + wire.frame(minder.GO))
        assert minder.receive(ours.fileno(), [], 2) == (minder.SIGNAL, b"\x0f\x00")
        assert minder.receive(ours.fileno(), [], 2) == (minder.GO, b"")
        theirs.close()
        assert minder.receive(ours.fileno(), []) == (b"", b"")


def test_a_message_that_stays_incomplete_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that says half of it holds nobody for ever."""
    monkeypatch.setattr(minder, "PATIENCE", 0.01)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(wire.frame(minder.SIGNAL, b"\x0f\x00")[:-1])
        with pytest.raises(Refusal, match="incomplete"):
            minder.receive(ours.fileno(), [])


@pytest.mark.parametrize("gone", ["executes", "minds"])
def test_a_command_is_handed_over_once(gone: str) -> None:
    """Once the process that will execute it has it, no other one is made, whatever has become of what minds it."""
    minding, minds = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    executing, executes = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ends = {"minds": minds, "executes": executes}
    ends[gone].close()
    many = object.__new__(minder._Many)
    many._ready = minding.detach(), executing.detach()
    with open("/dev/null", "rb") as client:
        assert many._hand_over(b"a command", [client.fileno()]) == (gone == "minds")
    assert many._ready is None
    for end in ends.values():
        end.close()
