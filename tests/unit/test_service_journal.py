"""Records for systemd's journal, against a socket that stands in for the journal's."""

import logging
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.service import systemd


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[socket.socket]:
    """The journal's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "journal"))
        listening.settimeout(10)
        yield listening


def record(message: str, **fields: str) -> logging.LogRecord:
    """A warning with fields of its own."""
    made = logging.LogRecord("paddock.service", logging.WARNING, "file.py", 7, message, (), None, "function")
    made.fields = fields
    return made


def test_a_record_arrives_with_its_fields(daemon: socket.socket) -> None:
    """Message, priority and the session's name are fields which journalctl can look for."""
    systemd.Handler(address=daemon.getsockname()).emit(record("ended", session="blue", status="0"))
    lines = daemon.recv(65536).decode().splitlines()
    assert {"MESSAGE=ended", "PRIORITY=4", "PADDOCK_SESSION=blue", "PADDOCK_STATUS=0",
            "SYSLOG_IDENTIFIER=paddock"} <= set(lines)  # fmt: skip


def test_a_line_break_cannot_forge_a_field(daemon: socket.socket) -> None:
    """A value with line breaks goes with its length in front, so that an agent's words stay one value."""
    systemd.send({"MESSAGE": "a\nPRIORITY=0"}, daemon.getsockname())
    assert daemon.recv(65536) == b"MESSAGE\n" + struct.pack("<Q", 12) + b"a\nPRIORITY=0\n"


@pytest.mark.parametrize("name", ["_PID", "lower", "A B", "A=B", "", "1ST"])
def test_a_name_that_the_journal_would_not_take_is_an_error(name: str) -> None:
    """Trusted fields begin with an underscore and are the journal's own."""
    with pytest.raises(ValueError, match="not a journal field"):
        systemd.encoded({name: "x"})


def test_what_is_too_long_for_a_datagram_goes_as_a_sealed_file(daemon: socket.socket) -> None:
    """A message of several megabytes arrives as a memory file that nobody can change any more."""
    text = "x" * (8 << 20)
    systemd.send({"MESSAGE": text}, daemon.getsockname())
    content, fds, _, _ = socket.recv_fds(daemon, 65536, 1)
    assert content == b""
    with open(fds[0], "rb+", buffering=0) as file:
        assert os.pread(file.fileno(), 9 << 20, 0) == b"MESSAGE=" + text.encode() + b"\n"
        with pytest.raises(PermissionError):
            file.write(b"y")


def test_without_the_journal_a_record_still_reaches_somebody(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """While the journal restarts, lines go to stderr with their priority."""
    systemd.Handler(address=str(tmp_path / "nobody")).emit(record("ended"))
    assert capfd.readouterr().err == "<4>ended\n"


def test_the_journal_is_used_where_stderr_leads_there_and_nowhere_else(tmp_path: Path) -> None:
    """JOURNAL_STREAM counts when it names this very stream, and no child sees it."""
    with (tmp_path / "stream").open("w") as stream, (tmp_path / "other").open("w") as other:
        found = os.fstat(stream.fileno())
        environment = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        assert systemd.leads_there(stream.fileno(), dict(environment))
        assert not systemd.leads_there(other.fileno(), dict(environment))
        assert not systemd.leads_there(stream.fileno(), {"JOURNAL_STREAM": "nonsense"})
        assert not systemd.leads_there(stream.fileno(), environment | {"JOURNAL_STREAM": ""})
        systemd.leads_there(stream.fileno(), environment)
        assert environment == {}


def test_elsewhere_records_are_lines_with_their_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """At a terminal, people see the same facts."""
    handler = systemd.handler({})
    handler.emit(record("ended", session="blue"))
    assert capsys.readouterr().err.rstrip().endswith("WARNING paddock.service: ended session=blue")
