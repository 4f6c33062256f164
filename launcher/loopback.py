"""Ports of this machine that are held where a browser looks for `localhost`, and for names below it (RFC 6761, 6.3).

Whoever else listened at one of the two addresses would be the server to a browser, which tries them in an order of its
own and goes on to the other one only where nobody answers.

Launch path of sessions that publish ports: see launcher/jail/syscalls.py.
"""

import errno

from launcher.lean import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Sequence
else:
    import _socket

LOOPBACKS = ("127.0.0.1", "::1")

_AF_INET, _AF_INET6, _SOCK_STREAM = 2, 10, 1
_IPV6_FREEBIND = 78
_BACKLOG = 1024


def listening(addresses: "Sequence[str]", port: int) -> "list[_socket.socket]":
    """Non-blocking sockets that listen at one port of each address, or at none.

    Also where connections of an earlier server still fade (tcp(7)). ::1 is left out behind another address where the
    kernel has no IPv6: nobody can listen there then.

    Args:
        addresses: of the loopback.
        port: 0 for any that is free at the first one.

    Raises:
        OSError: one of them cannot be had; its `filename` is the address.
    """
    made: list[_socket.socket] = []
    for address in addresses:
        family = _AF_INET6 if ":" in address else _AF_INET
        try:
            if made and family == _AF_INET6 and not _has_ipv6():
                continue
            made.append(one := _socket.socket(family, _SOCK_STREAM))
            one.setblocking(False)
            one.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            if family == _AF_INET6:
                # Also where the interface has no such address yet: others can hold the port for it just so.
                one.setsockopt(_socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
            one.bind((address, port))
            one.listen(_BACKLOG)
        except OSError as error:
            for each in made:
                each.close()
            raise OSError(error.errno, error.strerror, address) from None
        port = one.getsockname()[1]
    return made


def _has_ipv6() -> bool:
    """Whether there is IPv6 in the kernel."""
    try:
        _socket.socket(_AF_INET6, _SOCK_STREAM).close()
    except OSError as error:
        # A filter's error may be the same, but is this process's alone: then the kernel's table is there.
        return error.errno != errno.EAFNOSUPPORT or os.access("/proc/net/tcp6", os.F_OK)
    return True
