"""What changed among the hand-off files: those that another tool, outside the jail, executes or obeys later.

Read-only mounts keep existing files of the protected kind (see `policy.promises`, row handoff). They cannot keep a
file from being made, and a process outside that replaces one takes the mount off it. So everything is compared at the
end, in every mode. The comparison is by inode, size and times: the kernel sets the time of a file's last change
(ctime), and no unprivileged process can set it back, so nothing that was written goes unseen; what was rewritten alike
is told too.

Launch path: `os`, `launcher.session.inputs`, `launcher.session.nested`, `launcher.session.state`.
"""

import time

from launcher.lean import os
from launcher.session import inputs, nested, state
from launcher.session.nested import BARE, BORROWING
from policy import promises
from policy.errors import Refusal, unusable
from policy.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from policy.handoff import Patterns

MOST_ENTRIES = 2000
"""Entries of hand-off directories that are looked at; more are told as one change of the whole."""

UNSEARCHED = (
    "paddock: the session was too short to search the worktree for new repositories: a longer one does that, or "
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
        "_before", "_known", "_nested", "_own", "_patterns", "_pointers", "_root", "_session", "_since", "_started",
        "searched",
    )  # fmt: skip

    def __init__(self, plan: Plan, own: str, session: str = "") -> None:
        """Looks at the worktree of `plan`; what cannot be read counts as absent.

        Args:
            plan: of the session.
            own: the worktree's directory in Paddock's state.
            session: the session's own directory there, beside those of others.
        """
        self._own, self._session = own, session
        self.searched = False
        self._root = plan.worktree
        self._patterns = plan.handoff_patterns
        self._known = frozenset((plan.worktree, *[repository[1] for repository in plan.repositories]))
        self._since = time.clock_gettime_ns(_REALTIME_COARSE)
        self._started = time.monotonic()
        self._before = _seen(self._root, self._patterns)
        self._nested = nested.seen(plan.nested) if plan.nested else {}
        # Swapped on the disk they change by our own doing; what the command does to them is told when they are docked.
        swapped = plan.git == "private" and not promises.has_mounts(plan.backend)
        self._pointers = {} if swapped else self._pointing()

    def begin(self) -> None:
        """Has the next session that looks see to this one, should it not look itself. Refusals: state-unusable."""
        try:
            state.note_unsearched(self._own, self._since, session=os.path.basename(self._session))
        except OSError as error:
            raise unusable(self._own, error) from None

    def changes(self, *, thorough: bool = True) -> tuple[Change, ...]:
        """What was created, changed or removed since, sorted by path.

        Args:
            thorough: look for repositories and protected files in all directories, too, however short the session was.
                A walk over the worktree would be most of what a short command takes: what it has made is found by the
                next session that looks. `searched` says whether this one has.
        """
        pointing = self._pointing() if self._pointers else {}
        after = _seen(self._root, self._patterns)
        found = self._changes(after) + tuple(
            ("changed" if stamp else "created", f"{root}/.git"[len(self._root) + 1 :], "protect")
            for root, stamp in self._pointers.items()
            if pointing[root] != stamp
        )
        if self._nested:
            found += tuple(
                (what, path.removeprefix(self._root + "/"), "protect") for what, path in nested.changes(self._nested)
            )
        self.searched = thorough or time.monotonic() - self._started > LASTING
        if not self.searched:
            try:
                self.searched = state.note_unsearched(self._own, self._since, time.time_ns()) > state.MOST_NOTED
            except OSError:
                found += (("created", "...", "protect"),)  # as for a tree that is too large: nobody will look
        if self.searched:
            from policy.handoff import Patterns

            sessions = os.path.dirname(self._session)
            earlier = state.unsearched(self._own, take=True, lives=lambda name: state.is_locked(f"{sessions}/{name}"))
            found += self._of_killed(after, earlier)
            spans = [*earlier, (self._since, time.time_ns())]
            since = min(begun for begun, _ in spans)
            made, deeper, unknown = made_since(
                self._root, self._known, since, Patterns(self._patterns), frozenset(self._nested)
            )
            nested.note(self._own, unknown, spans)
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

    def _of_killed(self, after: dict[str, tuple[str, Stamp]], earlier: list[tuple[int, int]]) -> tuple[Change, ...]:
        """What has changed since the first of those earlier sessions began that could not look themselves.

        It was so already when this one began. What its user has changed since is among it: nobody knows whose it is.
        """
        ended = {begun for begun, over in earlier if over > begun}
        since = min([begun for begun, _ in earlier if begun not in ended], default=self._since)
        if since >= self._since:
            return ()
        found = tuple(
            ("changed", path, mode)
            for path, (mode, stamp) in after.items()
            if self._before.get(path, ("", ()))[1] == stamp and self._is_later(path, since)
        )
        return found + tuple(
            ("changed", f"{root}/.git"[len(self._root) + 1 :], "protect")
            for root, stamp in self._pointers.items()
            if len(stamp) > 1 and stamp[-1] >= since
        )

    def _is_later(self, path: str, since: int) -> bool:
        """Whether a file has changed, or a directory on the way to it: when that is moved, what lies in it is not.

        The repository's own changes with each commit of its user's, and no session moves it.
        """
        above = path
        while above not in ("", "/", ".git"):
            if _is_changed(os.path.join(self._root, above), since):
                return True
            above = "" if path.startswith("/") else os.path.dirname(above)
        return False

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


