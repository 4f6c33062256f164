"""The kernel's system calls, one thin wrapper each, under the kernel's own names.

Each wrapper does the call and nothing else: it raises OSError (with the path, where the call takes one) and returns
what the kernel returned. What a refusal *means* is said by the module that asked.

Launch path: only sys, os and ctypes are imported.
"""

import errno
import sys

from launcher.lean import ctypes, os
from policy.errors import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctypes import _FuncPointer
    from typing import Any

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
AT_SYMLINK_NOFOLLOW = 0x100
AT_NO_AUTOMOUNT = 0x800
STATX_BTIME = 0x800

CLONE_FS = 0x00000200
CLONE_PARENT = 0x00008000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

MNT_DETACH = 0x2

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4

OPEN_TREE_CLONE = 0x1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOVE_MOUNT_T_EMPTY_PATH = 0x40

PIDFD_THREAD = os.O_EXCL
SFD_CLOEXEC = os.O_CLOEXEC
SFD_NONBLOCK = os.O_NONBLOCK

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_GET_SECCOMP = 21
PR_GET_SECUREBITS = 27
PR_SET_SECUREBITS = 28
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_GET_NO_NEW_PRIVS = 39
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_IS_SET = 1
PR_CAP_AMBIENT_RAISE = 2

RLIM_INFINITY = 0xFFFF_FFFF_FFFF_FFFF

SECCOMP_SET_MODE_FILTER = 1
SECCOMP_GET_ACTION_AVAIL = 2

LANDLOCK_CREATE_RULESET_VERSION = 1
LANDLOCK_RULE_PATH_BENEATH = 1
LANDLOCK_RULE_NET_PORT = 2

_CAPABILITY_VERSION_3 = 0x20080522

# Calls older than the unified numbering (Linux 5.1: from 424 on every architecture uses the same numbers).
_LEGACY_NUMBERS = {
    "x86_64": {"pivot_root": 155, "capget": 125, "capset": 126, "prlimit64": 302, "seccomp": 317, "signalfd4": 289,
               "statx": 332},
    "aarch64": {"pivot_root": 41, "capget": 90, "capset": 91, "prlimit64": 261, "seccomp": 277, "signalfd4": 74,
                "statx": 291},
}  # fmt: skip

_NUMBERS = {
    "pidfd_send_signal": 424,
    "open_tree": 428,
    "move_mount": 429,
    "pidfd_open": 434,
    "close_range": 436,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}


def supported_machine(machine: str, bits: int) -> str:
    """`machine` when Paddock knows its system call numbers."""
    if sys.platform != "linux":
        raise Refusal("not-linux", f"Paddock needs the Linux kernel; this is {sys.platform}")
    if machine not in _LEGACY_NUMBERS or bits != 64:
        raise Refusal(
            "machine-unsupported",
            f"system call numbers of {bits}-bit programmes on {machine} are not known",
            context=f"known machines: 64-bit {', '.join(_LEGACY_NUMBERS)}",
            hint="run Paddock with a 64-bit Python on one of these machines",
        )
    return machine


MACHINE = supported_machine(os.uname().machine, 64 if sys.maxsize > 2**32 else 32)
_NUMBERS.update(_LEGACY_NUMBERS[MACHINE])

_libc = ctypes.CDLL(None, use_errno=True)

_int = ctypes.c_int
_uint = ctypes.c_uint
_long = ctypes.c_long
_ulong = ctypes.c_ulong
_size_t = ctypes.c_size_t
_char_p = ctypes.c_char_p
_void_p = ctypes.c_void_p
_u64x4 = ctypes.c_uint64 * 4
_u64x2 = ctypes.c_uint64 * 2


def _function(name: str, *argtypes: "type[Any]") -> "_FuncPointer":
    function = _libc[name]
    function.argtypes = argtypes
    function.restype = _int
    return function


def _numbered(*argtypes: "type[Any]") -> "_FuncPointer":
    # `_libc[...]` gives a fresh function object each time, so every call has argument types of its own.
    function = _libc["syscall"]
    function.argtypes = (_long, *argtypes)
    function.restype = _long
    return function


