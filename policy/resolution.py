"""Where a path leads, exactly as the kernel would walk it (path_resolution(7)).

Two implementations, held together by a differential test:

- `by_kernel` opens the path with O_PATH, which triggers neither FIFOs nor devices and needs no permission on
  the file itself, and asks /proc for the name of what was opened. One walk, done by the kernel.
- `by_walk` follows component by component. It serves paths that do not exist yet, and hosts without /proc.

A path that cannot be followed is never guessed: `Unresolvable`.
"""

import errno
import os
import stat
from typing import NamedTuple

from policy.errors import Refusal
from policy.violation import Reason

PATH_MAX = 4096
NAME_MAX = 255
MAX_LINKS = 40
"""MAXSYMLINKS of the kernel: the forty-first link is ELOOP."""

_OPEN = os.O_PATH | os.O_CLOEXEC
_FD = "/proc/self/fd/%d"
_ABSENT = (errno.ENOENT, errno.ENOTDIR)


class Location(NamedTuple):
    """The answer: a canonical path, and for one that does not exist yet, how much of it does.

    `anchor` is None when `path` exists, else the deepest part that does; all names between the two are plain.
    """

    path: str
    anchor: str | None


class Unresolvable(Refusal):
    """A path whose end cannot be determined.

    Args:
        reason: why; also the refusal's reference.
        path: the path as given.
        detail: the system's words, when there are any.
    """

    def __init__(self, reason: Reason, path: str, detail: str = "") -> None:
        """Composes the sentence from the path and the reason."""
        super().__init__(reason.value, f"cannot tell where the path {path!r} leads: {reason.value}", context=detail)
        self.reason = reason
        self.detail = detail


def checked(path: str) -> None:
    """Refuses what no system call would take: empty, NUL, not encodable, PATH_MAX bytes or more.

    Raises:
        Unresolvable: with the reason.
    """
    if not path:
        raise Unresolvable(Reason.EMPTY, path)
    if "\0" in path:
        raise Unresolvable(Reason.NUL, path)
    try:
        size = len(path) if path.isascii() else len(os.fsencode(path))
    except UnicodeEncodeError as error:
        raise Unresolvable(Reason.UNENCODABLE, path, str(error)) from error
    if size >= PATH_MAX:
        raise Unresolvable(Reason.TOO_LONG, path)


def resolve(path: str) -> Location:
    """Where the absolute `path` leads, a symbolic link at its end included.

    Raises:
        Unresolvable: a loop, an unreadable directory, `..` behind something missing, an over-long name ...
    """
    checked(path)
    return by_kernel(path) or by_walk(path)


def resolve_entry(path: str) -> Location:
    """Where the directory entry `path` stands: like `resolve`, but a symbolic link at its end stays itself.

    A trailing slash, `.` or `..` asks for the directory behind, so the link is followed then (shutil.rmtree
    follows it, too; unlink(2), rmdir(2) and rename(2) themselves fail).

    Raises:
        Unresolvable: as `resolve`.
    """
    checked(path)
    head, _, name = path.rpartition("/")
    if name in ("", ".", ".."):
        return resolve(path)
    folder = resolve(head or "/")
    entry = _join(folder.path, name)
    if folder.anchor is not None:
        return Location(_bounded(entry, name), folder.anchor)
    return Location(entry, None if _lstat(entry) else folder.path)


def by_kernel(path: str) -> Location | None:
    """The kernel's own answer for a path that exists, or whose parent directory does; None when it has none."""
    found = _opened(path, _OPEN)
    if found is not None:
        return Location(found, None)
    head, _, name = path.rpartition("/")
    if name in ("", ".", ".."):
        return None
    folder = _opened(head or "/", _OPEN | os.O_DIRECTORY)
    if folder is None:
        return None
    entry = _join(folder, name)
    try:
        os.lstat(entry)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return Location(entry, folder)
    return None  # it exists, so it could not be followed: the walk finds out why


