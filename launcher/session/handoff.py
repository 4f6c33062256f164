"""What changed among the hand-off files: those that another tool, outside the jail, executes or obeys later.

Read-only mounts keep existing files of the protected kind (see `policy.promises`, row handoff). They cannot keep a
file from being made, and a process outside that replaces one takes the mount off it. So everything is compared at the
end, in every mode. The comparison is by inode, size and times: the kernel sets the time of a file's last change
(ctime), and no unprivileged process can set it back, so nothing that was written goes unseen; what was rewritten alike
is told too.

Launch path: `os`, `launcher.session.inputs`, `launcher.session.nested`, `launcher.session.unsearched`.
"""

import time

from launcher.lean import os
from launcher.session import inputs, nested, places, unsearched
from policy import promises
from policy.errors import Refusal
from policy.plan import Plan

MOST_ENTRIES = 2000
"""Entries of hand-off directories that are looked at; more are told as one change of the whole."""

UNSEARCHED = (
    "paddock: not searched for repositories that were made in the worktree: the next session that lasts does that, or "
    "one with --report FILE or --strict-handoff"
)
"""Said to who wants to know all, after a session that was too short."""

LASTING = 0.25
"""Seconds after which the worktree is searched for repositories and protected files that were made in it."""

_REALTIME_COARSE = 5  # clock_gettime(2): the clock that stamps files; it ticks more slowly than the ordinary one
_DIRECTORY, _LINK = 0o040000, 0o120000

Stamp = tuple[int, ...]
Change = tuple[str, str, str]
"""("created" | "changed" | "removed", path relative to the worktree or absolute, "protect" | "report")."""


