"""Writing and editing files in one step: a reader sees the old content or the new, and so does who comes after a crash.

The new content is a file without a name (O_TMPFILE) until it is whole. A new file gets its name by link(2), so a
SIGKILL leaves nothing. Only a replacement needs a second name for the moment between link(2) and rename(2); its prefix
is known, and the next worker removes what a killed one left (`sweep`).

No fsync(2): editors and compilers do not either, and it would cost more than the rest together.
"""

import errno
import fcntl
import os
import secrets
import stat
import time

from launcher.bridges.files import reading
from launcher.bridges.files.reading import REGULAR, no_file
from launcher.bridges.files.scope import Place
from launcher.bridges.files.tool_calls import MOST_CONTENT, Answer, Edit, ErrorType, ToolFailed, Write
from launcher.safefs.walk import make_beneath, open_beneath

PREFIX = ".paddock-files-"
"""How names of files that are being moved into place begin."""

PATIENCE = 2.0
"""Seconds to wait for another writer in the same directory."""

_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)


def write(place: Place, call: Write) -> Answer:
    """Creates or replaces a file.

    Raises:
        ToolFailed: too large, no text, or no regular file stands there.
        OSError: it cannot be written; what was there is unchanged.
    """
    data = _encoded(call.content)
    folder = make_beneath(place.root, place.folder)
    try:
        _lock(folder)
        before = _standing(folder, place.name)
        if before is not None:
            os.close(_writable(folder, place.name, os.O_WRONLY))
        _replace(folder, place.name, data, before)
    finally:
        os.close(folder)
    return Answer(f"{'created' if before is None else 'replaced'} {reading.shown(place.shown)}: {len(data)} bytes")


def edit(place: Place, call: Edit) -> Answer:
    """Replaces a piece of a file. It is bytes that are compared, so what is not UTF-8 stays as it is.

    Raises:
        ToolFailed: the piece is missing or not unique, the file is too large or changed meanwhile.
        OSError: as `write`.
    """
    old, new = _encoded(call.old_string), _encoded(call.new_string)
    if old == new:
        raise ToolFailed(ErrorType.INVALID_ARGUMENT, "old_string and new_string are the same")
    folder = open_beneath(place.root, place.folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(folder)
        data, before = _content(folder, place.name)
        count = data.count(old)
        if count == 0:
            raise ToolFailed(ErrorType.NO_MATCH, "old_string is not in the file; read it again and copy it exactly")
        if count > 1 and not call.replace_all:
            raise ToolFailed(
                ErrorType.NOT_UNIQUE,
                f"old_string is there {count} times; include more context, or set replace_all",
            )
        if len(data) + count * (len(new) - len(old)) > MOST_CONTENT:
            raise _too_large()
        _replace(folder, place.name, data.replace(old, new), before)
    finally:
        os.close(folder)
    return Answer(f"edited {reading.shown(place.shown)}: {count} {'place' if count == 1 else 'places'}")


def sweep(place: Place) -> None:
    """Removes what a killed worker left beside `place`.

    Raises:
        OSError: the directory cannot be listed.
    """
    folder = open_beneath(place.root, place.folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in os.listdir(folder):
            if name.startswith(PREFIX):
                try:
                    os.unlink(name, dir_fd=folder)
                except FileNotFoundError:
                    pass
    finally:
        os.close(folder)


def _encoded(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ToolFailed(ErrorType.INVALID_ARGUMENT, f"the text cannot be written as UTF-8: {error.reason}") from None
    if len(data) > MOST_CONTENT:
        raise _too_large()
    return data


def _too_large() -> ToolFailed:
    return ToolFailed(ErrorType.TOO_LARGE, f"files of more than {MOST_CONTENT >> 20} MiB are not written or edited")


def _lock(folder: int) -> None:
    """Takes the lock of a directory until it is closed: who shares a worktree must not undo each other's edits."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ToolFailed(ErrorType.BUSY, "another process keeps the directory locked; try again") from None
            time.sleep(0.005)


def _standing(folder: int, name: str) -> os.stat_result | None:
    """What is at `name` now: a regular file, or nothing."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):  # put there since the validator looked
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    if not stat.S_ISREG(found.st_mode):
        raise no_file(found.st_mode)
    return found


def _content(folder: int, name: str) -> tuple[bytes, os.stat_result]:
    """What is in a file that may be written, and what fstat(2) says of it."""
    if _standing(folder, name) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    fd = _writable(folder, name, os.O_RDWR)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise no_file(found.st_mode)
        # One byte more than there should be: by it a file shows that it grows.
        data = _up_to(fd, min(found.st_size, MOST_CONTENT) + 1)
    finally:
        os.close(fd)
    if len(data) > MOST_CONTENT:
        raise _too_large()
    if b"\0" in data:
        raise ToolFailed(ErrorType.BINARY_FILE, f"the file is binary ({len(data)} bytes); change it with a command")
    return data, found


def _same(one: os.stat_result, other: os.stat_result | None) -> bool:
    return other is not None and all(
        getattr(one, field) == getattr(other, field) for field in ("st_dev", "st_ino", "st_size", "st_mtime_ns")
    )


def _replace(folder: int, name: str, data: bytes, before: os.stat_result | None) -> None:
    """Puts `data` at `name`, which was `before` a moment ago, and may be written."""
    fd, temporary = _with_mode(folder, 0o666 if before is None else before.st_mode & 0o777, exactly=before is not None)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        if before is None and not temporary:
            try:
                _link(fd, folder, name)
                return
            except FileExistsError:  # somebody else was quicker; the later one counts
                _standing(folder, name)
        if not temporary:
            name_for_now = f"{PREFIX}{secrets.token_hex(8)}"
            _link(fd, folder, name_for_now)
            temporary = name_for_now
        if before is not None and not _same(before, _standing(folder, name)):
            raise ToolFailed(ErrorType.CHANGED, "the file was changed in the meantime; read it again")
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        temporary = ""
    finally:
        os.close(fd)
        if temporary:
            os.unlink(temporary, dir_fd=folder)


def _writable(folder: int, name: str, flags: int) -> int:
    """Opens a file that the kernel lets be written: a rename would only ask whether its directory may be.

    Raises:
        OSError: it may not: its mode, or the mount that keeps it read-only.
    """
    try:
        return open_beneath(folder, name, flags | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno != errno.ETXTBSY:  # a programme that runs keeps the file it was started from
            raise
    return open_beneath(folder, name, REGULAR)


def _up_to(fd: int, size: int) -> bytes:
    pieces = []
    while size > 0 and (piece := os.read(fd, size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _with_mode(folder: int, mode: int, *, exactly: bool) -> tuple[int, str]:
    """As `_nameless`; `exactly`: whatever the umask says.

    By the umask and not by fchmod(2), which the guard refuses for a file that it cannot find by its name.
    """
    fd, name = _nameless(folder, mode)
    if not exactly or os.fstat(fd).st_mode & 0o777 == mode:
        return fd, name
    os.close(fd)
    if name:
        os.unlink(name, dir_fd=folder)
    mask = os.umask(0)
    try:
        return _nameless(folder, mode)
    finally:
        os.umask(mask)


def _nameless(folder: int, mode: int) -> tuple[int, str]:
    """A new file open for writing, and its name: empty where the file system can do without one."""
    try:
        return os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, mode, dir_fd=folder), ""
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise
    name = f"{PREFIX}{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, mode, dir_fd=folder), name


def _link(fd: int, folder: int, name: str) -> None:
    # With a directory descriptor Python uses linkat(2), which can follow /proc's link to the nameless file (open(2)).
    os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=True)
