"""One notified call: its arguments, and what they mean in the process that made it.

Everything is read once, into copies; what happens to the caller's memory or descriptors later changes nothing. The
process is named by a number, which may have gone to somebody else: act only after `Call.check`.

Launch path of the backend landlock+guard: see launcher/jail/syscalls.py.
"""

import errno

from launcher.jail import syscalls
from launcher.jail.guard.listener import Gone, Listener
from launcher.lean import ctypes, os

PATH_MAX = 4096  # with the final NUL (limits.h)
_PAGE = 4096  # or a multiple of it

_libc = ctypes.CDLL(None, use_errno=True)
_process_vm_readv = _libc["process_vm_readv"]
_process_vm_readv.argtypes = (
    ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong
)  # fmt: skip
_process_vm_readv.restype = ctypes.c_ssize_t


class Call:
    """A call that waits for its answer. Descriptors from `own` live until `close`."""

    __slots__ = ("_owned", "arguments", "identity", "interrupted", "listener", "number", "seen", "tid")

    def __init__(self, listener: Listener, identity: int, tid: int, number: int, arguments: tuple[int, ...]) -> None:
        """Takes what `Listener.receive` returned."""
        self.listener = listener
        self.identity = identity
        self.tid = tid
        self.number = number
        self.arguments = arguments
        self.interrupted = False  # set by the server: a signal waits for the caller
        self.seen = 0  # the pending signals at the server's last look
        self._owned: list[int] = []

    def check(self) -> None:
        """Raises Gone unless the caller still waits, and so was the one that was read from."""
        self.listener.check(self.identity)

    def integer(self, index: int) -> int:
        """An argument of type int."""
        value = self.arguments[index] & 0xFFFFFFFF
        return value - (1 << 32) if value >> 31 else value

    def memory(self, address: int, size: int) -> bytes:
        """`size` bytes of the caller's memory.

        Raises:
            OSError: EFAULT, or EPERM when the caller cannot be read at all (prctl(2), PR_SET_DUMPABLE).
            Gone: the caller is.
        """
        if not size:
            return b""
        # The kernel looks at its own limit of addresses only; ctypes must not be given more than it can hold.
        if address + size >= 1 << 64:
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        buffer = ctypes.create_string_buffer(size)
        here = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), size)
        there = (ctypes.c_uint64 * 2)(address, size)
        done = _process_vm_readv(self.tid, ctypes.addressof(here), 1, ctypes.addressof(there), 1, 0)
        if done == size:
            return buffer.raw
        number = ctypes.get_errno() if done < 0 else errno.EFAULT
        if number == errno.ESRCH:
            raise Gone
        raise OSError(number, os.strerror(number))

    def string(self, address: int, limit: int = PATH_MAX, too_long: int = errno.ENAMETOOLONG) -> bytes:
        """The bytes before the NUL at most `limit - 1` further on; the errno `too_long` when there is none."""
        text = b""
        while limit:
            # Never past the end of a page: what follows may not be there.
            size = min(limit, _PAGE - address % _PAGE)
            text += self.memory(address, size)
            end = text.find(b"\0")
            if end >= 0:
                return text[:end]
            address += size
            limit -= size
        raise OSError(too_long, os.strerror(too_long))

    def descriptor(self, fd: int) -> int:
        """A duplicate of the caller's descriptor, owned by this call.

        Raises:
            OSError: EBADF, or EPERM when the caller may not be traced.
            Gone: the caller is.
        """
        if fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        try:
            pidfd = self._pidfd()
            try:
                return self.own(syscalls.pidfd_getfd(pidfd, fd))
            finally:
                os.close(pidfd)
        except ProcessLookupError:
            raise Gone from None

    def _pidfd(self) -> int:
        try:
            # A thread may have descriptors of its own (unshare(2), CLONE_FILES).
            return syscalls.pidfd_open(self.tid, syscalls.PIDFD_THREAD)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        # Before Linux 6.9 only processes can be named; then it is the process's descriptors, as nearly always.
        return syscalls.pidfd_open(self.tgid())

    def directory(self, dirfd: int) -> int:
        """What a path starts from: the caller's descriptor `dirfd`, or its current directory (AT_FDCWD)."""
        if dirfd != syscalls.AT_FDCWD:
            return self.descriptor(dirfd)
        try:
            return self.own(os.open(f"/proc/{self.tid}/cwd", os.O_PATH | os.O_CLOEXEC))
        except FileNotFoundError:
            self.check()
            raise

    def tgid(self) -> int:
        """Process id of the calling thread's process."""
        return int(self.status(b"Tgid"))

    def status(self, name: bytes) -> bytes:
        """A line of proc_pid_status(5). Gone when the caller is."""
        try:
            with open(f"/proc/{self.tid}/status", "rb", buffering=0) as file:
                for line in file.read().splitlines():
                    if line.startswith(name + b":"):
                        return line[len(name) + 1 :].strip()
        except (FileNotFoundError, ProcessLookupError):
            raise Gone from None
        raise OSError(errno.EIO, f"no {name.decode()} in /proc/{self.tid}/status")

    def caller(self) -> tuple[int, str, str]:
        """Process id, name and programme of the caller; what cannot be read stays empty."""
        name = program = ""
        pid = self.tid
        try:
            pid = self.tgid()
            with open(f"/proc/{self.tid}/comm", "rb", buffering=0) as file:
                name = os.fsdecode(file.read(64).rstrip(b"\n"))
            program = os.readlink(f"/proc/{self.tid}/exe")
        except (OSError, Gone):
            return pid, name, program
        return pid, name, program

    def own(self, fd: int) -> int:
        """Keeps `fd` until `close`; returns it."""
        self._owned.append(fd)
        return fd

    def close(self) -> None:
        """Closes the descriptors that were opened for this call."""
        while self._owned:
            os.close(self._owned.pop())
