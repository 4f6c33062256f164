"""chmod, chown, utime, setxattr and their relatives, performed on a descriptor that was judged first.

The guard has the caller's user, groups and no capability, so the kernel's own rules of ownership apply as they would.
What the kernel would answer in the process stays as it is, EBADF for an O_PATH descriptor and EINVAL for unknown flags
included; only what the Plan does not let be written is EPERM. Devices are never changed: they belong to the machine.

Launch path of the backend landlock+guard: see launcher/jail/syscalls.py.
"""

import errno
import fcntl
from _stat import S_ISBLK, S_ISCHR, S_ISREG

from launcher.jail import syscalls
from launcher.jail.guard.call import Call, Refused, Rules, resolve
from launcher.lean import ctypes, os

_XATTR_NAME = 256  # XATTR_NAME_MAX and the NUL
_XATTR_SIZE = 65536
_UTIME_OMIT = (1 << 30) - 2
_SET_ID = 0o6000
_AT_FLAGS = syscalls.AT_SYMLINK_NOFOLLOW | syscalls.AT_EMPTY_PATH
_UTIMENSAT = {"x86_64": 280, "aarch64": 88}[syscalls.MACHINE]

_libc = ctypes.CDLL(None, use_errno=True)
_fchownat = _libc["fchownat"]
_fchownat.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_int)
# The kernel's own call: the C library refuses some of what the kernel takes.
_utimensat = _libc["syscall"]
_utimensat.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int)
_utimensat.restype = ctypes.c_long


def chmod(call: Call, rules: Rules) -> int:
    """chmod(path, mode)."""
    return _chmod(call, rules, _path(call, syscalls.AT_FDCWD, 0), 1)


def fchmodat(call: Call, rules: Rules) -> int:
    """fchmodat(dirfd, path, mode); this call has no flags."""
    return _chmod(call, rules, _path(call, call.integer(0), 1), 2)


def fchmodat2(call: Call, rules: Rules) -> int:
    """fchmodat2(dirfd, path, mode, flags)."""
    return _chmod(call, rules, _path(call, call.integer(0), 1, call.integer(3)), 2)


def fchmod(call: Call, rules: Rules) -> int:
    """fchmod(fd, mode)."""
    return _chmod(call, rules, _opened(call), 1)


def chown(call: Call, rules: Rules) -> int:
    """chown(path, owner, group)."""
    return _chown(call, rules, _path(call, syscalls.AT_FDCWD, 0), 1)


def lchown(call: Call, rules: Rules) -> int:
    """lchown(path, owner, group)."""
    return _chown(call, rules, _path(call, syscalls.AT_FDCWD, 0, syscalls.AT_SYMLINK_NOFOLLOW), 1)


def fchown(call: Call, rules: Rules) -> int:
    """fchown(fd, owner, group)."""
    return _chown(call, rules, _opened(call), 1)


def fchownat(call: Call, rules: Rules) -> int:
    """fchownat(dirfd, path, owner, group, flags)."""
    return _chown(call, rules, _path(call, call.integer(0), 1, call.integer(4)), 2)


def utime(call: Call, rules: Rules) -> int:
    """utime(path, times): whole seconds, two of them."""
    times = None
    if call.arguments[1]:
        access, change = _longs(call, call.arguments[1], 2)
        times = _packed(access, 0, change, 0)
    return _utime(call, rules, _path(call, syscalls.AT_FDCWD, 0), times)


def utimes(call: Call, rules: Rules) -> int:
    """utimes(path, times): seconds and microseconds."""
    times = _microseconds(call, call.arguments[1])
    return _utime(call, rules, _path(call, syscalls.AT_FDCWD, 0), times)


def futimesat(call: Call, rules: Rules) -> int:
    """futimesat(dirfd, path, times); without a path it is the descriptor."""
    times = _microseconds(call, call.arguments[2])
    by_path = call.arguments[1] or call.integer(0) == syscalls.AT_FDCWD
    return _utime(call, rules, _path(call, call.integer(0), 1) if by_path else _opened(call), times)


def utimensat(call: Call, rules: Rules) -> int:
    """utimensat(dirfd, path, times, flags); without a path it is the descriptor, as futimens(3) uses it."""
    times = call.memory(call.arguments[2], 32) if call.arguments[2] else None
    flags = call.integer(3)
    if times is not None and all(
        int.from_bytes(times[at : at + 8], "little", signed=True) == _UTIME_OMIT for at in (8, 24)
    ):
        return 0  # the kernel does not look at the path then
    if call.arguments[1] or call.integer(0) == syscalls.AT_FDCWD:
        return _utime(call, rules, _path(call, call.integer(0), 1, flags), times)
    if flags:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return _utime(call, rules, _opened(call), times)


def setxattr(call: Call, rules: Rules) -> int:
    """setxattr(path, name, value, size, flags)."""
    attribute = _attribute(call)
    return _setxattr(call, rules, _path(call, syscalls.AT_FDCWD, 0), *attribute)


