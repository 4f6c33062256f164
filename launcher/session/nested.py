"""Repositories that lie inside the trees a command may write, and are neither the worktree's own nor its submodules.

Git outside obeys what is in them, and what is put there: hooks, configuration, a `commondir` that leads elsewhere. So
a git directory that no jail could write is read-only as a whole where a jail has mounts. In one that jails could write,
only what is obeyed and exists is, and commits work. Both are compared at the end everywhere.

A walk over the worktree takes longer than a launch, so it is made when a Plan is. The search at the end of sessions
(`launcher.session.handoff_changes`) notes those that no Plan knew, and every Plan of the worktree depends on that note.

Launch path: `os`, `launcher.jail.syscalls`.
"""

from launcher.jail import syscalls
from launcher.lean import os
from launcher.safefs import walk
from policy.plan import beneath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from policy.launch import Host

NOTE = "nested"
"""File of a worktree's directory in Paddock's state: repositories that a search has met and the Plan did not know, each
ended by a NUL. In front of those that a session made stands which file or directory that was (`syscalls.identity`)."""
MOST_ENTRIES = 200_000
"""Entries of all trees together that are looked at when a Plan is made."""
MOST_REPOSITORIES = 200
"""Repositories that are protected; each takes some mounts."""

BARE = frozenset({"HEAD", "objects", "refs"})
BORROWING = frozenset({"HEAD", "commondir"})
"""What makes a directory a git directory: where there is a commondir, objects and refs are there."""
OBEYED_BELOW = ("hooks", "info", "remotes", "branches", "rebase-merge", "rebase-apply", "sequencer")
OBEYED = ("config", "config.worktree", "commondir", "gitdir", "objects/info/alternates", *OBEYED_BELOW)
"""What of a git directory git executes, obeys, or is sent elsewhere by (gitrepository-layout(5)); with what lies in
those directories."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_STAMPS = 10_000
_LARGEST_NOTE = 4 << 20

Stamp = tuple[int, ...]


def existing(root: str, most: int) -> tuple[list[str], int, list[str]]:
    """Every `.git` and every bare repository in a tree, and how many entries were looked at: beyond `most` not all.

    The last are directories that could not be read.

    What lies less deep is looked at first. No link is followed, also when a session exchanges directories meanwhile.

    Args:
        root: canonical; its own `.git` counts.
        most: entries that are looked at.
    """
    from launcher.safefs import walk

    found: list[str] = []
    unread: list[str] = []
    seen = 0
    try:
        top = os.open(root, _DIRECTORY)
    except OSError:
        return [], 0, [root]
    try:
        level = [""]
        while level and seen <= most:
            deeper: list[str] = []
            for here in level:
                try:
                    descriptor = walk.open_inside(top, here or ".", _DIRECTORY)
                except OSError:
                    unread.append(f"{root}/{here}".rstrip("/"))
                    continue
                try:
                    with os.scandir(descriptor) as entries:
                        names = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
                except OSError:
                    unread.append(f"{root}/{here}".rstrip("/"))
                    continue
                finally:
                    os.close(descriptor)
                seen += len(names)
                bare = names.keys() >= BARE or names.keys() >= BORROWING
                prefix = f"{here}/" if here else ""
                found += [f"{root}/{prefix}.git"] if ".git" in names else []
                found += [f"{root}/{here}".rstrip("/")] if bare else []
                deeper += [
                    prefix + name
                    for name, is_directory in names.items()
                    if is_directory and name != ".git"  # of a bare one, too: whoever makes a HEAD would hide others
                ]
                if seen > most:
                    break
            level = deeper
    finally:
        os.close(top)
    return found, seen, unread


def look(
    trees: "Iterable[str]",
    own: "Iterable[str]",
    made: "Callable[[str], bool]",
    host: "Host",
    agents: "Callable[[str], object]",
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], dict[str, str], tuple[str, ...]]:
    """What there is in trees that a command may write.

    Args:
        trees: canonical, the worktree first; a file may be one.
        own: `.git` of the worktree and its submodules, which are protected in other ways.
        made: whether sessions made a repository, as `by_sessions` tells; then it is left out.
        host: answers; what was asked becomes an input of the Plan.
        agents: whether jails could write a git directory.

    Returns:
        Git directories and pointers; those directories that no jail could write; what is to be protected of the others
        (canonical); the checkouts in and around the trees that have a git directory no jail could write, with it;
        warnings.
    """
    roots, mine = tuple(trees), frozenset(own)
    places: dict[str, None] = {}
    untouched: dict[str, None] = {}
    obeyed: dict[str, None] = {}
    checkouts: dict[str, str] = {}
    warnings: list[str] = []
    left = MOST_ENTRIES
    for root in roots:
        found, seen, _ = existing(root, left) if host.kind(root) == "dir" else ([], 0, [])
        if seen > left:
            warnings.append(
                f"{root} is too large to be searched for repositories: beyond the first "
                f"{MOST_ENTRIES} entries, hooks and configuration are not protected"
            )
        left = max(left - seen, 0)
        above, entry = _around(root, host), _entry_around(root, host)
        if entry and not any(beneath(entry, each) for each in mine):
            git_dir = led_to(entry, host)
            if git_dir is not None and not agents(git_dir):
                checkouts[entry.removesuffix("/.git")] = git_dir
        for place in (*found, *([above] if above else ())):
            if place in places or any(beneath(place, each) for each in mine) or made(place):
                continue
            if len(places) >= MOST_REPOSITORIES:
                warnings.append(f"{root} holds more than {MOST_REPOSITORIES} repositories: {place} and further ones "
                                "are not protected")  # fmt: skip
                break
            places[place] = None
            git_dir = led_to(place, host)
            if git_dir != place and host.kind(place) == "file":
                obeyed[place] = None
            if git_dir is None or any(beneath(git_dir, each) for each in mine):
                continue
            if place.endswith("/.git") and not agents(git_dir):
                checkouts[place.removesuffix("/.git")] = git_dir
            for directory in _of(git_dir, host):
                if any(beneath(directory, tree) or beneath(tree, directory) for tree in roots):
                    places[directory] = None
                    if any(beneath(directory, each) for each in untouched):
                        continue
                    git_like = directory == place or host.kind(f"{directory}/HEAD") is not None
                    if git_like and not beneath(roots[0], directory) and not agents(directory):
                        untouched[directory] = None
                        continue
                    obeyed.update(dict.fromkeys(_obeyed(directory, host)))
    near = (path for path in obeyed if any(beneath(path, root) or beneath(root, path) for root in roots))
    return tuple(places), tuple(untouched), tuple(near), checkouts, tuple(warnings)


def _entry_around(root: str, host: "Host") -> str:
    """The `.git` of the checkout in which a granted tree lies; "" where it has its own, or lies in none."""
    here = root
    while here and host.kind(f"{here}/.git") is None:
        here = here.rpartition("/")[0]
    return f"{here}/.git" if here not in ("", root) else ""


def _around(root: str, host: "Host") -> str:
    """The git directory of which a granted tree is one of git's own directories; "" when it is none."""
    from launcher.vcs.written import GIT_OWN

    here = root
    while "/" in here[1:]:
        here, _, name = here.rpartition("/")
        if (
            (name in GIT_OWN or name in OBEYED)
            and host.kind(f"{here}/HEAD") is not None
            and host.kind(f"{here}/objects") is not None
        ):
            return here
    return ""


