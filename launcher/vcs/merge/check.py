"""A command that has the last word on a merge: run in a jail, on the files that the merge would give."""

import os
import shutil
import subprocess
import sys
from types import TracebackType
from typing import Self

from launcher.safefs.remove import remove_tree
from launcher.vcs.git import Git, GitFailed
from launcher.vcs.gitlinks import gitlinks_of
from launcher.vcs.merge.place import Place
from launcher.vcs.merge.target import Target
from launcher.vcs.scratch import Scratch

_SHOWN_LINES = 20
_TAIL = 16 << 10


class Check:
    """A gate (`batch.Gate`). Every merged commit gets a fresh worktree, so that no child prepares it for the next.

    Args:
        target: where the merges go.
        command: a line of sh(1); None for a gate that is never asked.
        hidden: keep what the command prints to ourselves, but for the end of it when it fails.
    """

    def __init__(self, target: Target, command: str | None, *, hidden: bool) -> None:
        self._target = target
        self._command = command
        self._hidden = hidden
        self._scratch: Scratch | None = None
        self._number = 0

    def __enter__(self) -> Self:
        if self._command is not None:
            self._scratch = Scratch(for_session=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._scratch is not None:
            self._scratch.close()
            Git(self._target.common_dir).run("worktree", "prune")

    def __call__(self, label: str, commit: str) -> str:
        """Runs the command on `commit`; "" when it succeeds, else what went wrong.

        Raises:
            GitFailed: the files could not be laid out.
        """
        assert self._command is not None
        assert self._scratch is not None
        self._number += 1
        root = self._scratch.path(f"merge-{self._number}")
        git = Git(self._target.common_dir)
        git.run("worktree", "add", "--quiet", "--detach", root, commit)
        try:
            self._lay_out_submodules(Place(self._target.git_dir, self._target.common_dir, self._target.worktree),
                                     git, commit, root)  # fmt: skip
            status, said = self._run(root, f"{root}.said")
        finally:
            remove_tree(root)
            git.run("worktree", "prune")
        if status == 0:
            return ""
        lines = said.strip().splitlines()[-_SHOWN_LINES:]
        return "\n".join([f"the check failed with exit status {status} after merging {label}: {self._command}", *lines])

    def _run(self, root: str, said: str) -> tuple[int, str]:
        words = [sys.executable, "-I", "-m", "launcher", "run", "--worktree", root, "--git", "readonly"]
        words += ["--", "sh", "-c", self._command or ""]
        with open(said, "x+b") as output:  # in the scratch directory, of which the session has `root` alone
            ended = subprocess.run(
                words,
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
            size = output.seek(0, os.SEEK_END)
            if not self._hidden:
                output.seek(0)
                shutil.copyfileobj(output, sys.stderr.buffer)
                sys.stderr.flush()
            output.seek(max(0, size - _TAIL))
            return ended.returncode, output.read().decode(errors="replace")

    def _lay_out_submodules(self, place: Place, git: Git, commit: str, root: str) -> None:
        """Writes the submodules' files, without git directories: the command is to see files, not repositories."""
        for link in gitlinks_of(git, commit).values():
            inner = place.submodule(link.name, link.path)
            if inner is None:
                continue
            directory = os.path.join(root, link.path)
            os.makedirs(directory, exist_ok=True)
            there = Git(inner.common_dir, own_tree=directory)
            with Scratch() as trial:
                environment = {"GIT_INDEX_FILE": trial.path("index")}
                try:
                    there.run("read-tree", "--reset", "-u", link.commit, environment=environment)
                except GitFailed:
                    if there.run("cat-file", "-e", link.commit, ok=(0, 1, 128)).status == 0:
                        raise
                    continue  # nobody has that commit here; the command sees an empty directory, as after a clone
            self._lay_out_submodules(inner, there, link.commit, directory)
