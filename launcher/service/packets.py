"""Messages between the service and its shims, and between a shim and the clients of its session.

Service and shim: JSON objects in packets (`launcher.wire`). JSON, because the two sides may be of different versions of
Paddock and of Python: a shim lives as long as its session, and the service is upgraded meanwhile.
"""

import json
import os
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from launcher import wire
from launcher.jail.processes import jailed, name_and_parent
from policy.errors import Refusal

VERSION = 1
"""Of the messages between service and shim. One without a version is of the first release, which is 1."""


def send(connection: socket.socket, content: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Sends one message whole; descriptors stay the caller's here.

    Raises:
        BlockingIOError: the other side does not read.
        OSError: the other side is gone; there is no memory for a file.
    """
    wire.send_packet(connection.fileno(), json.dumps({"version": VERSION, **content}).encode(), descriptors)


def receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """One message, and the descriptors that came with it, which are the caller's; None at the end.

    Raises:
        BlockingIOError: there is none now.
        ValueError: this is no message, or one of a version that this side does not know.
    """
    data, descriptors = wire.receive_packet(connection.fileno())
    if not data:
        return None, descriptors
    try:
        content = json.loads(data)
        if not isinstance(content, dict) or content.pop("version", VERSION) != VERSION:
            raise wire.Malformed("a message must be one object, of a known version")
    except ValueError:
        for fd in descriptors:
            os.close(fd)
        raise
    return content, descriptors


# Names in the directory of a session's shim.

ENGINE_END = b"E"
"""To who talks to a cluster: the ticket run is over (a frame of `launcher.wire`)."""
REMOTE = "PADDOCK_REMOTE"
"""Variable by which the launcher of a session whose agent works elsewhere is told of that: JSON."""

SHIM_SOCKET, SHIM_RECORD, SHIM_END = "socket", "record", "end"


# The kinds of the frames of the attach stream, for both of its ends; `launcher.service.shim.clients` says what each
# means. Here, because clients start quicker without the service's models.

HELLO, OUTPUT, ERRORS, OVER, REFUSED = b"H", b"O", b"R", b"X", b"E"
INPUT, END, SIGNAL, WINDOW = b"I", b"Z", b"K", b"W"

MOST_FRAME = 1 << 20
"""Bytes of a frame's payload."""


# The HTTP status for each Refusal. What is not listed is a request that cannot be carried out: 422.

_BY_REFERENCE = {
    "peer-refused": 403,
    "route-unknown": 404,
    "session-unknown": 404,
    "question-unknown": 404,
    "context-unknown": 404,
    "worktree-unknown": 404,
    "ticket-run-unknown": 404,
    "method-unknown": 405,
    "request-slow": 408,
    "session-exists": 409,
    "session-in-use": 409,
    "session-live": 409,
    "session-over": 409,
    "session-not-running": 409,
    "session-transition": 409,
    "session-deaf": 409,
    "session-has-writer": 409,
    "session-no-stdin": 409,
    "idempotency-mismatch": 409,
    "ticket-run-exists": 409,
    "ticket-run-live": 409,
    "session-forgotten": 410,
    "request-large": 413,
    "request-invalid": 400,
    "upgrade-needed": 426,
    "quota-sessions": 429,
    "quota-client": 429,
    "quota-followers": 429,
    "quota-ticket-runs": 429,
    "internal-error": 500,
    "connections-exhausted": 503,
    "service-stopping": 503,
    "database-unusable": 503,
    "database-busy": 503,
    "database-full": 503,
    "session-unstartable": 503,
}

OTHERWISE = 422


def status_of(refusal: Refusal) -> int:
    """The status code."""
    return _BY_REFERENCE.get(refusal.reference, OTHERWISE)


def raw(refusal: Refusal) -> bytes:
    """A whole HTTP response, behind which the connection is closed."""
    body = json.dumps(refusal.as_dict()).encode()
    code = status_of(refusal)
    head = f"HTTP/1.1 {code} Refused\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}connection: close\r\n\r\n".encode() + body


# Who is at the other end of a connection to the control socket, and whether he may be there.
#
# The socket's directory has mode 0700, and no jail has it in its view or its grants (`Places.own`); this is for what
# gets a connection all the same: a descriptor that was handed over, a directory that was opened to others, a jail
# whose caller had another environment than the service. A jail of any session is known by its PID namespace; where
# there is none, by the name of its guard, which makes its connections.

_CREDENTIALS = struct.Struct("iII")
_SO_PEERPIDFD = 77  # asm-generic/socket.h, since Linux 6.5; not in Python 3.11
_GENERATIONS = 1_000


class Peer(NamedTuple):
    """A client, by SO_PEERCRED (unix(7)): as it was when it connected.

    Attributes:
        pid: process id, 0 when it is not visible from here.
        uid: effective user id.
        depth: in how many PID namespaces it is, of those that are visible from here: 1 is where /proc is, more is
            inside of another one, 0 is nothing that could be found out.
    """

    pid: int
    uid: int
    depth: int


def of(connection: socket.socket) -> Peer:
    """The peer of a connection."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    try:
        pidfd = int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4), sys.byteorder)
    except OSError:  # an older kernel, or the process has ended: then its number may be another one's by now
        return Peer(pid, uid, _depth(f"/proc/{pid}/status"))
    try:
        return Peer(pid, uid, depth_of(pidfd))
    finally:
        os.close(pidfd)


def depth_of(pidfd: int) -> int:
    """`Peer.depth` of a process."""
    return _depth(f"/proc/self/fdinfo/{pidfd}")


def _depth(path: str) -> int:
    """The number of process ids in a file that has them: proc_pid_status(5), pidfd_open(2)."""
    try:
        with open(path, "rb") as file:
            ids = next(line.split()[1:] for line in file if line.startswith(b"NSpid:"))
    except (OSError, StopIteration):
        return 0
    return len(ids) if all(int(number) > 0 for number in ids) else 0


def check(peer: Peer, owner: int, launchers: Callable[[], set[int]]) -> None:
    """Lets the service's own user and root pass, unless they are in a jail.

    Args:
        owner: user id of the service.
        launchers: process ids of live sessions' launchers: what lives below one of them is jailed.

    Refusals: peer-refused.
    """
    if peer.uid not in (owner, 0):
        raise _refused(f"only user {owner} and root may use it; this is user {peer.uid}")
    if peer.pid <= 0 or not peer.depth:
        raise _refused("the process is in another PID namespace, or has ended")
    if peer.depth > 1:
        raise _refused(
            f"process {peer.pid} is in a PID namespace of its own, as jails and containers are",
            "ask from outside of it",
        )
    if jailed(peer.pid):
        raise _refused(f"process {peer.pid} is a jail's network proxy, is in a jail, or has ended")
    pid, sessions = peer.pid, launchers()
    for _ in range(_GENERATIONS):
        if pid in sessions:
            raise _refused(f"process {peer.pid} belongs to a session, and sessions do not control sessions")
        if 0 <= pid <= 1:
            return
        pid = name_and_parent(pid)[1]
    raise _refused(f"cannot find out where process {peer.pid} comes from")


def _refused(why: str, hint: str = "") -> Refusal:
    return Refusal("peer-refused", "this process may not use the control socket", context=why, hint=hint)