_prctl = _function("prctl", _int, _ulong, _ulong, _ulong, _ulong)
_unshare = _function("unshare", _int)
_setns = _function("setns", _int, _int)
_mount = _function("mount", _char_p, _char_p, _char_p, _ulong, _char_p)
_umount2 = _function("umount2", _char_p, _int)
_ioctl = _function("ioctl", _int, _ulong, _void_p)
_socket = _function("socket", _int, _int, _int)
_socketpair = _function("socketpair", _int, _int, _int, _void_p)
_bind = _function("bind", _int, _char_p, _uint)
_listen = _function("listen", _int, _int)
_accept4 = _function("accept4", _int, _void_p, _void_p, _int)
_tee = _function("tee", _int, _int, _size_t, _uint)
_recv = _function("recv", _int, _void_p, _size_t, _int)
_send = _function("send", _int, _char_p, _size_t, _int)
_getsockopt = _function("getsockopt", _int, _int, _int, _void_p, _void_p)
_call_paths = _numbered(_char_p, _char_p)
_call_at = _numbered(_int, _char_p, _uint)
_call_at_struct = _numbered(_int, _char_p, _uint, _void_p, _size_t)
_call_move = _numbered(_int, _char_p, _int, _char_p, _uint)
_call_ints = _numbered(_int, _int, _uint)
_call_kcmp = _numbered(_int, _int, _int, _ulong, _ulong)
_call_range = _numbered(_uint, _uint, _uint)
_call_signal = _numbered(_int, _int, _void_p, _uint)
_call_limit = _numbered(_int, _int, _void_p, _void_p)
_call_pair = _numbered(_void_p, _void_p)
_call_signalfd = _numbered(_int, _void_p, _size_t, _int)
_call_seccomp = _numbered(_uint, _uint, _void_p)
_call_ruleset = _numbered(_void_p, _size_t, _uint)
_call_rule = _numbered(_int, _int, _void_p, _uint)
_call_restrict = _numbered(_int, _uint)
_call_statx = _numbered(_int, _char_p, _int, _uint, _void_p)


def _checked(result: int, path: str | bytes | None = None) -> int:
    if result >= 0:
        return result
    number = ctypes.get_errno()
    if path is None:
        raise OSError(number, os.strerror(number))
    raise OSError(number, os.strerror(number), os.fsdecode(path))


def prctl(option: int, arg2: int = 0, arg3: int = 0, arg4: int = 0, arg5: int = 0) -> int:
    """prctl(2); pointers are passed as integers (`ctypes.addressof`)."""
    return _checked(_prctl(option, arg2, arg3, arg4, arg5))


def unshare(flags: int) -> None:
    """unshare(2) with CLONE_NEW* flags; EINVAL for a user namespace when the process has threads."""
    _checked(_unshare(flags))


def setns(fd: int, nstype: int = 0) -> None:
    """setns(2): joins the namespace behind `fd`; `nstype` 0 accepts any kind."""
    _checked(_setns(fd, nstype))


def mount(source: str, target: str, fstype: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2); empty strings for what a kind of mount does not use. The OSError names `target`."""
    _checked(_mount(_path(source), _path(target), _path(fstype) or None, flags, _path(data) or None), target)


def umount2(target: str, flags: int = 0) -> None:
    """umount2(2)."""
    _checked(_umount2(_path(target), flags), target)


def mount_setattr(
    dirfd: int, path: str, flags: int, attr_set: int = 0, attr_clr: int = 0, propagation: int = 0
) -> None:
    """mount_setattr(2) with MOUNT_ATTR_* bits to set and to clear; `flags` may hold AT_RECURSIVE, AT_EMPTY_PATH."""
    attributes = _u64x4(attr_set, attr_clr, propagation, 0)
    number = _NUMBERS["mount_setattr"]
    _checked(_call_at_struct(number, dirfd, _path(path), flags, ctypes.addressof(attributes), 32), path)


def open_tree(dirfd: int, path: str, flags: int) -> int:
    """open_tree(2); returns a descriptor that the caller owns."""
    return _checked(_call_at(_NUMBERS["open_tree"], dirfd, _path(path), flags), path)


def move_mount(from_dirfd: int, from_path: str, to_dirfd: int, to_path: str, flags: int = 0) -> None:
    """move_mount(2); empty paths with MOVE_MOUNT_*_EMPTY_PATH. The OSError names `to_path`."""
    number = _NUMBERS["move_mount"]
    _checked(_call_move(number, from_dirfd, _path(from_path), to_dirfd, _path(to_path), flags), to_path)


def pivot_root(new_root: str, put_old: str) -> None:
    """pivot_root(2)."""
    _checked(_call_paths(_NUMBERS["pivot_root"], _path(new_root), _path(put_old)), new_root)


def pidfd_open(pid: int, flags: int = 0) -> int:
    """pidfd_open(2); returns a descriptor (close-on-exec) that the caller owns."""
    return _checked(_call_ints(_NUMBERS["pidfd_open"], pid, flags, 0))


def pidfd_getfd(pidfd: int, targetfd: int) -> int:
    """pidfd_getfd(2): a duplicate (close-on-exec) of another process's descriptor, owned by the caller."""
    return _checked(_call_ints(_NUMBERS["pidfd_getfd"], pidfd, targetfd, 0))