class Watch:
    """The hand-off files of a worktree as they were when it was made; `changes` says what is different now."""

    __slots__ = (
        "_before", "_known", "_nested", "_own", "_patterns", "_pointers", "_root", "_since", "_started", "searched",
    )  # fmt: skip

    def __init__(self, plan: Plan, own: str) -> None:
        """Looks at the worktree of `plan`; what cannot be read counts as absent.

        Args:
            plan: of the session.
            own: the worktree's directory in Paddock's state.
        """
        self._own = own
        self.searched = False
        self._root = plan.worktree
        self._patterns = plan.handoff_patterns
        self._known = frozenset((plan.worktree, *[repository[1] for repository in plan.repositories]))
        self._since = time.clock_gettime_ns(_REALTIME_COARSE)
        self._started = time.monotonic()
        self._before = self._seen()
        self._nested = nested.seen(plan.nested) if plan.nested else {}
        # Swapped on the disk they change by our own doing; what the command does to them is told when they are docked.
        swapped = plan.git == "private" and not promises.has_mounts(plan.backend)
        self._pointers = {} if swapped else self._pointing()

    def begin(self) -> None:
        """Has the next session that looks see to this one, should it not look itself. Refusals: state-unusable."""
        try:
            unsearched.note(self._own, self._since)
        except OSError as error:
            raise places.unusable(self._own, error) from None

    def changes(self, *, thorough: bool = True) -> tuple[Change, ...]:
        """What was created, changed or removed since, sorted by path.

        Args:
            thorough: look for repositories and protected files in all directories, too, however short the session was.
                A walk over the worktree would be most of what a short command takes: what it has made is found by the
                next session that looks. `searched` says whether this one has.
        """
        pointing = self._pointing() if self._pointers else {}
        after = self._seen()
        found = self._changes(after) + tuple(
            ("changed", f"{root}/.git"[len(self._root) + 1 :], "protect")
            for root, stamp in self._pointers.items()
            if pointing[root] != stamp
        )
        if self._nested:
            found += tuple(
                (what, path.removeprefix(self._root + "/"), "protect") for what, path in nested.changes(self._nested)
            )
        if thorough or time.monotonic() - self._started > LASTING:
            from launcher.session import embedded
            from policy.handoff import Patterns

            self.searched = True
            since = unsearched.taken(self._own, self._since)
            made, deeper, unknown = embedded.made_since(
                self._root, self._known, since, Patterns(self._patterns), frozenset(self._nested)
            )
            nested.note(self._own, unknown, self._since)
            if since < self._since:  # an earlier session has made or changed those before this one began
                made += tuple(
                    path[len(self._root) + 1 :]
                    for path in self._nested
                    if path.startswith(f"{self._root}/") and nested.newer(path, since)
                )
            found += tuple(("created", path, "protect") for path in made)
            found += tuple(
                ("changed", path, "protect") for path in deeper if path not in after and not _below(path, found)
            )
        else:
            try:
                unsearched.note(self._own, self._since)  # again, where the search of another was over before this end
            except OSError:
                found += (("created", "...", "protect"),)  # as for a tree that is too large: nobody will look
        return found

    def _changes(self, after: dict[str, tuple[str, Stamp]]) -> tuple[Change, ...]:
        found: list[Change] = []
        for path in sorted({*self._before, *after}):
            mode = (after.get(path) or self._before[path])[0]
            if path not in after:
                found.append(("removed", path, mode))
            elif path not in self._before:
                found.append(("created", path, mode))
            elif after[path] != self._before[path]:
                found.append(("changed", path, mode))
        return tuple(found)

    def _pointing(self) -> dict[str, Stamp]:
        """Where git on this machine is sent from the worktree's own `.git` and its submodules' ones.

        Without mounts a jail could write there. A directory, which a main checkout has, changes with each use.
        """
        found: dict[str, Stamp] = {}
        for root in self._known:
            try:
                entry = os.lstat(f"{root}/.git")
            except OSError:
                found[root] = ()
                continue
            kind = entry.st_mode & 0o170000
            found[root] = (kind,) if kind == _DIRECTORY else (
                kind, entry.st_dev, entry.st_ino, entry.st_size, entry.st_mtime_ns, entry.st_ctime_ns,
            )  # fmt: skip
        return found

    def _seen(self) -> dict[str, tuple[str, Stamp]]:
        try:
            top = os.listdir(self._root)
        except OSError:
            return {}
        names = frozenset(top)
        found: dict[str, tuple[str, Stamp]] = {}
        for pattern, mode in self._patterns:
            first, slash, rest = pattern.partition("/")
            known = [first] if not first or first in names else []
            matching = [name for name in top if _fits(name, first)] if "*" in first else known
            for name in matching:
                path = name + slash + rest
                if found.get(path, ("",))[0] != "protect":
                    self._add(path, mode, found)
        return found

    def _add(self, path: str, mode: str, found: dict[str, tuple[str, Stamp]]) -> None:
        pending = [path]
        followed: set[str] = set()
        looked = 0
        while pending:
            here = pending.pop()
            try:
                place = here if here.startswith("/") else f"{self._root}/{here}"
                entry = os.lstat(place)
                if entry.st_mode & 0o170000 == _LINK:
                    target = self._led_to(place)
                    if target and target not in followed:
                        followed.add(target)
                        pending.append(target)
                elif entry.st_mode & 0o170000 == _DIRECTORY:
                    below = sorted(os.listdir(place))
                    looked += len(below)
                    if looked > MOST_ENTRIES:
                        found[here] = (mode, (entry.st_dev, entry.st_ino, entry.st_mtime_ns, looked))
                        continue
                    pending += [f"{here}/{name}" for name in below]
                    continue
            except OSError:
                continue
            found[here] = (
                mode,
                (entry.st_dev, entry.st_ino, entry.st_mode, entry.st_size, entry.st_mtime_ns, entry.st_ctime_ns),
            )

    def _led_to(self, link: str) -> str:
        """What a link leads to, relative to the worktree, where it lies: that is what the tool will read."""
        target = inputs.resolved(link)
        inside = target is not None and target.startswith(f"{self._root}/")
        return target[len(self._root) + 1 :] if target is not None and inside else ""


def _below(path: str, changes: tuple[Change, ...]) -> bool:
    """Whether a path lies in a directory that is told of as a whole."""
    return any(path.startswith(changed + "/") for _, changed, _ in changes)


def _fits(name: str, pattern: str) -> bool:
    """Whether `name` fits a pattern with ``*`` for any run of characters (``?`` is one of them too)."""
    parts = pattern.replace("?", "*").split("*")
    if not name.startswith(parts[0]):
        return False
    at = len(parts[0])
    for part in parts[1:-1]:
        at = name.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return name.endswith(parts[-1]) and len(name) - len(parts[-1]) >= at


def told(changes: tuple[Change, ...]) -> list[str]:
    """The changes as lines for people, the protected kind one by one, the reported kind in one line."""
    lines = [f"{what} {path}: other tools execute or obey it outside the jail; read it first"
             for what, path, mode in changes if mode == "protect"]  # fmt: skip
    reported = [path for _, path, mode in changes if mode == "report"]
    if reported:
        shown = ", ".join(reported[:8]) + (f" and {len(reported) - 8} more" if len(reported) > 8 else "")
        lines.append(f"hand-off files changed: {shown}")
    return lines


def refused(changes: tuple[Change, ...]) -> Refusal:
    """The Refusal of a strict hand-off."""
    from policy import handoff

    hint = "read them; with --git private the commits wait until you say: paddock worktree harvest"
    return handoff.refused(changes, "not handed over", hint)
