"""The `policy.launch.Host` of this machine. Each answer is recorded, so that a cached Plan can be re-checked.

Not on the warm launch path: there, `inputs.unchanged` only repeats the recorded questions.
"""

import marshal
import os
import pwd
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from launcher.session import inputs, submodule_places
from launcher.session.places import places
from launcher.vcs import disk
from launcher.vcs.private import pointer, swap
from policy.launch import Trail

# Inputs that need not be asked for one by one, because an unchanged directory answers for them.
#
# Most of what a Plan was made from is absence: some two hundred files and tool directories that are not there. As
# long as a directory is the same and nothing was made, removed or renamed in it, none of them can have appeared. When
# it did change, the inputs are asked for as ever; a new file in the home directory invalidates nothing by itself.
#
# Not on the warm launch path: there, `inputs.unchanged` reads what is made here.

SETTLED = 2_000_000_000
"""Nanoseconds since a directory's last change before it may answer for what is in it: the coarsest steps in which file
systems count time. Two changes within one step would leave the same mark."""


def grouped_by_directory(recorded: tuple[inputs.Input, ...], *, settled: int = SETTLED) -> tuple[inputs.Input, ...]:
    """The same inputs with those that a directory implies put behind it; see `inputs.IMPLIED`."""
    kept: list[inputs.Input] = []
    groups: dict[str, tuple[object, list[inputs.Input]]] = {}
    marks: dict[str, object] = {}
    nearest: dict[str, str | None] = {}
    now = time.time_ns()
    for entry in recorded:
        directory = _implying(*entry, nearest)
        if directory is None:
            kept.append(entry)
            continue
        if directory not in marks:
            marks[directory] = _mark(directory, now - settled)
        if marks[directory] is None:
            kept.append(entry)
        else:
            groups.setdefault(directory, (marks[directory], []))[1].append(entry)
    for directory, (mark, members) in groups.items():
        # Only what is behind the same mark before and after it was looked at belongs to it.
        if len(members) > 1 and _mark(directory, now - settled) == mark and inputs.unchanged(tuple(members), {}):
            data: Any = tuple(members)  # typeshed names no type for what marshal takes
            kept.append((inputs.IMPLIED, directory, (mark, marshal.dumps(data, 2))))
        else:
            kept += members
    return tuple(kept)


def stamp(path: str, *, settled: int = SETTLED) -> object:
    """What changes with what a path leads to; None when it has changed too short a time ago to tell by that.

    Args:
        path: of a file or directory.
        settled: nanoseconds.
    """
    return _mark(path, time.time_ns() - settled)


def _implying(kind: str, subject: str, answer: object, known: dict[str, str | None]) -> str | None:
    """The directory whose entries decide about this answer, if one does; `known` is what `_nearest` has found."""
    if kind not in (inputs.IDENTITY, inputs.CONTENT, inputs.RESOLVED) or not subject.startswith("/"):
        return None
    if subject != os.path.normpath(subject) or subject == "/":
        return None
    if answer is None:
        return _nearest(subject, known)
    # A name that is no link, in a directory whose own name is checked: only a new entry could lead elsewhere.
    # What is mounted over it later has no say in where the name leads, which is all that was asked.
    if kind == inputs.RESOLVED and isinstance(answer, tuple) and answer[0] == subject:
        return os.path.dirname(subject)
    return None


def _nearest(path: str, known: dict[str, str | None]) -> str | None:
    """The directory in which the way to an absent `path` ends; None when it ends for another reason than absence.

    Many paths end in the same directory. What is `known` of that is only whom to ask: `inputs.unchanged` has the say.
    """
    try:
        os.lstat(path)
    except FileNotFoundError:
        parent = os.path.dirname(path)
        if parent not in known:
            try:
                known[parent] = parent if stat.S_ISDIR(os.stat(parent).st_mode) else None
            except FileNotFoundError:
                known[parent] = _nearest(parent, known)
            except (OSError, ValueError):
                known[parent] = None
        return known[parent]
    except (OSError, ValueError):
        return None
    return None  # it is there: a link that leads nowhere, or it has just appeared


def _mark(directory: str, before: int) -> object:
    """What changes with the directory's entries; None when it has changed too short a time ago."""
    mark = inputs.ask(inputs.CONTENT, directory, {})
    try:
        found = os.stat(directory)
    except (OSError, ValueError):
        return None
    return mark if max(found.st_mtime_ns, found.st_ctime_ns) < before else None


_DISK = disk.Present()


