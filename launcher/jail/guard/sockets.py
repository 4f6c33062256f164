"""connect(2) and bind(2), performed on the caller's own socket with a copy of the address that was judged.

Socket files are judged by the file that the path really leads to, and connected to by that file's descriptor. The other
end sees the guard's process id in SO_PEERCRED; user and group are the same. They are made by a thread that Landlock
holds to where the jail may make them, so that nothing can change between the look and the deed.

Abstract names are the machine's, as far as its network namespace goes. Those that the jail takes get a prefix
(`attach`), and when it connects, those are looked for first; the name without it is left to Landlock: the guard lives
in a domain that is scoped to the jail, so the kernel refuses those that were made outside. A socket that asks for any
name (unix(7), autobind) gets a number of the kernel's choice, and the jail cannot choose it.

Launch path of the backend landlock+guard: see launcher/jail/syscalls.py.
"""

import _thread
import errno

from launcher.jail import syscalls
from launcher.jail.guard.call import Call, Gone, Refused, Rules, resolve
from launcher.lean import ctypes, os

_UNSPEC, _UNIX, _INET, _INET6, _NETLINK = 0, 1, 2, 10, 16
_LONGEST = 128  # sizeof(struct sockaddr_storage)
_UNIX_LONGEST = 110  # sizeof(struct sockaddr_un)

ERESTARTSYS = 512
"""Understood by the kernel on the caller's way out: run the signal's handler, then EINTR or the call again, as
sigaction(2) was told. Only right while a signal is pending."""

_libc = ctypes.CDLL(None, use_errno=True)
_bind, _connect = _libc["bind"], _libc["connect"]
_bind.argtypes = _connect.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)


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
    if _is_abstract(address) and (own := _own_name(address, rules.names)) != address:
        try:
            return _connected(call, socket, own)
        except ConnectionRefusedError:
            pass  # the jail has not taken this name
    return _connected(call, socket, address)


def _connected(call: Call, socket: int, address: bytes) -> int:
    while _connect(socket, address, len(address)) < 0:
        number = ctypes.get_errno()
        if number == errno.EPERM and _is_abstract(address):
            raise Refused(number, target="@" + os.fsdecode(address[3:]))  # Landlock's scope
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
        # The guard's own signal. A caller that is gone waits for nothing; one with a signal must see to that first.
        if not call.listener.waiting(call.identity):
            raise Gone
        if call.interrupted:
            raise OSError(ERESTARTSYS, "interrupted by a signal")
    return 0


class Binder:
    """A thread that binds sockets, one at a time. It starts with the first one."""

    def __init__(self, makes: int) -> None:
        """Args: the Landlock domain that it enters, see `landlock.ruleset`."""
        self._makes = makes
        self._started = False
        self._asked, self._answered = _thread.allocate_lock(), _thread.allocate_lock()
        self._asked.acquire()
        self._answered.acquire()
        self._job = (-1, b"", -1, 0)
        self._errno = 0

    def bind(self, call: Call, rules: Rules) -> int:
        """bind(fd, address, length)."""
        length = call.integer(2)
        socket = call.descriptor(call.integer(0))
        if not 0 <= length <= _LONGEST:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        address = call.memory(call.arguments[1], length)
        directory, mask = -1, 0
        if _is_abstract(address):
            address = _own_name(address, rules.names)
        elif address[:2] == _UNIX.to_bytes(2, "little") and length > 2:
            address = _own_descriptor(call, address)
            directory, mask = call.directory(syscalls.AT_FDCWD), int(call.status(b"Umask"), 8)
        call.check()
        if not self._started:
            try:
                _thread.start_new_thread(self._work, ())
            except RuntimeError:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from None
            self._started = True
        self._job = (socket, address, directory, mask)
        self._asked.release()
        self._answered.acquire()
        if self._errno == errno.EACCES and directory != -1:
            name = os.fsdecode(address[2:].partition(b"\0")[0])
            above = os.path.dirname(os.path.normpath(os.path.join(os.readlink(f"/proc/self/fd/{directory}"), name)))
            if not rules.may_write(above):
                raise Refused(errno.EACCES, above)
        if self._errno:
            raise OSError(self._errno, os.strerror(self._errno))
        return 0

    def _work(self) -> None:
        held = True
        try:
            # A directory and a umask of this thread's own. Where a container forbids it those of this process are
            # borrowed, of which nothing else makes use.
            syscalls.unshare(syscalls.CLONE_FS)
        except OSError:
            pass
        try:
            syscalls.landlock_restrict_self(self._makes)
        except OSError:
            held = False
        while True:
            self._asked.acquire()
            try:
                self._errno = self._perform() if held else errno.EPERM
            except OSError as error:
                self._errno = error.errno or errno.EPERM
            self._answered.release()

    def _perform(self) -> int:
        socket, address, directory, mask = self._job
        if directory == -1:
            return ctypes.get_errno() if _bind(socket, address, len(address)) < 0 else 0
        before = os.umask(mask)
        try:
            os.fchdir(directory)
            return ctypes.get_errno() if _bind(socket, address, len(address)) < 0 else 0
        finally:
            os.umask(before)
            os.chdir("/")


def _is_abstract(address: bytes) -> bool:
    return address[:2] == _UNIX.to_bytes(2, "little") and len(address) > 2 and not address[2]


def _own_name(address: bytes, names: bytes) -> bytes:
    """The abstract address that the jail has in the place of this one."""
    name = address[3:]
    if len(address) > _UNIX_LONGEST or name.startswith(names):
        return address  # the kernel refuses what is too long
    if 3 + len(names) + len(name) > _UNIX_LONGEST:
        # The same for all guards of a jail, which are forked from one process.
        name = b"%016x" % (hash(name) & 0xFFFF_FFFF_FFFF_FFFF)
    return address[:3] + names + name


def _own_descriptor(call: Call, address: bytes) -> bytes:
    """The same address for the guard: a path through a descriptor of the caller's, which is how long ones are named."""
    path = address[2:].partition(b"\0")[0]
    steps = path.split(b"/")
    if steps[:3] == [b"", b"dev", b"fd"]:
        steps = [b"", b"proc", b"self", *steps[2:]]
    own = (b"self", b"thread-self", b"%d" % call.tid)
    if (
        len(steps) < 6
        or steps[:2] != [b"", b"proc"]
        or steps[2] not in own
        or steps[3] != b"fd"
        or not steps[4].isdigit()
    ):
        return address
    fd = call.descriptor(int(steps[4]))
    return address[:2] + b"/".join((b"/proc/self/fd/%d" % fd, *steps[5:])) + b"\0"


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
