"""The kernel's audit, read once for all launchers: each gets the records of its own descendants only.

CAP_AUDIT_READ is needed to join the multicast group, not to stay in it. So the service joins, drops the capability,
and hands on what it hears: launchers read it as if it came from the kernel (`launcher.ledger.audit`). They ask by
a datagram (`launcher.ledger.audit_socket`), and the kernel says who they are.

Whose is a record? Landlock's name a domain; the first one of a domain is the new command's signal 0 to its parent,
whose process id the record names too: from there it leads up to a launcher. Those of seccomp name a process. All
records of one event have one serial. What comes before its launcher has asked is kept for a while.
"""

import array
import asyncio
import logging
import os
import socket
import stat
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from launcher.jail import hygiene, landlock, syscalls
from launcher.jail.processes import jailed
from launcher.ledger import audit as records
from launcher.ledger import audit_socket
from launcher.ledger.audit_socket import STREAM_GREETING
from launcher.service import packets
from launcher.session.places import AUDIT_SOCKET
from policy.errors import Refusal

# Access to the kernel's audit: joined with a capability that is given up at once, and a proof that records arrive.


_CAP_AUDIT_READ = 37

ABI_OF_SIGNALS = 6
"""Landlock's first version that knows signals, which `provoke` needs."""


def join() -> int:
    """Joins the audit's multicast group, then gives up every capability, as a service under its unit must.

    To be called before anything is started and while there is one thread. Root keeps what it has: its launchers hear
    for themselves, and jails of root take other capabilities to be made.

    Returns:
        The socket, owned by the caller; -1 where this process may not read the audit.

    Refusals: capabilities-kept.
    """
    if os.geteuid() == 0:
        return -1
    listener = -1
    if syscalls.capget()[0] >> _CAP_AUDIT_READ & 1:
        listener = audit_socket.listening()
    hygiene.drop_all()
    return listener


def provoke(abi: int) -> None:
    """Lets a child be refused something by Landlock, as each new command is: its record proves that records arrive."""
    child = os.fork()
    if child == 0:
        try:
            hygiene.no_new_privs()
            landlock.restrict((), abi=abi, network=False, log=True)
            os.kill(os.getppid(), 0)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


log = logging.getLogger("paddock.service.audit")

_PROOF_SECONDS = 5.0
_HEADER = 16  # sizeof(struct nlmsghdr)
_CREDENTIALS = struct.Struct("iII")
_GENERATIONS = 1_000

_BATCH = 2_048
"""Records in one turn of the loop."""
_MOST_SERIALS = 1_024
_MOST_DOMAINS = 16_384
_MOST_KEPT = 1_024
"""Events in domains that are nobody's yet."""
MOST_LAUNCHERS = 4_096


class _Launcher:
    """One that asked: its process and where its records go. Owns the descriptors."""

    def __init__(self, pid: int, pidfd: int, stream: socket.socket) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.stream = stream
        self.missed = 0

    def send(self, message: bytes) -> None:
        try:
            self.stream.send(message)
        except BlockingIOError:
            self.missed += 1  # the kernel's own count at the domain's end tells the launcher how many
        except OSError:
            return  # it has closed its end, and is about to be removed

    def close(self) -> None:
        self.stream.close()
        os.close(self.pidfd)


class _Unclaimed(NamedTuple):
    """An event in a domain that no launcher owns yet, with its records in order."""

    domain: bytes
    messages: list[bytes]


