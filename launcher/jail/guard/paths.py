"""From a path in the caller's words to one descriptor that means one file, whatever is renamed or relinked afterwards.

The kernel resolves it (openat2(2)), once. Only links below /proc to the caller's own descriptors and directories need
help: "self" means whoever asks, and here the guard does. Inside another jail there is no openat2; then every path is
walked.

The caller has the guard's own root and mounts (chroot, setns and unshare are closed in the jail), so an absolute path
means the same to both.

Launch path of the backend landlock+guard: see launcher/jail/syscalls.py.
"""

import errno
from _stat import S_ISLNK

from launcher.jail import syscalls
from launcher.jail.guard.call import Call
from launcher.lean import ctypes, os
from launcher.safefs import walk

_OPENAT2 = 437
_MOST_LINKS = 40  # path_resolution(7)

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc["syscall"]
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
