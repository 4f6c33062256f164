"""A line too long for memory: kept in a file without a name until it is whole, then given out in portions."""

import errno
import os

PORTION = 1 << 16
"""Bytes that are given out at once."""

_FLAGS = os.O_RDWR | os.O_CLOEXEC


class Kept:
    """One line, or the beginning of it. The file goes with the last descriptor, whatever happens to this process.

    Attributes:
        left: bytes that were added and not given out yet.
    """

    def __init__(self, directory: str) -> None:
        """Makes the file.

        Args:
            directory: on a disk, out of the agent's reach.

        Raises:
            OSError: it cannot be made.
        """
        self.left = 0
        self._given = 0
        try:
            self._fd = os.open(directory, _FLAGS | os.O_TMPFILE, 0o600)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
                raise
            self._fd = _named_and_removed(directory)  # a file system without O_TMPFILE (open(2))

    def add(self, data: bytes | bytearray) -> None:
        """Adds to the end.

        Raises:
            OSError: no space, or beyond a limit on files.
        """
        with memoryview(data) as view:
            at = 0
            while at < len(view):
                at += os.pwrite(self._fd, view[at:], self._given + self.left + at)
        self.left += len(data)

    def give(self) -> bytes:
        """The next portion; b"" when all was given out.

        Raises:
            OSError: it cannot be read.
        """
        data = os.pread(self._fd, PORTION, self._given)
        self._given += len(data)
        self.left -= len(data)
        return data

    def close(self) -> None:
        """Gives the file up."""
        os.close(self._fd)


def _named_and_removed(directory: str) -> int:
    path = f"{directory}/.line-{os.urandom(8).hex()}"
    fd = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    os.unlink(path)
    return fd
