"""The user's own things in a private home: places for what is mounted there, or copies where nothing can be mounted.

The private home is the agent's to write, also while another session of the worktree lives. Everything in it is done by
descriptors and through no link; what an agent has put in the way is renamed. Only for plans that bring something, and
for worktrees in which something was brought before.
"""

import os
import stat

from launcher.safefs import guarded_files, walk
from launcher.safefs.guarded_files import Inside
from policy.plan import Bind, Brought

NOTE = "brought"
"""Beside the private home, where no jail reaches: what was made in it, as ``KIND PATH``, each ended by a NUL."""

MOST_BYTES, MOST_FILES = 64 << 20, 10_000
"""Of one tree that is copied."""

_PLACE, _COPY = "place", "copy"
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _TooMuch(Exception):
    """A tree that is too large to be copied."""


def provided(brought: tuple[Brought, ...], home: str, *, mounts: bool) -> tuple[tuple[Bind, ...], list[str]]:
    """Makes the private home ready. Returns what is to be mounted, and what could not be brought.

    Args:
        brought: of the Plan.
        home: the private home, canonical.
        mounts: whether the jail has a mount namespace. Else the things are copied, and the copies are the agent's.
    """
    note = f"{os.path.dirname(home)}/{NOTE}"
    before = guarded_files.read(note, follow=False)
    made = dict.fromkeys(os.fsdecode(before.data).split("\0")[:-1]) if before is not None else {}
    wanted = {path for source, path, _ in brought if source}
    binds: list[Bind] = []
    lines: list[str] = []
    with Inside(home) as inside:
        for entry in [entry for entry in made if entry.partition(" ")[2] not in wanted]:
            kind, _, path = entry.partition(" ")
            if _removed(inside, path, empty=kind == _PLACE):
                del made[entry]
        for source, path, _ in brought:
            if not source:
                continue
            try:
                if mounts:
                    made |= dict.fromkeys([f"{_PLACE} {path}"] if _placed(inside, source, path) else [])
                    binds.append((source, f"{home}/{path}", "r"))
                else:
                    _copied(inside, source, path, again=f"{_COPY} {path}" in made)
                    made[f"{_COPY} {path}"] = None
            except (OSError, _TooMuch) as error:
                why = str(error) if isinstance(error, _TooMuch) else error.strerror
                lines.append(f"~/{path} is not brought into the jail: {why}")
    content = "".join(f"{entry}\0" for entry in made)
    if content:
        walk.replace(note, os.fsencode(content), lasting=False)
    elif before is not None:
        os.unlink(note)
    return tuple(binds), lines


def _placed(home: Inside, source: str, path: str) -> bool:
    """Makes sure that something of the right kind is at `path`, to be mounted over. Returns whether it is new."""
    if stat.S_ISDIR(os.lstat(source).st_mode):
        known = home.kind(path) == stat.S_IFDIR
        home.make(path)
    else:
        known = home.kind(path) == stat.S_IFREG
        if not known:
            home.write(path, b"")
    return not known


def _copied(home: Inside, source: str, path: str, *, again: bool) -> None:
    """Puts a copy of `source` at `path`, in the place of whatever is there: with `again`, an earlier copy."""
    if not stat.S_ISDIR(os.lstat(source).st_mode):
        data, mode = _content(walk.open_canonical(source, _FILE), MOST_BYTES)
        home.write(path, data, mode=mode)
        return
    fresh = f".brought-{os.urandom(8).hex()}"
    home.make(fresh)
    try:
        size = count = 0
        with Inside(source) as tree:
            for name, entry in walk.files(source):
                count += 1
                if count > MOST_FILES:
                    raise _TooMuch(f"it has more than {MOST_FILES} files, and without mounts it has to be copied")
                if entry.is_symlink():
                    home.link_to(f"{fresh}/{name}", tree.link(name) or "")
                elif (descriptor := tree.opened(name)) is not None:
                    data, mode = _content(descriptor, MOST_BYTES - size)
                    size += len(data)
                    home.write(f"{fresh}/{name}", data, mode=mode)
        if again:
            _removed(home, path, empty=False)
        if home.exists(path):
            home.clear(path)
        home.move(fresh, path)
    except BaseException:
        home.remove_tree(fresh)
        raise


def _content(descriptor: int, limit: int) -> tuple[bytes, int]:
    """Bytes and mode of an open file, which is closed."""
    try:
        found = os.fstat(descriptor)
        data = walk.read_up_to(descriptor, limit) if stat.S_ISREG(found.st_mode) else b""
    finally:
        os.close(descriptor)
    if data is None:
        raise _TooMuch(f"it contains more than {MOST_BYTES >> 20} MiB, and without mounts it has to be copied")
    return data, 0o700 if found.st_mode & 0o100 else 0o600


def _removed(home: Inside, path: str, *, empty: bool) -> bool:
    """Removes what was made at `path` and is brought no more; what the agent has put into a mere place stays."""
    kind = home.kind(path)
    try:
        if kind == stat.S_IFDIR and empty:
            home.remove_directory(path)
        elif kind == stat.S_IFDIR:
            around, _, name = path.rpartition("/")
            with Inside(home.path, around) as directory:
                return not directory.remove_tree(name)
        elif kind is not None and not (empty and home.size(path)):
            home.remove(path)
    except OSError:
        return True  # it is the agent's by now
    return True
