"""The log of one session's proxy: one line of JSON per decision, with the process that asked for what was refused.

The proxy itself cannot look for that process: its Landlock domain closes /proc and other processes. A helper does,
forked before; it keeps no privilege and knows nothing but the numbers of two ports that each question has. A socket's
inode stands in the table of its network namespace (proc_pid_net(5)), and its owner is the one of the launcher's
descendants that holds it as ``socket:[INODE]`` (proc_pid_fd(5)).
"""

import json
import os
import socket
import time

from launcher.jail import hygiene, processes
from launcher.ledger.denial import PROXY, Process
from policy.egress_rules import Verdict
from policy.pasted import cited

FILE = "egress.jsonl"

NAME = "paddock-witness"
"""Of the helper, as ps(1) shows it."""

NOBODY = Process()

_PATIENCE = 0.25
"""Seconds for one answer. Nothing else is served meanwhile."""

_SHARE = 0.1
"""Of the time that may be spent on asking, so that a flood of refusals cannot hold up what is allowed."""

_AT_ONCE = 2.0
"""Seconds of asking that may have been saved up."""

_LONGEST = 1500
"""Bytes of an answer; the path of a programme is cut to fit."""

_MOST_METHOD = 40

_ESTABLISHED = 1
_CLOSE_WAIT = 8


def requested(method: str) -> str:
    """The operation of a plain request. The client chooses its method, so it is none of Paddock's words for others."""
    return f"HTTP {cited(method[:_MOST_METHOD])}"


class Log:
    """The log of one session's proxy; owns its descriptor."""

    def __init__(self, path: str, most_bytes: int) -> None:
        """Opens the file, which only its owner can read.

        Args:
            path: of the file; made when it is missing.
            most_bytes: decisions beyond it are counted only, and `close` writes their number.
        """
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._room = most_bytes
        self._lost = 0

    def decision(self, operation: str, host: str, port: int, verdict: Verdict, process: Process = NOBODY) -> None:
        """Writes one decision.

        Args:
            operation: ``connect``, ``socks`` or another word of Paddock's; of a plain request, `requested`.
            host: canonical, or as sent when it is no host.
            port: 0 when there is none.
            verdict: what was decided, by which rule, why, and what would allow it.
            process: who asked, as far as that is known.
        """
        record = {
            "host": host[:300],
            "port": port,
            "decision": "allow" if verdict.allowed else "deny",
            "rule": verdict.rule,
            "reason": verdict.reason,
            "suggestion": verdict.suggestion,
        }
        if process.pid:
            record["process"] = process._asdict()
        self._write(operation, record)

    def count(self) -> None:
        """Counts a decision that is not written."""
        self._lost += 1

    def fault(self, text: str) -> None:
        """Writes what went wrong in the proxy itself."""
        self._write("fault", {"reason": text})

    def close(self) -> None:
        """Writes how many decisions found no room, and closes the file."""
        if self._lost:
            self._room = 1024
            self._write("lost", {"count": self._lost})
        os.close(self._fd)

    def _write(self, operation: str, record: dict[str, object]) -> None:
        record = {"time": round(time.time(), 3), "operation": operation, "layer": PROXY, **record}
        line = json.dumps(record).encode() + b"\n"
        if len(line) > self._room:
            self._lost += 1
            return
        self._room -= len(line)
        try:
            os.write(self._fd, line)
        except OSError:  # the disk is full: the decision stands all the same
            self._lost += 1


def last_fault(directory: str) -> str:
    """The last line of a session's log, when it reports a fault of the proxy's own; else ""."""
    try:
        with open(f"{directory}/{FILE}", "rb") as file:
            last = json.loads(file.read().splitlines()[-1])
    except (OSError, IndexError, ValueError):
        return ""
    return str(last["reason"]) if last.get("operation") == "fault" else ""


