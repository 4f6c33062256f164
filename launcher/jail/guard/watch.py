"""Reading what a notified call wants, and letting it go on.

The call itself is carried out by the kernel, with arguments that its process may have changed since: what is read here
decides nothing, the jail holds whatever it says (seccomp_unotify(2) on SECCOMP_USER_NOTIF_FLAG_CONTINUE).

Launch path of `paddock learn`: see launcher/jail/syscalls.py.
"""

import _socket
import marshal

from launcher.jail import reports, syscalls
from launcher.jail.guard import guard, server
from launcher.jail.guard.call import Call, Gone
from launcher.jail.spec import Facts
from launcher.lean import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


# System calls by which a programme reaches for files and hosts, and what each of them wants. Data.
#
# Launch path of `paddock learn`: no imports.

READ, EXECUTE, LOOK, WRITE, CREATE, MAKE, MAKE_DIRECTORY, REMOVE, CHANGE, CONNECT, FAIL = (
    "read", "execute", "look", "write", "create", "make", "mkdir", "remove", "change", "connect", "fail"
)  # fmt: skip
"""What is wanted of a path: read a file or list a directory; execute; know whether it is there; write a file that is
there; write a file, made if it is missing; make an entry; make a directory; remove an entry; change mode, owner, times;
of a socket address, connect; or, of a process, to end with a status other than 0."""

OPEN, OPEN_HOW = "open", "open how"
"""To be told apart by the flags: an argument of open(2), or the first word of openat2(2)'s structure."""

Row = tuple[int | None, int | None, tuple[tuple[str, int, int], ...], int]
"""Number on x86-64 and on aarch64; what is wanted, as (want, argument of the directory's descriptor or -1, argument of
the path); argument of the flags, -1 for none."""

CALLS: dict[str, Row] = {
    "open": (2, None, ((OPEN, -1, 0),), 1),
    "openat": (257, 56, ((OPEN, 0, 1),), 2),
    "openat2": (437, 437, ((OPEN_HOW, 0, 1),), 2),
    "creat": (85, None, ((CREATE, -1, 0),), -1),
    "execve": (59, 221, ((EXECUTE, -1, 0),), -1),
    "execveat": (322, 281, ((EXECUTE, 0, 1),), -1),
    "stat": (4, None, ((LOOK, -1, 0),), -1),
    "lstat": (6, None, ((LOOK, -1, 0),), -1),
    "newfstatat": (262, 79, ((LOOK, 0, 1),), -1),
    "statx": (332, 291, ((LOOK, 0, 1),), -1),
    "access": (21, None, ((LOOK, -1, 0),), -1),
    "faccessat": (269, 48, ((LOOK, 0, 1),), -1),
    "faccessat2": (439, 439, ((LOOK, 0, 1),), -1),
    "readlink": (89, None, ((LOOK, -1, 0),), -1),
    "readlinkat": (267, 78, ((LOOK, 0, 1),), -1),
    "chdir": (80, 49, ((LOOK, -1, 0),), -1),
    "mkdir": (83, None, ((MAKE_DIRECTORY, -1, 0),), -1),
    "mkdirat": (258, 34, ((MAKE_DIRECTORY, 0, 1),), -1),
    "mknod": (133, None, ((MAKE, -1, 0),), -1),
    "mknodat": (259, 33, ((MAKE, 0, 1),), -1),
    "symlink": (88, None, ((MAKE, -1, 1),), -1),
    "symlinkat": (266, 36, ((MAKE, 1, 2),), -1),
    "link": (86, None, ((READ, -1, 0), (MAKE, -1, 1)), -1),
    "linkat": (265, 37, ((READ, 0, 1), (MAKE, 2, 3)), -1),
    "rename": (82, None, ((REMOVE, -1, 0), (MAKE, -1, 1)), -1),
    "renameat": (264, 38, ((REMOVE, 0, 1), (MAKE, 2, 3)), -1),
    "renameat2": (316, 276, ((REMOVE, 0, 1), (MAKE, 2, 3)), -1),
    "unlink": (87, None, ((REMOVE, -1, 0),), -1),
    "unlinkat": (263, 35, ((REMOVE, 0, 1),), -1),
    "rmdir": (84, None, ((REMOVE, -1, 0),), -1),
    "truncate": (76, 45, ((WRITE, -1, 0),), -1),
    "connect": (42, 203, ((CONNECT, -1, 1),), 2),
    "exit_group": (231, 94, ((FAIL, -1, 0),), -1),
    # Where a guard performs these, they are its own affair.
    "chmod": (90, None, ((CHANGE, -1, 0),), -1),
    "fchmodat": (268, 53, ((CHANGE, 0, 1),), -1),
    "fchmodat2": (452, 452, ((CHANGE, 0, 1),), -1),
    "chown": (92, None, ((CHANGE, -1, 0),), -1),
    "lchown": (94, None, ((CHANGE, -1, 0),), -1),
    "fchownat": (260, 54, ((CHANGE, 0, 1),), -1),
    "utimensat": (280, 88, ((CHANGE, 0, 1),), -1),
    "setxattr": (188, 5, ((CHANGE, -1, 0),), -1),
}


