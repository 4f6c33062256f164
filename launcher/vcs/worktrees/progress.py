"""How far the work of worktrees has come: nothing committed, committed, merged. Asked of git once per repository."""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from launcher.vcs.git import Git, GitFailed
from launcher.vcs.worktrees import files
from launcher.vcs.worktrees.models import Worktree

_BRANCH = "refs/heads/"


class Work(StrEnum):
    """What has become of a worktree's own commits."""

    NONE = "none"
    OPEN = "open"
    MERGED = "merged"
    UNKNOWN = "unknown"


class Progress(NamedTuple):
    """Of one worktree.

    Attributes:
        work: of its recorded branch. UNKNOWN without one, or without a commit in the main checkout.
        into: the branch of the main checkout, "HEAD" when it is on none.
    """

    work: Work
    into: str

    def __str__(self) -> str:
        """For a column."""
        return {
            Work.NONE: "no commits",
            Work.OPEN: "to merge",
            Work.MERGED: f"in {self.into}",
            Work.UNKNOWN: "-",
        }[self.work]


def of(worktrees: Iterable[Worktree]) -> dict[str, Progress]:
    """How far each is, by its id. Merged is what the branch of the repository's main checkout contains."""
    by_repository: dict[str, list[Worktree]] = {}
    for row in worktrees:
        by_repository.setdefault(str(row.main.common_dir), []).append(row)
    found: dict[str, Progress] = {}
    for common_dir, rows in by_repository.items():
        try:
            found.update(_of_repository(common_dir, rows))
        except GitFailed:  # gone, or damaged: there is more to say of that than a column has room for
            found.update({row.worktree_id: Progress(Work.UNKNOWN, "") for row in rows})
    return found


def _of_repository(common_dir: str, rows: list[Worktree]) -> dict[str, Progress]:
    found: dict[str, Progress] = {}
    head = files.head(common_dir)
    trunk = head.removeprefix("ref: ")
    into = trunk.removeprefix(_BRANCH) if trunk != head else "HEAD"
    git = Git(common_dir)
    known = git.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{trunk}^{{commit}}", ok=(0, 1, 128))
    tips = _branches(git)
    merged = _branches(git, f"--merged={trunk}") if known.status == 0 else {}
    for row in rows:
        tip = tips.get(row.main.ref or "")
        if tip is None or known.status:
            work = Work.UNKNOWN
        elif tip == row.main.base:
            work = Work.NONE
        else:
            work = Work.MERGED if row.main.ref in merged else Work.OPEN
        found[row.worktree_id] = Progress(work, into)
    return found


def _branches(git: Git, *condition: str) -> dict[str, str]:
    lines = git.text("for-each-ref", "--format=%(refname) %(objectname)", *condition, _BRANCH).splitlines()
    return {ref: oid for ref, _, oid in (line.rpartition(" ") for line in lines)}