class Exchange:
    """Hands on audit records. Everything happens on the loop's thread.

    Attributes:
        heard: set when the kernel's records of this very process have arrived; before, no launcher is listened to.
    """

    def __init__(self, listener: int, parent: Callable[[int], int], owner: int) -> None:
        """Takes over `listener`.

        Args:
            listener: from `launcher.ledger.audit_socket.listening`.
            parent: process id of a process's parent, 0 when it is gone.
            owner: user id whose launchers may ask.
        """
        self._listener = socket.socket(fileno=listener)
        self._parent = parent
        self._owner = owner
        self._own = os.getpid()
        self.heard = asyncio.Event()
        self._requests: socket.socket | None = None
        self._path = ""
        self._launchers: dict[int, _Launcher] = {}
        self._domains: OrderedDict[bytes, int] = OrderedDict()
        self._serials: OrderedDict[int, int] = OrderedDict()
        self._pending: OrderedDict[int, records.Event] = OrderedDict()
        self._unclaimed: OrderedDict[int, _Unclaimed] = OrderedDict()
        self.overflows = 0

    async def serve(self, directory: str) -> bool:
        """Proves that records arrive, then listens for launchers.

        Args:
            directory: the service's runtime directory.

        Returns:
            Whether records arrive. They do not where audit is switched off, and in PID namespaces other than the
            initial one, whose process ids are the ones that records have.

        Refusals: audit-socket.
        """
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self.drain)
        abi = landlock.abi()
        if abi >= ABI_OF_SIGNALS:
            provoke(abi)
        try:
            await asyncio.wait_for(self.heard.wait(), _PROOF_SECONDS)
        except TimeoutError:
            return False
        self.listen(directory)
        return True

    def listen(self, directory: str) -> None:
        """Listens for launchers in the service's runtime directory.

        Refusals: audit-socket.
        """
        self._path = f"{directory}/{AUDIT_SOCKET}"
        requests = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            requests.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            if os.path.lexists(self._path):
                os.unlink(self._path)  # of a service that was killed: whoever holds the lock is the only one
            requests.bind(f"/proc/self/fd/{fd}/{AUDIT_SOCKET}")
            os.chmod(self._path, 0o600)
        except OSError as error:
            requests.close()
            raise Refusal("audit-socket", f"cannot listen on {self._path}", context=error.strerror or str(error),
                          hint="the service's runtime directory must belong to it") from None  # fmt: skip
        finally:
            os.close(fd)
        self._requests = requests
        asyncio.get_running_loop().add_reader(requests.fileno(), self._on_request)

    def close(self) -> None:
        """Hears nothing more."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener.fileno())
        if self._requests is not None:
            loop.remove_reader(self._requests.fileno())
            self._requests.close()
            os.unlink(self._path)
        for pid in list(self._launchers):
            self._remove(pid)
        self._listener.close()

    @property
    def launchers(self) -> int:
        """How many are listening."""
        return len(self._launchers)

    # Those who ask

    def _on_request(self) -> None:
        assert self._requests is not None
        while True:
            try:
                message, ancillary, _, _ = self._requests.recvmsg(
                    64, socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(4 * 8), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            descriptors: list[int] = []
            pid = uid = -1
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    descriptors += array.array("i", data[: len(data) - len(data) % 4])
                elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    pid, uid, _ = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])
            if message == STREAM_GREETING and len(descriptors) == 1 and pid > 0 and uid in (self._owner, 0):
                self._admit(pid, descriptors[0])
            else:
                log.warning("a request for audit records by process %s of user %s was refused", pid, uid)
                for fd in descriptors:
                    os.close(fd)

    def _admit(self, pid: int, fd: int) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # it has ended already
            os.close(fd)
            return
        if objection := self._objection(pid, pidfd, fd):
            os.close(fd)
            os.close(pidfd)
            log.warning("process %s cannot receive audit records: %s", pid, objection)
            return
        stream = socket.socket(fileno=fd)
        stream.setblocking(False)
        if pid in self._launchers:
            self._remove(pid)
        self._launchers[pid] = _Launcher(pid, pidfd, stream)
        asyncio.get_running_loop().add_reader(pidfd, self._remove, pid)
        self._again()

    def _objection(self, pid: int, pidfd: int, fd: int) -> str:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return "it sent no socket"
        with socket.socket(fileno=os.dup(fd)) as sent:
            if (sent.family, sent.type) != (socket.AF_UNIX, socket.SOCK_DGRAM):
                return "it sent another kind of socket"
        if len(self._launchers) >= MOST_LAUNCHERS:
            return "too many processes have asked"
        if packets.depth_of(pidfd) != 1:
            return "it is in a PID namespace of its own"
        return "it is a jail's network proxy" if jailed(pid) else ""

    def _remove(self, pid: int) -> None:
        launcher = self._launchers.pop(pid)
        asyncio.get_running_loop().remove_reader(launcher.pidfd)
        launcher.close()
        for name in [name for name, owner in self._domains.items() if owner == pid]:
            del self._domains[name]

    # What is heard

    def drain(self) -> None:
        """Hands on what has arrived, up to a bounded number of records in one go."""
        for _ in range(_BATCH):
            try:
                data = self._listener.recv(16_384)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != 105:  # ENOBUFS: the kernel's queue to this socket overflowed
                    raise
                self.overflows += 1
                continue
            self.take(data)

    def take(self, data: bytes) -> None:
        """Hands on one netlink message, if it is anybody's."""
        kind, line = int.from_bytes(data[4:6], "little"), data[_HEADER:]
        if kind in (records.SYSCALL, records.END_OF_EVENT):
            self._on_rest(kind, line, data)
        elif kind == records.LANDLOCK_ACCESS:
            self._on_access(line, data)
        elif kind == records.LANDLOCK_DOMAIN:
            self._on_domain(line, data)
        elif kind == records.SECCOMP:
            self._on_seccomp(line, data)

    def _on_access(self, line: bytes, data: bytes) -> None:
        name, serial = _value(line, b" domain="), records.serial_of(line)
        owner = self._domains.get(name)
        if owner is not None:
            self._route(serial, owner, data)
            return
        self._unclaimed.setdefault(serial, _Unclaimed(name, [])).messages.append(data)
        while len(self._unclaimed) > _MOST_KEPT:
            self._pending.pop(self._unclaimed.popitem(last=False)[0], None)
        if b" blockers=scope.signal " in line:
            self._note(records.LANDLOCK_ACCESS, line, serial)

    def _on_domain(self, line: bytes, data: bytes) -> None:
        name, serial = _value(line, b" domain="), records.serial_of(line)
        if b" status=deallocated " in line:
            owner = self._domains.pop(name, None)
            if owner is not None:
                self._send(owner, data)
            return
        owner = self._serials.get(serial)
        if owner is not None:
            self._send(owner, data)
        elif serial in self._pending:
            self._unclaimed[serial].messages.append(data)
            self._note(records.LANDLOCK_DOMAIN, line, serial)

    def _on_rest(self, kind: int, line: bytes, data: bytes) -> None:
        serial = records.serial_of(line)
        owner = self._serials.get(serial)
        if owner is not None:
            self._send(owner, data)
        elif serial in self._unclaimed:
            self._unclaimed[serial].messages.append(data)
            if serial in self._pending:
                self._note(kind, line, serial)
                if kind == records.END_OF_EVENT:
                    self._judge(serial)

    def _on_seccomp(self, line: bytes, data: bytes) -> None:
        number = _value(line, b" pid=")
        owner = self._above(int(number)) if number.isdigit() else 0
        if owner:
            self._send(owner, data)

    def _note(self, kind: int, line: bytes, serial: int) -> None:
        """Remembers a record of an event that may be the first one of a domain."""
        record = records.parse_record(kind, line)
        if record is not None:
            self._pending.setdefault(serial, records.Event(record[1])).add(kind, record[3])

    def _judge(self, serial: int) -> None:
        """Whose domain an event begins: of the launcher above the process that the new command has signalled."""
        event = self._pending[serial]
        for access in event.accesses:
            asked = access.get("opid", "")
            if not event.domains or not asked.isdigit() or event.syscall.get("ppid", asked) != asked:
                continue
            if int(asked) == self._own:
                self.heard.set()
            owner = self._above(int(asked))
            if owner:
                self._begin(access["domain"].encode(), owner)
                return

    def _begin(self, name: bytes, owner: int) -> None:
        """A domain is a launcher's: it gets what was kept of it, in order."""
        self._domains[name] = owner
        while len(self._domains) > _MOST_DOMAINS:
            self._domains.popitem(last=False)
        for serial in [serial for serial, kept in self._unclaimed.items() if kept.domain == name]:
            self._pending.pop(serial, None)
            for data in self._unclaimed.pop(serial).messages:
                self._route(serial, owner, data)

    def _again(self) -> None:
        for serial in list(self._pending):
            if serial in self._pending:  # one that was judged may have settled others
                self._judge(serial)

    def _above(self, pid: int) -> int:
        """The launcher that a process is, or descends from; 0 for none."""
        for _ in range(_GENERATIONS):
            if pid in self._launchers:
                return pid
            if pid <= 1:
                return 0
            pid = self._parent(pid)
        return 0

    def _route(self, serial: int, owner: int, data: bytes) -> None:
        """Sends a record, and further ones of its event to the same."""
        self._serials[serial] = owner
        while len(self._serials) > _MOST_SERIALS:
            self._serials.popitem(last=False)
        self._send(owner, data)

    def _send(self, owner: int, data: bytes) -> None:
        launcher = self._launchers.get(owner)
        if launcher is not None:
            launcher.send(data)


def _value(line: bytes, key: bytes) -> bytes:
    """The word behind ``key``; b"" where it is missing."""
    return line.partition(key)[2].partition(b" ")[0]
