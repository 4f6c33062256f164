"""The path validator: may this operation touch this path?

The polite layer in front of the kernel jail: what it allows, the jail allows too (a property test compares).
Paths are compared by components after symbolic links were resolved the kernel's way (`policy.sandbox`);
what cannot be resolved is denied. No exception leaves `validate`: a denial is a value with a JSON form (FR-014).

Relative paths are taken from the sandbox root unless a base is given. `~` is an ordinary name. Case counts.

Source: contracts.md section 4, spec.md stories 2 to 4 and 6.
"""

import errno
import os
import stat
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from policy.errors import Refusal
from policy.plan import beneath
from policy.sandbox_context import WorktreeSandboxContext
from policy.violation import Operation, Reason, SandboxValidationResult

# Where a path leads, exactly as the kernel would walk it (path_resolution(7)).
#
# Two implementations, held together by a differential test:
#
# - `by_kernel` opens the path with O_PATH, which triggers neither FIFOs nor devices and needs no permission on
#   the file itself, and asks /proc for the name of what was opened. One walk, done by the kernel.
# - `by_walk` follows component by component. It serves paths that do not exist yet, and hosts without /proc.
#
# A path that cannot be followed is never guessed: `Unresolvable`.

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
        super().__init__(reason.value, f"cannot resolve the path {path!r}: {reason.value}", context=detail)
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
    """One walk: how many links it may still follow, and whether a link's text was not its meaning."""

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
    """The same answer by lstat(2) and readlink(2) alone, for any absolute path."""
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
        raise walk.fail(Reason.UNREACHABLE, "it resolves through a link of /proc to something without a path")
    if missing and wrong:
        whole = _join(at, "/".join(missing))
        for name in missing:
            _bounded(whole, name)
        return Location(whole, at)
    # "file/" is ENOTDIR: the place is known, and the error is for the tool to meet.
    if missing or not (same or wrong == "ENOTDIR"):
        raise walk.fail(Reason.UNREACHABLE, "it resolves to another file than its name says")
    return Location(at, None)


def _join(folder: str, name: str) -> str:
    return folder + name if folder == "/" else f"{folder}/{name}"


def _bounded(path: str, name: str) -> str:
    """`path`, whose component `name` and whole length fit the kernel's limits."""
    if len(os.fsencode(name)) > NAME_MAX or len(os.fsencode(path)) >= PATH_MAX:
        raise Unresolvable(Reason.TOO_LONG, path)
    return path


def _lstat(path: str) -> bool:
    """Whether the entry exists."""
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
        for path in context.writable_paths:
            self._roots[_rebased(str(path), main, root)] = (Kind.GRANTED, str(path))
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
        self._unrestricted = list(self._roots.values()) == [(Kind.GRANTED, root)]
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
        if self._unrestricted:
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
            if place != self.root and place not in granted and self._deepest(os.path.dirname(place))[0] in _CLOSED:
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


__all__ = ["AnyPath", "Operation", "Reason", "SandboxValidationResult", "WorktreeSandbox"]

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_OPERATIONS = {operation.value: operation for operation in Operation}
_KEPT = 128


