"""Moving refs of several repositories as one outcome: all are locked and compared before any is moved.

`git update-ref --stdin` holds the locks of a transaction between `prepare` and `commit`. A SIGKILL before the first
commit leaves every ref as it was (git removes its locks when its standard input ends); after it, the journal says what
is left to do.
"""

import subprocess
from collections.abc import Callable, Sequence
from typing import IO

from launcher.vcs.git import Git, GitFailed, kill
from launcher.vcs.harvest.journal import Entry, Update
from launcher.vcs.harvest.trusted import ref
from policy.errors import Refusal

Step = Callable[[str], None]
"""Told each step before it is done."""


def settle(git: Git, updates: Sequence[Update]) -> list[Update]:
    """What is left of `updates` now: done ones are left out, and those whose ref somebody else has moved go beside."""
    left: list[Update] = []
    for update in updates:
        now = ref(git, update.ref)
        if now == update.new:
            continue
        expected = "" if not update.old.strip("0") else update.old
        if update.old == "" or now == expected:
            left.append(Update(update.ref, now or "0" * len(update.new), update.new, update.beside))
        elif update.beside:
            before = ref(git, update.beside)
            if before != update.new:
                left.append(Update(update.beside, before or "0" * len(update.new), update.new))
    return left


def publish(entries: Sequence[Entry], message: str, step: Step, git_for: Callable[[str], Git]) -> None:
    """Moves the refs of all entries, in their order; may be repeated after a crash.

    Args:
        entries: what is published.
        message: for the reflogs.
        step: told what comes next.
        git_for: git on a trusted git directory.

    Raises:
        Refusal: harvest-refs-moved (a ref was moved or locked in this very moment); nothing has been moved then.
    """
    transactions: list[_Transaction] = []
    try:
        for entry in entries:
            git = git_for(entry.git_dir)
            updates = settle(git, entry.updates)
            if updates:
                step(f"prepare {entry.name or 'worktree'}")
                transaction = _Transaction(git, message)
                transactions.append(transaction)
                transaction.prepare(updates)
        for number, transaction in enumerate(transactions):
            step(f"commit {number}")
            transaction.say("commit")
    finally:
        for transaction in transactions:
            transaction.close()


class _Transaction:
    """One `git update-ref --stdin`. What was not committed when it is closed has not happened."""

    def __init__(self, git: Git, message: str) -> None:
        self._git = git
        self._process = git.start(
            *("update-ref", "-m", message, "--stdin"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def prepare(self, updates: Sequence[Update]) -> None:
        """Locks and compares every ref."""
        stdin = self._stream(self._process.stdin)
        self.say("start")
        for update in updates:
            if update.ref == "HEAD":
                stdin.write(b"option no-deref\n")
            stdin.write(f"update {update.ref} {update.new} {update.old}\n".encode("utf-8", "surrogateescape"))
        self.say("prepare")

    def say(self, word: str) -> None:
        """Says `word` and waits for its `word: ok`.

        Raises:
            Refusal: harvest-refs-moved.
        """
        stdin, stdout = self._stream(self._process.stdin), self._stream(self._process.stdout)
        try:
            stdin.write(f"{word}\n".encode())
            stdin.flush()
        except BrokenPipeError:
            answer = b""  # git has ended, and says why on its standard error
        else:
            answer = stdout.readline()
        if answer.strip() == f"{word}: ok".encode():
            return
        stderr = self._stream(self._process.stderr)
        raise Refusal(
            "harvest-refs-moved",
            "a branch was moved or locked by somebody else in this very moment",
            context="\n".join(stderr.read(4000).decode(errors="replace").strip().splitlines()[-4:]),
            hint="try again: paddock worktree harvest",
        )

    def close(self) -> None:
        """Ends the process. Its end is waited for, because it removes its locks."""
        stdin = self._stream(self._process.stdin)
        try:
            stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            raise GitFailed("git-timeout", ["update-ref"], self._git.git_dir, "does not end", status=None) from None
        finally:
            kill(self._process)

    @staticmethod
    def _stream(stream: IO[bytes] | None) -> IO[bytes]:
        assert stream is not None
        return stream
