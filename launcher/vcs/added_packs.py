"""Objects that Paddock adds to a user's repository, held from before git there can see them until refs lead to them.

Whatever runs beside Paddock (`git gc`, `repack -ad`, `prune --expire=now`, `maintenance`) removes objects that no ref
leads to. So objects are written to a quarantine first, an object directory that only Paddock's own git sees, and enter
the repository as packs with a `.keep` (git-repack(1)), which is there before the pack is.

A `.keep` of Paddock's is locked (flock(2)) as long as its holder lives, or a git that inherited the lock. An unlocked
one was left by a holder that was killed, and may be removed at any time: the journal of a harvest leads to its
quarantine, which is added once more, and a merge moves no ref before others hold its commits.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Self

from launcher.safefs import walk
from launcher.safefs.guarded_files import Inside
from launcher.vcs.git import Git
from launcher.vcs.private.copied_settings import quoted

_PREFIX = f"pack-{b'paddock'.hex()}"
"""Our packs' names begin so. The rest is random: no other pack has or gets such a name."""
_WORDS = b"paddock: "
_ORDER = (".pack", ".rev", ".idx")
"""The index comes last: a pack without one does not exist for git."""
_NEW = ".new"
"""Behind the name of an unfinished file; `git prune` removes names that begin with `tmp_` while they are written."""


class Quarantine(NamedTuple):
    """An object directory for objects that no ref leads to, and the store that it adds to."""

    directory: str
    store: str

    @property
    def environment(self) -> dict[str, str]:
        """As git-receive-pack(1) sets it: new objects go to the quarantine, and no ref can be moved meanwhile."""
        return {
            "GIT_OBJECT_DIRECTORY": self.directory,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted(self.store),
            "GIT_QUARANTINE_PATH": self.directory,
        }


class Held:
    """Packs that were added to repositories and are held there. `release` ends that.

    Args:
        purpose: who holds them and until when, for people who find a `.keep`.
    """

    def __init__(self, purpose: str, step: Callable[[str], None] = lambda what: None) -> None:
        self._content = _WORDS + os.fsencode(purpose) + b"\n"
        self._step = step
        self._packs: dict[str, int] = {}

    @property
    def locks(self) -> tuple[int, ...]:
        """Descriptors that git inherits when it moves refs to the objects: it may outlive this process."""
        return tuple(self._packs.values())

    def add(self, quarantine: str, common: str) -> None:
        """Adds the packs in a quarantine to a trusted repository, and removes what killed holders have left there.

        Raises:
            OSError: the store cannot be written, or what git in its jail has left is no pack.
        """
        sweep(common)
        if not os.path.lexists(f"{quarantine}/pack"):
            return
        # Git in its jail has written there: a link in place of the directory or of a file would lead Paddock elsewhere.
        with Inside(os.path.realpath(quarantine), "pack") as source:
            self._add(source, f"{common}/objects/pack")

    def _add(self, source: Inside, target: str) -> None:
        names = source.names()
        for index in names:
            stem = index.removesuffix(".idx")
            if stem == index or not stem.startswith("pack-"):
                continue
            os.makedirs(target, exist_ok=True)
            # As readable as the store itself (core.sharedRepository), and for nobody to write.
            mode = 0o444 & os.stat(target).st_mode
            self._step("keep")
            held = self._keep(target, len(stem) - len("pack-"), mode)
            endings = [ending for ending in _ORDER if f"{stem}{ending}" in names]
            for ending in endings:
                self._step(f"add {stem}{ending}")
                _copy(source, f"{stem}{ending}", f"{held}{ending}{_NEW}", mode)
            for ending in endings:
                self._step(f"show {stem}{ending}")
                os.rename(f"{held}{ending}{_NEW}", f"{held}{ending}")
            walk.sync_directory(target)

    def _keep(self, directory: str, digits: int, mode: int) -> str:
        """Makes the `.keep` of a new pack; returns the pack's path without an ending."""
        while True:
            pack = f"{directory}/{(_PREFIX + os.urandom(digits // 2).hex())[: digits + len('pack-')]}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            # Jails see the store, and would lock a file before its maker does: none can open this one.
            descriptor = os.open(f"{pack}.keep{_NEW}", flags, 0)
            self._packs[pack] = descriptor
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, self._content)
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
            try:
                os.rename(f"{pack}.keep{_NEW}", f"{pack}.keep")
            except FileNotFoundError:  # somebody has swept it away
                os.close(self._packs.pop(pack))
            else:
                return pack

    def release(self) -> None:
        """Removes the `.keep` files: refs lead to the objects now, or nothing ever will. Safe to call twice."""
        for pack in list(self._packs):
            self._step("release")
            _remove(pack)
            os.close(self._packs.pop(pack))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def sweep(common: str) -> None:
    """Removes what killed holders have left in a repository: `.keep` files, and packs that were not finished."""
    directory = f"{common}/objects/pack"
    names = os.listdir(directory) if os.path.isdir(directory) else []
    for name in names:
        pack = f"{directory}/{name.removesuffix('.keep')}"
        if not (name.startswith(_PREFIX) and name.endswith((".keep", f".keep{_NEW}"))):
            continue
        if name.endswith(_NEW):
            with suppress(FileNotFoundError):
                os.unlink(f"{directory}/{name}")  # who is at it makes another
            continue
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(f"{directory}/{name}", flags)
        except OSError:
            continue  # released meanwhile, or somebody else's
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its holder was killed before it wrote anything, or a user has made one for a pack that was ours.
            empty = not os.path.lexists(f"{pack}.pack") and not os.fstat(descriptor).st_size
            regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            if regular and (empty or os.read(descriptor, len(_WORDS)) == _WORDS):
                _remove(pack)
        except OSError:
            pass  # its holder lives
        finally:
            os.close(descriptor)


def closed(git: Git, quarantine: Quarantine, wanted: str, into: str) -> None:
    """Packs all that `wanted` leads to, wherever it is now, so that nothing of it depends on what others may remove.

    Args:
        quarantine: what it sees besides.
        wanted: lines of revisions: commits, and behind `^` those that are held already, with all they lead to.
        into: an object directory for the pack; made when missing.
    """
    os.makedirs(f"{into}/pack", 0o700, exist_ok=True)
    words = ("pack-objects", "--revs", "-q", "--non-empty", "--delta-base-offset", "--window=0", f"{into}/pack/pack")
    git.run(*words, input=wanted.encode(), environment=quarantine.environment)


def _remove(pack: str) -> None:
    """Removes a pack's `.keep`, and the pack itself where it was not finished. The `.keep` goes last."""
    directory, name = os.path.split(pack)
    finished = os.path.lexists(f"{pack}.idx")
    for ending in (*_ORDER, *(f"{ending}{_NEW}" for ending in _ORDER)):
        if ending.endswith(_NEW) or not finished:
            with suppress(FileNotFoundError):
                os.unlink(f"{directory}/{name}{ending}")
    for ending in (f".keep{_NEW}", ".keep"):
        with suppress(FileNotFoundError):
            os.unlink(f"{pack}{ending}")


def _copy(source: Inside, name: str, target: str, mode: int) -> None:
    reader = source.opened(name)
    if reader is None:
        raise OSError(errno.EINVAL, "it is not a regular file", f"{source.path}/{name}")
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(reader).st_size
            offset = 0
            while offset < size:
                offset += os.sendfile(descriptor, reader, offset, size - offset)
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    finally:
        os.close(reader)