class WorktreeSandbox:
    """Validates paths against a root or a whole context. Safe to share between threads."""

    def __init__(self) -> None:
        """Starts without any context laid out."""
        # id(context) -> (context, boundaries). The reference keeps the id from being used again.
        self._boundaries: dict[int, tuple[WorktreeSandboxContext, Boundaries]] = {}

    def normalize_path(self, path: AnyPath, base: AnyPath | None = None) -> Path:
        """The canonical form: absolute, symbolic links and `..` resolved as the kernel does."""
        text = os.fsdecode(path)
        start = os.getcwd() if base is None else os.fsdecode(base)
        return Path(resolve(_absolute(text, start)).path)

    def is_path_within_sandbox(self, target: AnyPath, root: AnyPath) -> bool:
        """Whether `target` is `root` or lies below it. What cannot be checked is not within."""
        return self.validate(target, root).allowed

    def validate(
        self,
        target: AnyPath,
        root: AnyPath,
        operation: Operation | str = Operation.READ,
        base: AnyPath | None = None,
    ) -> SandboxValidationResult:
        """The verdict for one root.

        Args:
            target: the path a tool was asked for.
            root: the sandbox's root directory. Its last component must not be a symbolic link: somebody would
                have put it there since the worktree was made.
            operation: an `Operation` or its name; an unknown name is denied.
            base: directory where a relative target starts (default: the root).
        """
        return self._verdict(target, root, operation, base, None)

    def validate_in_context(
        self,
        target: AnyPath,
        context: WorktreeSandboxContext,
        operation: Operation | str = Operation.READ,
        cwd: AnyPath | None = None,
    ) -> SandboxValidationResult:
        """The verdict for a worktree with its submodules and exceptions (`policy.sandbox`).

        Where the exceptions' symbolic links lead is found out once per context object, at its first use, as the
        jail does at its start.

        Args:
            target: the path a tool was asked for.
            context: the agent's boundaries.
            operation: an `Operation` or its name; an unknown name is denied.
            cwd: directory where a relative target starts (default: the main worktree).
        """
        return self._verdict(target, context.main_worktree_path, operation, cwd, context)

    def _verdict(
        self,
        target: AnyPath,
        root: AnyPath,
        operation: Operation | str,
        base: AnyPath | None,
        context: WorktreeSandboxContext | None,
    ) -> SandboxValidationResult:
        path, top = os.fsdecode(target), os.fsdecode(root)
        wanted = _OPERATIONS.get(operation) or _OPERATIONS.get(operation.upper())
        if wanted is None:
            return SandboxValidationResult.deny(
                path, top, operation, reason=Reason.UNKNOWN_OPERATION, detail=repr(operation)
            )
        location: Location | None = None
        try:
            checked(path)
            canonical = _canonical_root(top)
            start = top if base is None else _absolute(os.fsdecode(base), top)
            full = path if path[0] == "/" else _absolute(path, start)
            location = resolve_entry(full) if wanted.entry else resolve(full)
            finding = self._judge(location, canonical, wanted, context)
        except Unresolvable as error:
            finding = Finding(error.reason, error.detail)
        normalized = location and location.path
        if finding is None:
            return SandboxValidationResult.allow(
                attempted_path=path, sandbox_root=top, operation=wanted.value, normalized_path=normalized
            )
        return SandboxValidationResult.deny(
            path, top, wanted.value, reason=finding.reason, normalized_path=normalized, detail=finding.detail
        )

    def _judge(
        self, location: Location, root: str, operation: Operation, context: WorktreeSandboxContext | None
    ) -> Finding | None:
        if context is not None:
            return self._laid_out(context, root).judge(location, operation)
        if not beneath(location.path, root):
            return Finding(Reason.OUTSIDE, "")
        if location.path == root and operation.mutates:
            return Finding(Reason.ROOT_ITSELF, "")
        return None

    def _laid_out(self, context: WorktreeSandboxContext, root: str) -> Boundaries:
        kept = self._boundaries.get(id(context))
        if kept is not None and kept[1].root == root:
            return kept[1]
        boundaries = Boundaries(context, root)
        if len(self._boundaries) >= _KEPT:
            self._boundaries.clear()
        self._boundaries[id(context)] = (context, boundaries)
        return boundaries


def _absolute(path: str, base: str) -> str:
    """`path` from `base`, joined as text: nothing may be taken away before symbolic links are resolved."""
    checked(path)
    return path if path[0] == "/" else f"{base}/{path}"


def _canonical_root(root: str) -> str:
    """The canonical path of the sandbox's root, which must be a directory now."""
    checked(root)
    if root[0] != "/":
        raise Unresolvable(Reason.ROOT_MISSING, root, "the sandbox root must be an absolute path")
    plain = root
    while plain.endswith(("/", "/.")) and len(plain) > 1:
        plain = plain[:-1]  # "link/" and "link/." would follow the link
    try:
        found = directory(plain)
        if found is not None:
            return found
        status = os.lstat(plain)
    except OSError as error:
        reasons = {
            errno.ENOENT: Reason.ROOT_MISSING,
            errno.ENOTDIR: Reason.ROOT_REPLACED,
            errno.ELOOP: Reason.ROOT_REPLACED,
        }
        raise Unresolvable(reasons.get(error.errno or 0, Reason.UNREACHABLE), root, str(error.strerror)) from error
    if not stat.S_ISDIR(status.st_mode):
        raise Unresolvable(Reason.ROOT_REPLACED, root)
    return by_walk(plain).path