def numbers(machine: str) -> dict[int, str]:
    """Name by number on `machine` ("x86_64" or "aarch64"); calls that it lacks are left out."""
    first = machine == "x86_64"
    return {number: name for name, row in CALLS.items() if (number := row[0] if first else row[1]) is not None}


Want = tuple[str, str, str, int, str, str]
"""What is wanted, of which absolute path, ``HOST PORT`` or ``STATUS PROGRAMME``; call, process id, name, programme."""

MOST = 200_000
"""Different wants that are told of one session."""

_UNIX, _INET, _INET6 = 1, 2, 10


class Observer:
    """Tells each thing that is wanted once."""

    def __init__(self, tell: "Callable[[Want], None]") -> None:
        """`tell` takes what is new."""
        self._tell = tell
        self._names = numbers(syscalls.MACHINE)
        self._told: set[tuple[str, str]] = set()

    def look(self, call: Call) -> bool:
        """Reads what a call wants; whether it is one that is watched.

        One whose process has gone, or cannot be read, wants nothing that could be told.
        """
        name = self._names.get(call.number)
        if name is None:
            return False
        try:
            for want, subject in _wants(call, name):
                if (want, subject) not in self._told and len(self._told) < MOST:
                    self._told.add((want, subject))
                    pid, command, program = call.caller()
                    self._tell((want, subject, name, pid, command, reports.shortened(program)))
        except (Gone, OSError):
            return True
        return True


def _wants(call: Call, name: str) -> list[tuple[str, str]]:
    _, _, rows, flags_at = CALLS[name]
    found = []
    for want, directory, path_at in rows:
        if want == FAIL:
            if status := call.arguments[path_at] & 0xFF:
                found.append((want, f"{status} {reports.shortened(call.caller()[2])}"))
            continue
        if want == CONNECT:
            subject = _address(call.memory(call.arguments[path_at], min(call.arguments[flags_at], 128)))
            if subject:
                found.append((want, subject))
            continue
        if not call.arguments[path_at]:
            continue
        path = call.string(call.arguments[path_at])
        if not path:
            continue  # a descriptor, which is open already
        if want == OPEN:
            want = _opening(call.integer(flags_at))
        elif want == OPEN_HOW:
            want = _opening(int.from_bytes(call.memory(call.arguments[flags_at], 8), "little"))
        fd = call.integer(directory) if directory >= 0 else syscalls.AT_FDCWD
        found.append((want, reports.shortened(_absolute(call, fd, os.fsdecode(path)))))
    return found


def _opening(flags: int) -> str:
    if flags & os.O_PATH:
        return LOOK
    if flags & os.O_CREAT or flags & os.O_TMPFILE == os.O_TMPFILE:
        return CREATE
    return READ if flags & os.O_ACCMODE == os.O_RDONLY and not flags & os.O_TRUNC else WRITE


def _absolute(call: Call, fd: int, path: str) -> str:
    """The path from the root of the caller's view. Symbolic links are not followed here."""
    if path.startswith("/"):
        return path
    place = "cwd" if fd == syscalls.AT_FDCWD else f"fd/{fd}"
    base = os.readlink(f"/proc/{call.tid}/{place}")
    return f"{base.rstrip('/')}/{path}"


def _address(data: bytes) -> str:
    """A socket's address: the absolute path of a socket file, or ``HOST PORT``; "" for what is neither."""
    family = int.from_bytes(data[:2], "little")
    if family == _UNIX and data[2:3] == b"/":
        return os.fsdecode(data[2:].partition(b"\0")[0])
    size, start = {_INET: (4, 4), _INET6: (16, 8)}.get(family, (0, 0))
    if not size or len(data) < start + size:
        return ""

    return f"{_socket.inet_ntop(family, data[start : start + size])} {int.from_bytes(data[2:4], 'big')}"


# The watch: in the place of the guard, or together with it, because a process can have one listener only.
#
# Where namespaces hold the jail, every notified call is looked at and goes on. Where the guard does, its own calls
# are its own as ever, and the others are looked at.


class Watch(guard.Guard):
    """Watches a jail that namespaces hold. To be made in the process that will be the command's parent."""

    FACTS: Facts = (("watch", "layer", "path system calls are observed, and continue"),)
    GUARDS = False

    def _prepare(self) -> None:
        """Nothing: no call is performed here, so no domain is needed."""

    def _start(self, fd: int) -> None:
        look = Observer(self._want).look
        server.start(
            fd, self._spec, self._ledger_fd, self._fault,
            look=look, guards=self.GUARDS, names=guard.names, makes=self._makes,
        )  # fmt: skip

    def _want(self, want: Want) -> None:
        # A launcher that does not read is waited for: nothing is lost, and what waits is the command.
        reports.send(self._status_fd, reports.WANTED, marshal.dumps(want))


class WatchfulGuard(Watch):
    """Guards, and watches the rest."""

    FACTS = (*guard.Guard.FACTS, *Watch.FACTS)
    GUARDS = True

    def _prepare(self) -> None:
        guard.Guard._prepare(self)
