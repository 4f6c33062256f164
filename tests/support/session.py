"""A live session of the installed command, for tests that run further commands in it."""

import fcntl
import itertools
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.support.identity import Word
from tests.support.paddock import Paddock

PATIENCE = 30.0

# Lives until its standard input is closed.
WAITING = ("sh", "-c", "echo ready; exec cat")

_numbers = itertools.count(1)


class Session:
    """`paddock run --session NAME -- COMMAND` in the worktree. A context manager: at its end the session has ended.

    Args:
        paddock: the command.
        env: variables on top of the user's, a choice of backend among them.
        command: says `ready` on its standard output when it runs, and ends when its standard input does.
        options: further options of `paddock run`.
    """

    def __init__(
        self,
        paddock: Paddock,
        env: Mapping[str, str] | None = None,
        command: Sequence[Word] = WAITING,
        options: Sequence[Word] = (),
    ) -> None:
        self.paddock = paddock
        self.name = f"s{next(_numbers)}"
        self.env = dict(env or {})
        words = paddock.words("run", "--session", self.name, *options, "--", *command)
        self.process = paddock.who.start(words, cwd=paddock.worktree, env={**paddock.env, **self.env})

    def __enter__(self) -> "Session":
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        said = self.process.stdout.readline()
        assert said == b"ready\n", self.process.stderr.read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> int:
        """Lets the first command end; returns the session's exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            for stream in (self.process.stdout, self.process.stderr):
                assert stream is not None
                stream.close()

    def kill(self) -> None:
        """Kills the launcher with SIGKILL, and waits until the last process of the session has ended."""
        lock = os.open(self.directory, os.O_RDONLY)
        self.process.kill()
        self.process.wait(PATIENCE)
        fcntl.flock(lock, fcntl.LOCK_SH)
        os.close(lock)

    @property
    def directory(self) -> Path:
        """The session's private directory."""
        return self.paddock.state / "sessions" / self.name

    def words(self, *command: Word, options: Sequence[Word] = ()) -> list[str]:
        """The command line that runs `command` in the session."""
        return self.paddock.words("exec", self.name, *options, "--", *command)

    def run(
        self, *command: Word, options: Sequence[Word] = (), stdin: str = "", cwd: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Runs `command` in the session to its end."""
        return self.paddock.call("exec", self.name, *options, "--", *command, stdin=stdin, cwd=cwd)

    def start(self, *command: Word, options: Sequence[Word] = ()) -> "subprocess.Popen[bytes]":
        """Starts `command` in the session, with pipes; the caller ends it."""
        return self.paddock.who.start(
            self.words(*command, options=options), cwd=self.paddock.worktree, env=self.paddock.env
        )