def _seen(root: str, patterns: "Iterable[tuple[str, str]]") -> dict[str, tuple[str, Stamp]]:
    try:
        top = os.listdir(root)
    except OSError:
        return {}
    names = frozenset(top)
    found: dict[str, tuple[str, Stamp]] = {}
    for pattern, mode in patterns:
        first, slash, rest = pattern.partition("/")
        known = [first] if not first or first in names else []
        matching = [name for name in top if _fits(name, first)] if "*" in first else known
        for name in matching:
            path = name + slash + rest
            if found.get(path, ("",))[0] != "protect":
                _add(root, path, mode, found)
    return found


def _add(root: str, path: str, mode: str, found: dict[str, tuple[str, Stamp]]) -> None:
    pending = [path]
    followed: set[str] = set()
    looked = 0
    while pending:
        here = pending.pop()
        try:
            place = here if here.startswith("/") else f"{root}/{here}"
            entry = os.lstat(place)
            if entry.st_mode & 0o170000 == _LINK:
                target = _led_to(root, place)
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


def _led_to(root: str, link: str) -> str:
    """What a link leads to, relative to the worktree, where it lies: that is what the tool will read."""
    target = inputs.resolved(link)
    inside = target is not None and target.startswith(f"{root}/")
    return target[len(root) + 1 :] if target is not None and inside else ""


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


def report_lines(changes: tuple[Change, ...]) -> list[str]:
    """The changes as lines for people, the protected kind one by one, the reported kind in one line.

    What lies in a directory that is told is not told again.
    """
    protected = [(what, path) for what, path, mode in changes if mode == "protect"]
    whole = tuple(path + "/" for _, path in protected)
    if not changes:
        return []
    from policy.pasted import cited

    lines = [f"{what} {cited(path)}: other tools execute or obey it outside the jail; read it first"
             for what, path in protected if not path.startswith(whole)]  # fmt: skip
    reported = [path for _, path, mode in changes if mode == "report"]
    if reported:
        shown = ", ".join(map(cited, reported[:8])) + (f" and {len(reported) - 8} more" if len(reported) > 8 else "")
        lines.append(f"hand-off files changed (other tools execute or obey them): {shown}")
    return lines


def refused(changes: tuple[Change, ...]) -> Refusal:
    """The Refusal of a strict hand-off."""
    from policy import handoff

    hint = "read them; with --git private the commits are kept; then: paddock worktree harvest"
    return handoff.refused(changes, "not handed over", hint)


# What a session has made deep inside its worktree: repositories, and hand-off files in whatever directory.
#
# Whoever runs git there, an editor included, obeys a repository's configuration: a file system monitor, a pager,
# hooks. A bare one needs no `.git` to be found (git-config(1), safe.bareRepository). Tools look for their files
# where they are started. What is made is known by the time of its last change, which nobody can set back.
#
# Not on the launch path: a walk over the worktree, at the end of sessions that lasted.


MOST_SEARCHED = 500_000
"""Entries of the worktree that are looked at; large trees of dependencies are part of it."""

_FURTHER = ("modules", "worktrees")
_DEPENDENCIES = frozenset({"node_modules", "site-packages"})
"""Trees of packages, full of files of all kinds that nobody goes to; for hand-off files they are left out."""
_PLAIN, _BEGUN, _PACKAGES = range(3)
"""Kinds of directories: below one with which a pattern begins, each file may be one that it is about."""
_MOST_BELOW = 10_000


