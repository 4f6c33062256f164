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
from enum import Enum
from typing import NamedTuple

from policy.errors import Refusal
from policy.plan import beneath
from policy.violation import Operation, Reason
from policy.worktree import WorktreeSandboxContext

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


# The map of one worktree: which part of it is granted, and what the exceptions freeze.
#
# The deepest root decides: main worktree, granted submodules, ungranted submodules, denied paths, read-only paths.
# Of two that share a path the stricter one decides, and a read-only path never opens what is closed.
#
# Frozen directories (`freeze_root`) mirror how Landlock keeps an exception where nothing can be mounted over it:
# the grant of a directory is replaced by grants of its entries, all but the exception. The directory itself then
# carries no right: it cannot be listed, nothing can be created, removed or renamed in it, and names that appear
# later are not granted. This goes up from the exception to the worktree's root. For a read-only exception the
# directories keep the right to be read.


class Kind(Enum):
    """What a root makes of the tree below it."""

    GRANTED = "granted"
    READ_ONLY = "read-only"
    UNPOPULATED = "unpopulated"
    UNGRANTED = "ungranted"
    DENIED = "denied"


_READ_ONLY = {Kind.READ_ONLY: Reason.READ_ONLY, Kind.UNPOPULATED: Reason.UNPOPULATED_SUBMODULE}
_CLOSED = {Kind.UNGRANTED: Reason.UNGRANTED_SUBMODULE, Kind.DENIED: Reason.DENIED}


class Finding(NamedTuple):
    """Why a location is refused, and the name or directory that the reason is about."""

    reason: Reason
    detail: str


class Boundaries:
    """A context, laid out over the canonical path of its main worktree.

    Exceptions are placed where their names say and, where symbolic links lead elsewhere, there as well. A
    granted submodule stands for its name alone: no canonical path leads through a symbolic link, so one that
    was put in its place grants nothing.

    Args:
        context: the models.
        root: canonical path of the main worktree.
    """

    def __init__(self, context: WorktreeSandboxContext, root: str) -> None:
        """Looks at the disk once, to see where the exceptions' symbolic links lead."""
        self.root = root
        self._roots: dict[str, tuple[Kind, str]] = {root: (Kind.GRANTED, root)}
        main = str(context.main_worktree_path)
        for submodule in context.submodule_worktrees:
            place = _rebased(str(submodule.worktree_path), main, root)
            self._roots[place] = (Kind.GRANTED, submodule.submodule_name)
        for path in context.read_only_paths:
            for place in _places(_rebased(str(path), main, root)):
                self._roots[place] = (Kind.READ_ONLY, place)
        granted = {place for place, (kind, _) in self._roots.items() if kind is Kind.GRANTED}
        for path in context.unpopulated_submodules:
            for place in _places(_rebased(str(path), main, root)):
                self._roots[place] = (Kind.UNPOPULATED, place)
        for submodule in context.ungranted_submodules:
            for place in _places(_rebased(str(submodule.worktree_path), main, root)):
                self._roots[place] = (Kind.UNGRANTED, submodule.submodule_name)
        for path in context.denied_paths:
            for place in _places(_rebased(str(path), main, root)):
                self._roots[place] = (Kind.DENIED, place)
        self._drop_read_only_in_closed(granted)
        exceptions = {place: kind for place, (kind, _) in self._roots.items() if kind is not Kind.GRANTED}
        self._above = {folder for place in exceptions for folder in self._up(place)}
        self._frozen: set[str] = set()
        self._unchangeable: set[str] = set()
        if context.freeze_root:
            closed = [place for place, kind in exceptions.items() if kind in _CLOSED]
            self._frozen = {folder for place in closed for folder in self._up(place)}
            self._unchangeable = self._above
        self._by_folded = {place.casefold(): place for place in [*exceptions, *self._above] if place != root}

    def judge(self, location: Location, operation: Operation) -> Finding | None:
        """None when the operation may go on at this place, else why not."""
        path = location.path
        if not beneath(path, self.root):
            return Finding(Reason.OUTSIDE, "")
        mutates = operation.mutates
        if mutates and path == self.root:
            return Finding(Reason.ROOT_ITSELF, "")
        if len(self._roots) == 1:
            return None
        path = self._true_case(path)
        folder = location.anchor and self._true_case(location.anchor)
        if folder is None and operation.entry:
            folder = os.path.dirname(path)
        finding = self._zone(path, mutates) or self._folder(path, mutates)
        if finding is None and folder is not None:
            # A name comes or goes in this directory, which needs the directory's own rights.
            finding = (self._zone(folder, mutates) if mutates else None) or self._folder(folder, mutates)
        if finding is None and operation.entry and path in self._above:
            # Moving the directory would carry the exception away from the place it is kept at.
            finding = Finding(Reason.FROZEN, path)
        return finding

    def _zone(self, path: str, mutates: bool) -> Finding | None:
        kind, name = self._deepest(path)
        if kind in _CLOSED:
            return Finding(_CLOSED[kind], name)
        if mutates and kind in _READ_ONLY:
            return Finding(_READ_ONLY[kind], name)
        return None

    def _folder(self, path: str, mutates: bool) -> Finding | None:
        if path in self._frozen or (mutates and path in self._unchangeable):
            return Finding(Reason.FROZEN, path)
        return None

    def _deepest(self, path: str) -> tuple[Kind, str]:
        while True:
            found = self._roots.get(path)
            if found is not None:
                return found
            if path == "/":
                return Kind.DENIED, path  # above the worktree: nothing here is ours to grant
            path = os.path.dirname(path)

    def _up(self, place: str) -> list[str]:
        """The directories from the exception's parent up to the root of the worktree; none when it is outside."""
        folders = []
        while place != self.root and beneath(place, self.root):
            place = os.path.dirname(place)
            folders.append(place)
        return folders

    def _drop_read_only_in_closed(self, granted: set[str]) -> None:
        for place in sorted(place for place, (kind, _) in self._roots.items() if kind in _READ_ONLY):
            if place not in granted and self._deepest(os.path.dirname(place))[0] in _CLOSED:
                del self._roots[place]

    def _true_case(self, path: str) -> str:
        """`path` with an exception's own spelling, where the file system takes two spellings for one name."""
        folded = path.casefold()
        for known, place in self._by_folded.items():
            if beneath(folded, known) and not beneath(path, place):
                names = path.split("/")
                depth = place.count("/") + 1
                if _same_file("/".join(names[:depth]), place):
                    path = "/".join([place, *names[depth:]])
        return path


def _rebased(path: str, main: str, root: str) -> str:
    """`path` with the canonical root in the place of the main worktree's path as it was given."""
    if not beneath(path, main):
        return path
    rest = path[len(main) :].strip("/")
    return f"{root.rstrip('/')}/{rest}" if rest else root


def _places(path: str) -> tuple[str, ...]:
    """The path itself, and where symbolic links lead it. One that cannot be followed stands for its name alone."""
    try:
        canonical = resolve(path).path
    except Unresolvable:
        return (path,)
    return (path,) if canonical == path else (path, canonical)


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False
