"""Reading what a notified call wants, and letting it go on.

The call itself is carried out by the kernel, with arguments that its process may have changed since: what is read here
decides nothing, the jail holds whatever it says (seccomp_unotify(2) on SECCOMP_USER_NOTIF_FLAG_CONTINUE).

Launch path of `paddock learn`: see launcher/jail/syscalls.py.
"""

import _socket
import marshal

from launcher.jail import status, syscalls
from launcher.jail.guard import attach, server
from launcher.jail.guard.call import Call
from launcher.jail.guard.listener import Gone
from launcher.jail.spec import Facts
from launcher.jail.watch import calls
from launcher.lean import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


Want = tuple[str, str, str, int, str, str]
"""What is wanted (`calls`), of which absolute path or ``HOST PORT``, by which call; process id, name, programme."""

MOST = 200_000
"""Different wants that are told of one session."""

_UNIX, _INET, _INET6 = 1, 2, 10


class Observer:
    """Tells each thing that is wanted once."""

    def __init__(self, tell: "Callable[[Want], None]") -> None:
        """`tell` takes what is new."""
        self._tell = tell
        self._names = calls.numbers(syscalls.MACHINE)
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
                    self._tell((want, subject, name, pid, command, status.shortened(program)))
        except (Gone, OSError):
            return True
        return True


def _wants(call: Call, name: str) -> list[tuple[str, str]]:
    _, _, rows, flags_at = calls.CALLS[name]
    found = []
    for want, directory, path_at in rows:
        if want == calls.CONNECT:
            subject = _address(call.memory(call.arguments[path_at], min(call.arguments[flags_at], 128)))
            if subject:
                found.append((want, subject))
            continue
        if not call.arguments[path_at]:
            continue
        path = call.string(call.arguments[path_at])
        if not path:
            continue  # a descriptor, which is open already
        if want == calls.OPEN:
            want = _opening(call.integer(flags_at))
        elif want == calls.OPEN_HOW:
            want = _opening(int.from_bytes(call.memory(call.arguments[flags_at], 8), "little"))
        fd = call.integer(directory) if directory >= 0 else syscalls.AT_FDCWD
        found.append((want, status.shortened(_absolute(call, fd, os.fsdecode(path)))))
    return found


def _opening(flags: int) -> str:
    if flags & os.O_PATH:
        return calls.LOOK
    if flags & os.O_CREAT or flags & os.O_TMPFILE == os.O_TMPFILE:
        return calls.CREATE
    return calls.READ if flags & os.O_ACCMODE == os.O_RDONLY and not flags & os.O_TRUNC else calls.WRITE


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


class Watch(attach.Guard):
    """Watches a jail that namespaces hold. To be made in the process that will be the command's parent."""

    FACTS: Facts = (("watch", "layer", "path system calls are looked at, and go on"),)
    GUARDS = False

    def _prepare(self) -> None:
        """Nothing: no call is performed here, so no domain is needed."""

    def _start(self, fd: int) -> None:
        look = Observer(self._want).look
        server.start(
            fd, self._spec, self._ledger_fd, self._fault,
            look=look, guards=self.GUARDS, makes=self._makes,
        )  # fmt: skip

    def _want(self, want: Want) -> None:
        # A launcher that does not read is waited for: nothing is lost, and what waits is the command.
        status.send(self._status_fd, status.WANTED, marshal.dumps(want))


class WatchfulGuard(Watch):
    """Guards, and watches the rest."""

    FACTS = (*attach.Guard.FACTS, *Watch.FACTS)
    GUARDS = True

    def _prepare(self) -> None:
        attach.Guard._prepare(self)
