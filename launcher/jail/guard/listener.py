"""The kernel's side of the guard: seccomp user notification (seccomp_unotify(2)), one method per ioctl.

Launch path of the backend landlock+guard: see launcher/jail/syscalls.py.
"""

import errno

from launcher.lean import ctypes, os

# _IOWR('!', 0, 80), _IOWR('!', 1, 24), _IOW('!', 2, 8), _IOW('!', 3, 24), _IOW('!', 4, 8)
_RECV = 0xC0502100
_SEND = 0xC0182101
_ID_VALID = 0x40082102
_ADDFD = 0x40182103
_SET_FLAGS = 0x40082104
_SYNC_WAKE_UP = 1
_CONTINUE = 1
_ADDFD_SEND = 1 << 1

_NOTIFICATION = 10  # struct seccomp_notif in 64-bit words: id, pid|flags, nr|arch, instruction pointer, six arguments

_libc = ctypes.CDLL(None, use_errno=True)
_ioctl = _libc["ioctl"]
_ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
_ioctl.restype = ctypes.c_int
_memset = _libc["memset"]
_memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_memset.restype = ctypes.c_void_p


class Gone(Exception):
    """The caller does not wait any more: it was killed, or its call was interrupted before it was looked at."""


class Listener:
    """One end of the notifications. Safe to use from several threads, but `receive` from one at a time."""

    __slots__ = ("_address", "_buffer", "fd")

    def __init__(self, fd: int) -> None:
        """Takes over `fd`, the descriptor of a listener."""
        self.fd = fd
        self._buffer = (ctypes.c_uint64 * _NOTIFICATION)()
        self._address = ctypes.addressof(self._buffer)
        # The caller sleeps while its call is served: waking the server on the same processor saves a migration.
        # Linux 6.6; before, it is only slower.
        _ioctl(fd, _SET_FLAGS, _SYNC_WAKE_UP)

    def receive(self) -> tuple[int, int, int, tuple[int, ...]] | None:
        """Waits for a call: (id, caller's thread id, system call number, six arguments).

        None when there was one and it is gone, or a signal came.

        Raises:
            OSError: the listener is of no use any more.
        """
        # The kernel insists on a structure of zeros (EINVAL).
        _memset(self._address, 0, 8 * _NOTIFICATION)
        if _ioctl(self.fd, _RECV, self._address) < 0:
            number = ctypes.get_errno()
            if number in (errno.ENOENT, errno.EINTR):
                return None
            raise OSError(number, os.strerror(number))
        identity, pid, number, _, *arguments = self._buffer
        return identity, pid & 0xFFFFFFFF, number & 0xFFFFFFFF, tuple(arguments)

    def check(self, identity: int) -> None:
        """Raises Gone unless the caller still waits. What was read of the process by its number counts only after."""
        if not self.waiting(identity):
            raise Gone

    def waiting(self, identity: int) -> bool:
        """Whether the caller still waits."""
        return _done(self.fd, _ID_VALID, ctypes.c_uint64(identity)) == 0

    def answer(self, identity: int, value: int, number: int = 0) -> None:
        """Ends the caller's wait with a result, or with the errno `number`. A caller that is gone is no error."""
        _done(self.fd, _SEND, (ctypes.c_uint64 * 3)(identity, value, -number & 0xFFFFFFFF))

    def let_go(self, identity: int) -> None:
        """Lets the kernel carry the call out, with arguments that may have changed meanwhile: never a decision."""
        _done(self.fd, _SEND, (ctypes.c_uint64 * 3)(identity, 0, _CONTINUE << 32))

    def answer_with_descriptor(self, identity: int, fd: int, *, close_on_exec: bool) -> None:
        """Ends the caller's wait with a new descriptor of its own, a duplicate of `fd`.

        Raises:
            Gone: the caller is.
            OSError: it cannot have one, EMFILE for example; then it still waits.
        """
        flags = os.O_CLOEXEC if close_on_exec else 0
        number = _done(self.fd, _ADDFD, (ctypes.c_uint64 * 3)(identity, _ADDFD_SEND | fd << 32, flags << 32))
        if number in (errno.ENOENT, errno.EINPROGRESS):
            raise Gone
        if number:
            raise OSError(number, os.strerror(number))


def _done(fd: int, request: int, argument: "ctypes.c_uint64 | ctypes.Array[ctypes.c_uint64]") -> int:
    """The errno of an ioctl, 0 when it went through. Its locks can be interrupted by a signal: then once more."""
    while _ioctl(fd, request, ctypes.addressof(argument)) < 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            return number
    return 0
