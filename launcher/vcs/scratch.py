"""Directories for short work. What a SIGKILL leaves of one is removed when the next one is made.

They are in Paddock's own state directory, where no jail can write: TMPDIR may name a tree of an agent's, who would
replace by a link what Paddock writes there. A check of a merge is a session, which must not reach the state:
its trees lie in a directory beside it. As no grant may hold the state directory, none holds that one either.

A directory of tempfile stays when its process is killed. Each of these is locked as long as it is in use, so an
unlocked one is known to be left over.
"""

import fcntl
import os
import stat
import time
from typing import Self

from launcher.safefs import walk
from launcher.safefs.remove import remove_tree
from launcher.vcs import written
from policy.errors import Refusal, unusable
from policy.plan import beneath

PREFIX = "paddock-work-"
_YOUNG = 60
"""Seconds in which a directory without a lock may be one whose maker has not come to locking it."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NOBODY = 65534
"""Whom the directories of other users belong to in a user namespace."""


class Scratch:
    """A private directory (mode 0700). `close` removes it.

    Attributes:
        name: its canonical path.
    """

    def __init__(self, *, for_session: bool = False) -> None:
        """Makes it, and removes what killed processes of the same user have left."""
        self._lock = self._parent = -1
        state = written.user_state()
        above = f"{state}-checks" if for_session else f"{state}/scratch"
        try:
            os.makedirs(above, 0o700, exist_ok=True)
            above = os.path.realpath(above)
            self._parent = walk.open_canonical(above, _DIRECTORY)
            _refuse_others(above, self._parent, state)
            _sweep(self._parent)
            name = f"{PREFIX}{os.urandom(8).hex()}"
            os.mkdir(name, 0o700, dir_fd=self._parent)
            self._lock = os.open(name, _DIRECTORY | os.O_CLOEXEC, dir_fd=self._parent)
            os.fchmod(self._lock, 0o700)  # whatever the umask
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            self.close()
            raise unusable(above, error) from None
        except Refusal:
            self.close()
            raise
        self.name = f"{above}/{name}"

    def path(self, name: str) -> str:
        """A name in it."""
        return os.path.join(self.name, name)

    def close(self) -> None:
        """Removes it with all that is in it. Safe to call twice."""
        if self._lock != -1:
            remove_tree(self.name, parent=self._parent)
            os.close(self._lock)
        if self._parent != -1:
            os.close(self._parent)
        self._lock = self._parent = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _refuse_others(path: str, directory: int, state: str) -> None:
    """Refuses a place that is not this user's alone, or that a session could write."""
    own = os.fstat(directory)
    why = "" if own.st_uid == os.geteuid() and not own.st_mode & 0o077 else "others can use it"
    here = path
    while here != "/" and not why:
        here = os.path.dirname(here)
        found = os.lstat(here)
        if found.st_uid not in (0, os.geteuid(), _NOBODY):
            why = f"{here} belongs to user {found.st_uid}"
        elif found.st_mode & 0o002 and not found.st_mode & 0o1000:
            why = f"everyone can write {here}"
    why = why or next((f"jails could write {tree}" for tree in written.trees(state, path) if beneath(path, tree)), "")
    if why:
        raise Refusal(
            "scratch-unsafe",
            f"{path} is not safe for Paddock's own files",
            context=why,
            hint="point XDG_STATE_HOME at a directory of your own that no session can write",
        )


def _sweep(parent: int) -> None:
    for name in os.listdir(parent):
        if not name.startswith(PREFIX):
            continue
        try:
            descriptor = os.open(name, _DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
        except OSError:
            continue  # somebody else's, or gone
        try:
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o700:
                continue
            if time.time() - found.st_mtime < _YOUNG:
                continue
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # in use
        else:
            remove_tree(name, parent=parent)
        finally:
            os.close(descriptor)
