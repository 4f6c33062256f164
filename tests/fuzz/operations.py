"""What one can do to a path, really done: the same programme runs in the jail and, for comparison, outside of it.

Standard library's core only: in the jail it is `python3 -I -S -c` with this file's text. It reads from stdin, a line
for each job, the operation and the path in hexadecimal, and writes for each the errno's name or ``ok``. Nothing is
changed for good: what was made is removed, what was moved goes back.
"""

import errno
import os
import sys


def act(operation: str, path: bytes) -> None:
    """Does it, and undoes it. OSError when the kernel says no."""
    if operation == "READ":
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
    elif operation == "LIST":
        os.listdir(path)
    elif operation == "WRITE":
        existed = os.path.exists(path)
        target = os.path.realpath(path)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY, 0o600))
        if not existed:
            os.unlink(target)
    elif operation == "MKDIR":
        os.mkdir(path)
        os.rmdir(path)
    elif operation in ("DELETE", "MOVE"):
        # A rename to a name beside needs what removal needs, and can be undone; by descriptor, because the way may lead
        # through what is renamed.
        folder, slash, name = path.rpartition(b"/")
        directory = os.open((folder or slash) or b".", os.O_PATH | os.O_DIRECTORY)
        try:
            os.rename(path, b"beside-" + name[:200], dst_dir_fd=directory)
            os.rename(b"beside-" + name[:200], name, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            os.close(directory)
    elif operation == "EXECUTE":
        execute(path)
    else:
        raise ValueError(operation)


def execute(path: bytes) -> None:
    """Starts the programme; OSError when execve(2) fails. A fork would copy the tables of a large process."""
    os.waitpid(os.posix_spawn(path, [path], {}), 0)


def outcome(operation: str, path: bytes) -> str:
    """``ok``, or the name of the errno."""
    try:
        act(operation, path)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "ok"


def main() -> None:
    """Carries out the jobs of stdin."""
    for line in sys.stdin:
        operation, path = line.split()
        sys.stdout.write(outcome(operation, bytes.fromhex(path)) + "\n")


if __name__ == "__main__":
    main()
