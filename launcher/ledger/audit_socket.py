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


# The kernel's audit by way of a service of Paddock's that may read it, for launchers that may not.
#
# A service of the same user (`launcher.service.kernel_audit`) listens where its control socket lies. It gets one end of
# a pair of datagram sockets, and sends there what the kernel tells of the sender's own descendants, message by
# message as it came. The kernel says who the sender is (SCM_CREDENTIALS), so there is nothing to ask for and
# nothing to wait for.


STREAM_GREETING = b"paddock-audit 1"

_STREAM_BUFFER = 1 << 20
_STREAM_SECONDS = 0.05
"""For a service that is busy to take the message."""


def request_stream(path: str) -> int:
    """A descriptor on which audit records of this process's descendants arrive from now on; -1 where nobody sends any.

    Args:
        path: of the service's socket.

    Returns:
        Non-blocking, close-on-exec, owned by the caller. Reading it never tells that the service has ended.
    """
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    asking = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    try:
        theirs.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, _STREAM_BUFFER)
        asking.settimeout(_STREAM_SECONDS)
        passed = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, theirs.fileno().to_bytes(4, "little"))
        asking.sendmsg([STREAM_GREETING], [passed], 0, path)
    except OSError:
        ours.close()  # nobody serves it any more, or the path is longer than an address
        return -1
    finally:
        asking.close()
        theirs.close()
    ours.setblocking(False)
    return ours.detach()
