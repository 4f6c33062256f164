"""What a node may tell of a ticket: each word of it is checked where it comes home, because an agent has said it."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.engines import ticket
from launcher.engines.broker import Home
from launcher.engines.ticket import Part
from policy.errors import Refusal

OID = "0123456789abcdef0123456789abcdef01234567"
GOOD = Part(".", OID, "refs/heads/agent/one", OID, {"refs/tags/v1.0": OID}, [OID])


def told(**changes: Any) -> bytes:  # noqa: ANN401  # whatever a node may say
    """A part as a node tells it, with other fields."""
    return json.dumps({**GOOD._asdict(), **changes}).encode()


def test_a_part_is_what_was_told() -> None:
    """The allowed twin of all that follow."""
    assert ticket.part_of(told()) == GOOD
    assert (
        ticket.part_of(told(path="a b/library", branch="", tree="", head="", refs={}, stashes=[])).path == "a b/library"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "../main"}, {"path": "/etc"}, {"path": "a/../../b"}, {"path": ".git/hooks"}, {"path": "a//b"},
        {"path": "a\nhead " + OID}, {"path": ""}, {"path": "a/.git"}, {"path": 1}, {"path": "x" * 5000},
        {"head": "HEAD"}, {"head": OID[:-1]}, {"head": OID + "\n"}, {"head": OID.upper()}, {"tree": "-x"},
        {"branch": "HEAD"}, {"branch": "refs/heads/a b"}, {"branch": "refs/heads/a\nend 0"}, {"branch": "refs/x"},
        {"refs": {"refs/heads/../../config": OID}}, {"refs": {"refs/heads/x.lock": OID}}, {"refs": {"refs/stash": OID}},
        {"refs": {"refs/heads/x": "0"}}, {"refs": {"refs/heads/a\u202eb": OID}}, {"refs": []}, {"more": 1},
        {"stashes": [1]}, {"stashes": "x"}, {"stashes": [OID] * 101}, {"stashes": ["refs/stash"]},
        {"refs": {f"refs/heads/{number}": OID for number in range(2000)}},
    ],
    ids=repr,
)  # fmt: skip
def test_a_part_that_says_anything_else_is_none(changes: dict[str, Any]) -> None:
    """Before a line of it reaches the script that takes it in."""
    with pytest.raises(ValueError, match=r"."):
        ticket.part_of(told(**changes))


class Engine:
    """A cluster whose node answers with these frames."""

    def __init__(self, frames: list[bytes]) -> None:
        self._frames = frames
        self.stopped = self.ended = False

    def ticket(self, job: object, names: object) -> "Engine":
        """Hands it over."""
        del job, names
        return self

    def frames(self, seconds: float) -> Iterator[bytes]:
        """The frames."""
        del seconds
        yield from self._frames

    def stop(self) -> None:
        """Is noted."""
        self.stopped = True

    def end(self) -> None:
        """Is noted."""
        self.ended = True


class Followed:
    """What came of frames at home: the answer, the session's output, what its script read, its ledger."""

    def __init__(self, place: Path, frames: list[bytes], said: bytes = b"", *, leave: bool = False) -> None:
        ours, theirs = socket.socketpair()
        log = (place / "log").open("wb", buffering=0)
        ledger = place / "ledgers/s.1.jsonl"
        asked = {"session": "s", "worktree": "/w", "ledger": str(ledger), "command": ["x"]}
        home = Home(asked, log, theirs)
        setattr(home, "_job", lambda name: (None, []))  # noqa: B010  # there is no repository
        ours.sendall(said)
        if leave:
            ours.close()
        self.engine = Engine(frames)
        self.answer = home.follow(self.engine, "n")  # type: ignore[arg-type]
        log.close()
        theirs.close()
        self.output = (place / "log").read_bytes()
        self.script = b"" if leave else b"".join(iter(lambda: ours.recv(1 << 16), b""))
        self.ledger = [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []
        ours.close()


def end(status: object) -> bytes:
    """The last frame."""
    return ticket.ENDED + json.dumps({"status": status}).encode()


def test_frames_become_output_lines_and_a_ledger(tmp_path: Path) -> None:
    """In their order; a pack is bytes, whatever they are."""
    begun = ticket.BEGUN + json.dumps({"node": "far\x1b[2J", "backend": "landlock+guard"}).encode()
    denial = {"layer": "proxy", "operation": "lookup", "host": "a.example", "kind": "decision", "verdict": "allowed"}
    denials = (
        ticket.DENIALS + json.dumps([denial, "x", {"host": "y" * 99_999}, {"rights": "rw"}, {"port": "1"}]).encode()
    )
    pack = b"PACK\nend 0\n\x00"
    found = Followed(tmp_path, [
        begun, ticket.OUTPUT + b"\xffhello\n", denials, ticket.PART + told(), ticket.PACK + pack,
        ticket.NOTE + b"paddock: \x1b]0;x", end(7), b"never read",
    ])  # fmt: skip
    assert found.answer == {"lost": "", "status": 7, "refusal": None, "denials": 1}
    assert found.output.startswith(b"paddock: on node far")
    assert b"\x1b" not in found.output
    assert b"\xffhello\n" in found.output
    lines = f"part .\nhead {OID}\nbranch refs/heads/agent/one\ntree {OID}\nref {OID} refs/tags/v1.0\nstash {OID}\n"
    assert found.script == lines.encode() + b"pack %d\n%bend 7\n" % (len(pack), pack)
    assert [line["kind"] for line in found.ledger] == ["session", "denial"]
    assert "verdict" not in found.ledger[1]
    assert found.engine.ended


@pytest.mark.parametrize(
    "frame",
    [b"?", ticket.PART + told(path="../x"), end(256), end("0\nend 0"), ticket.ENDED + b"{}", ticket.BEGUN + b"[]",
     ticket.REFUSED + b'{"errorType": "a b"}', ticket.DENIALS + b"{", ticket.PART + b"\xff"],
    ids=repr,
)  # fmt: skip
def test_other_frames_end_the_ticket(tmp_path: Path, frame: bytes) -> None:
    """With a refusal; its script never reads an end, and takes in nothing."""
    found = Followed(tmp_path, [frame, end(0)])
    assert found.answer["refusal"]["errorType"] == "ticket-unreadable"
    assert found.script == b""
    assert found.engine.ended


def test_a_node_without_an_end_is_lost(tmp_path: Path) -> None:
    """Whatever came before."""
    found = Followed(tmp_path, [ticket.OUTPUT + b"x"])
    assert found.answer["lost"]
    assert b"end" not in found.script


def test_a_refusal_is_passed_on_and_a_stop_asked_for(tmp_path: Path) -> None:
    """A refusal's texts are shown as text."""
    refusal = Refusal("command-not-found", "no\x1b[1m", context="c", hint="h").as_dict()
    found = Followed(tmp_path, [b"", ticket.REFUSED + json.dumps(refusal).encode()], said=b"stop\n")
    assert found.engine.stopped
    assert found.answer["refusal"]["errorType"] == "command-not-found"
    assert "\x1b" not in found.answer["refusal"]["message"]


def test_a_session_that_has_ended_ends_its_ticket(tmp_path: Path) -> None:
    """Nobody would take in what it makes."""
    found = Followed(tmp_path, [b"", b"", end(0)], leave=True)
    assert found.engine.ended
    assert found.answer["refusal"] is None


def test_what_nobody_foresaw_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it taken for a lost node, the agent would be started five times; other sessions go on."""

    def broken(engine: Engine, seconds: float) -> Iterator[bytes]:
        del engine, seconds
        raise RuntimeError("boom")

    monkeypatch.setattr(Engine, "frames", broken)
    found = Followed(tmp_path, [])
    assert (found.answer["refusal"]["errorType"], found.answer["lost"]) == ("internal-error", "")
    assert found.engine.ended


def test_packs_are_bounded_here_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a node counts."""
    monkeypatch.setattr(ticket, "MOST_PACK", 5)
    found = Followed(tmp_path, [ticket.PACK + b"12345", ticket.PACK + b"6", end(0)])
    assert found.answer["refusal"]["errorType"] == "ticket-unreadable"
    assert b"end" not in found.script
