"""One notified call: its arguments, what they mean in the process that made it, and what the jail may do.

Everything is read once, into copies; what happens to the caller's memory or descriptors later changes nothing. The
process is named by a number, which may have gone to somebody else: act only after `Call.check`.

Launch path of the backend landlock+guard: see launcher/jail/syscalls.py.
"""

import errno
from _stat import S_ISLNK

from launcher.jail import syscalls
from launcher.jail.spec import JailSpec
from launcher.lean import ctypes, os
from launcher.safefs import walk
from policy import promises

# What the guard lets through: a pure reading of the JailSpec.
#
# A path may be changed, and a socket file connected to, where the spec says "write" and no exception takes it away.
# The arithmetic is the one of `policy.verdict.decide`; a test holds the two against each other.

DELETED = " (deleted)"

# Sources of grants that hold although a denied path lies above them: the slots lie in Paddock's own state, which is
# denied (as in `layout`, where they are exempt).
_BEYOND_DENIAL = (promises.NESTED, promises.PRIVATE_HOME, promises.PRIVATE_TEMP, promises.PRIVATE_GIT)


class Refused(PermissionError):
    """The spec does not let it happen; what it was is for the ledger.

    Args:
        number: the errno for the caller.
        path: the file that it was about, "" when it was about none.
        host: the address, with `port`.
        target: what it was about in other cases.
    """

    def __init__(self, number: int, path: str = "", *, host: str = "", port: int = 0, target: str = "") -> None:
        super().__init__(number, os.strerror(number))
        self.number = number
        self.subject = (path, "w", host, port, target)


class Rules:
    """The answers for one jail."""

    __slots__ = ("_denied", "_narrowed", "_nested", "_read_only", "_writable", "addresses", "names")

    def __init__(self, spec: JailSpec, names: bytes = b"") -> None:
        """Args: the jail; what its abstract addresses begin with."""
        self.names = names
        grants = [(path, source) for path, access, source in spec.grants if "w" in access]
        self._writable = frozenset(path for path, _ in grants)
        self._nested = frozenset(path for path, source in grants if source in _BEYOND_DENIAL)
        self._denied = frozenset(path for path, _ in spec.denied)
        self._read_only = frozenset(path for path, _ in spec.read_only)
        self._narrowed = {path: access for path, access, _ in spec.narrowed}
        self.addresses = None if spec.net == "open" else frozenset(spec.addresses)

    def may_write(self, path: str) -> bool:
        """Whether the spec lets `path` (absolute, canonical) be written."""
        granted = nested = False
        held = ""
        while True:
            nested = nested or path in self._nested
            held = held or self._narrowed.get(path, "")  # the longest counts
            if held == "r" or path in self._read_only or (path in self._denied and not nested):
                return False
            granted = granted or path in self._writable
            if path in ("/", ""):
                return granted
            path = path.rpartition("/")[0] or "/"

    def may_change(self, name: str) -> bool:
        """Whether an open file may be changed that the kernel calls `name` (readlink(2) on /proc/self/fd/N)."""
        if not name.startswith("/"):
            # "socket:[N]" and others exist only as descriptors. A pipe may be the caller's of the launcher.
            return name.startswith("socket:")
        if name.endswith(DELETED):
            # The name is gone or really ends like this: both have to be allowed.
            bare = name.removesuffix(DELETED)
            return name.startswith("/memfd:") or (self.may_write(bare) and self.may_write(name))
        return self.may_write(name)

    def may_reach(self, address: bytes, port: int) -> bool:
        """Whether a TCP connection to an address (4 or 16 bytes) and port may be made."""
        if self.addresses is None:
            return True
        if address.startswith(bytes(10) + b"\xff\xff"):
            address = address[12:]  # IPv4 in IPv6's clothes
        return (address, port) in self.addresses


# The kernel's side of the guard: seccomp user notification (seccomp_unotify(2)), one method per ioctl.

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

_ioctl = ctypes.CDLL(None, use_errno=True)["ioctl"]
_ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
_ioctl.restype = ctypes.c_int
_memset = ctypes.CDLL(None)["memset"]
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
        """Ends the caller's wait with a new descriptor of its own, a duplicate of `fd`."""
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
                for line in file.read().split(b"\n"):  # a name may have a carriage return
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


