"""The way to a place in a worktree that an agent has written, and how such a place is named in what a user may type.

A link anywhere on the way may lead to what is the user's own. So nobody is advised to remove or fill what lies behind
one.
"""

import errno
import os
import stat
from typing import NamedTuple

from policy.errors import printable
from policy.pasted import pathspec, quoted

_TOP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ANYTHING = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class Way(NamedTuple):
    """What a walk to a place has found.

    Attributes:
        there: whether something is there, or may be, where a directory is closed to us; reached through no link.
        link: absolute path of the first symbolic link on the way, the place itself included; "" for none.
        target: the text of that link.
    """

    there: bool
    link: str = ""
    target: str = ""

    @property
    def told(self) -> str:
        """The link in words, which can be printed."""
        return f"{printable(self.link)} is a symbolic link to {printable(self.target)}"


def look(root: str, path: str) -> Way:
    """Walks from `root` to `path`, name by name, and stops at the first symbolic link (openat(2), O_NOFOLLOW).

    Args:
        root: canonical root of the worktree; nothing that leads to it is an agent's.
        path: absolute, in it.

    Raises:
        OSError: something else is wrong than that it is not there, or closed.
    """
    names = [name for name in path[len(root) :].split("/") if name not in ("", ".")]
    if ".." in names:
        return Way(there=False)
    here = -1
    done = root
    try:
        here = os.open(root, _TOP)
        for name in names:
            done = f"{done}/{name}"
            inner = os.open(name, _ANYTHING, dir_fd=here)
            os.close(here)
            here = inner
            if stat.S_ISLNK(os.fstat(here).st_mode):
                return Way(there=False, link=done, target=os.readlink("", dir_fd=here))
    except PermissionError:
        return Way(there=True)
    except OSError as error:
        if error.errno in _ABSENT:
            return Way(there=False)
        raise
    finally:
        if here != -1:
            os.close(here)
    return Way(there=True)


def update(around: str, where: str) -> str:
    """The command that populates the submodule `where` of the repository at `around`.

    Only for a place that is reached through no link: git may follow one into what is the user's own.
    """
    return f"git -C {quoted(around)} submodule update --init -- {pathspec(where)}"


def populate(root: str | None, path: str, spelled: str) -> str:
    """What to do about a submodule that is not populated: git's command, in the repository around all; or the link.

    Args:
        root: canonical root of the worktree around it; None where there are no files.
        path: of the submodule, relative to `root`.
        spelled: the same, from where the command is to be run.
    """
    seen = look(root, f"{root}/{path}") if root is not None else Way(there=False)
    if seen.link:
        return f"{seen.told}, so nothing is to be populated there"
    return f"git submodule update --init -- {pathspec(spelled)}"