class Witness:
    """Asks the helper, which lives as long as this process. To be made before this process is confined."""

    def __init__(self, launcher: int) -> None:
        """Forks the helper. `launcher`: process id of the jail's launcher."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _serve(theirs, parent, launcher)
        theirs.close()
        ours.settimeout(_PATIENCE)
        self._socket = ours
        self._number = 0
        self._saved = _AT_ONCE
        self._asked = time.monotonic()

    def of(self, client: socket.socket) -> Process:
        """Who holds the other end of a connection accepted from inside the jail; `NOBODY` when unknown, or too late."""
        try:
            return self.at(client.getpeername()[1], client.getsockname()[1])
        except OSError:
            return NOBODY  # the client has left

    def at(self, theirs: int, ours: int) -> Process:
        """Who holds the socket with the port `theirs` whose other end has the port `ours`, as `of`."""
        start = time.monotonic()
        self._saved = min(_AT_ONCE, self._saved + (start - self._asked) * _SHARE)
        self._asked = start
        if self._saved <= 0:
            return NOBODY
        try:
            return self._ask(theirs, ours)
        except OSError:
            return NOBODY  # the helper ended: what was refused stays refused
        finally:
            self._saved -= time.monotonic() - start

    def close(self) -> None:
        """Ends the helper."""
        self._socket.close()
        os.waitpid(self._pid, 0)

    def _ask(self, theirs: int, ours: int) -> Process:
        self._number = (self._number + 1) % (1 << 32)
        number = self._number.to_bytes(4, "big")
        self._socket.send(number + theirs.to_bytes(2, "big") + ours.to_bytes(2, "big"))
        while True:
            answer = self._socket.recv(4096)
            if not answer:
                return NOBODY
            if answer[:4] == number:  # else it belongs to a question that took too long
                pid, name, program = answer[4:].split(b"\0")
                return Process(int(pid), name.decode(errors="replace"), os.fsdecode(program))


def _serve(questions: socket.socket, parent: int, launcher: int) -> None:
    code = 1
    try:
        processes.tie_to_parent(parent)
        hygiene.close_inherited((questions.fileno(),))
        with open("/proc/self/comm", "w") as file:
            file.write(NAME)
        hygiene.no_new_privs()
        hygiene.drop_all()
        while question := questions.recv(64):
            theirs, ours = int.from_bytes(question[4:6], "big"), int.from_bytes(question[6:8], "big")
            process = owner(launcher, theirs, ours, besides=frozenset((parent,)))
            words = (str(process.pid).encode(), process.comm.encode(), os.fsencode(process.exe))
            questions.send((question[:4] + b"\0".join(words))[:_LONGEST])
        code = 0
    finally:
        os._exit(code)


def owner(launcher: int, local: int, remote: int, besides: frozenset[int] = frozenset()) -> Process:
    """The oldest process below `launcher` that holds a connection over the loopback; `NOBODY` without one.

    Args:
        launcher: process id.
        local: the connection's port at the process to be named.
        remote: its port at the other end.
        besides: process ids that are not looked at, nor what is below them.
    """
    inodes: dict[int, str] = {}  # of network namespaces -> of the connection's socket there
    for pid in processes.descendants(launcher, besides):
        try:
            namespace = os.stat(f"/proc/{pid}/ns/net").st_ino
            if namespace not in inodes:
                inodes[namespace] = _inode(pid, local, remote)
            if inodes[namespace] and _holds(pid, inodes[namespace]):
                return _described(pid)
        except OSError:
            continue  # it has ended, or may not be looked at
    return NOBODY


def _inode(pid: int, local: int, remote: int) -> str:
    """Inode of a connection's socket in the network namespace of a process; "" when it is not there."""
    for table in ("tcp", "tcp6", "udp", "udp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="ascii") as file:
            next(file)
            for line in file:
                _, here, there, state, *more = line.split()
                ends = int(here.rpartition(":")[2], 16), int(there.rpartition(":")[2], 16)
                unconnected = table.startswith("udp") and ends == (local, 0)
                if unconnected or (ends == (local, remote) and int(state, 16) in (_ESTABLISHED, _CLOSE_WAIT)):
                    return more[5]
    return ""


def _holds(pid: int, inode: str) -> bool:
    folder = f"/proc/{pid}/fd"
    for fd in os.listdir(folder):
        try:
            if os.readlink(f"{folder}/{fd}") == f"socket:[{inode}]":
                return True
        except OSError:
            continue  # closed meanwhile
    return False


def _described(pid: int) -> Process:
    with open(f"/proc/{pid}/comm", "rb") as file:
        name = file.read().rstrip(b"\n").decode(errors="replace")
    return Process(pid, name, os.readlink(f"/proc/{pid}/exe"))
