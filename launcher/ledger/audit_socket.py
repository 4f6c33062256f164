"""The kernel's audit: whether it is switched on, and a socket that hears it (audit(8), linux/audit.h).

Launch path where the caller may read it: built-in modules only.
"""

import _socket

from launcher.lean import os

_NETLINK, _RAW, _AUDIT = 16, 3, 9
_READLOG = 1 << 0  # bit of AUDIT_NLGRP_READLOG
_SO_RCVBUF, _SO_RCVBUFFORCE = 8, 33
_BUFFER = 8 << 20
_GET = 1000
_REQUEST = 1
_HEADER = 16  # sizeof(struct nlmsghdr)


def listening() -> int:
    """A socket in the audit's multicast group; -1 when audit is known to be off, or the right is missing.

    What arrives from now on is kept by the kernel, up to a buffer's size. Non-blocking, close-on-exec, owned by
    the caller.
    """
    known = status()
    if known is not None and not known.enabled:
        return -1
    try:
        listener = _socket.socket(_NETLINK, _RAW | os.O_CLOEXEC | os.O_NONBLOCK, _AUDIT)
    except OSError:
        return -1
    try:
        try:
            listener.setsockopt(1, _SO_RCVBUFFORCE, _BUFFER)
        except PermissionError:
            listener.setsockopt(1, _SO_RCVBUF, _BUFFER)
        listener.bind((0, _READLOG))
    except OSError:
        listener.close()
        return -1
    return listener.detach()


class Status:
    """What the kernel says of its audit, to those who have CAP_AUDIT_CONTROL (audit_status in linux/audit.h)."""

    __slots__ = ("backlog", "enabled", "lost")

    def __init__(self, enabled: bool, lost: int, backlog: int) -> None:
        self.enabled = enabled
        self.lost = lost
        self.backlog = backlog


def status() -> Status | None:
    """The audit's state; None for those who may not ask."""
    try:
        asking = _socket.socket(_NETLINK, _RAW | os.O_CLOEXEC, _AUDIT)
    except OSError:
        return None
    try:
        asking.settimeout(1.0)
        words = (_HEADER, _GET | _REQUEST << 16, 1, 0)
        asking.sendto(b"".join(word.to_bytes(4, "little") for word in words), (0, 0))
        data = asking.recv(8192)
    except OSError:
        return None
    finally:
        asking.close()
    if int.from_bytes(data[4:6], "little") != _GET:
        return None
    said = tuple(int.from_bytes(data[at : at + 4], "little") for at in range(_HEADER, len(data), 4))
    _, enabled, _, _, _, _, lost, backlog, *_ = said
    return Status(enabled != 0, lost, backlog)
