"""Who is at the other end of a connection to the control socket, and whether he may be there.

The socket's directory has mode 0700, and no jail has it in its view or its grants (`Places.own`); this is for what gets
a connection all the same: a descriptor that was handed over, a directory that was opened to others, a jail whose caller
had another environment than the service. A jail of any session is known by its PID namespace; where there is none, by
the name of its guard, which makes its connections.
"""

import os
import socket
import struct
import sys
from collections.abc import Callable
from typing import NamedTuple

from launcher.jail.processes import jailed, parent
from policy.errors import Refusal

_CREDENTIALS = struct.Struct("iII")
_SO_PEERPIDFD = 77  # asm-generic/socket.h, since Linux 6.5; not in Python 3.11
_GENERATIONS = 1_000


class Peer(NamedTuple):
    """A client, by SO_PEERCRED (unix(7)): as it was when it connected.

    Attributes:
        pid: process id, 0 when it is not visible from here.
        uid: effective user id.
        gid: effective group id.
        depth: in how many PID namespaces it is, of those that are visible from here: 1 is where /proc is, more is
            inside of another one, 0 is nothing that could be found out.
    """

    pid: int
    uid: int
    gid: int
    depth: int


def of(connection: socket.socket) -> Peer:
    """The peer of a connection."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    try:
        pidfd = int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4), sys.byteorder)
    except OSError:  # an older kernel, or the process has ended: then its number may be another one's by now
        return Peer(pid, uid, gid, _depth(f"/proc/{pid}/status"))
    try:
        return Peer(pid, uid, gid, depth_of(pidfd))
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
        peer: who.
        owner: user id of the service.
        launchers: process ids of live sessions' launchers: what lives below one of them is jailed.

    Raises:
        Refusal: peer-refused.
    """
    if peer.uid not in (owner, 0):
        raise _refused(f"it is open to user {owner} and to root, this is user {peer.uid}")
    if peer.pid <= 0 or not peer.depth:
        raise _refused("the process is in another PID namespace, or has ended")
    if peer.depth > 1:
        raise _refused(
            f"process {peer.pid} is in a PID namespace of its own, as jails and containers are",
            "ask from outside of it",
        )
    if jailed(peer.pid):
        raise _refused(f"process {peer.pid} makes connections for a jail, lives in one, or has ended")
    pid, sessions = peer.pid, launchers()
    for _ in range(_GENERATIONS):
        if pid in sessions:
            raise _refused(f"process {peer.pid} belongs to a session, and sessions do not rule over sessions")
        if pid <= 1:
            return
        pid = parent(pid)
    raise _refused(f"where process {peer.pid} comes from could not be found out")


def owner() -> int:
    """The user whom this service serves."""
    return os.geteuid()


def _refused(why: str, hint: str = "") -> Refusal:
    return Refusal("peer-refused", "this process may not use the control socket", context=why, hint=hint)
