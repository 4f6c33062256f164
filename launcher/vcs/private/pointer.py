"""One `.git` entry of a worktree that an agent could write: looked at, put aside and replaced without following it.

The directory that holds it is opened once, without links below the worktree's root. Everything then goes by that
descriptor and the one name: a link, a FIFO or a directory that an agent has left there is never opened.

Launch path of jails without mounts: `os`, `errno` and the system calls.
"""

import errno

from launcher.lean import os
from launcher.safefs import walk
from launcher.safefs.remove import widen

NAME = ".git"
MOST_BYTES = 8192
"""A pointer file is one path. Git reads up to 1 MiB of one; what is longer than this is not believed anywhere."""

_GITDIR = b"gitdir: "
_ON_THE_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TYPE = 0o170000
_FILE, _SUBDIRECTORY, _LINK = 0o100000, 0o040000, 0o120000


def text(content: bytes | None) -> str | None:
    """The path in a pointer file, as git reads it (`read_gitfile_gently` in its setup.c); None when it is no pointer.

    Line ends are cut off from the whole of it, and what is left ends at a NUL.
    """
    line = (content or b"").rstrip(b"\r\n")
    if not line.startswith(_GITDIR) or line == _GITDIR:
        return None
    return os.fsdecode(line[len(_GITDIR) :].partition(b"\0")[0])


def target(content: bytes | None, path: str) -> str | None:
    """The canonical git directory that a pointer file in the directory `path` names; None when it is no pointer."""
    place = text(content)
    if place is None or b"\0" in (content or b""):
        return None
    return os.path.realpath(os.path.join(path, place))


def named(content: bytes | None, path: str) -> str | None:
    """The git directory that a pointer file in the directory `path` (canonical) names, as it is written there.

    None where it is no pointer, or names no canonical path: what a link of an agent's own leads to now, or what does
    not exist yet, is something else later.
    """
    place = text(content)
    if place is None or b"\0" in (content or b"") or os.path.normpath(place) != place:
        return None  # with `..` behind a name, which may be a link
    found = os.path.normpath(os.path.join(path, place))
    return found if os.path.realpath(found) == found else None


class Holder:
    """The directory of a `.git` entry. A context manager.

    Attributes:
        path: the directory.
    """

    __slots__ = ("_fd", "path")

    def __init__(self, root: str, path: str) -> None:
        """Opens `path`, in the worktree at `root`; NotADirectoryError where an agent has put a link in its way."""
        self.path = path
        self._fd = walk.open_canonical(root, _ON_THE_WAY)
        try:
            widen(self._fd)
            for name in path[len(root) :].split("/"):
                if name:
                    self._step(name, _ON_THE_WAY)
                    widen(self._fd)
            self._step(".", _DIRECTORY)
        except BaseException:
            os.close(self._fd)
            raise

    def _step(self, name: str, flags: int) -> None:
        inner = os.open(name, flags, dir_fd=self._fd)
        os.close(self._fd)
        self._fd = inner

    def __enter__(self) -> "Holder":
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)

    def stat(self, name: str = NAME) -> "os.stat_result | None":
        """What lstat(2) says of an entry; None when it is not there."""
        try:
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def read(self, name: str = NAME) -> bytes | None:
        """Content of an entry when it is a regular file of a pointer's size, else None."""
        try:
            return walk.read_regular(name, MOST_BYTES, dir_fd=self._fd)
        except OSError:
            return None  # absent, a link (ELOOP), or its mode was taken away: no pointer

    def put(
        self,
        content: bytes,
        temporary: str,
        *,
        mode: int = 0o644,
        owner: tuple[int, int] | None = None,
        time: int | None = None,
        lasting: bool = True,
    ) -> None:
        """Makes the entry a new regular file in one step, as `walk.put` does."""
        walk.put(self._fd, NAME, content, temporary=temporary, mode=mode, owner=owner, time=time, lasting=lasting)

    def drop(self, name: str) -> None:
        """Removes a file or link of that name, if there is one."""
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            return

    def put_aside(self, directory: str, name: str = NAME) -> str:
        """Moves an entry, whatever it is, to where no git looks for it. Returns where it is; "" when it was nothing.

        Into `directory` where that is possible. On another file system a pointer's worth of text, or that of a link, is
        written anew there; what is larger gets another name where it is, and nobody may enter it; a FIFO goes.
        After an OSError it is where it was.
        """
        found = self.stat(name)
        if found is None:
            return ""
        kind = found.st_mode & _TYPE
        if kind == _SUBDIRECTORY:
            self._change_mode(name, 0o700)  # rename(2) of a directory writes its `..`
        aside = f"{directory}/docked-{os.urandom(5).hex()}"
        try:
            os.rename(name, aside, src_dir_fd=self._fd)
            return aside
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        content = os.fsencode(os.readlink(name, dir_fd=self._fd)) if kind == _LINK else self.read(name)
        if content is not None:
            fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                walk.write_all(fd, content)
            finally:
                os.close(fd)
        elif kind in (_FILE, _SUBDIRECTORY):
            other = f"{name}.docked-{os.urandom(5).hex()}"
            os.rename(name, other, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            self._change_mode(other, 0)
            return f"{self.path}/{other}"
        else:
            aside = ""
        os.unlink(name, dir_fd=self._fd)
        return aside

    def _change_mode(self, name: str, mode: int) -> None:
        """Changes the mode of a file or directory, whatever its mode was, and never through a link."""
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            os.chmod(f"/proc/self/fd/{fd}", mode)
        finally:
            os.close(fd)
