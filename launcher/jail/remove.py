"""Removing a tree that an agent filled: any depth, any modes, no symbolic link followed, few descriptors.

Launch path (a session's end): `os` only; shutil costs 10 ms to import and gives up on deep trees.
"""

from launcher.lean import os


def remove_tree(path: str) -> list[str]:
    """Removes `path` and all below it.

    Directories found inside are first renamed to the top, so neither depth nor length of names matters. Modes
    are widened where needed (the tree is ours). Returns one line per entry that could not be removed; [] is success.
    """
    try:
        os.rmdir(path)
        return []
    except FileNotFoundError:
        return []
    except OSError:
        pass
    failures: list[str] = []
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        if os.lstat(path).st_mode & 0o170000 != 0o040000:  # a link would lead the change of mode elsewhere
            return [f"{path}: it is no directory"]
        os.chmod(path, 0o700)
        top = os.open(path, flags)
    except OSError as error:
        return [f"{path}: {error.strerror}"]
    try:
        pending = ["."]
        serial = 0
        mark = f".paddock-{os.urandom(6).hex()}"  # a crashed removal must not be in the way of the next
        while pending:
            name = pending.pop()
            directory = top if name == "." else _opened(name, top, flags, failures)
            if directory is None:
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
            finally:
                if directory != top:
                    os.close(directory)
            if name != ".":
                try:
                    os.rmdir(name, dir_fd=top)
                except OSError as error:
                    failures.append(f"{name!r}: {error.strerror}")
    finally:
        os.close(top)
    try:
        os.rmdir(path)
    except OSError as error:
        failures.append(f"{path}: {error.strerror}")
    return failures


def _opened(name: str, top: int, flags: int, failures: list[str]) -> int | None:
    try:
        return os.open(name, flags, dir_fd=top)
    except OSError as error:
        failures.append(f"{name!r}: {error.strerror}")
        return None


def _moved(entry: str, directory: int, target: str, top: int, failures: list[str]) -> bool:
    """Renames a directory to the top. rename(2) writes its `..`, so it must be writable itself."""
    try:
        os.chmod(entry, 0o700, dir_fd=directory)
        os.rename(entry, target, src_dir_fd=directory, dst_dir_fd=top)
    except OSError as error:
        failures.append(f"{entry!r}: {error.strerror}")
        return False
    return True
