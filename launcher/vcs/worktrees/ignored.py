"""What git ignores in a worktree: mostly made by tools and made again, but an agent's results may be among it.

It keeps no worktree from being removed, and no backup has it. So it is named.
"""

import os
from collections.abc import Iterable
from itertools import islice

from pydantic import BaseModel, ConfigDict

from launcher.vcs import below
from launcher.vcs.quarantine.inside import Inside

_NAMED = 5
MOST_FILES = 20_000
"""Files that are looked at; the answer is known to be incomplete then."""


class Ignored(BaseModel):
    """Ignored files of one part of a worktree.

    Attributes:
        names: places relative to the part, each a file or (with a slash behind it) a directory that is wholly ignored.
        files: how many files there are.
        size: their bytes.
        more: whether there are more than were looked at.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[str, ...] = ()
    files: int = 0
    size: int = 0
    more: bool = False

    def __str__(self) -> str:
        """For people: count, size, the first names."""
        shown = ", ".join(self.names[:_NAMED])
        rest = f" and {len(self.names) - _NAMED} more" if len(self.names) > _NAMED else ""
        least = "at least " if self.more else ""
        return f"{least}{self.files} file{'' if self.files == 1 else 's'}, {_readable(self.size)}: {shown}{rest}"


def look(root: str, places: Iterable[str]) -> Ignored:
    """The ignored files of a part; empty directories are none.

    Args:
        root: of its files.
        places: what git says is ignored, relative to `root`; with a slash behind it, it is a directory.
    """
    names: list[str] = []
    files = size = 0
    for name in places:
        here, bytes_ = _measured(root, name, MOST_FILES - files)
        files, size = files + here, size + bytes_
        names += [name] if here else []
        if files >= MOST_FILES:
            break
    return Ignored(names=tuple(names), files=files, size=size, more=files >= MOST_FILES)


def _measured(root: str, name: str, most: int) -> tuple[int, int]:
    """(number of files, bytes) of a file, or of a directory and all below it."""
    if not name.endswith("/"):
        with Inside(root) as inside:
            found = inside.size(name)
            return (0, 0) if found is None else (1, found)
    sizes = [_size(entry) for _, entry in islice(below.files(root, at=name), most)]
    return len(sizes), sum(sizes)


def _size(entry: "os.DirEntry[str]") -> int:
    """Bytes of a file; 0 where that is closed to us, or gone."""
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:
        return 0


def _readable(size: int) -> str:
    number, unit = float(size), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            break
        number /= 1024
    return f"{size} byte{'' if size == 1 else 's'}" if unit == "bytes" else f"{number:.1f} {unit}"
