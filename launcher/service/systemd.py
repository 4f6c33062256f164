"""The service manager that started Paddock: notifications to it, sockets from it (sd_notify(3), sd_listen_fds(3)).

Without systemd's variables every function does nothing. The variables are taken out of the environment on first use,
so that no child believes to be the service: an agent that could say `STOPPING=1`, or keep the watchdog fed, would speak
for its keeper.
"""

import fcntl
import logging
import os
import re
import socket
import stat
import struct
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from policy.errors import Refusal

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES",
             "LISTEN_PIDFDID", "MANAGERPID", "SYSTEMD_EXEC_PID")  # fmt: skip
"""What the manager sets for its main process alone (systemd.exec(5))."""

FIRST_FD = 3
"""SD_LISTEN_FDS_START."""

MOST_SOCKETS = 64
_SEND_SECONDS = 1.0
_LOG = logging.getLogger("paddock.service.notify")


@dataclass(frozen=True)
class Manager:
    """What was found in the environment.

    Args:
        address: of the notification socket, as `connect` takes it; "" where nobody wants to be told.
        watchdog: microseconds within which the manager wants to be pinged; 0 for never.
        sockets: how many were passed, from `FIRST_FD` on.
        names: theirs, as in FileDescriptorName= (systemd.socket(5)).
    """

    address: str
    watchdog: int
    sockets: int
    names: tuple[str, ...]

    def send(self, *assignments: str) -> bool:
        """Sends one datagram of assignments; whether there is a manager and it took it.

        A manager that cannot be reached (it is being replaced, or overloaded) is logged, and no reason to end: what it
        does about a service that it does not hear is its own affair (WatchdogSec=).
        """
        if not self.address:
            return False
        message = "\n".join(assignments).encode()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
                sending.settimeout(_SEND_SECONDS)
                sending.sendto(message, self.address)
        except OSError as error:
            _LOG.warning("cannot notify the service manager of %s: %s", assignments[0], error)
            return False
        return True


def take(environment: MutableMapping[str, str], pid: int) -> Manager:
    """Takes the manager's variables out of `environment`.

    Variables that name another process are those of a parent which did not clean up: they mean nothing here.

    Args:
        environment: usually `os.environ`; changed.

    Refusals: service-environment: they make no sense.
    """
    found = {name: environment.pop(name) for name in VARIABLES if name in environment}
    address = found.get("NOTIFY_SOCKET", "")
    if address and address[0] not in "/@":
        raise _nonsense("NOTIFY_SOCKET", address, "neither a path nor an abstract address")
    watchdog = _number(found, "WATCHDOG_USEC")
    if "WATCHDOG_PID" in found and _number(found, "WATCHDOG_PID") != pid:
        watchdog = 0
    count = _number(found, "LISTEN_FDS") if _number(found, "LISTEN_PID") == pid else 0
    if count > MOST_SOCKETS:
        raise _nonsense("LISTEN_FDS", str(count), f"more than {MOST_SOCKETS} sockets")
    names = tuple(found["LISTEN_FDNAMES"].split(":")) if found.get("LISTEN_FDNAMES") and count else ()
    if names and len(names) != count:
        raise _nonsense("LISTEN_FDNAMES", found["LISTEN_FDNAMES"], f"{len(names)} names for {count} sockets")
    return Manager("\0" + address[1:] if address.startswith("@") else address, watchdog, count, names)


_manager: Manager | None = None


def manager() -> Manager:
    """This process's own manager; its variables are taken on the first call."""
    global _manager
    if _manager is None:
        _manager = take(os.environ, os.getpid())
    return _manager


def ready(status: str) -> bool:
    """Start-up is complete, or a reload is (READY=1)."""
    return manager().send("READY=1", f"MAINPID={os.getpid()}", *_status(status))


def status(text: str) -> bool:
    """One line on what the service is doing, for `systemctl status` (STATUS=)."""
    return manager().send(*_status(text or " "))


def stopping() -> bool:
    """The service has begun to end (STOPPING=1)."""
    return manager().send("STOPPING=1")


def reloading() -> bool:
    """The configuration is being read anew (RELOADING=1); `ready` ends it. Carries the time, which the manager
    compares with that of its own request (Type=notify-reload)."""
    return manager().send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")


def watchdog_seconds() -> float | None:
    """Within how many seconds the manager wants to be pinged; None when it does not. Ping at half of it."""
    microseconds = manager().watchdog
    return microseconds / 1_000_000 if microseconds else None


def ping() -> bool:
    """The service is alive and well (WATCHDOG=1). To be sent by what would stand still with it."""
    return manager().send("WATCHDOG=1")


def listen_sockets() -> list[socket.socket]:
    """The sockets that the manager passed, close-on-exec and non-blocking, owned by the caller; [] for none.

    To be called once, before other descriptors are opened by number.
    """
    return listening(range(FIRST_FD, FIRST_FD + manager().sockets))


def listening(descriptors: range) -> list[socket.socket]:
    """Takes over descriptors which must be listening AF_UNIX stream sockets; see `listen_sockets`."""
    for fd in descriptors:
        try:
            fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                raise _not_ours(fd, "it is not a socket")
        except OSError as error:
            raise _not_ours(fd, error.strerror or str(error)) from None
    taken = [socket.socket(fileno=fd) for fd in descriptors]
    try:
        for passed in taken:
            if passed.family != socket.AF_UNIX:
                raise _not_ours(passed.fileno(), f"its family is {passed.family}, not AF_UNIX")
            if passed.type != socket.SOCK_STREAM:
                raise _not_ours(passed.fileno(), f"its type is {passed.type}, not SOCK_STREAM")
            if not passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                raise _not_ours(passed.fileno(), "it is not listening")
            passed.setblocking(False)
    except Refusal:
        for passed in taken:
            passed.close()
        raise
    return taken


def _status(text: str) -> tuple[str, ...]:
    """One line: a line break would begin a further assignment."""
    return (f"STATUS={' '.join(text.splitlines())}",) if text else ()


def _number(found: dict[str, str], name: str) -> int:
    text = found.get(name, "0")
    if not (text.isascii() and text.isdigit()):
        raise _nonsense(name, text, "not a number")
    return int(text)


def _nonsense(name: str, value: str, why: str) -> Refusal:
    return Refusal(
        "service-environment",
        f"the service manager's variable {name} is not valid",
        context=f"{value!r} is {why}",
        hint="start it with its unit, or unset that variable",
    )


def _not_ours(fd: int, why: str) -> Refusal:
    return Refusal(
        "service-socket",
        f"descriptor {fd}, which the service manager passed, cannot be served",
        context=why,
        hint="Paddock's unit has ListenStream= with a path: paddock service install",
    )


# Log records with fields of their own in systemd's journal (the "Journal Native Protocol"), where stderr leads there.
#
# `journalctl PADDOCK_SESSION=name` then finds all that concerns a session. Elsewhere the same records are plain lines
# on stderr, with systemd's priority in front where stderr is a pipe of the manager's (sd-daemon(3)).

SOCKET = "/run/systemd/journal/socket"

_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}")  # what the journal takes from others: no leading underscore
_SEALS = 0x1 | 0x2 | 0x4 | 0x8  # F_SEAL_SEAL, SHRINK, GROW and WRITE (fcntl(2))
_ADD_SEALS = 1033

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
            raise ValueError(f"{name!r} is not a journal field's name")
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
