"""Where a merge goes: a branch, and the worktree it is checked out in, if there is one."""

import glob
import os
from collections.abc import Callable
from typing import NamedTuple

from launcher.vcs import checkout, worktree_words
from launcher.vcs.disk import Present
from launcher.vcs.git import Git
from policy.errors import Refusal
from policy.pasted import quoted

# Where a repository and its submodules lie on this machine: stores to merge in, worktrees to move.


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

        Refusals: as `checkout.find`.
        """
        found = checkout.find(os.path.abspath(root), Present(), exact=True)
        return cls(found.git_dir, found.common_dir, found.root)

    def submodule(self, name: str, path: str) -> "Place | None":
        """The submodule `name` that is recorded at `path`: checked out there, or at least its store; None for neither.

        The store is the one of this very worktree if there is one, else the one of the main checkout.

        Refusals: git-pointer-invalid: something else lies there and says that it is the submodule.
        """
        if self.worktree is not None:
            root = os.path.join(self.worktree, path)
            if os.path.lexists(f"{root}/.git"):
                if os.path.realpath(root) != root:
                    raise Refusal(
                        "git-pointer-invalid",
                        f"{root} is reached through a symbolic link, which no submodule is",
                        hint="check it: git does not follow such links either",
                    )
                return Place.of(root)
        for directory in dict.fromkeys((self.git_dir, self.common_dir)):
            store = f"{directory}/modules/{name}"
            if is_store(store):
                return Place(store, store, None)
        return None

    def other_stores(self, modules: str) -> list[str]:
        """All stores of one submodule in this repository: the main checkout's and each linked worktree's."""
        tail = f"modules/{glob.escape(modules)}"
        base = glob.escape(self.common_dir)
        found = [*glob.glob(f"{base}/{tail}"), *glob.glob(f"{base}/worktrees/*/{tail}")]
        return [store for store in sorted(found) if is_store(store)]


def stores_below(common_dir: str) -> list[str]:
    """The stores of all submodules of a repository's main checkout, of whatever name, and of those inside them."""
    found = []
    for directory, names, _ in os.walk(f"{common_dir}/modules"):
        if "objects" in names:
            found.append(directory)
            names[:] = [name for name in names if name == "modules"]
    return found


def is_store(path: str) -> bool:
    """Whether there is a submodule's git directory."""
    return os.path.isfile(f"{path}/HEAD") and os.path.isdir(f"{path}/objects") and os.path.isdir(f"{path}/refs")


_BUSY = (
    ("rebase-merge", "a rebase", "git rebase --continue or --abort"),
    ("rebase-apply", "a rebase or git am", "git rebase --continue or --abort, git am --continue or --abort"),
    ("MERGE_HEAD", "a merge", "git merge --continue or --abort"),
    ("CHERRY_PICK_HEAD", "a cherry-pick", "git cherry-pick --continue or --abort"),
    ("REVERT_HEAD", "a revert", "git revert --continue or --abort"),
    ("sequencer", "a series of cherry-picks", "git cherry-pick --continue or --abort"),
    ("BISECT_LOG", "a bisection", "git bisect reset"),
)


class Target(NamedTuple):
    """The branch that takes the work.

    Attributes:
        label: as people call it.
        git_dir: of the worktree it is checked out in; the common one when it is in none.
        common_dir: of the repository.
        ref: the full name of the branch; ``HEAD`` of that worktree when it is detached.
        commit: where it stands.
        worktree: root of the worktree that has it checked out.
    """

    label: str
    git_dir: str
    common_dir: str
    ref: str
    commit: str
    worktree: str | None

    def git(self) -> Git:
        """Git on that repository."""
        return Git(self.git_dir)

    @property
    def place(self) -> Place:
        """Where it is."""
        return Place(self.git_dir, self.common_dir, self.worktree)


class Listed(NamedTuple):
    """A worktree as git lists it: root, branch (full name; "" when detached), commit, whether it is still there."""

    root: str
    branch: str
    commit: str
    present: bool


def find(start: str, into: str | None, root_of: Callable[[str, str], str | None] = lambda word, common: None) -> Target:
    """The target of a merge.

    Args:
        start: an absolute directory in a worktree of the repository, or a bare repository.
        into: a branch, or the root of a worktree; None for what is checked out at `start`.
        root_of: asked with `into` and the repository's common directory: the root of the worktree that has this name
            (a ticket); None for no worktree.

    Refusals: worktree-missing, not-a-worktree, git-pointer-invalid, trunk-unknown, trunk-ambiguous, trunk-unborn,
    trunk-missing, ref-ambiguous, and those of `worktree_words.meant`.
    """
    if into is None:
        return checked_out(opened(start))
    if worktree_words.is_path(into):
        found = worktree_words.meant(into, start, lambda _: True, _at)
    else:
        here = opened(start)
        roots = {worktree_words.canonical(each.root) for each in worktrees(Git(here.git_dir))}
        found = worktree_words.meant(into, start, roots.__contains__, _at, lambda: _named(here, into, root_of))
    if found is not None:
        return found
    raise Refusal(
        "trunk-unknown",
        f"there is no branch {into} to merge into",
        context="it is not a branch, a ticket, or the root of a worktree of this repository",
        hint=f"make it: git branch {into}; or leave --into out to merge into what is checked out here",
    )


