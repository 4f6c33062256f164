"""What decisions may ask of the machine. The launcher answers; tests answer from a table.

Every answer is also an input of the Plan: the launcher's implementation records what was asked, and a cached
Plan is valid only while each recorded answer would still be the same.
"""

from typing import Protocol


class Host(Protocol):
    """Questions about the disk and the environment. Paths are absolute `str` (surrogateescape)."""

    @property
    def home(self) -> str:
        """Canonical home directory of the calling user (from the password database when HOME is unset)."""

    @property
    def uid(self) -> int:
        """Effective user id."""

    def env(self, name: str) -> str | None:
        """The caller's environment variable, or None."""

    def kind(self, path: str) -> str | None:
        """``file``, ``dir``, ``link``, ``socket``, ``fifo``, ``char``, ``block``; None when absent. Like lstat(2)."""

    def resolve(self, path: str) -> str | None:
        """The canonical path (all symbolic links followed); None when it does not exist or cannot be reached."""

    def links(self, path: str) -> tuple[tuple[str, str], ...]:
        """Symbolic links met while resolving `path`, as (path of the link, its text), in order."""

    def listing(self, path: str) -> tuple[str, ...] | None:
        """Sorted names in a directory; None when it cannot be listed."""

    def present(self, directory: str, names: tuple[str, ...], suffixes: tuple[str, ...]) -> tuple[str, ...]:
        """Sorted entries of a directory that are in `names` or end in one of `suffixes`; () when it cannot be listed.

        Unlike `listing` it does not make a Plan depend on every other entry.
        """

    def read(self, path: str, limit: int = 65536) -> bytes | None:
        """Content of a regular file, at most `limit` bytes (longer: None); None when it cannot be read."""

    def executable(self, path: str) -> bool:
        """Whether the calling user may execute this regular file."""

    def names(self, path: str) -> int:
        """How many names a regular file has (hard links); 0 for anything else."""

    def others_can_write(self, path: str) -> bool:
        """Whether a user other than root and the caller may write `path`: mode bit o+w, or another owner."""
