"""Git on the trusted repositories of a harvest: quarantines, and where refs are."""

from typing import NamedTuple

from launcher.vcs.git import Git
from launcher.vcs.quarantine.settings import quoted

KEPT = "nothing is lost: the work stays in the private git directory; look at it with: paddock run -- git log"


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


def ref(git: Git, name: str) -> str:
    """The object id of a ref (or of HEAD), "" when there is none.

    Raises:
        GitFailed: git itself failed.
    """
    found = git.run("rev-parse", "--verify", "--quiet", "--end-of-options", name, ok=(0, 1))
    return found.out.decode().strip()
