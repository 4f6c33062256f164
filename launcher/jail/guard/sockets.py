"""connect(2), performed on the caller's own socket with a copy of the address that was judged.

Socket files are judged by the file that the path really leads to, and connected to by that file's descriptor. Abstract
names are left to Landlock: the guard lives in a domain that is scoped to the jail (`attach`), so the kernel refuses
those that were made outside. The other end sees the guard's process id in SO_PEERCRED; user and group are the same.

Launch path of the backend landlock+guard: see launcher/jail/syscalls.py.
"""

import errno

from launcher.jail import syscalls
from launcher.jail.guard.call import Call
from launcher.jail.guard.listener import Gone
from launcher.jail.guard.paths import resolve
from launcher.jail.guard.rules import Refused, Rules
from launcher.lean import ctypes, os

_UNSPEC, _UNIX, _INET, _INET6, _NETLINK = 0, 1, 2, 10, 16
_LONGEST = 128  # sizeof(struct sockaddr_storage)
_UNIX_LONGEST = 110  # sizeof(struct sockaddr_un)

ERESTARTSYS = 512
"""Understood by the kernel on the caller's way out: run the signal's handler, then EINTR or the call again, as
sigaction(2) was told. Only right while a signal is pending."""

_libc = ctypes.CDLL(None, use_errno=True)
_connect = _libc["connect"]
_connect.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)


def connect(call: Call, rules: Rules) -> int:
    """connect(fd, address, length). May block as long as it likes: call it where nothing waits for it."""
    length = call.integer(2)
    if not 2 <= length <= _LONGEST:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    socket = call.descriptor(call.integer(0))
    address = call.memory(call.arguments[1], length)
    family = int.from_bytes(address[:2], "little")
    if family == _UNIX and length > 2 and address[2]:
        address = _socket_file(call, rules, address)
    elif family == _UNIX and length == 2:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    elif family in (_INET, _INET6):
        _internet(rules, family, address)
    elif family not in (_UNSPEC, _UNIX, _NETLINK):
        # Netlink sockets are for routes only in here (the filter's doing), and have no addresses outside the kernel.
        raise Refused(errno.EACCES, target=f"address family {family}")
    call.check()
    while _connect(socket, address, len(address)) < 0:
        number = ctypes.get_errno()
        if number == errno.EPERM and family == _UNIX and not address[2]:
            raise Refused(number, target="@" + os.fsdecode(address[3:]))  # Landlock's scope
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
        # The guard's own signal. A caller that is gone waits for nothing; one with a signal must see to that first.
        if not call.listener.waiting(call.identity):
            raise Gone
        if call.interrupted:
            raise OSError(ERESTARTSYS, "interrupted by a signal")
    return 0


def _socket_file(call: Call, rules: Rules, address: bytes) -> bytes:
    if len(address) > _UNIX_LONGEST:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    fd = resolve(call, syscalls.AT_FDCWD, address[2:].partition(b"\0")[0], follow=True)
    name = f"/proc/self/fd/{fd}"
    path = os.readlink(name)
    if not rules.may_change(path):
        raise Refused(errno.EACCES, path)
    return address[:2] + name.encode() + b"\0"


def _internet(rules: Rules, family: int, address: bytes) -> None:
    shortest, start, size = (8, 4, 4) if family == _INET else (24, 8, 16)
    if len(address) < shortest:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    number, port = address[start : start + size], int.from_bytes(address[2:4], "big")
    if not rules.may_reach(number, port):
        import _socket

        raise Refused(errno.EACCES, host=_socket.inet_ntop(family, number), port=port)
