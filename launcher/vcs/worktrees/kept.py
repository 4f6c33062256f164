"""Commits that a worktree's removal leaves or loses: which refs count, and what a harvest keeps in refs of its own."""

import os

from pydantic import BaseModel, ConfigDict

from launcher.vcs.git import Git
from launcher.vcs.harvest import stashes
from launcher.vcs.harvest.decide import join, kept_places
from launcher.vcs.quarantine import refs
from launcher.vcs.worktrees.models import Part, Worktree
from policy.pasted import quoted

_GOING = ("refs/paddock/*", "refs/bisect/*", "refs/worktree/*", "refs/rewritten/*")
"""Refs that are nobody's answer to where a commit is: Paddock's own (what a private git directory borrows is pinned by
one that goes with the worktree), and those that each worktree has to itself (git-worktree(1), "refs")."""


class Kept(BaseModel):
    """Work of an agent that a harvest kept in a ref of its own, and that nobody has joined.

    Attributes:
        ref: full name.
        path: root of the part of the worktree that it belongs to.
        store: git directory that has the ref.
        commits: how many of them no branch, tag or remote-tracking branch has.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ref: str
    path: str
    store: str
    commits: int

    def __str__(self) -> str:
        """The fact, in words."""
        are = "commit of the agent is" if self.commits == 1 else "commits of the agent are"
        return f"{self.commits} {are} kept in {self.ref}"

    @property
    def join(self) -> str:
        """The command that joins it with what is checked out."""
        return join(self.ref, self.path)

    @property
    def apply(self) -> str:
        """The command that applies it, for a stash."""
        return stashes.apply(self.ref, self.path)

    @property
    def name(self) -> str:
        """The command that gives it a branch, where there is no checkout to join it with; NAME is the user's."""
        return f"git --git-dir {quoted(self.store)} branch NAME {quoted(self.ref)}"

    @property
    def give_up(self) -> str:
        """The command that removes the ref."""
        return f"git -C {quoted(self.path)} update-ref -d {quoted(self.ref)}"


def stays(git: Git, oid: str) -> bool:
    """Whether a branch, tag, remote-tracking branch, stash or note holds a commit; False also when it is missing.

    Args:
        git: on the repository, or on the worktree.
        oid: the commit.
    """
    listed = git.run("rev-list", "--max-count=1", oid, "--not", *_elsewhere(), ok=(0, 128))
    return listed.status == 0 and not listed.out


def is_loose(git: Git, oid: str) -> bool:
    """Whether a commit is there and no ref that counts holds it: the opposite of `stays` for what is not missing."""
    listed = git.run("rev-list", "--max-count=1", oid, "--not", *_elsewhere(), ok=(0, 128))
    return listed.status == 0 and bool(listed.out)


def beside(git: Git, part: Part, worktree: Worktree, head: str | None) -> tuple[Kept, ...]:
    """What harvests of a part have kept, and what is checked out there does not have either.

    Args:
        git: on the part.
        part: of the worktree; a session may have taken a submodule as its worktree.
        worktree: which one.
        head: the commit that is checked out.

    Raises:
        GitFailed: git failed.
    """
    places = [f"{place}/" for owner in {worktree.worktree_id, part.worktree_id} for place in kept_places(owner)]
    found: list[Kept] = []
    if not refs.may_be_below(os.fspath(part.common_dir), places):
        return ()
    for ref in sorted(git.text("for-each-ref", "--format=%(refname)", *places).split()):
        known = [f"^{head}"] if head is not None else []
        commits = int(git.text("rev-list", "--count", ref, *known, "--not", *_elsewhere()))
        if commits:
            found.append(Kept(ref=ref, path=os.fspath(part.path), store=os.fspath(part.common_dir), commits=commits))
    return tuple(found)


def stashed(part: Part, worktree: Worktree) -> tuple[Kept, ...]:
    """Stashes of an agent that harvests have taken over, the oldest first. They are the user's, and not at stake.

    Raises:
        GitFailed: git failed.
    """
    store = os.fspath(part.common_dir)
    if not os.path.isdir(f"{store}/objects"):
        return ()
    places = [f"{stashes.place(owner)}/" for owner in {worktree.worktree_id, part.worktree_id}]
    if not refs.may_be_below(store, places):
        return ()
    names = Git(store).text("for-each-ref", "--sort=version:refname", "--format=%(refname)", *places).split()
    return tuple(Kept(ref=name, path=os.fspath(part.path), store=store, commits=1) for name in names)


def _elsewhere() -> list[str]:
    """Arguments of git-rev-list(1) for the refs that count. HEADs do not: `--all` would bring the worktree's own."""
    return [*(f"--exclude={pattern}" for pattern in _GOING), "--glob=refs/*"]
