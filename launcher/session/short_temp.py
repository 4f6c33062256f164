"""A temp directory with a short name, for jails without mounts of their own.

Programmes put sockets there, and a socket's address has room for 107 bytes (unix(7)); the state directory's path alone
may be longer. /run/user would be short too, but it is a small tmpfs that the user's desktop needs.

Loaded by sessions on the backend landlock+guard: see launcher/jail/syscalls.py.
"""

from launcher.lean import os
from launcher.safefs.remove import remove_tree
from launcher.session import inputs
from launcher.session.places import make_private

BASE = "/tmp"
PREFIX = "paddock-"


def make(link: str) -> str:
    """Makes the directory and `link`, which leads to it. Returns its canonical path.

    The link comes first: whoever cleans up after a SIGKILL finds what was made. Where /tmp is no place to trust, it is
    an ordinary directory at `link` itself, and the answer is "".

    Args:
        link: path in the session's own directory.

    Raises:
        OSError: neither can be made.
    """
    base = inputs.resolved(BASE)
    if base is None or not _trusted(base):
        make_private(link)
        return ""
    path = f"{base}/{PREFIX}{os.urandom(5).hex()}"
    os.symlink(path, link)
    os.mkdir(path, 0o700)
    os.chmod(path, 0o700)  # whatever the umask
    return path


def remove(link: str) -> list[str]:
    """Removes the directory that `link` leads to, unless it is somebody else's by now. Returns what is left."""
    path = os.readlink(link)
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{path}: {error.strerror}"]
    own = found.st_mode & 0o170000 == 0o040000 and found.st_uid == os.geteuid()
    return remove_tree(path) if own and os.path.basename(path).startswith(PREFIX) else []


def _trusted(directory: str) -> bool:
    """Whether nobody else can rename or remove what this user makes there, and this user can make something."""
    try:
        found = os.lstat(directory)
    except OSError:
        return False
    if found.st_mode & 0o170000 != 0o040000 or not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        return False
    return found.st_uid in (0, os.geteuid()) and (bool(found.st_mode & 0o1000) or not found.st_mode & 0o022)
