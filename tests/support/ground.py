"""Repositories with any history, made quickly: commits are written by git-fast-import(1), without a checkout."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.vcs.merge import work
from launcher.vcs.merge.descriptors import MergeDescriptor, Source
from launcher.vcs.merge.runs import Run
from launcher.vcs.merge.target import Target, find


class Entry(NamedTuple):
    """What a commit has at a path, with a mode of its own: ``100755``, ``120000`` (a link) or ``160000``."""

    mode: str
    content: str | bytes


Tree = Mapping[str, str | bytes | Entry]

ENVIRONMENT = {
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "LC_ALL": "C",
    "GIT_AUTHOR_NAME": "Tester",
    "GIT_AUTHOR_EMAIL": "tester@example.invalid",
    "GIT_COMMITTER_NAME": "Tester",
    "GIT_COMMITTER_EMAIL": "tester@example.invalid",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "protocol.file.allow",
    "GIT_CONFIG_VALUE_0": "always",
}
_WHO = "Tester <tester@example.invalid> 1000000000 +0000"


class Ground:
    """One repository with a checkout of `main`.

    Args:
        root: where; made.
        tree: content of the first commit on `main`; None for a checkout that is there already.
    """

    def __init__(self, root: Path, tree: Tree | None) -> None:
        self.root = root
        if tree is None:
            return
        root.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")
        with (root / ".git/config").open("a") as config:
            config.write("[user]\n\tname = Tester\n\temail = tester@example.invalid\n")
        self.commit("main", tree)
        self.git("reset", "-q", "--hard")

    @property
    def state(self) -> Path:
        """Paddock's state for this repository."""
        return self.root.parent / f"{self.root.name}-state"

    def run(
        self, *words: str, at: Path | None = None, stdin: bytes = b"", check: bool = True
    ) -> "subprocess.CompletedProcess[bytes]":
        """Runs git in `at` (the checkout by default)."""
        ended = subprocess.run(
            ["git", *words], cwd=at or self.root, env=ENVIRONMENT, input=stdin, capture_output=True, check=False
        )
        assert ended.returncode == 0 or not check, (words, ended.stdout, ended.stderr)
        return ended

    def git(self, *words: str, at: Path | None = None) -> str:
        """Standard output of a git command that succeeds, without its last newline."""
        return os.fsdecode(self.run(*words, at=at).stdout.removesuffix(b"\n"))

    def id(self, name: str) -> str:
        """The object id of a revision; "" when there is none."""
        if found := self._written(name):
            return found
        ended = self.run("rev-parse", "--verify", "--quiet", name, check=False)
        return ended.stdout.decode().strip()

    def _written(self, name: str) -> str:
        """What a file says that `name`, HEAD or the whole name of a ref, is: a process of git costs more than most of
        what is tried here. "" where git has to be asked.
        """
        entry = self.root / ".git"
        try:
            top = entry if entry.is_dir() else self.root / entry.read_text().removeprefix("gitdir: ").rstrip("\n")
            said = (top / name).read_text() if name == "HEAD" or name.startswith("refs/") else ""
            said = (top / said[5:].rstrip("\n")).read_text() if said.startswith("ref: ") else said
        except OSError:
            return ""
        return said.rstrip("\n") if len(said) == 41 else ""

    def tree(self, name: str) -> str:
        """The tree of a revision."""
        return self.id(f"{name}^{{tree}}")

    def commit(
        self, branch: str, tree: Tree, *, parents: Sequence[str] = (), remove: Sequence[str] = (), fresh: bool = False
    ) -> str:
        """Adds a commit to `branch` and returns its id; the checkout is not touched.

        Args:
            branch: made when missing.
            tree: what is added or changed.
            parents: revisions; the branch itself by default, where it exists. The first one's tree is the start.
            remove: paths to take away.
            fresh: no parents, and an empty tree to start from.
        """
        ref = f"refs/heads/{branch}"
        named = [self._written(f"refs/heads/{name}") or self.id(name) for name in parents]
        known = [] if fresh else named or [old for old in [self.id(ref)] if old]
        out = [b"reset " + ref.encode(), b"commit " + ref.encode(), f"committer {_WHO}".encode(), _data(b"Work.\n")]
        out += [(b"from " if number == 0 else b"merge ") + oid.encode() for number, oid in enumerate(known)]
        out += [b"D " + _quoted(path) for path in remove]
        for path, entry in tree.items():
            mode, content = entry if isinstance(entry, Entry) else ("100644", entry)
            data = content if isinstance(content, bytes) else content.encode()
            if mode == "160000":
                out.append(b"M 160000 " + data + b" " + _quoted(path))
            else:
                out += [f"M {mode} inline ".encode() + _quoted(path), _data(data)]
        self.run("fast-import", "--quiet", "--force", stdin=b"\n".join(out) + b"\n")
        return self.id(ref)

    def history(self, commits: "Sequence[tuple[Tree, Sequence[int]]]") -> list[str]:
        """Writes many commits in one process and returns their ids.

        Args:
            commits: each with its whole tree and the places of its parents in this list.
        """
        out: list[bytes] = []
        for number, (tree, parents) in enumerate(commits, 1):
            out += [b"commit refs/made/last", b"mark :%d" % number, f"committer {_WHO}".encode(), _data(b"Work.\n")]
            words = (b"from", *[b"merge"] * len(parents))
            out += [b"%s :%d" % (word, parent + 1) for word, parent in zip(words, parents, strict=False)]
            out.append(b"deleteall")
            if not parents:
                out[-6:-6] = [b"reset refs/made/last"]
            for path, entry in tree.items():
                mode, content = entry if isinstance(entry, Entry) else ("100644", entry)
                data = content if isinstance(content, bytes) else content.encode()
                out += [f"M {mode} inline ".encode() + _quoted(path), _data(data)]
        marks = self.root / ".git/marks"
        self.run("fast-import", "--quiet", "--force", f"--export-marks={marks}", stdin=b"\n".join(out) + b"\n")
        lines = [line.split(" ") for line in marks.read_text().splitlines()]
        known = {int(mark[1:]): oid for mark, oid in lines}
        return [known[number] for number in range(1, len(commits) + 1)]

    def git_merge(self, ours: str, theirs: str) -> "tuple[str, frozenset[str]]":
        """What `git merge` makes of two commits in the checkout: the tree ("" with conflicts), and unmerged entries."""
        self.git("checkout", "-q", "--force", "--detach", ours)
        ended = self.run("merge", "-q", "--no-ff", "--no-commit", theirs, check=False)
        unmerged = frozenset(filter(None, os.fsdecode(self.run("ls-files", "-u", "-z").stdout).split("\0")))
        tree = self.git("write-tree") if not unmerged and ended.returncode == 0 else ""
        self.git("reset", "-q", "--hard")
        self.git("clean", "-qfdx")
        return tree, unmerged

    def branch(self, name: str, tree: Tree, *, start: str = "main", remove: Sequence[str] = ()) -> str:
        """A new branch with one commit on top of `start`."""
        return self.commit(name, tree, parents=[start], remove=remove)

    def target(self, into: str | None = None) -> Target:
        """The target of merges: what is checked out, or `into`."""
        return find(str(self.root), into)

    def source(self, name: str) -> Source:
        """A branch as something to merge."""
        return Source(name, self.id(name))

    def settings(self) -> work.Settings:
        """Settings with a state of its own and a fixed time."""
        self.state.mkdir(exist_ok=True)
        return work.Settings(str(self.state), {}, seconds=1_500_000_000)

    def merge(self, *names: str, into: str | None = None, settings: work.Settings | None = None) -> Run:
        """Merges branches with the engine."""
        return work.merge(
            lambda: self.target(into),
            [self.source(name) for name in names],
            settings or self.settings(),
            str(self.root / ".git"),
        )

    def status(self, at: Path | None = None) -> list[str]:
        """Lines of `git status --porcelain`."""
        return self.git("status", "--porcelain", at=at).splitlines()


def last(run: Run) -> MergeDescriptor:
    """What is told of the child that a run met a conflict in, else of the last one that it merged."""
    assert run.outcome is not None
    status = run.outcome.conflicted or run.outcome.merged[-1]
    assert status.merge_descriptor is not None
    return status.merge_descriptor


def statuses(descriptor: MergeDescriptor) -> dict[str, str]:
    """What became of each submodule, by its name."""
    return {result.submodule_name: result.status.value for result in descriptor.submodule_merge_results}


def _data(content: bytes) -> bytes:
    return b"data %d\n" % len(content) + content


def _quoted(path: str) -> bytes:
    plain = os.fsencode(path).replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"' + plain + b'"'