def led_to(place: str, host: "Host") -> str | None:
    """The git directory of a `.git`: itself, or where the pointer or link leads. Git takes a link to a pointer, too."""
    from launcher.vcs.private import pointer

    kind = host.kind(place)
    if kind == "dir":
        return place
    if kind == "link" and ((file := host.resolve(place)) is None or host.kind(file) == "dir"):
        return file
    target = pointer.text(host.read(place, pointer.MOST_BYTES)) if kind in ("file", "link") else None
    if target is None:
        return None
    return host.resolve(target if target.startswith("/") else f"{place.rpartition('/')[0]}/{target}")


def _of(git_dir: str, host: "Host") -> "Iterator[str]":
    """A git directory, the one it shares configuration with, and those of submodules and worktrees in it."""
    from launcher.vcs import checkout

    for directory in dict.fromkeys((git_dir, host.resolve(checkout.common_dir(git_dir, host)) or git_dir)):
        yield directory
        yield from (inner for _, inner in checkout.module_dirs(f"{directory}/modules", "", host))
        if host.kind(f"{directory}/worktrees") == "dir":
            yield from (f"{directory}/worktrees/{name}" for name in host.listing(f"{directory}/worktrees") or ())


def _obeyed(git_dir: str, host: "Host") -> "Iterator[str]":
    """What is there to be protected. Of a link, what it leads to."""
    for name in OBEYED:
        path = f"{git_dir}/{name}"
        if host.kind(path) in ("file", "dir"):
            yield path
        elif host.kind(path) == "link" and (target := host.resolve(path)) and host.kind(target) in ("file", "dir"):
            yield target


