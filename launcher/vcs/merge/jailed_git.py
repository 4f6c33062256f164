"""Git on a worktree whose files an agent wrote: what reads or writes files runs in a jail (`jail.confined`).

Its `.gitattributes`, links, names and contents are the agent's. Nothing that they name is executed outside either
(`hardening`), but a fault of git's own, met by what it reads there, would be one outside. In the jail git sees the
repository read-only, the files, and one private directory with the index.
"""

import os
import subprocess
from collections.abc import Iterable, Mapping
from typing import IO

from launcher.jail import confined
from launcher.jail.helper import start
from launcher.vcs.git import Completed, Git, GitFailed
from policy.errors import EXIT_REFUSED

_WRITING = frozenset({"checkout-index", "read-tree", "update-index"})
_READING = frozenset({"cat-file", "hash-object"})  # they look for attributes
_LIMITS = (("memory", 4 << 30), ("open_files", 1024))


class JailedGit(Git):
    """`Git` whose commands on files are jailed; those on objects and refs alone are not.

    Args:
        git_dir: as for `Git`; trusted.
        work_tree: root of the files.
        hold: as for `Git`; the jail's helper inherits them, and git's end is its own.
    """

    def __init__(self, git_dir: str, work_tree: str, *, hold: Iterable[int] = ()) -> None:
        # What is written is an index of its own: a shared part of it would be written into the repository.
        super().__init__(git_dir, work_tree, hold=hold, settings=(("core.splitIndex", "false"),))
        self._files = work_tree
        self._stores: tuple[str, ...] | None = None

    def run(
        self,
        *arguments: str,
        input: bytes | None = None,
        ok: Iterable[int] = (0,),
        environment: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Completed:
        """As `Git.run`.

        Raises:
            GitFailed: as there; Refusal: the jail cannot be built.
        """
        try:
            return super().run(*arguments, input=input, ok=ok, environment=environment, timeout=timeout)
        except GitFailed as error:
            refusal = confined.refusal_in(error.err.decode(errors="replace")) if error.status == EXIT_REFUSED else None
            if refusal is None:
                raise
            raise refusal from None

    def _spawned(
        self,
        words: list[str],
        environment: dict[str, str],
        stdin: int | IO[bytes] | None,
        stdout: int | IO[bytes] | None,
        stderr: int | IO[bytes] | None,
    ) -> "subprocess.Popen[bytes]":
        command = words[words.index("--no-pager") + 1]
        if command not in _WRITING | _READING:
            return super()._spawned(words, environment, stdin, stdout, stderr)
        readable = [self.git_dir, self.common_dir, *self._borrowed()]
        writable = []
        if "GIT_INDEX_FILE" in environment:
            writable.append(os.path.dirname(environment["GIT_INDEX_FILE"]))
        (writable if command in _WRITING else readable).append(self._files)
        entry = f"{self._files}/.git"
        spec: confined.Spec = (
            self._files,
            (os.path.realpath(words[0]), *words[1:]),
            (tuple(dict.fromkeys(readable)), tuple(writable), (entry,) if os.path.lexists(entry) else ()),
            tuple(environment.items()),
            _LIMITS,
        )
        return start(spec, stdin=stdin, stdout=stdout, stderr=stderr, hold=self._hold)

    def _borrowed(self) -> tuple[str, ...]:
        """Object directories that the repository borrows from, at any depth (git-count-objects(1))."""
        if self._stores is None:
            lines = self.text("count-objects", "--verbose").splitlines()
            found = [line.removeprefix("alternate: ") for line in lines if line.startswith("alternate: ")]
            self._stores = tuple(os.path.realpath(path) for path in found)
        return self._stores