def _at(root: str) -> Target:
    return checked_out(opened(root))


def _on_record(root: str) -> Target:
    """What is checked out in a worktree on record: not in another one that an agent has bent the way to.

    Refusals: worktree-behind-link, and those of `opened`.
    """
    found = worktree_words.meant(root, "/", lambda _: True, _at)
    assert found is not None
    return found


def _named(here: checkout.Checkout, into: str, root_of: Callable[[str, str], str | None]) -> Target | None:
    git = Git(here.git_dir)
    git.ref_named(into)
    branch = into if into.startswith("refs/heads/") else f"refs/heads/{into}"
    found = git.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{branch}^{{commit}}", ok=(0, 1))
    commit = found.out.decode().strip()
    root = root_of(into, here.common_dir) if branch != into else None
    ticket = _on_record(root) if root is not None else None
    if ticket is not None and commit and ticket.ref != branch:
        raise Refusal(
            "trunk-ambiguous",
            f"{into} is a worktree and another branch",
            context=f"{root} is on {ticket.label}; the branch may be one that another agent made",
            hint=f"--into {quoted(str(root))} or --into {quoted(branch)}",
        )
    if ticket is not None or not commit:
        return ticket
    label = branch.removeprefix("refs/heads/")
    for listed in worktrees(git):
        if listed.branch != branch:
            continue
        if not listed.present:
            raise Refusal(
                "trunk-missing",
                f"{label} is checked out in a worktree that is missing",
                context=f"{listed.root} cannot be reached, and moving the branch would leave its files behind",
                hint="git worktree prune, if it will not come back; git worktree repair, if it was moved",
            )
        return _on_record(listed.root)
    return Target(label, here.common_dir, here.common_dir, branch, commit, None)


def opened(directory: str) -> checkout.Checkout:
    """The worktree that holds `directory`, or a bare repository.

    Refusals: as `checkout.find`; git-not-ours.
    """
    bare = os.path.realpath(directory)
    if is_store(bare):
        found = checkout.Checkout("", "bare", bare, bare, ())
    else:
        found = checkout.find(os.path.abspath(directory), Present(), exact=False)
        Git.open(found.root)  # asks whose it is
    return found


def checked_out(found: checkout.Checkout) -> Target:
    """What is checked out in a worktree, as a target."""
    return checked_out_at(found.git_dir, found.common_dir, found.root or None)


def checked_out_at(git_dir: str, common_dir: str, root: str | None) -> Target:
    """What is checked out in a worktree whose git directory is known, as a target."""
    git = Git(git_dir)
    text = os.fsdecode(Present().read(f"{git_dir}/HEAD", 8192) or b"")
    symbolic = text.removeprefix("ref:").strip() if text.startswith("ref:") else ""
    commit = git.ref("HEAD")
    if not commit:
        raise Refusal(
            "trunk-unborn",
            f"{symbolic.removeprefix('refs/heads/') or 'HEAD'} has no commit yet, so there is nothing to merge into",
            context=f"in {root or git_dir}",
            hint="commit something first: git commit --allow-empty -m 'First.'",
        )
    label = symbolic.removeprefix("refs/heads/") or f"HEAD ({commit[:12]})"
    return Target(label, git_dir, common_dir, symbolic or "HEAD", commit, root)


def worktrees(git: Git) -> list[Listed]:
    """All worktrees of a repository, as `git worktree list` knows them; bare ones are left out."""
    found = []
    for block in git.run("worktree", "list", "--porcelain", "-z").out.split(b"\0\0"):
        fields = {
            line.partition(b" ")[0].decode(): os.fsdecode(line.partition(b" ")[2])
            for line in block.split(b"\0")
            if line
        }
        if "worktree" in fields and "bare" not in fields:
            root = fields["worktree"]
            present = "prunable" not in fields and os.path.isdir(root)
            found.append(Listed(root, fields.get("branch", ""), fields.get("HEAD", ""), present))
    return found


def refuse_when_busy(target: Target) -> None:
    """Refuses a worktree in which git is in the middle of something."""
    if target.worktree is None:
        return
    for name, what, how in _BUSY:
        if os.path.lexists(f"{target.git_dir}/{name}"):
            raise Refusal(
                "trunk-busy",
                f"{what} is in progress in {target.worktree}",
                context=f"{target.git_dir}/{name} exists",
                hint=how,
            )
    if target.git().run("ls-files", "--unmerged", "-z").out:
        raise Refusal(
            "trunk-busy",
            f"there are unresolved conflicts in {target.worktree}",
            hint="resolve and commit them: git status",
        )
