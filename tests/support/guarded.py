"""Python code in a jail of the backend landlock+guard, and the same code outside of any."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policy import promises
from tests.support import bpf, install, repository, warmed
from tests.support.identity import Who, Word
from tests.support.install import Installed
from tests.support.repository import Repo

ENVIRONMENT = {"PADDOCK_NO_USERNS": "1"}

# What the code below may use. `said` is the errno's name, or the value that the call returned.
PRELUDE = """
import array, ctypes, errno, json, os, signal, socket, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def word(value):
    return ctypes.c_long(value) if isinstance(value, int) else value
def syscall(name, *arguments):
    result = libc.syscall(ctypes.c_long(NUMBERS[name]), *map(word, arguments))
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def said(call, *words, **options):
    try:
        result = call(*words, **options)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return "ok" if result is None else result
"""


@dataclass(frozen=True)
class Guarded:
    """One worktree, one identity, and a place outside that both own.

    Attributes:
        who: acts.
        installed: the command under test.
        repo: the jail holds its linked worktree ``one``.
        outside: a directory of `who` that no jail is granted.
        inside: a directory in the worktree.
    """

    who: Who
    installed: Installed
    repo: Repo
    outside: Path
    inside: Path

    def words(self, argv: Sequence[Word], *options: Word) -> list[str]:
        """The words that run `argv` in the jail."""
        return [str(self.installed.paddock), "run", *map(str, options), "--", *map(str, argv)]

    def run(
        self, argv: Sequence[Word], *options: Word, stdin: str = "", timeout: int = 120
    ) -> "subprocess.CompletedProcess[str]":
        """Runs `argv` in the jail to its end."""
        _, *words = self.words(argv, *options)
        return warmed.launch(
            self.who, self.installed.python, words, cwd=self.inside, env=ENVIRONMENT, stdin=stdin, patience=timeout
        )

    def start(self, argv: Sequence[Word], *options: Word) -> "subprocess.Popen[bytes]":
        """Starts `argv` in the jail."""
        return self.who.start(self.words(argv, *options), cwd=self.inside, env=ENVIRONMENT)

    def python(self, code: str, *words: Word) -> list[Word]:
        """The words that run `code`, after the prelude, with `words` in ``sys.argv[1:]``."""
        prelude = PRELUDE + f"NUMBERS = {bpf.NUMBERS!r}\n"
        return [install.base_python(), "-I", "-S", "-c", prelude + code, *words]

    def tried(self, code: str, *words: Word, options: Sequence[Word] = (), timeout: int = 120) -> Any:  # noqa: ANN401
        """What `code` leaves in `result` when it runs in the jail (JSON); the backend must be the guard's."""
        report = self.outside / "report.json"
        argv = self.python(f"{code}\nprint(json.dumps(result))", *words)
        ended = self.run(argv, "--report", report, *options, timeout=timeout)
        assert ended.returncode == 0, ended.stderr + ended.stdout
        assert json.loads(report.read_text())["backend"] == promises.GUARD
        return json.loads(ended.stdout.splitlines()[-1])

    def plainly(self, code: str, *words: Word, cwd: Path) -> Any:  # noqa: ANN401
        """The same without a jail."""
        ended = self.who.run(self.python(f"{code}\nprint(json.dumps(result))", *words), cwd=cwd)
        assert ended.returncode == 0, ended.stderr + ended.stdout
        return json.loads(ended.stdout.splitlines()[-1])


def make(who: Who, installed: Installed, repo: Repo, place: Path) -> Guarded:
    """A scene whose outside is a new directory in `place`."""
    outside, inside = place / "outside", repo.one / "area"
    for directory in (outside, inside):
        directory.mkdir()
        who.give(directory)
    return Guarded(who, installed, repo, outside, inside)


def facts(report: Mapping[str, Any]) -> dict[str, str]:
    """Row -> verdict of an enforcement report."""
    return {entry["row"]: entry["verdict"] for entry in report["promises"]}


def at(who: Who, installed: Installed, directory: Path) -> Guarded:
    """A worktree of `who`'s, in a new place below `directory`."""
    place = directory / "place"
    place.mkdir()
    who.give(place)
    return make(who, installed, repository.make(who, place), place)


def denials(jail: Guarded, session: str) -> list[dict[str, Any]]:
    """What `paddock denials` tells of a session."""
    ended = warmed.run(jail.who, jail.installed.python, ("denials", session, "--json"), cwd=jail.inside)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]
