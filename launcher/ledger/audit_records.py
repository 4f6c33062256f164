"""Kernel audit records of Landlock and seccomp as plain data. Pure: bytes in, values out.

Format: Documentation/admin-guide/LSM/landlock.rst and the Linux Audit record format. A record is one line of
``audit(SECONDS:SERIAL): key=value ...``; records of one event share the serial. Values are bare words, quoted strings,
or hexadecimal where a string holds bytes that could be mistaken (audit_log_untrustedstring).

Launch path where the kernel's audit can be read: no imports.
"""

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
    """The event's number, -1 when the line is no audit record. Cheap: for filtering before `parse`."""
    if not line.startswith(b"audit("):
        return -1
    number = line[6:80].partition(b")")[0].rpartition(b":")[2]
    return int(number) if number.isdigit() else -1


def parse(kind: int, line: bytes) -> Record | None:
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
