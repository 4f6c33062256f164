"""Removing a tree that an agent filled: any depth, any modes, no symbolic link followed, few descriptors.

A session that still lives may exchange anything below the tree meanwhile. So the directory that holds the tree is
opened once, and everything then goes by descriptors: what is exchanged for a link is a failure that is reported.

Launch path (a session's end): `os` only; shutil costs 10 ms to import and gives up on deep trees.
"""

from launcher.lean import os

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEEPEST = 8
"""Levels that are entered one in another, each with a descriptor. Renaming all would be most of the work."""
_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str, *, parent: int | None = None) -> list[str]:
    """Removes `path` and all below it.

    Directories that lie deep are first renamed to the top, so neither depth nor length of names matters. Modes are
    widened where needed (the tree is ours). Returns one line per entry that could not be removed; [] is success.

    Args:
        path: the tree. Nothing that leads to the directory around it is an agent's, unless `parent` is given.
        parent: descriptor of the directory around it, for the caller to close.
    """
    name = os.path.basename(path)
    try:
        around = os.open(os.path.dirname(path) or ".", _PATH & ~os.O_NOFOLLOW) if parent is None else os.dup(parent)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{path}: {error.strerror}"]
    try:
        try:
            os.rmdir(name, dir_fd=around)
            return []
        except FileNotFoundError:
            return []
        except OSError:
            pass
        try:
            top = _opened(name, around)
        except NotADirectoryError:  # Linux says so of a link, too
            return [f"{path}: it is not a directory"]
        except OSError as error:
            return [f"{path}: {error.strerror}"]
        try:
            failures = _Emptying(top).failures
        finally:
            os.close(top)
        try:
            os.rmdir(name, dir_fd=around)
        except OSError as error:
            failures.append(f"{path}: {error.strerror}")
        return failures
    finally:
        os.close(around)


def widen(directory: int) -> None:
    """Gives a directory's owner, if that is the caller, all rights on it: an agent may have taken them away.

    Args:
        directory: a descriptor, of O_PATH too; so the mode of nothing else changes.

    Raises:
        OSError: the mode cannot be changed.
    """
    found = os.fstat(directory)
    if found.st_mode & 0o700 != 0o700 and found.st_uid == os.geteuid():
        os.chmod(f"/proc/self/fd/{directory}", found.st_mode & 0o7777 | 0o700)


class _Emptying:
    __slots__ = ("_mark", "_pending", "_top", "failures")

    def __init__(self, top: int) -> None:
        self.failures: list[str] = []
        self._top = top
        self._mark = f".paddock-{os.urandom(6).hex()}"  # a crashed removal must not be in the way of the next
        self._pending: list[str] = []
        self._level(top, 0)
        serial = 0
        while serial < len(self._pending):
            self._below(self._pending[serial], top, 0)
            serial += 1

    def _level(self, directory: int, depth: int) -> None:
        try:
            for entry in os.listdir(directory):
                try:
                    os.unlink(entry, dir_fd=directory)
                except (IsADirectoryError, PermissionError):
                    try:
                        os.rmdir(entry, dir_fd=directory)  # most are empty
                    except OSError:
                        if depth < _DEEPEST:
                            self._below(entry, directory, depth + 1)
                        else:
                            self._to_the_top(entry, directory)
                except OSError as error:
                    self.failures.append(f"{entry!r}: {error.strerror}")
        except OSError as error:
            self.failures.append(f"{error.strerror}")

    def _below(self, entry: str, directory: int, depth: int) -> None:
        try:
            inside = _opened(entry, directory)
            try:
                self._level(inside, depth)
            finally:
                os.close(inside)
            os.rmdir(entry, dir_fd=directory)
        except OSError as error:
            self.failures.append(f"{entry!r}: {error.strerror}")

    def _to_the_top(self, entry: str, directory: int) -> None:
        """Renames a directory that is too deep. rename(2) writes its `..`, so it must be writable itself."""
        moved = f"{self._mark}-{len(self._pending)}"
        try:
            os.close(_opened(entry, directory))
            os.rename(entry, moved, src_dir_fd=directory, dst_dir_fd=self._top)
        except OSError as error:
            self.failures.append(f"{entry!r}: {error.strerror}")
        else:
            self._pending.append(moved)


def _opened(name: str, parent: int) -> int:
    """A directory that can be listed and written; OSError when there is none, or a link."""
    try:
        found = os.open(name, _DIRECTORY, dir_fd=parent)
    except PermissionError:
        path = os.open(name, _PATH, dir_fd=parent)
        try:
            widen(path)
            return os.open(".", _DIRECTORY, dir_fd=path)
        finally:
            os.close(path)
    try:
        widen(found)
    except OSError:
        os.close(found)
        raise
    return found