def share_descriptors(first: int, second: int) -> bool:
    """Whether two threads, or processes, have one table of descriptors: kcmp(2). False where that cannot be asked."""
    from launcher.jail import syscall_tables

    kcmp_files, number = 2, syscall_tables.number("kcmp", MACHINE)
    return number is not None and int(_call_kcmp(number, first, second, kcmp_files, 0, 0)) == 0


def statx(dirfd: int, path: str, flags: int, mask: int) -> tuple[int, int, int]:
    """statx(2): inode, time of birth in nanoseconds (0 where it is not asked for, or not known), and device."""
    found = (ctypes.c_uint64 * 32)()
    _checked(_call_statx(_NUMBERS["statx"], dirfd, _path(path), flags, mask, ctypes.addressof(found)), path)
    birth = found[10] * 10**9 + (found[11] & 0xFFFFFFFF) if found[0] & mask & STATX_BTIME else 0
    return found[4], birth, found[17]


def identity(path: str) -> str:
    """Which file or directory is there, by inode and birth, which do not change with its name; "" where there is none.

    An inode is soon used again, and devices are numbered anew when they are mounted: without a birth the device counts.
    """
    try:
        inode, birth, device = statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BTIME)
    except (OSError, ValueError):
        return ""
    return f"{inode}:{birth}" if birth else f"{inode}@{device}"


def identities(path: str) -> tuple[str, ...]:
    """Which directory is there, and which are above it, without the root."""
    found = [identity(path)]
    while (path := path.rpartition("/")[0]) != "":
        found.append(identity(path))
    return tuple(found)


def pidfd_send_signal(pidfd: int, signal: int) -> None:
    """pidfd_send_signal(2) without extra information."""
    _checked(_call_signal(_NUMBERS["pidfd_send_signal"], pidfd, signal, None, 0))


def close_range(first: int, last: int, flags: int = 0) -> None:
    """close_range(2); both ends included."""
    _checked(_call_range(_NUMBERS["close_range"], first, last, flags))