# From a path in the caller's words to one descriptor that means one file, whatever is renamed or relinked afterwards.
#
# The kernel resolves it (openat2(2)), once. Only links below /proc to the caller's own descriptors and directories
# need help: "self" means whoever asks, and here the guard does. Inside another jail there is no openat2; then every
# path is walked.
#
# The caller has the guard's own root and mounts (chroot, setns and unshare are closed in the jail), so an absolute
# path means the same to both.

_OPENAT2 = 437
_MOST_LINKS = 40  # path_resolution(7)

_syscall = ctypes.CDLL(None, use_errno=True)["syscall"]
_syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_syscall.restype = ctypes.c_long


def resolve(call: Call, dirfd: int, path: bytes, *, follow: bool) -> int:
    """An O_PATH descriptor of what `path` means to the caller, owned by `call`.

    Args:
        call: made by the caller.
        dirfd: descriptor of the caller that a relative path starts from, or AT_FDCWD.
        path: no NUL in it.
        follow: a symbolic link in the last place is followed.

    Raises:
        OSError: as openat2(2).
        Gone: the caller is.
    """
    start = syscalls.AT_FDCWD if path.startswith(b"/") else call.directory(dirfd)
    try:
        return call.own(_openat2(start, path, 0 if follow else os.O_NOFOLLOW, walk.RESOLVE_NO_MAGICLINKS))
    except OSError:
        # ELOOP: a link in /proc, or a real loop. ENOSYS: no openat2. Anything else may come of looking for the caller's
        # descriptors among the guard's. The walk says which.
        return call.own(_Walk(call, start, path).end(follow=follow))


def _openat(dirfd: int, path: bytes, flags: int = 0) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC | flags, dir_fd=None if dirfd == syscalls.AT_FDCWD else dirfd)


def _openat2(dirfd: int, path: bytes, flags: int, resolution: int) -> int:
    how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC | flags, 0, resolution)
    fd: int = _syscall(_OPENAT2, dirfd, path, ctypes.addressof(how), 24)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return fd


class _Walk:
    """The same step by step, for paths that lead through /proc/self and its like, and for loops."""

    def __init__(self, call: Call, start: int, path: bytes) -> None:
        self._call = call
        self._proc = os.stat("/proc")
        self._here = _openat(start, b"/" if start == syscalls.AT_FDCWD else b".")
        self._steps = _steps(path)
        self._directory = path.endswith(b"/")

    def end(self, *, follow: bool) -> int:
        """Where the path leads; the caller owns it."""
        links = 0
        try:
            while self._steps:
                name = self._steps.pop()
                if name in (b"self", b"thread-self") and self._at_proc():
                    process = b"%d" % self._call.tgid()
                    self._steps += [process] if name == b"self" else [b"%d" % self._call.tid, b"task", process]
                    continue
                found = _openat(self._here, name, os.O_NOFOLLOW)
                if not S_ISLNK(os.fstat(found).st_mode) or not (self._steps or follow or self._directory):
                    self._move(found)
                    continue
                links += 1
                try:
                    if links > _MOST_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    self._follow(found, name)
                finally:
                    os.close(found)
            if self._directory:
                self._move(_openat(self._here, b".", os.O_DIRECTORY))
            here, self._here = self._here, -1
            return here
        finally:
            if self._here >= 0:
                os.close(self._here)

    def _move(self, fd: int) -> None:
        os.close(self._here)
        self._here = fd

    def _follow(self, link: int, name: bytes) -> None:
        if os.fstat(link).st_dev == self._proc.st_dev and not self._at_proc():
            # It leads to an object rather than to what readlink(2) shows; in /proc itself links are ordinary ones.
            self._move(_openat(self._here, name))
            return
        text = os.readlink(b"", dir_fd=link)
        if text.startswith(b"/"):
            self._move(_openat(syscalls.AT_FDCWD, b"/"))
        self._directory = self._directory or (not self._steps and text.endswith(b"/"))
        self._steps += _steps(text)

    def _at_proc(self) -> bool:
        here = os.fstat(self._here)
        return (here.st_dev, here.st_ino) == (self._proc.st_dev, self._proc.st_ino)


def _steps(path: bytes) -> list[bytes]:
    """The components of a path, the last one first."""
    return [step for step in path.split(b"/") if step not in (b"", b".")][::-1]