def directory(path: str) -> str | None:
    """The canonical path of the directory `path`, whose last component must not be a symbolic link.

    None when /proc does not tell.

    Raises:
        OSError: it cannot be opened (ENOTDIR for a symbolic link).
    """
    fd = os.open(path, _OPEN | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        return _name_of(fd)
    finally:
        os.close(fd)


def _opened(path: str, flags: int) -> str | None:
    try:
        fd = os.open(path, flags)
    except OSError:
        return None
    try:
        return _name_of(fd)
    finally:
        os.close(fd)


def _name_of(fd: int) -> str | None:
    """The canonical path behind an open descriptor, None when it has none that leads back to the same file.

    The comparison throws out names that only look like paths: "/x (deleted)", "pipe:[1]", and files of another
    mount namespace reached through /proc/PID/root, whose names would be taken for ours.
    """
    try:
        name = os.readlink(_FD % fd)
        there = os.lstat(name)
    except OSError:
        return None
    here = os.fstat(fd)
    if name[0] != "/" or here.st_ino != there.st_ino or here.st_dev != there.st_dev:
        return None
    return name


class _Walk:
    """One walk: the links that are left, and whether a link was met whose text is not its meaning."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.links = MAX_LINKS
        self.magic = False

    def fail(self, reason: Reason, detail: str = "") -> Unresolvable:
        return Unresolvable(reason, self.path, detail)

    def system(self, error: OSError) -> Unresolvable:
        reasons = {errno.ELOOP: Reason.SYMLINK_LOOP, errno.ENAMETOOLONG: Reason.TOO_LONG}
        return self.fail(reasons.get(error.errno or 0, Reason.UNREACHABLE), error.strerror or str(error))

    def follow(self, start: str, text: str) -> tuple[str, list[str]]:
        """Walks `text` from the canonical directory `start`: (canonical existing part, missing names)."""
        at = "/" if text.startswith("/") else start
        missing: list[str] = []
        for name in text.split("/"):
            if name in ("", "."):
                continue
            if missing:
                if name == "..":
                    raise self.fail(Reason.TRAVERSAL)
                missing.append(name)
            elif name == "..":
                at = self.above(at)
            else:
                at, missing = self.step(at, name)
        return at, missing

    def above(self, at: str) -> str:
        try:
            directory_here = stat.S_ISDIR(os.lstat(at).st_mode)
            os.stat(_join(at, "."))  # leaving by `..` needs the right to search the directory
        except OSError as error:
            if error.errno not in _ABSENT:
                raise self.system(error) from error
            directory_here = False
        if not directory_here:
            raise self.fail(Reason.TRAVERSAL)
        return os.path.dirname(at)

    def step(self, at: str, name: str) -> tuple[str, list[str]]:
        entry = _join(at, name)
        try:
            status = os.lstat(entry)
            if not stat.S_ISLNK(status.st_mode):
                return entry, []
            text = os.readlink(entry)
        except OSError as error:
            if error.errno in _ABSENT:
                return at, [name]
            raise self.system(error) from error
        self.links -= 1
        if self.links < 0:
            raise self.fail(Reason.SYMLINK_LOOP)
        # The links of /proc/PID (cwd, root, fd/N ...) jump to an object; their text is a description of it.
        # They have no size of their own, where an ordinary link's size is the length of its text.
        self.magic = self.magic or status.st_size != len(os.fsencode(text))
        return self.follow(at, text)


def by_walk(path: str) -> Location:
    """The same answer by lstat(2) and readlink(2) alone, for any absolute path.

    Raises:
        Unresolvable: as `resolve`.
    """
    walk = _Walk(path)
    at, missing = walk.follow("/", path)
    try:
        # What the kernel itself finds must be what the walk found: this sees through /proc's links, mounts of
        # other namespaces, changes during the walk, and mounts that do not follow links.
        same, wrong = os.path.samestat(os.stat(path), os.lstat(at)), ""
    except OSError as error:
        if error.errno not in _ABSENT:
            raise walk.system(error) from error
        same, wrong = False, errno.errorcode[error.errno]
    if walk.magic and wrong:
        raise walk.fail(Reason.UNREACHABLE, "it leads through a link of /proc to something without a path")
    if missing and wrong:
        whole = _join(at, "/".join(missing))
        for name in missing:
            _bounded(whole, name)
        return Location(whole, at)
    # "file/" is ENOTDIR: the place is known, and the error is for the tool to meet.
    if missing or not (same or wrong == "ENOTDIR"):
        raise walk.fail(Reason.UNREACHABLE, "it leads to another file than its name says")
    return Location(at, None)


def _join(folder: str, name: str) -> str:
    return folder + name if folder == "/" else f"{folder}/{name}"


def _bounded(path: str, name: str) -> str:
    """`path`, whose component `name` and whole length fit the kernel's limits.

    Raises:
        Unresolvable: too long.
    """
    if len(os.fsencode(name)) > NAME_MAX or len(os.fsencode(path)) >= PATH_MAX:
        raise Unresolvable(Reason.TOO_LONG, path)
    return path


def _lstat(path: str) -> bool:
    """Whether the entry exists.

    Raises:
        Unresolvable: that cannot be found out.
    """
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno in _ABSENT:
            return False
        raise _Walk(path).system(error) from error
    return True
