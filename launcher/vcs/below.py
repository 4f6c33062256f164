"""What lies below a directory that an agent may have filled, however deep it is.

`os.walk` calls itself for each level before Python 3.12, so an agent could end whoever uses it with a RecursionError.
"""

import os
from collections.abc import Callable, Iterator

from launcher.jail import syscalls

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def files(
    top: str, skip: Callable[[str], bool] = lambda name: False, *, at: str = ""
) -> "Iterator[tuple[str, os.DirEntry[str]]]":
    """Whatever is no directory: files, links, and all else. No link is followed, whoever exchanges one meanwhile.

    A directory that is gone, closed to this user, or too deep for a path of the kernel's (PATH_MAX) has nothing.

    Args:
        top: a directory, canonical; one to which a link leads has nothing.
        skip: which directories are not entered, by their names.
        at: directory below `top` to begin with, which need not be one.

    Yields:
        Path relative to `top` and `at`, and the entry, which can be asked until the next one is taken.
    """
    try:
        root = syscalls.open_canonical(top, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        pending = [""]
        while pending:
            here = pending.pop()
            try:
                directory = syscalls.open_inside(root, os.path.join(at, here) or ".", _DIRECTORY)
            except OSError:
                continue
            try:
                with os.scandir(directory) as entries:
                    for entry in entries:
                        path = f"{here}/{entry.name}" if here else entry.name
                        if not entry.is_dir(follow_symlinks=False):
                            yield path, entry
                        elif not skip(entry.name):
                            pending.append(path)
            finally:
                os.close(directory)
    finally:
        os.close(root)
