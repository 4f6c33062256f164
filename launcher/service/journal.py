"""Log records with fields of their own in systemd's journal (the "Journal Native Protocol"), where stderr leads there.

`journalctl PADDOCK_SESSION=name` then finds all that concerns a session. Elsewhere the same records are plain lines on
stderr, with systemd's priority in front where stderr is a pipe of the manager's (sd-daemon(3)).
"""

import fcntl
import logging
import os
import re
import socket
import struct
from collections.abc import Mapping, MutableMapping

SOCKET = "/run/systemd/journal/socket"

_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}")  # what the journal takes from others: no leading underscore
_SEALS = 0x1 | 0x2 | 0x4 | 0x8  # F_SEAL_SEAL, SHRINK, GROW and WRITE (fcntl(2))
_ADD_SEALS = 1033
_SEND_SECONDS = 1.0

PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
"""Python's levels and the priorities of syslog(3), from the gravest on; what is below is 7 (debug)."""


def leads_there(fd: int, environment: MutableMapping[str, str]) -> bool:
    """Whether `fd` is the stream that the manager connected to the journal: JOURNAL_STREAM names its device and inode.

    The variable is taken out of `environment`: it would not be true of a child whose stderr is a pipe of ours.
    """
    device, _, inode = environment.pop("JOURNAL_STREAM", "").partition(":")
    if not (device.isdigit() and inode.isdigit()):
        return False
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (int(device), int(inode))


def encoded(fields: Mapping[str, str]) -> bytes:
    """Fields as the journal takes them: ``NAME=value``, or with the value's length where it has line breaks.

    Raises:
        ValueError: a name is none.
    """
    out = bytearray()
    for name, value in fields.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a journal field")
        content = value.encode(errors="replace")
        if b"\n" in content:
            out += name.encode() + b"\n" + struct.pack("<Q", len(content)) + content + b"\n"
        else:
            out += name.encode() + b"=" + content + b"\n"
    return bytes(out)


def send(fields: Mapping[str, str], address: str = SOCKET) -> None:
    """Sends one record. What does not fit a datagram goes as a sealed memory file.

    Raises:
        OSError: the journal cannot be reached.
        ValueError: a field's name is none.
    """
    content = encoded(fields)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
        sending.settimeout(_SEND_SECONDS)
        try:
            sending.sendto(content, address)
            return
        except OSError as error:
            if error.errno not in (90, 105):  # EMSGSIZE, ENOBUFS
                raise
        memory = os.memfd_create("paddock-journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with open(memory, "wb") as file:
            file.write(content)
            file.flush()
            fcntl.fcntl(file.fileno(), _ADD_SEALS, _SEALS)
            # Not `send_fds`, which drops the address (CPython 3.11).
            passed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", file.fileno()))
            sending.sendmsg([b""], [passed], 0, address)


def priority(level: int) -> int:
    """syslog(3)'s priority of one of Python's levels."""
    return next((found for least, found in PRIORITIES if level >= least), 7)


class Handler(logging.Handler):
    """Writes records to the journal. What a record has under ``extra={"fields": {...}}`` become fields of its own.

    Args:
        identifier: SYSLOG_IDENTIFIER, which `journalctl -t` looks for.
        address: of the journal's socket.
    """

    def __init__(self, identifier: str = "paddock", address: str = SOCKET) -> None:
        super().__init__()
        self._identifier = identifier
        self._address = address
        # `logging.basicConfig` gives one to handlers without: level and name are fields already.
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Sends one record; where the journal is away (it restarts), the line goes to stderr instead."""
        try:
            send(self._fields(record), self._address)
        except OSError:
            os.write(2, f"<{priority(record.levelno)}>{self.format(record)}\n".encode(errors="replace"))

    def _fields(self, record: logging.LogRecord) -> dict[str, str]:
        own: Mapping[str, str] = getattr(record, "fields", {})
        return {
            **{f"PADDOCK_{name.upper()}": str(value) for name, value in own.items()},
            "MESSAGE": self.format(record),
            "PRIORITY": str(priority(record.levelno)),
            "SYSLOG_IDENTIFIER": self._identifier,
            "SYSLOG_PID": str(record.process or os.getpid()),
            "LOGGER": record.name,
            "CODE_FILE": record.pathname,
            "CODE_LINE": str(record.lineno),
            "CODE_FUNC": record.funcName or "",
        }


class _Lines(logging.Formatter):
    """Plain lines, with the fields behind the message."""

    def format(self, record: logging.LogRecord) -> str:
        own: Mapping[str, str] = getattr(record, "fields", {})
        return " ".join([super().format(record), *(f"{name}={value}" for name, value in own.items())])


def handler(environment: MutableMapping[str, str], identifier: str = "paddock") -> logging.Handler:
    """The handler for a service's log: the journal where stderr leads there, else lines on stderr."""
    if leads_there(2, environment):
        return Handler(identifier)
    lines = logging.StreamHandler()
    lines.setFormatter(_Lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return lines
