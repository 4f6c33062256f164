"""Where a repository and its submodules lie on this machine: stores to merge in, worktrees to move."""

import glob
import os
from typing import NamedTuple

from launcher.vcs import checkout
from launcher.vcs.disk import Present
from policy.errors import Refusal


class Place(NamedTuple):
    """One repository, seen from one of its worktrees or from none.

    Attributes:
        git_dir: of the worktree (HEAD, index); the repository's own where there is no worktree.
        common_dir: of the repository (objects, refs).
        worktree: canonical root of the files; None where none are to be touched.
    """

    git_dir: str
    common_dir: str
    worktree: str | None

    @classmethod
    def of(cls, root: str) -> "Place":
        """The worktree whose root is `root`.

        Raises:
            Refusal: as `checkout.find`.
        """
        found = checkout.find(os.path.abspath(root), Present(), exact=True)
        return cls(found.git_dir, found.common_dir, found.root)

    def submodule(self, name: str, path: str) -> "Place | None":
        """The submodule `name` that is recorded at `path`: checked out there, or at least its store; None for neither.

        The store is the one of this very worktree if there is one, else the one of the main checkout.

        Raises:
            Refusal: git-pointer-invalid: something else lies there and says that it is the submodule.
        """
        if self.worktree is not None:
            root = os.path.join(self.worktree, path)
            if os.path.lexists(f"{root}/.git"):
                if os.path.realpath(root) != root:
                    raise Refusal(
                        "git-pointer-invalid",
                        f"{root} is reached through a symbolic link, as no submodule is",
                        hint="look at it: git does not follow such links either",
                    )
                return Place.of(root)
        for directory in dict.fromkeys((self.git_dir, self.common_dir)):
            store = f"{directory}/modules/{name}"
            if _is_store(store):
                return Place(store, store, None)
        return None

    def other_stores(self, modules: str) -> list[str]:
        """All stores of one submodule in this repository: the main checkout's and each linked worktree's.

        Args:
            modules: the way to it from a `modules` directory: ``lib``, ``lib/modules/inner``.
        """
        tail = f"modules/{glob.escape(modules)}"
        base = glob.escape(self.common_dir)
        found = [*glob.glob(f"{base}/{tail}"), *glob.glob(f"{base}/worktrees/*/{tail}")]
        return [store for store in sorted(found) if _is_store(store)]


def _is_store(path: str) -> bool:
    return os.path.isfile(f"{path}/HEAD") and os.path.isdir(f"{path}/objects") and os.path.isdir(f"{path}/refs")
