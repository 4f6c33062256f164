"""Git on the trusted repositories of a harvest: quarantines, and bounds for what unpacks an agent's pack."""

import os
from typing import NamedTuple

from launcher.jail import syscalls
from launcher.vcs.git import Git
from launcher.vcs.quarantine.settings import quoted

KEPT = "nothing is lost: the work stays in the private git directory; look at it with: paddock run -- git log"

_RLIMIT_AS = 9  # asm-generic/resource.h


class Quarantine(NamedTuple):
    """An object directory for objects that are not believed yet, and the store that it adds to."""

    directory: str
    store: str

    @property
    def environment(self) -> dict[str, str]:
        """As git-receive-pack(1) sets it: new objects go to the quarantine, and no ref can be moved meanwhile."""
        return {
            "GIT_OBJECT_DIRECTORY": self.directory,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted(self.store),
            "GIT_QUARANTINE_PATH": self.directory,
        }


def bound_memory(pid: int) -> None:
    """Bounds the address space of a child that unpacks what an agent packed: half the machine's memory, or 4 GiB.

    A delta of a few bytes can ask for as much memory as it likes.
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = max(1 << 30, min(4 << 30, physical // 2))
    _, hard = syscalls.prlimit64(pid, _RLIMIT_AS)
    most = min(most, hard)
    syscalls.prlimit64(pid, _RLIMIT_AS, (most, most))


def ref(git: Git, name: str) -> str:
    """The object id of a ref (or of HEAD), "" when there is none.

    Raises:
        GitFailed: git itself failed.
    """
    found = git.run("rev-parse", "--verify", "--quiet", "--end-of-options", name, ok=(0, 1))
    return found.out.decode().strip()
