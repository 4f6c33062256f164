"""Opening a path below a directory so that nothing leads out, whatever is swapped meanwhile (openat2(2)).

The validator's verdict is about a moment. What it found is a path without symbolic links; a link that is met now was
put there since, and ends the matter. A jail's filter hides openat2(2), whose arguments it cannot read: there the path
is walked by hand, each step from the descriptor of the step before, which holds just as well.
"""

import errno
import os

from launcher.jail import syscalls, walk

_ATTEMPTS = 16


def open_beneath(root: int, path: str, flags: int) -> int:
    """A descriptor (close-on-exec) of what `path` names below `root`; the caller owns it.

    Args:
        root: descriptor of the directory.
        path: relative, with no ``..`` in it; "" is the directory itself.
        flags: of open(2), without O_CREAT and O_TMPFILE.

    Raises:
        OSError: as openat2(2): ELOOP for a symbolic link on the way, EXDEV for a path that leads up or starts at /.
    """
    flags |= os.O_CLOEXEC
    path = path or "."
    for _ in range(_ATTEMPTS):
        try:
            return syscalls.open_inside(root, path, flags)
        except OSError as error:
            if error.errno == errno.ENOSYS:
                return open_by_steps(root, path, flags)
            if error.errno != errno.EAGAIN:  # a directory was renamed meanwhile (openat2(2))
                raise
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)


def open_by_steps(root: int, path: str, flags: int) -> int:
    """The same by openat(2) alone; see `open_beneath`."""
    if path.startswith("/") or ".." in path.split("/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    return walk.open_without_links(root, path, flags | os.O_CLOEXEC)


def make_beneath(root: int, path: str) -> int:
    """The directory `path` below `root`, made with its parents where they are missing; the caller owns the descriptor.

    Raises:
        OSError: as `open_beneath` and mkdir(2).
    """
    try:
        return open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        pass
    here = os.dup(root)
    names = path.split("/")
    try:
        for left, name in enumerate(names, 1 - len(names)):
            try:
                os.mkdir(name, dir_fd=here)
            except FileExistsError:
                pass
            # Those on the way need not be readable.
            found = open_beneath(here, name, (os.O_PATH if left else os.O_RDONLY) | os.O_DIRECTORY)
            os.close(here)
            here = found
    except BaseException:
        os.close(here)
        raise
    return here
