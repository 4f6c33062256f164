"""The installed command in a small repository: what it says, what it answers, and what it leaves behind."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import templates
from tests.support.identity import Who, Word
from tests.support.install import Installed

# One error: what and its reference, then why, then what to do; nothing else but warnings.
FIRST = re.compile(r"paddock: (?!warning: ).+ \[(?P<reference>[a-z][a-z0-9-]*)\]")
MORE = re.compile(r"  (why: |hint:) \S.*|        .*")
WARNING = re.compile(r"paddock: warning: \S.*")

_SCRIPT = """
git -c init.defaultBranch=main init -q main
git -C main config user.name Tester
git -C main config user.email tester@example.invalid
git -C main commit -q --allow-empty -m 'main: First.'
git -C main worktree add -q -b one "$PWD/one"
echo content > one/file
"""


@dataclass(frozen=True)
class Said:
    """One error of Paddock's.

    Args:
        reference: its stable name.
        text: all of standard error.
    """

    reference: str
    text: str


@dataclass(frozen=True)
class Paddock:
    """The command, as one user, with a linked worktree to work in.

    Args:
        who: acts.
        installed: the sources under test.
        place: a directory of that user that holds the rest.
        worktree: a linked worktree of the repository `main`.
        main: the main checkout.
        env: variables on top of the user's own.
    """

    who: Who
    installed: Installed
    place: Path
    worktree: Path
    main: Path
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        """Where sessions and private homes are."""
        return self.who.home / ".local/state/paddock"

    @property
    def cache(self) -> Path:
        """Where plans are kept."""
        return self.who.home / ".cache/paddock"

    def words(self, *words: Word) -> list[str]:
        """The command line `paddock WORDS...`."""
        return [str(self.installed.paddock), *map(str, words)]

    def call(
        self, *words: Word, cwd: Path | None = None, env: Mapping[str, str] | None = None, stdin: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        """Runs `paddock WORDS...` in the worktree to its end."""
        return self.who.run(
            self.words(*words), cwd=cwd or self.worktree, env={**self.env, **(env or {})}, stdin=stdin, timeout=120
        )

    def run(self, *words: Word, **options: object) -> "subprocess.CompletedProcess[str]":
        """Runs `paddock run WORDS...`; see `call`."""
        return self.call("run", *words, **options)  # type: ignore[arg-type]  # passed on as they are

    def shell(self, line: str, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """Runs a line of sh(1) in the worktree, in which `paddock` is the command."""
        path = f"{self.installed.paddock.parent}:{self.who.path}"
        return self.who.run(
            ["sh", "-c", line], cwd=self.worktree, env={**self.env, "PATH": path, **(env or {})}, timeout=120
        )

    def refused(self, *words: Word, status: int = 125, **options: object) -> Said:
        """Runs `paddock WORDS...`, which must end with `status` and one clear error, and with nothing on stdout."""
        ended = self.call(*words, **options)  # type: ignore[arg-type]
        assert (ended.returncode, ended.stdout) == (status, ""), ended
        return said(ended.stderr)

    def left(self, *homes: Path) -> list[str]:
        """What of sessions and half-written files lies below the user's home, and below `homes`."""
        found: list[str] = []
        for home in (self.who.home, *homes):
            for directory, names, files in os.walk(home):
                if directory.endswith("/paddock/sessions"):
                    found += [f"{directory}/{name}" for name in (*names, *files)]
                found += [f"{directory}/{name}" for name in names if name.startswith(".new-")]
                found += [f"{directory}/{name}" for name in files if directory.endswith("/plans") and "." in name]
        return found


def make(who: Who, installed: Installed, place: Path) -> Paddock:
    """A repository with one linked worktree in `place`, which `who` owns."""
    templates.grow(who, place, _SCRIPT)
    return Paddock(who, installed, place, place / "one", place / "main")


def said(stderr: str) -> Said:
    """The one error in `stderr`; fails when there is none, more than one, or anything else beside it."""
    lines = [line for line in stderr.splitlines() if not WARNING.fullmatch(line)]
    assert lines, f"no error in {stderr!r}"
    first = FIRST.fullmatch(lines[0])
    assert first, f"not an error of Paddock's: {stderr}"
    assert all(MORE.fullmatch(line) for line in lines[1:]), f"more than one error: {stderr}"
    assert stderr.replace("\n", "").isprintable(), f"not for a terminal: {stderr!r}"
    return Said(first["reference"], stderr)