def made_since(
    root: str, known: frozenset[str], since: int, patterns: "Patterns", compared: frozenset[str]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Paths, relative to `root`, of what is newer than `since`.

    Args:
        root: canonical root of the worktree.
        known: roots of the worktree itself and of its submodules, whose own `.git` is none of these.
        since: nanoseconds since the epoch, by the file system's clock.
        patterns: of hand-off files.
        compared: `.git` and bare repositories of which the caller knows what has changed.

    Returns:
        Git directories and pointers, and files that a pattern protects in whatever directory; both sorted. A bare
        repository is named by its directory, and so is a directory that cannot be looked into since then. The last one
        is "..." when the tree is too large. Then the paths of all repositories that nobody knows, old ones too.
    """
    from policy.handoff import PROTECT

    repositories: list[str] = []
    files: list[str] = []
    unknown: list[str] = []
    pending = [(root, _PLAIN)]
    seen = 0
    while pending:
        here, kind = pending.pop()
        names: set[str] = set()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    seen += 1
                    names.add(entry.name)
                    if entry.name == ".git":
                        if here not in known and entry.path not in compared:
                            unknown.append(entry.path)
                            if _newer(entry.path, since):
                                repositories.append(entry.path)
                        continue
                    begun = kind == _BEGUN or (kind == _PLAIN and patterns.begins(entry.name))
                    if entry.is_dir(follow_symlinks=False):
                        below = _PACKAGES if kind == _PACKAGES or entry.name in _DEPENDENCIES else int(begun)
                        pending.append((entry.path, below))
                    elif begun and _is_changed(entry.path, since):
                        path = entry.path[len(root) + 1 :]
                        # A link may stand for a whole directory of them.
                        if patterns.mode(path) == PROTECT or entry.is_symlink():
                            files.append(path)
        except OSError:
            # Whoever may not list a directory can still enter it, and git does; its rights are the command's doing.
            if _is_changed(here, since):
                repositories.append(here)
            continue
        if (names >= BARE or names >= BORROWING) and here not in compared:
            unknown.append(here)
            if _newer(here, since):
                repositories.append(here)
        if seen > MOST_SEARCHED:
            repositories.append(f"{root}/...")
            break
    made = sorted(path[len(root) + 1 :] for path in repositories)
    return tuple(made), tuple(sorted(files)), tuple(sorted(unknown))


def present(
    root: str, known: frozenset[str], patterns: "Iterable[tuple[str, str]]"
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the end of a session would look at if all of it were new, tracked and ignored files alike.

    Args:
        root, known: as for `made_since`.
        patterns: of hand-off files, with their modes.

    Returns:
        Paths, relative to `root`, of hand-off files, and of directories with too many of them; then, as `made_since`
        has them, the repositories.
    """
    from policy.handoff import Patterns

    own = [(pattern, mode) for pattern, mode in patterns if not pattern.startswith("/")]
    repositories, deeper, _ = made_since(root, known, 0, Patterns(own), frozenset())
    return tuple(dict.fromkeys((*_seen(root, own), *deeper))), repositories


def _is_changed(path: str, since: int) -> bool:
    try:
        return os.lstat(path).st_ctime_ns >= since
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _newer(path: str, since: int) -> bool:
    """Whether a pointer, or what git obeys in a git directory or in one that lies in it, changed after `since`."""
    if _is_changed(path, since):
        return True
    pending, looked = [path], 0
    try:
        while pending:
            here = pending.pop()
            if any(_is_changed(f"{here}/{name}", since) for name in ("HEAD", *nested.OBEYED)):
                return True
            for name in (*nested.OBEYED_BELOW, *_FURTHER):
                try:
                    below = [f"{here}/{name}/{entry}" for entry in os.listdir(f"{here}/{name}")]
                except (FileNotFoundError, NotADirectoryError):
                    continue
                looked += len(below)
                if looked > _MOST_BELOW or any(_is_changed(entry, since) for entry in below):
                    return True
                if name in _FURTHER:
                    # A submodule's name may have slashes: what lies between is looked at as if it were one.
                    pending += [entry for entry in below if os.path.isdir(entry) and not os.path.islink(entry)]
            if here != path and not os.path.lexists(f"{here}/HEAD"):
                deeper = [f"{here}/{entry}" for entry in os.listdir(here)]
                looked += len(deeper)
                pending += [entry for entry in deeper if os.path.isdir(entry) and not os.path.islink(entry)]
    except OSError:
        return True
    return looked > _MOST_BELOW
