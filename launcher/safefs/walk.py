"""Opening, reading, replacing, walking what others may exchange meanwhile: by descriptors, through no symbolic link.

A path is walked step by step where the kernel offers no openat2(2): inside another jail, whose filter hides it.

Launch path: see launcher/jail/syscalls.py.
"""

import errno
from _stat import S_ISLNK, S_ISREG

from launcher.lean import ctypes, os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AT_FDCWD = -100

RESOLVE_NO_MAGICLINKS = 0x2
RESOLVE_NO_SYMLINKS = 0x4
RESOLVE_BENEATH = 0x8

_OPENAT2 = 437  # on every architecture
_ATTEMPTS = 16
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_syscall = ctypes.CDLL(None, use_errno=True)["syscall"]
_syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_syscall.restype = ctypes.c_long
_open_how = ctypes.c_uint64 * 3

_BLOCK = 16 << 20
ABSENT = (
    errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.ENXIO, errno.ENODEV, errno.ENAMETOOLONG, errno.EACCES,
    errno.EISDIR,
)  # fmt: skip
"""What says that no file an agent wrote can be read under a name: not there; a link on the way (ELOOP; EXDEV where it
leads out); a socket or a device without a driver; a name too long; a mode that the agent took away."""
_THE_LINK = os.O_PATH | os.O_NOFOLLOW


def openat2(dirfd: int, path: str, flags: int, mode: int = 0, resolve: int = 0) -> int:
    """openat2(2) with RESOLVE_* bits; returns a descriptor that the caller owns. O_CLOEXEC is not implied.

    Where it is missing, as it is inside a jail, RESOLVE_NO_SYMLINKS is done by hand (`open_without_links`).
    """
    if "\0" in path:  # it would cut the path short on its way to the kernel, so that another file is meant
        raise ValueError("embedded NUL in a path")
    how = _open_how(flags, mode, resolve)
    descriptor: int = _syscall(_OPENAT2, dirfd, os.fsencode(path), ctypes.addressof(how), 24)
    if descriptor >= 0:
        return descriptor
    number = ctypes.get_errno()
    if number == errno.ENOSYS and resolve == RESOLVE_NO_SYMLINKS and not mode:
        return open_without_links(dirfd, path, flags)
    raise OSError(number, os.strerror(number), path)


def open_inside(directory: int, path: str, flags: int) -> int:
    """`openat2` for a tree that an agent writes: nothing in it leads anywhere else. O_CLOEXEC is implied."""
    resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
    return openat2(directory, path, flags | os.O_CLOEXEC, 0, resolve)


def open_canonical(path: str, flags: int) -> int:
    """`openat2` for a canonical path: a link, which an agent may have made since, is ELOOP. O_CLOEXEC is implied."""
    return openat2(AT_FDCWD, path, flags | os.O_CLOEXEC, 0, RESOLVE_NO_SYMLINKS)


def open_regular(path: str, *, dir_fd: int | None = None, follow: bool = False) -> int | None:
    """A descriptor for reading a regular file; None for anything else, which is not even opened.

    Opening a FIFO waits, opening a device can act. What was looked at is what is opened.

    Args:
        dir_fd: where a relative path starts.
        follow: whether `path` itself may be a symbolic link.

    Raises:
        OSError: as open(2); ELOOP for a link.
    """
    look = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    return reopened(os.open(path, look, dir_fd=dir_fd))


