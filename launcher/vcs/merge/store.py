"""One repository as the merge engine sees it: objects only. No ref, no index and no file of the user's is touched."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from launcher.vcs.git import Git, GitFailed
from launcher.vcs.merge import report
from launcher.vcs.merge.gitlinks import with_gitlinks

_UNRELATED = b"refusing to merge unrelated histories"


class Relation(NamedTuple):
    """How two commits stand to each other: how many each has that the other has not."""

    ours_alone: int
    theirs_alone: int


class Store:
    """The object store of one repository.

    Merging reads attributes (`merge=union`, `-text`, `eol`) as `git merge` in a checkout of `ours` would: out of a
    private index that holds nothing but the `.gitattributes` files of `ours`, beside an empty directory as work tree.

    Args:
        git_dir: its git directory; trusted.
        who: author and committer for new commits, as variables.
        hold: descriptors that git processes inherit (see `Git`).
        keep: False for a trial: what is written goes to a directory that vanishes with this object.
    """

    def __init__(self, git_dir: str, who: Mapping[str, str], *, hold: Sequence[int] = (), keep: bool = True) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="paddock-merge-")
        empty = os.path.join(self._scratch.name, "empty")
        os.mkdir(empty)
        self.git = Git(git_dir, empty, hold=hold)
        self.git_dir = git_dir
        self._environment: dict[str, str] = {}
        if not keep:
            self._environment = {
                "GIT_OBJECT_DIRECTORY": self.scratch("objects"),
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(f"{git_dir}/objects"),
            }
            os.mkdir(self.scratch("objects"))
        self._who = dict(who) | self._environment
        self._attributes = os.path.join(self._scratch.name, "attributes")
        self._attributes_of: str | None = None
        self._attribute_entries: bytes | None = None

    def close(self) -> None:
        """Removes what merging needed."""
        self._scratch.cleanup()

    def with_gitlinks(self, commit: str, changes: Mapping[str, str | None]) -> str:
        """See `gitlinks.with_gitlinks`."""
        environment = self._environment | {"GIT_INDEX_FILE": self.scratch("gitlinks")}
        return with_gitlinks(self.git, commit, changes, environment)

    def scratch(self, name: str) -> str:
        """A file name for something private."""
        return os.path.join(self._scratch.name, name)

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
        return (
            self.git.run("cat-file", "-e", f"{oid}^{{commit}}", ok=(0, 1, 128), environment=self._environment).status
            == 0
        )

    def trees(self, commits: Sequence[str]) -> list[str]:
        """The trees of some commits, in one process.

        Raises:
            GitFailed: one is missing.
        """
        wanted = "".join(f"{commit}^{{tree}}\n" for commit in commits).encode()
        words = ("cat-file", "--batch-check=%(objectname) %(objecttype)")
        lines = self.git.run(*words, input=wanted, environment=self._environment).out.decode().splitlines()
        for commit, line in zip(commits, lines, strict=True):
            if not line.endswith(" tree"):
                raise GitFailed("git-failed", words, self.git_dir, f"the commit {commit} is missing", status=0)
        return [line.partition(" ")[0] for line in lines]

    def relation(self, ours: str, theirs: str) -> Relation:
        """Counts what each of two commits has alone. Nothing alone means: it is an ancestor of the other, or it.

        Raises:
            GitFailed: an object is missing.
        """
        words = ("rev-list", "--left-right", "--count", f"{ours}...{theirs}")
        counts = self.git.run(*words, environment=self._environment).out.split()
        return Relation(int(counts[0]), int(counts[1]))

    def bases(self, ours: str, theirs: str) -> list[str]:
        """All best common ancestors; none for unrelated histories."""
        return (
            self.git.run("merge-base", "--all", ours, theirs, ok=(0, 1), environment=self._environment)
            .out.decode()
            .split()
        )

    def merge_trees(self, ours: str, theirs: str, *, attributes: str) -> report.Merged | None:
        """Three-way merge of two commits, renames and recursive bases included (merge-ort).

        Args:
            ours: the target's commit.
            theirs: the source's commit.
            attributes: the commit whose `.gitattributes` count, usually `ours`.

        Returns:
            git's answer, or None when the two have no common ancestor, as `git merge` would refuse.

        Raises:
            GitFailed: git could not do it.
        """
        self._use_attributes(attributes)
        words = ("merge-tree", "--write-tree", "-z", "--messages", ours, theirs)
        # 1: conflicts
        ended = self.git.run(*words, ok=(0, 1, 128), environment=self._with_attributes)
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
        found = self.git.run(*words, input=lines, environment=self._with_attributes)
        return report.parse_many(found.out)

    def commit(self, tree: str, parents: Sequence[str], message: str) -> str:
        """Writes a commit object and returns its id."""
        words = ["commit-tree", tree, "-F", "-"]
        for parent in parents:
            words += ["-p", parent]
        content = message.encode("utf-8", "surrogateescape")
        return self.git.run(*words, input=content, environment=self._who).out.decode().strip()

    def attributes_may_differ(self) -> None:
        """From now on `.gitattributes` are looked for anew in every commit that is merged into."""
        self._attribute_entries = None

    def attributes_stay(self, commit: str) -> None:
        """Every commit that will be merged into has the `.gitattributes` of `commit`."""
        self._attributes_of = None
        self._use_attributes(commit)
        self._attribute_entries = b"all"

    def _use_attributes(self, commit: str) -> None:
        if self._attribute_entries == b"all" or commit == self._attributes_of:
            return
        words = ("ls-tree", "-r", "-z", "--full-tree", commit)
        listing = self.git.run(*words, environment=self._environment).out
        wanted = [
            entry for entry in listing.split(b"\0") if entry.rpartition(b"\t")[2].endswith(b".gitattributes")
            and entry.rpartition(b"/")[2].rpartition(b"\t")[2] == b".gitattributes"
        ]  # fmt: skip
        if os.path.exists(self._attributes):
            os.unlink(self._attributes)
        # An index that does not exist is an empty one.
        if wanted:
            self.git.run(
                *("update-index", "-z", "--index-info"),
                input=b"".join(entry + b"\0" for entry in wanted),
                environment=self._with_attributes,
            )
        self._attributes_of = commit

    @property
    def _with_attributes(self) -> dict[str, str]:
        return self._environment | {"GIT_INDEX_FILE": self._attributes}


def _quoted(path: str) -> str:
    """A path for GIT_ALTERNATE_OBJECT_DIRECTORIES, where a colon would separate (git(1))."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
