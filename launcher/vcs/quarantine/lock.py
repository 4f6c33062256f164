"""Who uses a private git directory: sessions share it, whoever makes, renews or harvests it has it alone.

flock(2) on ``lock`` in the directory. A lock belongs to the open file description, which the jail's init inherits: it
is held as long as any process of the session lives that is not jailed, and the kernel lets go of it after a SIGKILL.

Launch path: `os`, `fcntl`.
"""

import fcntl

from launcher.lean import os

LOCK = "lock"


def opened(directory: str) -> int:
    """The lock file of a private git directory, made when it is missing; nothing is locked yet. Close-on-exec.

    Closing the descriptor, in every process that has it, lets go of what was locked with it.

    Raises:
        OSError: it cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    mask = os.umask(0o077)
    try:
        return os.open(f"{directory}/{LOCK}", flags, 0o600)
    finally:
        os.umask(mask)


def is_of_another(git_dir: str, directory: str) -> bool:
    """Whether a private git directory is older than the linked worktree that has its place now.

    Git writes ``commondir`` when it makes a worktree and never again, and the lock file is as old as the directory. A
    main checkout has no ``commondir``.

    Args:
        git_dir: of the worktree.
        directory: of the private git directory, and of its record.
    """
    try:
        return os.stat(f"{git_dir}/commondir").st_mtime_ns > os.stat(f"{directory}/{LOCK}").st_mtime_ns
    except OSError:
        return False


def alone(descriptor: int, *, wait: bool) -> bool:
    """Takes the lock for this process alone.

    Args:
        descriptor: from `opened`.
        wait: until nobody else has it.

    Returns:
        Whether it was taken; always, when waiting.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def together(descriptor: int) -> None:
    """Takes the lock beside other sessions, waiting while somebody has it alone.

    Whoever held it alone lets go for a moment (flock(2)): what it knew of the directory has to be read again.
    """
    fcntl.flock(descriptor, fcntl.LOCK_SH)
