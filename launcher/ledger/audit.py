"""Listening to the kernel's audit for one session: its Landlock and seccomp denials, and nobody else's.

Needs CAP_AUDIT_READ in the initial user namespace and audit switched on. The kernel sends every record of the machine
to this socket, so what matters is to let the others go by cheaply, and to know one's own:

- A command's process, once it is in its Landlock domain, signals its parent with signal 0, which the domain forbids
  (`launcher.jail.enter`). That record names the parent's process id, which the launcher knows, and the domain. So one
  record ties the domain to the session and proves that this reader hears it.
- Later records are the session's when they name that domain; seccomp's name no domain, but a process.

What cannot be heard is counted: the kernel tells how many denials a domain had when it ends, and that its queue to this
socket overflowed.

Launch path where the audit can be read: what is costly is imported with the first denial.
"""

import _socket
import select
import time

from launcher.lean import os
from launcher.ledger.audit_socket import status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.ledger.denial import Denial


# Kernel audit records of Landlock and seccomp as plain data. Pure: bytes in, values out.
#
# Format: Documentation/admin-guide/LSM/landlock.rst and the Linux Audit record format. A record is one line of
# ``audit(SECONDS:SERIAL): key=value ...``; records of one event share the serial. Values are bare words, quoted
# strings, or hexadecimal where a string holds bytes that could be mistaken (audit_log_untrustedstring).


SYSCALL = 1300
END_OF_EVENT = 1320
SECCOMP = 1326
LANDLOCK_ACCESS = 1423
LANDLOCK_DOMAIN = 1424

WANTED = frozenset({SYSCALL, END_OF_EVENT, SECCOMP, LANDLOCK_ACCESS, LANDLOCK_DOMAIN})

# Keys whose value is a string that somebody may have chosen: in quotes as it is, without them in hexadecimal.
_UNTRUSTED = frozenset({"path", "exe", "comm", "ocomm", "dev"})

_LONGEST = 64
"""Fields that are looked at in one record; the kernel writes fewer than thirty."""


Record = tuple[int, float, int, dict[str, str]]
"""kind (of `WANTED`), seconds since the epoch, the event's serial, fields: key -> value, decoded (surrogateescape)."""


def serial_of(line: bytes) -> int:
    """The event's number, -1 when the line is no audit record. Cheap: for filtering before `parse_record`."""
    if not line.startswith(b"audit("):
        return -1
    number = line[6:80].partition(b")")[0].rpartition(b":")[2]
    return int(number) if number.isdigit() else -1


def parse_record(kind: int, line: bytes) -> Record | None:
    """The record in a netlink message's payload; None when it has not the form of one."""
    serial = serial_of(line)
    if serial < 0:
        return None
    head, _, rest = line.rstrip(b"\0\n").partition(b"): ")
    try:
        time = float(head[6:].rpartition(b":")[0])
    except ValueError:
        return None
    return (kind, time, serial, _fields(rest.decode(errors="surrogateescape")))


def _fields(text: str) -> dict[str, str]:
    """Splits ``key=value`` pairs. A quoted value may hold spaces, and never a quote: then the kernel writes hex."""
    found: dict[str, str] = {}
    while text and len(found) < _LONGEST:
        key, equals, text = text.lstrip(" ").partition("=")
        if not equals:
            break
        if text.startswith('"'):
            value, _, text = text[1:].partition('"')
        else:
            value, _, text = text.partition(" ")
            if key in _UNTRUSTED:
                value = _unhexed(value)
        found[key.rpartition(" ")[2]] = value
    return found


def _unhexed(value: str) -> str:
    try:
        return bytes.fromhex(value).decode(errors="surrogateescape")
    except ValueError:
        return value  # (null), (none)


class Event:
    """The records of one serial, as far as they have come."""

    __slots__ = ("accesses", "domains", "seccomp", "syscall", "time")

    def __init__(self, time: float) -> None:
        self.time = time
        self.accesses: list[dict[str, str]] = []
        self.domains: list[dict[str, str]] = []
        self.syscall: dict[str, str] = {}
        self.seccomp: dict[str, str] = {}

    def add(self, kind: int, fields: dict[str, str]) -> None:
        """Takes one more record of this event."""
        if kind == LANDLOCK_ACCESS:
            self.accesses.append(fields)
        elif kind == LANDLOCK_DOMAIN:
            self.domains.append(fields)
        elif kind == SYSCALL:
            self.syscall = fields
        elif kind == SECCOMP:
            self.seccomp = fields


_ENOBUFS = 105
_HEADER = 16  # sizeof(struct nlmsghdr)

_MOST_PENDING = 64
"""Events that wait for further records. Those of one event follow each other closely."""

_BATCH = 4096
"""Records in one `drain`, so that a flood cannot keep the caller from everything else."""


