"""The map of one worktree: which part of it is granted, and what the exceptions freeze.

The deepest root decides: main worktree, granted submodules, ungranted submodules, denied paths, read-only
paths. Of two that share a path the stricter one decides, and a read-only path never opens what is closed.

Frozen directories (`freeze_root`) mirror how Landlock keeps an exception where nothing can be mounted over it:
the grant of a directory is replaced by grants of its entries, all but the exception. The directory itself then
carries no right: it cannot be listed, nothing can be created, removed or renamed in it, and names that appear
later are not granted. This goes up from the exception to the worktree's root. For a read-only exception the
directories keep the right to be read.
"""

import os
from enum import Enum
from typing import NamedTuple

from policy.plan import beneath
from policy.resolution import Location, Unresolvable, resolve
from policy.violation import Operation, Reason
from policy.worktree import WorktreeSandboxContext


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
