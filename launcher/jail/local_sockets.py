"""Messages over unix(7) stream sockets, with descriptors on board; sockets made in a jail and handed out of it.

By ctypes, because inside a jail nothing can be imported that is not there already (`_socket` may be a file of its own).

Loaded for a further command: built-in modules only, see launcher/jail/minder.py.
"""

import select
import time

from launcher.jail import syscalls
from launcher.lean import ctypes, os
from policy.errors import Refusal

_AF_INET, _AF_INET6, _SOCK_STREAM = 2, 10, 1
_BACKLOG = 1024
_SOL_SOCKET = 1
_SO_PEERCRED = 17
_SCM_RIGHTS = 1
_MSG_CTRUNC = 0x8
_MSG_DONTWAIT = 0x40
_MSG_NOSIGNAL = 0x4000
_MSG_CMSG_CLOEXEC = 0x40000000
_HEADER = 16  # sizeof(struct cmsghdr) on 64-bit machines, where fields of it are aligned to 8 bytes

MOST_DESCRIPTORS = 3
"""In one message."""


def _call(name: str, *arguments: object) -> int:
    function = ctypes.CDLL(None, use_errno=True)[name]
    function.restype = ctypes.c_ssize_t
    result: int = function(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def peer(connection: int) -> tuple[int, int]:
    """Process id and user id of who connected, as the caller's namespaces say them (SO_PEERCRED, unix(7)).

    A process that has no number in the caller's PID namespace is 0.
    """
    credentials = (ctypes.c_uint32 * 3)()
    size = ctypes.c_uint32(12)
    pointers = (ctypes.addressof(credentials), ctypes.addressof(size))
    _call("getsockopt", connection, _SOL_SOCKET, _SO_PEERCRED, *map(ctypes.c_void_p, pointers))
    return credentials[0], credentials[1]


def send(connection: int, data: bytes, descriptors: tuple[int, ...]) -> None:
    """Sends `data`, short enough for the socket's buffer, with `descriptors` on its first byte."""
    payload = ctypes.create_string_buffer(data, len(data))
    numbers = b"".join(fd.to_bytes(4, "little") for fd in descriptors)
    head = (_HEADER + len(numbers)).to_bytes(8, "little")
    head += _SOL_SOCKET.to_bytes(4, "little") + _SCM_RIGHTS.to_bytes(4, "little")
    control = ctypes.create_string_buffer(head + numbers, _HEADER + (len(numbers) + 7 & ~7))
    header, _keep = _message(payload, control)
    if _call("sendmsg", connection, header, _MSG_NOSIGNAL) != len(data):
        raise BrokenPipeError(32, "only a part of a message was taken")


def receive(connection: int, size: int, deadline: float, descriptors: list[int]) -> bytes:
    """Exactly `size` bytes, or b"" when the other end closes before.

    Args:
        connection: to read from.
        size: in bytes.
        deadline: when to give up, on the clock of `time.monotonic`; TimeoutError then.
        descriptors: takes what comes along, close-on-exec; the caller owns them, after an exception too.
    """
    data = b""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    control = ctypes.create_string_buffer(_HEADER + 4 * MOST_DESCRIPTORS + 4)
    while len(data) < size:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError
        payload = ctypes.create_string_buffer(min(size - len(data), 1 << 16))
        header, _keep = _message(payload, control)
        try:
            count = _call("recvmsg", connection, header, _MSG_DONTWAIT | _MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return b""
        except BlockingIOError:
            continue
        length = header[5]
        if length > _HEADER:
            # Nothing else than SCM_RIGHTS comes without having been asked for.
            end = int.from_bytes(control.raw[:8], "little")
            raw = control.raw[_HEADER:end]
            descriptors += [int.from_bytes(raw[at : at + 4], "little") for at in range(0, len(raw), 4)]
        if header[6] & _MSG_CTRUNC:
            raise ValueError("more descriptors than a message may carry")
        if not count:
            return b""
        data += payload.raw[:count]
    return data


def _message(
    payload: "ctypes.Array[ctypes.c_char]", control: "ctypes.Array[ctypes.c_char]"
) -> "tuple[ctypes.Array[ctypes.c_uint64], object]":
    """struct msghdr in 64-bit words (recvmsg(2)), and what must live as long."""
    vector = (ctypes.c_uint64 * 2)(ctypes.addressof(payload), len(payload))
    words = (0, 0, ctypes.addressof(vector), 1, ctypes.addressof(control), len(control), 0)
    return (ctypes.c_uint64 * 7)(*words), vector


def listening(packed: bytes, port: int) -> int:
    """A listening TCP socket at an address of 4 or 16 bytes, non-blocking and close-on-exec, owned by the caller."""
    family = _AF_INET if len(packed) == 4 else _AF_INET6
    fd = syscalls.socket(family, _SOCK_STREAM | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        # struct sockaddr_in and sockaddr_in6 (ip(7), ipv6(7))
        head = family.to_bytes(2, "little") + port.to_bytes(2, "big")
        tail = packed + bytes(8) if family == _AF_INET else bytes(4) + packed + bytes(4)
        syscalls.bind(fd, head + tail)
        syscalls.listen(fd, _BACKLOG)
    except OSError:
        os.close(fd)
        raise
    return fd


def hand_out(channel: int, addresses: "tuple[tuple[bytes, int], ...]", pool: int) -> None:
    """In the jail's network namespace: makes sockets for the proxy outside and passes them out; closes `channel`.

    Args:
        channel: a socket to the proxy.
        addresses: where to listen (`listening`).
        pool: how many further TCP sockets, not bound.

    Raises:
        Refusal: proxy-unavailable.
    """
    try:
        for address in addresses:
            fd = listening(*address)
            send(channel, b"L", (fd,))
            os.close(fd)
        for _ in range(pool):
            fd = syscalls.socket(_AF_INET, _SOCK_STREAM | os.O_CLOEXEC | os.O_NONBLOCK)
            send(channel, b"S", (fd,))
            os.close(fd)
    except OSError as error:
        raise Refusal("proxy-unavailable", "the network proxy has no socket in the jail", context=str(error)) from None
    os.close(channel)