class Reader:
    """The records of one session, out of all that arrive at a socket. Owns the socket."""

    def __init__(self, fd: int, belongs: "Callable[[int], bool]", found: "Callable[[Denial], None]") -> None:
        """Takes over `fd`.

        Args:
            fd: from `audit_socket.listening`, opened before the jail was started.
            belongs: whether the process with this id is the jail's init, or lives below it.
            found: told each denial.
        """
        self._socket = _socket.socket(fileno=fd)
        self._belongs = belongs
        self._found = found
        self._domains: dict[bytes, int] = {}  # name -> denials that were told, the proof included
        self._ended: dict[bytes, int] = {}  # name -> denials that the kernel counted
        self._pending: dict[int, Event] = {}
        self.overflows = 0
        self.unknown = 0
        """Denials by system call filter whose process had ended before it could be looked at."""

    @property
    def fd(self) -> int:
        """To be polled for reading."""
        return self._socket.fileno()

    @property
    def heard(self) -> bool:
        """Whether this reader has proven that it hears this session."""
        return bool(self._domains)

    @property
    def whole(self) -> bool:
        """Whether the kernel has told the number of denials of each domain that was heard of."""
        return len(self._ended) == len(self._domains)

    @property
    def lost(self) -> int:
        """Denials that the kernel has counted in domains that ended, and that did not arrive here."""
        return sum(max(0, count - self._domains.get(name, 0)) for name, count in self._ended.items())

    def drain(self, most: int = _BATCH) -> bool:
        """Takes what has arrived; False when nothing is left."""
        for _ in range(most):
            try:
                data = self._socket.recv(16384)
            except BlockingIOError:
                return False
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno != _ENOBUFS:
                    raise
                self.overflows += 1
                continue
            # Every field of a line is in the message; only the header's length may be wrong (audit pads nothing).
            kind = data[4] | data[5] << 8
            if kind in WANTED:
                self._take(kind, data[_HEADER:])
        return True

    def settle(self, patience: float) -> None:
        """Takes all that the session's processes caused until now; they have ended.

        The kernel sends records a moment after they were made. Waits for the proof if it has not come, and until the
        kernel's own queue is empty where that can be asked.

        Args:
            patience: seconds to wait at most.
        """
        deadline = time.monotonic() + patience
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        while time.monotonic() < deadline:
            while self.drain():
                if time.monotonic() > deadline + patience:
                    break
            known = status()
            if known is not None and not known.enabled:
                break
            if self.heard and (known is None or known.backlog == 0):
                # Asking has taken longer than a record takes from that queue to here.
                if not poll.poll(0):
                    break
                continue
            poll.poll(5)
        self._complete_all()

    def await_ends(self, patience: float) -> None:
        """Waits until the kernel has told how many denials each domain had, at most `patience` seconds."""
        deadline = time.monotonic() + patience
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        while not self.whole and (left := deadline - time.monotonic()) > 0:
            if poll.poll(left * 1000):
                self.drain()
                self._complete_all()

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def _take(self, kind: int, line: bytes) -> None:
        if kind in (SYSCALL, END_OF_EVENT):
            # Nearly all of these are about something else.
            event = self._pending.get(serial_of(line))
            if event is None:
                return
        elif kind == LANDLOCK_ACCESS and not self._concerns(line):
            return
        elif kind == LANDLOCK_DOMAIN and b" status=deallocated " in line:
            self._on_end(line)
            return
        record = parse_record(kind, line)
        if record is None:
            return
        _, seconds, serial, fields = record
        if kind == END_OF_EVENT:
            self._complete(serial)
            return
        if kind == LANDLOCK_DOMAIN and serial not in self._pending:
            return
        self._pending.setdefault(serial, Event(seconds)).add(kind, fields)
        if kind == SECCOMP:
            # Look at the process while it lives. Its system call record tells nothing more.
            self._complete(serial)
        while len(self._pending) > _MOST_PENDING:
            self._complete(next(iter(self._pending)))

    def _concerns(self, line: bytes) -> bool:
        """Whether an access record is of a known domain, or may be a proof."""
        name = _domain(line)
        return name in self._domains or b" blockers=scope.signal " in line

    def _on_end(self, line: bytes) -> None:
        name = _domain(line)
        if name in self._domains:
            number = line.rstrip(b"\0\n").rpartition(b" denials=")[2]
            self._ended[name] = int(number) if number.isdigit() else 0

    def _complete_all(self) -> None:
        for serial in list(self._pending):
            self._complete(serial)

    def _complete(self, serial: int) -> None:
        """All records of an event are there: what is it?"""
        event = self._pending.pop(serial, None)
        if event is None:
            return
        if event.seccomp:
            self._on_seccomp(event)
        for access in event.accesses:
            name = access.get("domain", "").encode()
            if name in self._domains:
                from launcher.ledger import denial

                self._domains[name] += 1
                self._found(denial.of_landlock(event.time, access, event.syscall))
            elif self._is_proof(event, access):
                self._domains[name] = 1

    def _is_proof(self, event: Event, access: dict[str, str]) -> bool:
        """Whether this is a new command's first denial, which it provokes by signalling its parent."""
        if access.get("blockers") != "scope.signal" or not event.domains:
            return False
        asked = access.get("opid", "")
        parent = event.syscall.get("ppid", asked)
        return asked.isdigit() and parent == asked and self._belongs(int(asked))

    def _on_seccomp(self, event: Event) -> None:
        number = event.seccomp.get("pid", "")
        if not number.isdigit() or not self._belongs(int(number)):
            # A process that has ended is nobody's; one that lives is somebody else's.
            self.unknown += not os.path.exists(f"/proc/{number}")
            return
        from launcher.ledger import denial

        self._found(denial.of_seccomp(event.time, event.seccomp))


def _domain(line: bytes) -> bytes:
    """The value of ``domain=``, which comes first."""
    return line.partition(b" domain=")[2].partition(b" ")[0]
