"""Removing a tree that an agent filled: any depth, any modes, no symbolic link followed, few descriptors.

A session that still lives may exchange anything below the tree meanwhile. So the directory that holds the tree is
opened once, and everything then goes by descriptors: what is exchanged for a link is a failure that is told.

Launch path (a session's end): `os` only; shutil costs 10 ms to import and gives up on deep trees.
"""

from launcher.lean import os

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str, *, parent: int | None = None) -> list[str]:
    """Removes `path` and all below it.

    Directories found inside are first renamed to the top, so neither depth nor length of names matters. Modes
    are widened where needed (the tree is ours). Returns one line per entry that could not be removed; [] is success.

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
            return [f"{path}: it is no directory"]
        except OSError as error:
            return [f"{path}: {error.strerror}"]
        try:
            failures = _emptied(top)
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


def _emptied(top: int) -> list[str]:
    failures: list[str] = []
    pending = ["."]
    serial = 0
    mark = f".paddock-{os.urandom(6).hex()}"  # a crashed removal must not be in the way of the next
    while pending:
        name = pending.pop()
        try:
            directory = top if name == "." else _opened(name, top)
        except OSError as error:
            failures.append(f"{name!r}: {error.strerror}")
            continue
        try:
            for entry in os.listdir(directory):
                try:
                    os.unlink(entry, dir_fd=directory)
                except (IsADirectoryError, PermissionError):
                    try:
                        os.rmdir(entry, dir_fd=directory)  # most are empty
                        continue
                    except OSError:
                        serial += 1
                    moved = f"{mark}-{serial}"
                    if _moved(entry, directory, moved, top, failures):
                        pending.append(moved)
                except OSError as error:
                    failures.append(f"{entry!r}: {error.strerror}")
        except OSError as error:
            failures.append(f"{name!r}: {error.strerror}")
        finally:
            if directory != top:
                os.close(directory)
        if name != ".":
            try:
                os.rmdir(name, dir_fd=top)
            except OSError as error:
                failures.append(f"{name!r}: {error.strerror}")
    return failures


def _opened(name: str, parent: int) -> int:
    """A directory that can be listed and written; OSError when there is none, or a link."""
    found = os.open(name, _PATH, dir_fd=parent)
    try:
        widen(found)
        return os.open(".", _DIRECTORY, dir_fd=found)
    finally:
        os.close(found)


def _moved(entry: str, directory: int, target: str, top: int, failures: list[str]) -> bool:
    """Renames a directory to the top. rename(2) writes its `..`, so it must be writable itself."""
    try:
        found = os.open(entry, _PATH, dir_fd=directory)
        try:
            widen(found)
        finally:
            os.close(found)
        os.rename(entry, target, src_dir_fd=directory, dst_dir_fd=top)
    except OSError as error:
        failures.append(f"{entry!r}: {error.strerror}")
        return False
    return True
