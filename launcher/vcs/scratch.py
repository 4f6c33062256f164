"""Directories for a moment's work, of which a SIGKILL leaves none for long: the next one that is made removes them.

tempfile(3)'s directories vanish with the object that made them, not with a process that was killed. Each of these is
locked as long as it is in use, so what nobody holds is known to be left over.
"""

import fcntl
import os
import stat
import tempfile
import time
from typing import Self

from launcher.jail.remove import remove_tree

PREFIX = "paddock-work-"
_YOUNG = 60
"""Seconds in which a directory without a lock may be one whose maker has not come to locking it."""


class Scratch:
    """A private directory (mode 0700) below the system's temp directory. `close` removes it."""

    def __init__(self) -> None:
        """Makes it, and removes what killed processes of the same user have left.

        Raises:
            OSError: none can be made.
        """
        _sweep(tempfile.gettempdir())
        self.name = tempfile.mkdtemp(prefix=PREFIX)
        self._lock = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def path(self, name: str) -> str:
        """A name in it."""
        return os.path.join(self.name, name)

    def close(self) -> None:
        """Removes it with all that is in it. Safe to call twice."""
        if self._lock != -1:
            remove_tree(self.name)
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _sweep(parent: str) -> None:
    """Removes this user's directories there that nobody holds any more."""
    for name in os.listdir(parent):
        if not name.startswith(PREFIX):
            continue
        path = os.path.join(parent, name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
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
            remove_tree(path)
        finally:
            os.close(descriptor)