class Machine:
    """Answers from the kernel and remembers the questions (see `inputs` for the record's shape).

    A session that is alive in the worktree may exchange names there while it is asked. So each name is looked at once
    (`disk.Names`), what lies behind one is opened by its canonical path and through no link, and what is recorded are
    these looks: a decision, its grant and its inputs are about the same thing.
    """

    def __init__(self, environ: "os._Environ[str] | dict[str, str]") -> None:
        self._environ = environ
        self._inputs: dict[tuple[str, str], object] = {}
        self._names = disk.Names()
        self._trails: dict[str, Trail] = {}
        self._originals: dict[str, bytes] | None = None

    def recorded(self) -> tuple[inputs.Input, ...]:
        """Everything that was asked so far, with the answers, for the plan cache.

        What lies above each canonical path belongs to it: see `inputs.unchanged`.
        """
        seen = {"/"}
        for (kind, subject), answer in list(self._inputs.items()):
            path = answer[0] if kind == inputs.RESOLVED and isinstance(answer, tuple) else "/"
            path = os.path.dirname(path) if path == subject else path
            while path not in seen:
                seen.add(path)
                here = self._ask(inputs.IDENTITY, path)
                if not isinstance(here, tuple) or isinstance(here[2], str):
                    self._inputs[inputs.IDENTITY, path] = "moved meanwhile"  # no answer is ever equal to it
                path = os.path.dirname(path)
        return tuple((kind, subject, answer) for (kind, subject), answer in self._inputs.items())

    def _ask(self, kind: str, subject: str) -> object:
        key = (kind, subject)
        if key not in self._inputs:
            if kind == inputs.IDENTITY:
                self._seen(subject)
            elif kind == inputs.CONTENT:
                with self._behind(subject):
                    return self._inputs[key]
            else:
                self._inputs[key] = inputs.ask(kind, subject, self._environ)
        return self._inputs[key]

    def depends_on_content(self, path: str) -> None:
        """Records that the Plan depends on this file's content (or absence)."""
        self._ask(inputs.CONTENT, path)

    def depends_on_directory(self, path: str) -> None:
        """Makes the Plan depend on which directory this is, whatever comes to its place or gets its inode."""
        self._ask(inputs.DIRECTORY, path)

    def depends_on_own(self, path: str) -> None:
        """The same of a file of Paddock's own, whose name only who installs it can lead elsewhere."""
        self._inputs[inputs.CONTENT, path] = inputs.ask(inputs.CONTENT, path, self._environ)

    def depends_on_setting(self, path: str) -> None:
        """Records that the Plan depends on the text of a kernel setting (or its absence)."""
        self._ask(inputs.TEXT, path)

    @property
    def home(self) -> str:
        """Canonical home directory of the calling user."""
        home = self.env("HOME") or ""
        if not home.startswith("/"):
            try:
                home = pwd.getpwuid(self.uid).pw_dir
            except KeyError:
                home = "/"
        return self.resolve(home) or os.path.normpath(home)

    @property
    def uid(self) -> int:
        """Effective user id."""
        return os.geteuid()

    def env(self, name: str) -> str | None:
        """The caller's environment variable, or None."""
        answer = self._ask(inputs.ENVIRONMENT, name)
        return answer if isinstance(answer, str) else None

    def says(self, name: str, text: str = "") -> bool:
        """Whether the caller's environment variable has a value that holds `text`. Nothing else of it is recorded."""
        return self._ask(inputs.NAMED, f"{name}\0{text}") is True

    def locations(self, pattern: str) -> tuple[tuple[str, str], ...]:
        """(name, value) of the caller's variables that `pattern` means, without the credentials in their URLs."""
        answer = self._ask(inputs.LOCATIONS, pattern)
        return answer if isinstance(answer, tuple) else ()

    def kind(self, path: str) -> str | None:
        """What lstat(2) says `path` is; None when absent."""
        if self._pointer(path) is not None:
            return "file"
        found = self._seen(path)
        return None if found is None else disk.KINDS.get(stat.S_IFMT(found[0].st_mode))

    def resolve(self, path: str) -> str | None:
        """The canonical path, None when it does not exist or cannot be reached."""
        return self.trail(path).canonical

    def trail(self, path: str) -> Trail:
        """Where `path` leads and how, from one walk."""
        if path not in self._trails:
            self._trails[path] = self._walked(path)
        return self._trails[path]

    def _walked(self, path: str) -> Trail:
        if path.endswith(f"/{pointer.NAME}"):
            above = self.trail(os.path.dirname(path))
            place = f"{above.canonical}/{pointer.NAME}"
            if above.canonical is not None and self._pointer(place) is not None:
                return Trail(place, above.links, place, place)
        trail = self._names.walk(path)
        for link, _ in trail.links:
            self._ask(inputs.IDENTITY, link)
        found = None
        if trail.canonical is not None:
            # Where a link has come into it meanwhile, it cannot be reached; the command must not follow that either.
            with disk.opened(trail.canonical, directory=path.endswith("/")) as descriptor:
                name = None if descriptor is None else inputs.name_of(descriptor)
                if descriptor is not None and name is not None:
                    status = os.fstat(descriptor)
                    found = (name, status.st_dev, status.st_ino)
        self._inputs[inputs.RESOLVED, path] = found
        return trail._replace(canonical=None if found is None else found[0])

    def _seen(self, path: str) -> tuple[os.stat_result, str | None] | None:
        """An entry, by the look at it that is recorded."""
        found = self._entry(path)
        self._inputs.setdefault((inputs.IDENTITY, path), _identity(found))
        return found

    def _entry(self, path: str) -> tuple[os.stat_result, str | None] | None:
        entry = self._names.walk(path).entry
        return None if entry is None else self._names.entry(entry)

    @contextmanager
    def _behind(self, path: str) -> Iterator[str | None]:
        """A name for what `path` leads to, None for nothing; which file that is, and its state, is recorded."""
        canonical = self.resolve(path)
        with disk.opened(canonical) as descriptor:
            status = None if descriptor is None else os.fstat(descriptor)
            self._inputs.setdefault((inputs.CONTENT, path), None if status is None else inputs.content_of(status))
            yield None if descriptor is None else f"/proc/self/fd/{descriptor}"

    def _status(self, path: str) -> os.stat_result | None:
        """Of what `path` leads to; recorded is which entry it is, not its state."""
        self._ask(inputs.IDENTITY, path)
        with disk.opened(self.resolve(path)) as descriptor:
            return None if descriptor is None else os.fstat(descriptor)

    def listing(self, path: str) -> tuple[str, ...] | None:
        """Sorted names in a directory; None when it cannot be listed."""
        with self._behind(path) as name:
            return None if name is None else _DISK.listing(name)

    def contents(self, path: str) -> tuple[tuple[str, str, int], ...] | None:
        """Sorted (name, `kind`, `names`) of what is in a directory; None when it cannot be listed.

        Recorded is the directory alone: what an entry is only changes with it.
        """
        found: list[tuple[str, str, int]] = []
        try:
            with self._behind(path) as name, os.scandir(name or "/dev/null") as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    kind = disk.KINDS.get(stat.S_IFMT(status.st_mode), "")
                    found.append((entry.name, kind, status.st_nlink if kind == "file" else 0))
        except OSError:
            return None
        return tuple(sorted(found))

    def present(self, directory: str, names: tuple[str, ...], suffixes: tuple[str, ...]) -> tuple[str, ...]:
        """Sorted entries of a directory that are in `names` or end in one of `suffixes`."""
        answer = self._ask(inputs.PRESENT, inputs.packed(directory, names, suffixes))
        return answer if isinstance(answer, tuple) else ()

    def read(self, path: str, limit: int = 65536) -> bytes | None:
        """Content of a regular file up to `limit` bytes; None when longer, not regular, or unreadable."""
        known = self._pointer(path)
        if known is not None:
            return known
        with self._behind(path) as name:
            return None if name is None else _DISK.read(name, limit)

    def _pointer(self, path: str) -> bytes | None:
        """Content of a `.git` file; None for anything else.

        While a jail without mounts lives in a worktree, what lies there is the command's; then it is what it was
        before (`launcher.vcs.private.swap`). The answer is by content: each session puts back another file.
        """
        if not path.endswith(f"/{pointer.NAME}"):
            return None
        if self._originals is None:
            self._originals = swap.originals(places(self._environ).state)
        known = self._originals.get(path)
        if known is None:
            found = self._entry(path)
            if found is None or not stat.S_ISREG(found[0].st_mode):
                return None
        answer = known if known is not None else self._ask(inputs.POINTER, path)
        if not isinstance(answer, bytes):
            return None
        self._inputs[inputs.POINTER, path] = answer
        return answer

    def gitlinks(self, git_dir: str) -> tuple[str, ...]:
        """Paths of the submodules that the index of a trusted git directory names, relative to the root of its files.

        A commit changes the index, and seldom them; what is asked again is what they are (`inputs.LINKS`).
        """
        key = (inputs.LINKS, git_dir)
        if key not in self._inputs:
            mark = stamp(f"{git_dir}/index")
            self._inputs[key] = (mark, tuple(submodule_places.named(git_dir)))
        answer = self._inputs[key]
        return answer[1] if isinstance(answer, tuple) else ()

    def executable(self, path: str) -> bool:
        """Whether the calling user may execute this regular file."""
        self._ask(inputs.IDENTITY, path)
        with disk.opened(self.resolve(path)) as descriptor:
            if descriptor is None or not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return False
            return os.access(f"/proc/self/fd/{descriptor}", os.X_OK, effective_ids=True)

    def names(self, path: str) -> int:
        """How many names a regular file has (hard links); 0 for anything else."""
        found = self._seen(path)
        if found is None or not stat.S_ISREG(found[0].st_mode):
            return 0  # a directory's content is no matter: Paddock's own changes with each session
        self._ask(inputs.CONTENT, path)
        return found[0].st_nlink

    def set_gid(self, path: str) -> bool:
        """Whether `path` is a directory that gives its group to what is made in it; False for a slot."""
        if path.startswith("@"):
            return False
        found = self._status(path)
        return found is not None and stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_ISGID)

    def others_can_write(self, path: str) -> bool:
        """Whether a user other than root and the caller may write `path`. True when it cannot be told."""
        found = self._status(path)
        return found is None or bool(found.st_mode & stat.S_IWOTH) or found.st_uid not in (0, self.uid)


def _identity(found: tuple[os.stat_result, str | None] | None) -> object:
    """As `inputs.ask` has it."""
    if found is None:
        return None
    status, text = found
    if text is not None:
        return (status.st_dev, status.st_ino, text)
    return (status.st_dev, status.st_ino, status.st_mode, status.st_uid)
