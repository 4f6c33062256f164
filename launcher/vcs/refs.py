"""Moving refs of several repositories as one outcome: all are locked and compared before any is moved.

A repository's part of it is `git update-ref --stdin` between `prepare` and `commit` (git-update-ref(1)). When this
process dies, git sees the end of its input and takes its locks away. A SIGKILL before the first commit leaves every ref
as it was; after it, whoever wrote down the updates calls `prepared` with them again, which leaves out what is done.
"""

import os
import select
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Self

from launcher.vcs.git import Git, GitFailed, kill
from launcher.vcs.private import ref_files
from policy.errors import Refusal, in_rows

AGENTS = "agent"
"""What names of worktrees' branches begin with, before a slash, where nobody asks for another."""

ANSWER_PATIENCE = 120.0
"""Seconds to wait for an answer: nothing of what git is asked for takes long, but on a slow disk."""

AGAIN = "another process moved or locked one of them in the meantime: run the same command again"

_PATIENT = (("core.packedRefsTimeout", "10000"),)
"""Milliseconds: `git gc` has it while it packs refs. Waiting for a ref's own would hold up whoever waits for ours."""


@dataclass(frozen=True)
class Update:
    """One ref to move.

    Args:
        ref: full name, or HEAD for a detached one.
        old: what it must be; "" for whatever it is, zeros for: it must not exist.
        new: what it becomes.
        beside: where `new` goes when somebody else has moved the ref; "" where that is no loss; None where nothing of
            the outcome may happen then.
    """

    ref: str
    old: str
    new: str
    beside: str | None = ""


@contextmanager
def prepared(
    changes: Iterable[tuple[Git, Sequence[Update]]],
    message: str,
    *,
    moved: tuple[str, str] = ("refs-moved", AGAIN),
    step: Callable[[str], None] = lambda what: None,
) -> Iterator[Callable[[], None]]:
    """Holds refs of several repositories ready; yields what moves them, in this order. What is done is left out.

    Args:
        changes: the updates of each repository, through the worktree whose HEAD is meant.
        moved: the reference and hint of the Refusal when somebody else was quicker.

    Refusals: refs-moved, or as `moved` says (somebody else moved or holds one of them). Nothing has been moved when it
    comes on entering; after that, what has been moved is right.
    """
    with ExitStack() as stack:
        ready: list[Transaction] = []
        for git, updates in changes:
            if pending := _pending(git, updates):
                step(f"prepare {len(ready)}")
                ready.append(stack.enter_context(Transaction(git, message, moved=moved)))
                ready[-1].prepare(pending)

        def commit() -> None:
            for number, transaction in enumerate(ready):
                step(f"commit {number}")
                transaction.commit()

        yield commit


_SYNTAX = frozenset("^~:\n")
"""Of what git reads as more than a name (gitrevisions(7)), and never in one."""


def unreadable(directory: str, *places: str) -> tuple[str, ...]:
    """Refs of a trusted repository by whose names git finds no commit, though there is a file or a log, after a crash.

    Args:
        directory: the git directory.
        places: full names of refs; those that end in a slash are directories of any.
    """
    names = ref_files.there(directory, places)
    asked = [name for name in names if _SYNTAX.isdisjoint(name) and "@{" not in name]
    kinds = dict(zip(asked, (one.kind for one in Git(directory).objects(asked)), strict=True))
    tags = {name for name, kind in kinds.items() if kind != "missing" and name.startswith("refs/tags/")}
    return tuple(name for name in names if kinds.get(name) != "commit" and name not in tags)


class Taken:
    """Names of refs. One whose name another goes on from, behind a slash, is a directory to git: both cannot be."""

    def __init__(self, names: Iterable[str]) -> None:
        """Takes full names."""
        self.names: set[str] = set()
        self._above: set[str] = set()
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """Adds one."""
        self.names.add(name)
        self._above.update(_above(name))

    def bars(self, ref: str) -> bool:
        """Whether a name above or below `ref`, not its own, keeps git from making it."""
        return ref in self._above or not self.names.isdisjoint(_above(ref))


def _above(ref: str) -> Iterator[str]:
    parts = ref.split("/")
    return ("/".join(parts[:count]) for count in range(2, len(parts)))


