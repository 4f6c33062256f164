"""The kernel's audit by way of a service of Paddock's that may read it, for launchers that may not.

A service of the same user (`launcher.service.audit`) listens where its control socket lies. It gets one end of a pair
of datagram sockets, and sends there what the kernel tells of the sender's own descendants, message by message as it
came. The kernel says who the sender is (SCM_CREDENTIALS), so there is nothing to ask for and nothing to wait for.

Launch path: built-in modules only.
"""

import _socket

GREETING = b"paddock-audit 1"

_BUFFER = 1 << 20
_SECONDS = 0.05
"""For a service that is busy to take the message."""


def request(path: str) -> int:
    """A descriptor on which audit records of this process's descendants arrive from now on; -1 where nobody sends any.

    Args:
        path: of the service's socket.

    Returns:
        Non-blocking, close-on-exec, owned by the caller. Reading it never tells that the service has ended.
    """
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    asking = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    try:
        theirs.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, _BUFFER)
        asking.settimeout(_SECONDS)
        passed = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, theirs.fileno().to_bytes(4, "little"))
        asking.sendmsg([GREETING], [passed], 0, path)
    except OSError:
        ours.close()  # nobody serves it any more, or the path is longer than an address
        return -1
    finally:
        asking.close()
        theirs.close()
    ours.setblocking(False)
    return ours.detach()