def lsetxattr(call: Call, rules: Rules) -> int:
    """lsetxattr(path, name, value, size, flags)."""
    attribute = _attribute(call)
    return _setxattr(call, rules, _path(call, syscalls.AT_FDCWD, 0, syscalls.AT_SYMLINK_NOFOLLOW), *attribute)


def fsetxattr(call: Call, rules: Rules) -> int:
    """fsetxattr(fd, name, value, size, flags)."""
    attribute = _attribute(call)
    return _setxattr(call, rules, _opened(call), *attribute)


def removexattr(call: Call, rules: Rules) -> int:
    """removexattr(path, name)."""
    name = _attribute_name(call)
    return _removexattr(call, rules, _path(call, syscalls.AT_FDCWD, 0), name)


def lremovexattr(call: Call, rules: Rules) -> int:
    """lremovexattr(path, name)."""
    name = _attribute_name(call)
    return _removexattr(call, rules, _path(call, syscalls.AT_FDCWD, 0, syscalls.AT_SYMLINK_NOFOLLOW), name)


def fremovexattr(call: Call, rules: Rules) -> int:
    """fremovexattr(fd, name)."""
    name = _attribute_name(call)
    return _removexattr(call, rules, _opened(call), name)


def _path(call: Call, dirfd: int, index: int, flags: int = 0) -> int:
    """A descriptor of what the path in argument `index` means."""
    if flags & ~_AT_FLAGS:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    path = call.string(call.arguments[index])
    if not path:
        if not flags & syscalls.AT_EMPTY_PATH:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return call.directory(dirfd)
    return resolve(call, dirfd, path, follow=not flags & syscalls.AT_SYMLINK_NOFOLLOW)


def _opened(call: Call) -> int:
    """A duplicate of the descriptor in the first argument, which must have been opened for more than its path."""
    fd = call.descriptor(call.integer(0))
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return fd


def _judged(call: Call, rules: Rules, fd: int) -> str:
    """The name by which `fd` can be acted on, when it may be."""
    name = f"/proc/self/fd/{fd}"
    mode = os.fstat(fd).st_mode
    path = os.readlink(name)
    if S_ISCHR(mode) or S_ISBLK(mode) or not rules.may_change(path):
        raise Refused(errno.EPERM, path)
    call.check()
    return name


def _chmod(call: Call, rules: Rules, fd: int, index: int) -> int:
    mode = call.integer(index) & 0o7777
    if mode & _SET_ID and S_ISREG(os.fstat(fd).st_mode):
        # Whoever starts such a programme later has this user's identity. In a directory the bits mean other things.
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    os.chmod(_judged(call, rules, fd), mode)
    return 0


def _chown(call: Call, rules: Rules, fd: int, index: int) -> int:
    _judged(call, rules, fd)
    owner, group = (call.arguments[at] & 0xFFFFFFFF for at in (index, index + 1))
    return _checked(_fchownat(fd, b"", owner, group, syscalls.AT_EMPTY_PATH))


def _utime(call: Call, rules: Rules, fd: int, times: bytes | None) -> int:
    _judged(call, rules, fd)
    return _checked(_utimensat(_UTIMENSAT, fd, b"", times, syscalls.AT_EMPTY_PATH))


def _attribute(call: Call) -> tuple[bytes, bytes, int]:
    """Name, value and flags of an attribute to be set. Looked at before the path, as the kernel does."""
    flags, size = call.integer(4), call.arguments[3]
    if flags & ~(os.XATTR_CREATE | os.XATTR_REPLACE):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    name = _attribute_name(call)
    if size > _XATTR_SIZE:
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
    return name, call.memory(call.arguments[2], size), flags


def _attribute_name(call: Call) -> bytes:
    name = call.string(call.arguments[1], _XATTR_NAME, errno.ERANGE)
    if not name:
        raise OSError(errno.ERANGE, os.strerror(errno.ERANGE))
    return name


def _setxattr(call: Call, rules: Rules, fd: int, name: bytes, value: bytes, flags: int) -> int:
    os.setxattr(_judged(call, rules, fd), name, value, flags)
    return 0


def _removexattr(call: Call, rules: Rules, fd: int, name: bytes) -> int:
    os.removexattr(_judged(call, rules, fd), name)
    return 0


def _longs(call: Call, address: int, count: int) -> list[int]:
    data = call.memory(address, 8 * count)
    return [int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(0, 8 * count, 8)]


def _microseconds(call: Call, address: int) -> bytes | None:
    """Two `struct timeval` of the caller as two `struct timespec`."""
    if not address:
        return None
    access, access_us, change, change_us = _longs(call, address, 4)
    if not (0 <= access_us < 1_000_000 and 0 <= change_us < 1_000_000):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return _packed(access, 1000 * access_us, change, 1000 * change_us)


def _packed(*words: int) -> bytes:
    return b"".join(word.to_bytes(8, "little", signed=True) for word in words)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