def note(directory: str, unknown: "Iterable[str]", spans: "Iterable[tuple[int, int]]") -> None:
    """Notes repositories that a search has met and the Plan did not know. Another note makes new Plans.

    Args:
        directory: of the worktree in Paddock's state.
        unknown: `.git` and bare repositories.
        spans: when the sessions since the last search began and were over, in nanoseconds since the epoch.
    """
    before = _noted(directory)
    by_session = by_sessions(directory, spans)
    made = {place: mark for mark, place in _made(before) if syscalls.identity(place) == mark}
    others = []
    for place in unknown:
        if by_session(place):
            made[place] = syscalls.identity(place)
        else:
            others.append(place)
    kept = list(made.items())[-MOST_REPOSITORIES:]
    entries = [*(f"{mark}{place}" for place, mark in kept), *others[:MOST_REPOSITORIES]]
    data = b"".join(os.fsencode(entry) + b"\0" for entry in entries)
    if data == before:
        return
    try:
        walk.replace(f"{directory}/{NOTE}", data, lasting=False)
    except OSError:
        return  # what was made has been told; the next session that looks notes it


def by_sessions(directory: str, spans: "Iterable[tuple[int, int]]") -> "Callable[[str], bool]":
    """Tells whether sessions made a repository in the worktree: then a search has told it, or will.

    A later session may clear it away: so it is no more protected than it was then. By when it was made, and not by when
    it was met: most sessions are too short to search, and whether a Plan is made anew is chance.

    Args:
        directory: of the worktree in Paddock's state.
        spans: of the sessions since the last search; what earlier ones made is in the note.
    """
    known, times = frozenset(mark for mark, _ in _made(_noted(directory))), tuple(spans)

    def told(place: str) -> bool:
        return syscalls.identity(place) in known or any(begun <= _born(place) <= over for begun, over in times)

    return told


def _made(content: bytes) -> "Iterator[tuple[str, str]]":
    for entry in content.split(b"\0"):
        mark, slash, place = os.fsdecode(entry).partition("/")
        if mark and slash:
            yield mark, slash + place


def _born(place: str) -> int:
    """When a git directory or pointer was made; no jail makes one anew in which something is mounted read-only.

    Where the file system does not know, its configuration's last change has to do.
    """
    try:
        _, birth, _ = syscalls.statx(syscalls.AT_FDCWD, place, syscalls.AT_SYMLINK_NOFOLLOW, syscalls.STATX_BTIME)
    except OSError:
        return 0
    found = (birth,) if birth else _stamp(f"{place}/config") or _stamp(place)
    return 0 if found is None or len(found) == 3 else found[-1]


def _noted(directory: str) -> bytes:
    try:
        descriptor = os.open(f"{directory}/{NOTE}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return b""
    try:
        content: bytes = os.read(descriptor, _LARGEST_NOTE)
        return content
    finally:
        os.close(descriptor)


def seen(places: "Iterable[str]") -> dict[str, dict[str, Stamp]]:
    """What there is to compare at the end: place -> `stamps`."""
    return {place: stamps(place) for place in places}


def changes(before: "Mapping[str, dict[str, Stamp]]") -> list[tuple[str, str]]:
    """("created" | "changed" | "removed", absolute path) of what is different now from `seen`, each path once."""
    found: dict[str, str] = {}
    for place, known in before.items():
        now = stamps(place)
        for path in sorted({*known, *now}):
            if known.get(path) != now.get(path):
                found[path] = "created" if path not in known else "changed" if path in now else "removed"
    return [(what, path) for path, what in found.items()]


def newer(place: str, since: int) -> bool:
    """Whether a file that git obeys there, or a pointer, changed after `since` (nanoseconds since the epoch)."""
    return any(stamp[-1] >= since for stamp in stamps(place).values() if len(stamp) > 3)


def stamps(place: str) -> dict[str, Stamp]:
    """What git obeys in a git directory, and the directory or pointer itself: path -> what changes when it does."""
    found: dict[str, Stamp] = {}
    pending = [place]
    while pending and len(found) < _MOST_STAMPS:
        here = pending.pop()
        own = _stamp(here)
        if own is None:
            continue
        found[here] = own
        if len(own) > 3:
            continue
        wanted = [f"{here}/{name}" for name in OBEYED]
        for name in OBEYED_BELOW:
            wanted += [f"{here}/{name}/{entry}" for entry in _names(f"{here}/{name}")]
        for path in wanted:
            if (stamp := _stamp(path)) is not None:
                found[path] = stamp
        for name in ("modules", "worktrees"):
            pending += [f"{here}/{name}/{entry}" for entry in _names(f"{here}/{name}")]
        if here != place and _stamp(f"{here}/HEAD") is None:
            pending += [f"{here}/{entry}" for entry in _names(here)]  # the name of a submodule may have slashes
    return found


def _stamp(path: str) -> Stamp | None:
    """Three numbers for a directory, whose times change with each commit."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    own = (found.st_mode, found.st_dev, found.st_ino)
    if found.st_mode & 0o170000 == 0o040000:
        return own
    return (*own, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _names(directory: str) -> list[str]:
    try:
        descriptor = os.open(directory, _DIRECTORY)
    except OSError:
        return []
    try:
        return sorted(os.listdir(descriptor))[:_MOST_STAMPS]
    except OSError:
        return []
    finally:
        os.close(descriptor)
