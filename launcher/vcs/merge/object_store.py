"""One repository as the merge engine sees it: objects only. No ref, no index and no file of the user's is touched."""

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from launcher.vcs import added_packs
from launcher.vcs.git import Git, GitFailed
from launcher.vcs.gitlinks import Gitlink, gitlinks_of, with_gitlinks
from launcher.vcs.jailed_git import Skeleton
from launcher.vcs.merge import report
from launcher.vcs.private.copied_settings import quoted
from launcher.vcs.scratch import Scratch

_UNRELATED = b"refusing to merge unrelated histories"


class Relation(NamedTuple):
    """How two commits stand to each other: how many each has that the other has not."""

    ours_alone: int
    theirs_alone: int


class Store:
    """The object store of one repository.

    Merging reads attributes (`merge=union`, `-text`, `eol`) as `git merge` in a checkout of `ours` would: out of a
    private work tree that holds nothing but the `.gitattributes` files of `ours`. (An index would not do: merge-tree
    never reads it. Without a work tree of its own, git would look where it happens to be started.) Agents wrote those
    files, so it works in a skeleton: no configuration names a driver for what they ask for.

    Args:
        who: author and committer for new commits, as variables.
        hold: descriptors that git processes inherit (see `Git`).

    Attributes:
        made: commits that were written here or fetched from another store.

    What is written goes to a quarantine that vanishes with this object, but for what `publish` is called for.
    """

    def __init__(self, git_dir: str, who: Mapping[str, str], *, hold: Sequence[int] = ()) -> None:
        self._scratch = Scratch()
        self._tree = self.scratch("tree")
        os.mkdir(self._tree)
        self._skeleton = Skeleton(Git(git_dir, hold=hold))
        self._quarantine = added_packs.Quarantine(self.scratch("objects"), f"{git_dir}/objects")
        os.mkdir(self._quarantine.directory)
        merging = Git(self._skeleton.path, own_tree=self._tree, settings=self._skeleton.settings, hold=hold)
        self.git, self._merging = (
            git.variant(environment=self._quarantine.environment) for git in (Git(git_dir, hold=hold), merging)
        )
        self.git_dir = git_dir
        self._who = dict(who)
        self.made: list[str] = []
        self._published: list[str] = []
        self._attributes_of: str | None = None
        self._attributes_fixed = False
        self._present: set[str] = set()

    def close(self) -> None:
        """Removes what merging needed."""
        self._scratch.close()

    def with_gitlinks(self, commit: str, changes: Mapping[str, str | None]) -> str:
        """See `gitlinks.with_gitlinks`."""
        return with_gitlinks(self.git, commit, changes, {"GIT_INDEX_FILE": self.scratch("gitlinks")})

    def links(self, commit: str) -> dict[str, Gitlink]:
        """See `gitlinks.gitlinks_of`."""
        return gitlinks_of(self.git, commit)

    def leads_to(self, ancestor: str, commit: str, *, beside: str) -> bool:
        """Whether `commit` has `ancestor` in its history; False also where one of the two is neither here nor there.

        Args:
            beside: git directory of another store that is asked, too; "" for none.
        """
        return self._beside(beside).contains(commit, ancestor)

    def is_kin(self, one: str, other: str, *, beside: str) -> bool:
        """Whether two commits, as for `leads_to`, have any commit in common."""
        return self._beside(beside).run("merge-base", one, other, ok=(0, 1, 128)).status == 0

    def _beside(self, beside: str) -> Git:
        stores = (self._quarantine.store, *([f"{beside}/objects"] if beside else []))
        return self.git.variant(environment={"GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(map(quoted, stores))})

    def scratch(self, name: str) -> str:
        """A file name for something private."""
        return self._scratch.path(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def commit_id(self, name: str) -> str:
        """The commit that `name` (any revision) stands for; "" when there is none."""
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        found = self.git.run(*words, ok=(0, 1, 128))
        return found.out.decode().strip() if found.status == 0 else ""

    def has_commit(self, oid: str) -> bool:
        """Whether the commit itself is here (its history is taken for granted)."""
        words = ("cat-file", "-e", f"{oid}^{{commit}}")
        if oid not in self._present and self.git.run(*words, ok=(0, 1, 128)).status == 0:
            self._present.add(oid)
        return oid in self._present

    def trees(self, commits: Sequence[str]) -> list[str]:
        """The trees of some commits, in one process."""
        found = self.git.objects(f"{commit}^{{tree}}" for commit in commits)
        if any(one.kind == "missing" for one in found):  # or in a pack that was being replaced by another
            found = self.git.objects(f"{commit}^{{tree}}" for commit in commits)
        for commit, one in zip(commits, found, strict=True):
            if one.kind != "tree":
                raise GitFailed("git-failed", ("cat-file",), self.git_dir, f"the commit {commit} is missing", status=0)
        return [one.oid for one in found]

    def relation(self, ours: str, theirs: str) -> Relation:
        """Counts what each of two commits has alone. Nothing alone means: it is an ancestor of the other, or it."""
        words = ("rev-list", "--left-right", "--count", f"{ours}...{theirs}")
        counts = self.git.run(*words).out.split()
        return Relation(int(counts[0]), int(counts[1]))

    def bases(self, ours: str, theirs: str) -> list[str]:
        """All best common ancestors; none for unrelated histories."""
        return self.git.run("merge-base", "--all", ours, theirs, ok=(0, 1)).out.decode().split()

    def merge_trees(self, ours: str, theirs: str, *, attributes: str) -> report.Merged | None:
        """Three-way merge of two commits, renames and recursive bases included (merge-ort).

        Args:
            attributes: the commit whose `.gitattributes` count, usually `ours`.

        Returns:
            git's answer, or None when the two have no common ancestor, as `git merge` would refuse.
        """
        self._use_attributes(attributes)
        words = ("merge-tree", "--write-tree", "-z", "--messages", ours, theirs)
        # 1: conflicts
        ended = self._merging.run(*words, ok=(0, 1, 128))
        if ended.status == 128:
            if _UNRELATED in ended.err:
                return None
            raise GitFailed("git-failed", words, self.git_dir, "exit status 128", status=128, err=ended.err)
        return report.parse(ended.out, clean=ended.status == 0)

    def forecast(self, pairs: Sequence[tuple[str, str]], *, attributes: str) -> list[report.Merged]:
        """`merge_trees` for many pairs in one process.

        Raises:
            GitFailed: one pair has no common ancestor, or git could not do it.
        """
        self._use_attributes(attributes)
        lines = "".join(f"{ours} {theirs}\n" for ours, theirs in pairs).encode()
        words = ("merge-tree", "--write-tree", "-z", "--messages", "--stdin")
        found = self._merging.run(*words, input=lines)
        return report.parse_many(found.out)

    def commit(self, tree: str, parents: Sequence[str], message: str) -> str:
        """Writes a commit object and returns its id."""
        words = ["commit-tree", tree, "-F", "-"]
        for parent in parents:
            words += ["-p", parent]
        content = message.encode("utf-8", "surrogateescape")
        made = self.git.run(*words, input=content, environment=self._who).out.decode().strip()
        self.made.append(made)
        return made

    def publish(self, holder: added_packs.Held, commits: Sequence[str], *, on: str = "") -> None:
        """Adds commits to the repository itself, with all they lead to.

        Args:
            holder: holds the objects there.
            commits: made here or not.
            on: a commit whose own objects stay where they are: a ref leads to it, and a transaction will compare that.
                Without one, all stays that any ref leads to now.
        """
        tips = [on] if on else self.git.text("rev-list", "--no-walk=unsorted", "--ignore-missing", "--all").split()
        known = dict.fromkeys((*tips, *self._published))
        lines = [commit for commit in dict.fromkeys(commits) if commit not in known]
        if lines:
            packs = self.scratch(f"publish-{len(self._published)}")
            added_packs.closed(
                self.git, self._quarantine, "\n".join((*lines, *(f"^{oid}" for oid in known), "")), packs
            )
            holder.add(packs, self.git_dir)
            self._published += lines

    def attributes_may_differ(self) -> None:
        """From now on `.gitattributes` are looked for anew in every commit that is merged into."""
        self._attributes_fixed = False

    def attributes_stay(self, commit: str) -> None:
        """Every commit that will be merged into has the `.gitattributes` of `commit`."""
        self._attributes_fixed = False
        self._use_attributes(commit)
        self._attributes_fixed = True

    def _use_attributes(self, commit: str) -> None:
        if self._attributes_fixed or commit == self._attributes_of:
            return
        words = ("ls-tree", "-r", "-z", "--full-tree", commit)
        listing = self.git.run(*words).out
        entries = [entry for entry in listing.split(b"\0") if _is_attributes(entry)]
        shutil.rmtree(self._tree)
        os.mkdir(self._tree)
        if entries:
            index = self.scratch("attributes")
            environment = {"GIT_INDEX_FILE": index}
            content = b"".join(entry + b"\0" for entry in entries)
            self._merging.run("update-index", "-z", "--index-info", input=content, environment=environment)
            self._merging.run("checkout-index", "--all", "--quiet", environment=environment)
            os.unlink(index)
        self._attributes_of = commit


def _is_attributes(entry: bytes) -> bool:
    """Whether a line of git-ls-tree(1) is about a `.gitattributes` file (no link: git follows none)."""
    info, _, path = entry.partition(b"\t")
    return info.startswith(b"100") and path.rpartition(b"/")[2] == b".gitattributes"


# What separates the children from the trunk, file by file: asked of git once for all of them.


_GITLINK = b"160000"


class Change(NamedTuple):
    """How one child's tree differs from the trunk's, before anything is merged.

    Attributes:
        paths: number of paths that differ.
        attributes: a `.gitattributes` file differs.
        submodules: a gitlink or a `.gitmodules` file differs.
    """

    paths: int
    attributes: bool
    submodules: bool


_SAME = Change(0, False, False)


def changes(store: Store, base: str, commits: list[str]) -> list[Change]:
    """Compares every commit of `commits` with `base` (two processes in all)."""
    base_tree, *trees = store.trees([base, *commits])
    pairs = list(dict.fromkeys(tree for tree in trees if tree != base_tree))
    found = {base_tree: _SAME}
    if pairs:
        lines = "".join(f"{base_tree} {tree}\n" for tree in pairs).encode()
        words = ("diff-tree", "--stdin", "-r", "-z", "--raw", "--no-renames", "--no-abbrev")
        output = store.git.run(*words, input=lines).out
        found |= _parsed_change(output, base_tree, pairs)
    return [found[tree] for tree in trees]


def _parsed_change(output: bytes, base: str, trees: list[str]) -> dict[str, Change]:
    """Each pair's line, then `:MODES IDS STATUS NUL PATH NUL` for every path; a pair without differences has no line.

    Read strictly from the front: a path may hold anything but NUL, lines that look like the next pair's too.
    """
    known = {f"{base} {tree}".encode(): tree for tree in trees}
    found = dict.fromkeys(trees, _SAME)
    at = 0
    while at < len(output):
        end = output.index(b"\n", at)
        tree = known[output[at:end]]
        at = end + 1
        count, attributes, submodules = 0, False, False
        while output.startswith(b":", at):
            info_end = output.index(b"\0", at)
            path_end = output.index(b"\0", info_end + 1)
            info, path = output[at:info_end], output[info_end + 1 : path_end]
            at = path_end + 1
            count += 1
            attributes |= path.rpartition(b"/")[2] == b".gitattributes"
            submodules |= path == b".gitmodules" or _GITLINK in info[1:14].split(b" ")
        found[tree] = Change(count, attributes, submodules)
    return found
