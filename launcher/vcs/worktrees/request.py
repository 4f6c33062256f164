"""What somebody asks of the worktree service."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

Step = Callable[[str], None]
"""Called with a word before each change on the disk; tests kill the process there."""

Say = Callable[[str], None]
"""Takes a line about what is going on, for long work."""

Unharvested = Callable[[Path], bool | tuple[str, ...]]
"""What the worktree with this root has in a private git directory that was not brought home, in words; or whether."""


def quiet(_: str) -> None:
    """A `Step` or `Say` for nobody."""


class Options(NamedTuple):
    """How a worktree is to be made.

    Attributes:
        branch: its branch; one that exists is taken up where it is. None: ``agent/<ticket>``, which must be new.
        start: the commit to start from, for a new branch. None: the parent's HEAD.
        path: its directory. None: beside the parent.
        submodules: names of the ones to populate. None: all.
        copy: patterns of untracked files to copy from the parent.
        sparse: directories to check out, in cone mode. None: as the parent does.
        filters: names of `filter` drivers, of the repository's or the user's configuration, that may run (``lfs``).
        workers: processes that write files. None: as many as there are processors, 8 at most.
    """

    branch: str | None = None
    start: str | None = None
    path: str | None = None
    submodules: tuple[str, ...] | None = None
    copy: tuple[str, ...] = ()
    sparse: tuple[str, ...] | None = None
    filters: tuple[str, ...] = ()
    workers: int | None = None

    def processes(self) -> int:
        """How many gits write files. Two are quicker than one, even on one processor: they overlap."""
        return self.workers if self.workers is not None else min(8, max(2, len(os.sched_getaffinity(0))))

    def settings(self) -> tuple[tuple[str, str], ...]:
        """Git configuration of the checkout."""
        return (("checkout.workers", str(self.processes())), ("checkout.thresholdForParallelism", "50"))