def reopened(where: int) -> int | None:
    """The same for an O_PATH descriptor, which is closed."""
    try:
        found = os.fstat(where).st_mode
        if S_ISLNK(found):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if not S_ISREG(found):
            return None
        return os.open(f"/proc/self/fd/{where}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    finally:
        os.close(where)


def read_up_to(descriptor: int, limit: int) -> bytes | None:
    """What is left of an open file; None when that is more than `limit` bytes (OSError)."""
    blocks: list[bytes] = []
    size = 0
    while size <= limit and (block := os.read(descriptor, min(limit + 1 - size, _BLOCK))):
        blocks.append(block)
        size += len(block)
    return b"".join(blocks) if size <= limit else None


def read_regular(path: str, limit: int, *, dir_fd: int | None = None, follow: bool = False) -> bytes | None:
    """Content of a regular file; None for anything else, and for more than `limit` bytes; as `open_regular`."""
    descriptor = open_regular(path, dir_fd=dir_fd, follow=follow)
    if descriptor is None:
        return None
    try:
        return read_up_to(descriptor, limit)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """Writes the whole of `content` (OSError): write(2) may take a part of it."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def put(
    directory: int,
    name: str,
    content: bytes,
    *,
    temporary: str = "",
    mode: int | None = 0o600,
    owner: tuple[int, int] | None = None,
    time: int | None = None,
    lasting: bool = True,
) -> None:
    """Makes `name` a new regular file in one step: a reader, or a power failure, sees the old entry or the new one.

    Args:
        directory: descriptor of the directory, open for reading.
        name: its entry, which may be anything but a directory. A symbolic link is replaced, and not its target.
        content: of the file.
        temporary: a name in the same directory that is this call's alone; "" for a random one.
        mode: permission bits, exactly; None for what the umask leaves.
        owner: user and group, which only root can give away; None for the caller's.
        time: of its last change, in nanoseconds; None for now.
        lasting: it has to survive a power failure.

    Raises:
        OSError: it cannot be made; the entry is as it was. IsADirectoryError: it is a directory.
    """
    # The dot: git takes no such name for a ref. The ending: `private.renew` removes what a crash has left.
    temporary = temporary or f".paddock-{os.urandom(8).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666 if mode is None else 0o600, dir_fd=directory)
    try:
        try:
            write_all(descriptor, content)
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, *owner)
            if mode is not None:
                os.fchmod(descriptor, mode)
            if time is not None:
                os.utime(descriptor, ns=(time, time))
            if lasting:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(temporary, dir_fd=directory)
        raise
    if lasting:
        os.fsync(directory)


def replace(
    path: str,
    content: bytes,
    *,
    temporary: str = "",
    mode: int | None = 0o600,
    time: int | None = None,
    lasting: bool = True,
) -> None:
    """`put` for a path. The directory is opened once: no agent may write what leads to it."""
    around, name = os.path.split(path)
    directory = os.open(around, _DIRECTORY)
    try:
        put(directory, name, content, temporary=temporary, mode=mode, time=time, lasting=lasting)
    finally:
        os.close(directory)


def sync_directory(path: str) -> None:
    """Makes what was renamed in a directory survive a power failure (fsync(2))."""
    directory = os.open(path, _DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def open_without_links(dirfd: int, path: str, flags: int) -> int:
    """Like openat2(2) with RESOLVE_NO_SYMLINKS: the errno ELOOP for a symbolic link anywhere on the way.

    Each step starts from what the step before has opened, so that no exchange of names in between leads elsewhere.

    Args:
        dirfd: where a relative path starts; `AT_FDCWD` for the current directory.
        path: not empty.
        flags: of open(2). With O_PATH and O_NOFOLLOW a link in the last place is opened itself, as openat2(2) does.

    Returns:
        A descriptor that the caller owns.

    Raises:
        OSError: as open(2).
    """
    *parents, last = [step for step in path.split("/") if step not in ("", ".")] or ["."]
    if path.startswith("/"):
        here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    else:
        here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=_named(dirfd))
    try:
        for step in parents:
            found = _step(step, here)
            os.close(here)
            here = found
        directory = os.O_DIRECTORY if path.endswith(("/", "/.")) else 0
        link_itself = flags & _THE_LINK == _THE_LINK and not directory
        if not link_itself:
            os.close(_step(last, here))  # says ELOOP where open(2) says something else
        opened = os.open(last, flags | os.O_NOFOLLOW | directory, dir_fd=here)
        return opened if link_itself else _no_link(opened, last)
    finally:
        os.close(here)


def _named(dirfd: int) -> int | None:
    return None if dirfd == AT_FDCWD else dirfd


def _step(name: str, directory: int) -> int:
    """An O_PATH descriptor of what is no link; the caller owns it."""
    return _no_link(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory), name)


def _no_link(fd: int, name: str) -> int:
    if S_ISLNK(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    return fd


def open_beneath(root: int, path: str, flags: int) -> int:
    """A descriptor (close-on-exec) of what `path` names below `root`, inside a jail too; the caller owns it.

    A verdict about a path is about a moment. A link that is met now was put there since, and is refused.

    Args:
        root: descriptor of the directory.
        path: relative, with no ``..`` in it; "" is the directory itself.
        flags: of open(2), without O_CREAT and O_TMPFILE.

    Raises:
        OSError: as openat2(2): ELOOP for a symbolic link on the way, EXDEV for a path that leads up or starts at /.
    """
    flags |= os.O_CLOEXEC
    path = path or "."
    for _ in range(_ATTEMPTS):
        try:
            return open_inside(root, path, flags)
        except OSError as error:
            if error.errno == errno.ENOSYS:
                return open_by_steps(root, path, flags)
            if error.errno != errno.EAGAIN:  # a directory was renamed meanwhile (openat2(2))
                raise
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)


def open_by_steps(root: int, path: str, flags: int) -> int:
    """The same by openat(2) alone; see `open_beneath`."""
    if path.startswith("/") or ".." in path.split("/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    return open_without_links(root, path, flags | os.O_CLOEXEC)


def make_beneath(root: int, path: str) -> int:
    """The directory `path` below `root`, made with its parents where missing; the caller owns the descriptor."""
    try:
        return open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        pass
    here = os.dup(root)
    names = path.split("/")
    try:
        for left, name in enumerate(names, 1 - len(names)):
            try:
                os.mkdir(name, dir_fd=here)
            except FileExistsError:
                pass
            # Those on the way need not be readable.
            found = open_beneath(here, name, (os.O_PATH if left else os.O_RDONLY) | os.O_DIRECTORY)
            os.close(here)
            here = found
    except BaseException:
        os.close(here)
        raise
    return here


def files(
    top: str,
    skip: "Callable[[str], bool]" = lambda path: False,
    *,
    at: str = "",
    failed: "Callable[[str, OSError], None]" = lambda path, error: None,
) -> "Iterator[tuple[str, os.DirEntry[str]]]":
    """Everything below `top` that is no directory. No link is followed, even one that is made meanwhile.

    Any depth: `os.walk` calls itself for each level before Python 3.12, so an agent could end its user with a
    RecursionError.

    Args:
        top: a directory, canonical; one to which a link leads has nothing.
        skip: which directories are not entered, by their paths as they would be yielded.
        at: directory below `top` to begin with, which need not be one.
        failed: gets each directory that could not be read to its end: gone, closed to this user, longer than PATH_MAX.

    Yields:
        Path relative to `top` and `at`, and the entry, which can be asked until the next one is taken.
    """
    try:
        root = open_canonical(top, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        failed("", error)
        return
    try:
        pending = [""]
        while pending:
            here = pending.pop()
            try:
                directory = open_inside(root, _joined(at, here) or ".", _DIRECTORY)
            except OSError as error:
                failed(here, error)
                continue
            try:
                with os.scandir(directory) as entries:
                    for entry in entries:
                        path = f"{here}/{entry.name}" if here else entry.name
                        if not entry.is_dir(follow_symlinks=False):
                            yield path, entry
                        elif not skip(path):
                            pending.append(path)
            except OSError as error:  # of the disk
                failed(here, error)
            finally:
                os.close(directory)
    finally:
        os.close(root)


def _joined(at: str, here: str) -> str:
    return f"{at.rstrip('/')}/{here}" if at and here else at or here
