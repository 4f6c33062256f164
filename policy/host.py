"""What decisions may ask of the machine. The launcher answers; tests answer from a table.

Every answer is also an input of the Plan: the launcher's implementation records what was asked, and a cached
Plan is valid only while each recorded answer would still be the same.
"""

from typing import NamedTuple, Protocol


class Trail(NamedTuple):
    """What one walk along a path found. Whoever judges a path and grants it must do both from the same walk.

    A path may lead elsewhere at the next: a session that is alive in the worktree can exchange a directory for a
    symbolic link at any time.

    Attributes:
        canonical: where it leads, all symbolic links followed; None when that does not exist or cannot be reached.
        links: symbolic links that were crossed, as (path of the link, its text), in order. The paths are canonical but
            for their last component. A loop gives what was met before it closed.
        entry: the canonical directory and the path's own last component, which may be a link; None when the way there
            does not exist.
        reached: how far the walk came: `canonical`, or the first name that was absent.
    """

    canonical: str | None
    links: tuple[tuple[str, str], ...]
    entry: str | None
    reached: str


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

    def trail(self, path: str) -> Trail:
        """Where `path` leads and how, from one walk; `resolve` says the same of where it leads."""

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
