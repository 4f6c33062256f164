"""Who is at the other end of a connection to the control socket, and whether he may be there.

The socket's directory has mode 0700, and no jail has it in its view or its grants (`Places.own`); this is for what gets
a connection all the same: a descriptor that was handed over, a directory that was opened to others.
"""

import os
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

from launcher.service.running import parent
from policy.errors import Refusal

_CREDENTIALS = struct.Struct("iII")
_GENERATIONS = 1_000


class Peer(NamedTuple):
    """A client, by SO_PEERCRED (unix(7)): as it was when it connected."""

    pid: int
    uid: int
    gid: int


def of(connection: socket.socket) -> Peer:
    """The peer of a connection."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(raw))


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
    if peer.pid <= 0:
        raise _refused("the process is in another PID namespace, or has ended")
    pid, jailed = peer.pid, launchers()
    for _ in range(_GENERATIONS):
        if pid in jailed:
            raise _refused(f"process {peer.pid} belongs to a session, and sessions do not rule over sessions")
        if pid <= 1:
            return
        pid = parent(pid)
    raise _refused(f"where process {peer.pid} comes from could not be found out")


def owner() -> int:
    """The user whom this service serves."""
    return os.geteuid()


def _refused(why: str) -> Refusal:
    return Refusal("peer-refused", "this process may not use the control socket", context=why)