def _pending(git: Git, updates: Sequence[Update]) -> list[Update]:
    """What is to be done now: done ones are left out, and those whose ref somebody else has moved go beside.

    One that another's name bars counts as moved: no repetition would make it, and it would hold up all others.
    """
    pending: list[Update] = []
    taken: Taken | None = None
    for update in updates:
        now = git.ref(update.ref)
        expected = update.old if update.old.strip("0") else ""
        if now == update.new:
            continue
        barred = False
        if not now and update.beside is not None:
            taken = taken or Taken(git.refs())
            barred = taken.bars(update.ref)
        if not barred and (update.old == "" or now == expected):
            pending.append(Update(update.ref, now or "0" * len(update.new), update.new))
        elif update.beside is None:
            pending.append(update)  # which git refuses
        elif update.beside:
            before = git.ref(update.beside)
            if before != update.new and not (taken and taken.bars(update.beside)):
                pending.append(Update(update.beside, before or "0" * len(update.new), update.new))
    return list(dict.fromkeys(pending))  # two branches may have the same work


class Transaction:
    """Updates of one repository that happen together or not at all; words as for `prepared`."""

    def __init__(self, git: Git, message: str, *, moved: tuple[str, str]) -> None:
        self._git = git
        self._moved = moved
        self._words = ("update-ref", "--stdin", "-m", message)
        pipe = subprocess.PIPE
        self._process = git.variant(_PATIENT).start(*self._words, stdin=pipe, stdout=pipe, stderr=pipe)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self, updates: Sequence[Update]) -> None:
        """Locks every ref and compares it with `old`."""
        lines = ["start"]
        for update in updates:
            # HEAD is a target only where it is detached. A branch that is checked out gets its line in HEAD's log too.
            if update.ref == "HEAD":
                lines.append("option no-deref")
            lines.append(f"update {update.ref} {update.new} {update.old}")
        lines.append("prepare")
        self._say(lines, ("start: ok", "prepare: ok"), "held ready")

    def commit(self) -> None:
        """Moves the refs."""
        self._say(["commit"], ("commit: ok",), "moved")

    def close(self) -> None:
        """Gives up what was not committed, and waits until git has taken its locks away."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(ANSWER_PATIENCE)
        except subprocess.TimeoutExpired:
            raise GitFailed("git-timeout", self._words, self._git.git_dir, "does not end", status=None) from None
        finally:
            kill(self._process)

    def _say(self, lines: Sequence[str], answers: Sequence[str], what: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        text = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
        try:
            self._process.stdin.write(text)
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # git has ended; its standard error says why
        for answer in answers:
            if self._line() != answer:
                said = self._process.stderr.read(1 << 16).decode(errors="replace").splitlines()
                # The first line names the ref and its lock file; what to do about that file comes last.
                words = [line for line in said if line.strip()]
                reference, hint = self._moved
                if not words and (status := self._process.wait(ANSWER_PATIENCE)) < 0:
                    reference, words = "git-failed", [f"git was ended by signal {-status}"]
                raise Refusal(
                    reference,
                    f"the branches could not be {what}",
                    context=in_rows(f"in {self._git.git_dir}", *words[:4], *words[4:][-4:]),
                    hint=hint,
                )

    def _line(self) -> str:
        """One line of git's answer without its newline; shorter when it has ended."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + ANSWER_PATIENCE
        found = b""
        while not found.endswith(b"\n"):
            if not select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                kill(self._process)
                raise GitFailed("git-timeout", self._words, self._git.git_dir, "does not answer", status=None)
            byte = self._process.stdout.raw.read(1)  # type: ignore[attr-defined]  # unbuffered, or select would not see
            if not byte:
                break
            found += byte
        return found.decode(errors="replace").removesuffix("\n")


def clear_locks(git: Git, values: Iterable[tuple[str, str]]) -> None:
    """Removes the locks of a transaction whose git was killed with its launcher: of refs, each with its new value.

    A lock file has the new value of its ref, and nobody else would set the ref to a commit that this transaction has
    brought. HEAD's own is empty, and taken with the branch's.
    """
    for ref, value in values:
        path = f"{git.git_dir if ref == 'HEAD' else git.common_dir}/{ref}.lock"
        if _content(path) == value:
            head = f"{git.git_dir}/HEAD.lock"
            if value and ref != "HEAD" and _content(head) == "":
                os.unlink(head)
            os.unlink(path)


def _content(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            return stream.read(200).strip()
    except FileNotFoundError:
        return None