def capget() -> tuple[int, int, int]:
    """capget(2) of the calling thread: (effective, permitted, inheritable) as 64-bit masks."""
    header = _u64x2(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    _checked(_call_pair(_NUMBERS["capget"], ctypes.addressof(header), ctypes.addressof(data)))
    return data[0] | data[3] << 32, data[1] | data[4] << 32, data[2] | data[5] << 32


def capset(effective: int, permitted: int, inheritable: int) -> None:
    """capset(2) of the calling thread with 64-bit masks."""
    header = _u64x2(_CAPABILITY_VERSION_3, 0)
    masks = (effective, permitted, inheritable)
    data = (ctypes.c_uint32 * 6)(*(mask & 0xFFFFFFFF for mask in masks), *(mask >> 32 for mask in masks))
    _checked(_call_pair(_NUMBERS["capset"], ctypes.addressof(header), ctypes.addressof(data)))


def prlimit64(pid: int, resource: int, limits: tuple[int, int] | None = None) -> tuple[int, int]:
    """prlimit(2): sets (soft, hard) when given; returns the limits that held before. RLIM_INFINITY is 2**64-1."""
    new = None if limits is None else _u64x2(*limits)
    old = _u64x2()
    address = None if new is None else ctypes.addressof(new)
    _checked(_call_limit(_NUMBERS["prlimit64"], pid, resource, address, ctypes.addressof(old)))
    return old[0], old[1]


def explained(error: OSError, hint: str) -> tuple[str, str]:
    """The context and the hint of a Refusal for `error`: where no descriptor is left, the limit and how to raise it.

    Args:
        error: of a system call.
        hint: for every other error.
    """
    context = error.strerror or str(error)
    if error.errno != errno.EMFILE:
        return context, hint
    soft, hard = prlimit64(0, 7)  # RLIMIT_NOFILE
    context = f"{context}: this process may open {soft} files (RLIMIT_NOFILE), and making a jail takes a few hundred"
    raised = "ulimit -n 1024 before it is started" if hard >= 1024 else f"only root can raise the hard limit of {hard}"
    return context, f"{raised}; in a unit of systemd, LimitNOFILE=65536"


def signalfd4(signals: tuple[int, ...], flags: int = 0, fd: int = -1) -> int:
    """signalfd4(2) for the given signal numbers; returns a descriptor that the caller owns. Block them first.

    `_signal.pthread_sigmask` and `_signal.sigwaitinfo` (built-in C) do the rest of signal handling.
    """
    mask = ctypes.c_uint64(sum(1 << signal - 1 for signal in set(signals)))
    return _checked(_call_signalfd(_NUMBERS["signalfd4"], fd, ctypes.addressof(mask), 8, flags))


def ioctl(fd: int, request: int, argument: int = 0) -> int:
    """ioctl(2); `argument` is a number or an address (`ctypes.addressof`)."""
    return _checked(_ioctl(fd, request, argument))


def socket(domain: int, kind: int, protocol: int = 0) -> int:
    """socket(2); returns a descriptor that the caller owns. SOCK_CLOEXEC (O_CLOEXEC) in `kind` is not implied."""
    return _checked(_socket(domain, kind, protocol))


def socketpair(domain: int, kind: int) -> tuple[int, int]:
    """socketpair(2); as `socket`."""
    pair = (ctypes.c_int * 2)()
    _checked(_socketpair(domain, kind, 0, ctypes.addressof(pair)))
    return pair[0], pair[1]


def bind(fd: int, address: bytes) -> None:
    """bind(2); `address` is the packed kernel structure."""
    _checked(_bind(fd, address, len(address)))


def listen(fd: int, backlog: int) -> None:
    """listen(2)."""
    _checked(_listen(fd, backlog))


def accept4(fd: int, flags: int) -> int:
    """accept4(2) without the peer's address; returns a descriptor that the caller owns."""
    return _checked(_accept4(fd, None, None, flags))


def is_stream(fd: int) -> bool:
    """Whether a socket is one of bytes (SOCK_STREAM; socket(7), SO_TYPE)."""
    kind, size = ctypes.c_int(), ctypes.c_uint(4)
    _checked(_getsockopt(fd, 1, 3, ctypes.addressof(kind), ctypes.addressof(size)))
    return kind.value == 1


def recv(fd: int, size: int, flags: int) -> bytes:
    """recv(2); empty at the end."""
    buffer = ctypes.create_string_buffer(size)
    size = _checked(_recv(fd, ctypes.addressof(buffer), size, flags))
    return buffer.raw[:size]


def send(fd: int, data: bytes, flags: int) -> int:
    """send(2); the number of bytes that were taken."""
    return _checked(_send(fd, data, len(data), flags))


def tee(source: int, target: int, size: int, flags: int) -> int:
    """tee(2): copies from pipe to pipe what stays in the first one; the number of bytes, 0 at the end."""
    return _checked(_tee(source, target, size, flags))


def seccomp(operation: int, flags: int, argument: int | bytes) -> int:
    """seccomp(2); `argument` is an address, or the bytes that the kernel shall read."""
    return _checked(_call_seccomp(_NUMBERS["seccomp"], operation, flags, argument))


def landlock_create_ruleset(attributes: tuple[int, ...], flags: int = 0) -> int:
    """landlock_create_ruleset(2)."""
    number = _NUMBERS["landlock_create_ruleset"]
    if not attributes:
        return _checked(_call_ruleset(number, None, 0, flags))
    fields = (ctypes.c_uint64 * len(attributes))(*attributes)
    return _checked(_call_ruleset(number, ctypes.addressof(fields), 8 * len(attributes), flags))


def landlock_add_rule(ruleset: int, rule_type: int, rule: bytes, flags: int = 0) -> None:
    """landlock_add_rule(2); `rule` is the packed kernel structure of `rule_type`."""
    _checked(_call_rule(_NUMBERS["landlock_add_rule"], ruleset, rule_type, rule, flags))


def landlock_restrict_self(ruleset: int, flags: int = 0) -> None:
    """landlock_restrict_self(2); needs no_new_privs or CAP_SYS_ADMIN. Cannot be undone."""
    _checked(_call_restrict(_NUMBERS["landlock_restrict_self"], ruleset, flags))


def _path(path: str) -> bytes:
    # A NUL would silently cut the path short on its way to the kernel, so that another file is meant.
    if "\0" in path:
        raise ValueError("embedded NUL in a path")
    return os.fsencode(path)


_AF_INET, _AF_INET6, _SOCK_STREAM, _SOCK_DGRAM = 2, 10, 1, 2
_BACKLOG = 1024


def listening_tcp(packed: bytes, port: int) -> int:
    """A listening TCP socket at an address of 4 or 16 bytes, non-blocking and close-on-exec, owned by the caller."""
    return _bound(_SOCK_STREAM, packed, port)


def bound_udp(packed: bytes, port: int) -> int:
    """A UDP socket at an address of 4 or 16 bytes, non-blocking and close-on-exec, owned by the caller."""
    return _bound(_SOCK_DGRAM, packed, port)


def _bound(kind: int, packed: bytes, port: int) -> int:
    family = _AF_INET if len(packed) == 4 else _AF_INET6
    fd = socket(family, kind | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        # struct sockaddr_in and sockaddr_in6 (ip(7), ipv6(7))
        head = family.to_bytes(2, "little") + port.to_bytes(2, "big")
        tail = packed + bytes(8) if family == _AF_INET else bytes(4) + packed + bytes(4)
        bind(fd, head + tail)
        if kind == _SOCK_STREAM:
            listen(fd, _BACKLOG)
    except OSError:
        os.close(fd)
        raise
    return fd
