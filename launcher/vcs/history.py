"""The history of a trusted repository, read for people with GitPython: commits, authors, dates and what they change.

GitPython starts no process here and reads no environment: `HardenedGit` hands each command to `launcher.vcs.git`, and
only commands that read, with options from a list. `TrustedRepo` opens no directory that an agent could write. What
agents wrote in commits is data: its size is bounded, and `printable` escapes it before it is shown.

Importing this costs 60 ms: verbs import it when they have something to show, never on the road of a launch.
"""

import codecs
import io
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from launcher.vcs import written
from launcher.vcs.git import Completed, GitFailed
from launcher.vcs.git import Git as Runner
from policy.errors import Refusal, printable
from policy.pasted import cited, spoken
from policy.plan import SYSTEM_PATH


@contextmanager
def _nothing_to_execute() -> Iterator[None]:
    """Importing GitPython runs `git version` by the caller's PATH; here it finds nothing to run, and is silent."""
    names = {"GIT_PYTHON_GIT_EXECUTABLE": "/nonexistent/git", "GIT_PYTHON_REFRESH": "quiet"}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


with _nothing_to_execute():
    import git
    from git.db import GitCmdObjectDB
    from git.diff import decode_path
    from gitdb.base import IStream, OStream

if git.Git.git_exec_name == git.Git.GIT_PYTHON_GIT_EXECUTABLE:  # else the programme around has chosen one
    git.Git.GIT_PYTHON_GIT_EXECUTABLE = shutil.which("git", path=SYSTEM_PATH) or "/nonexistent/git"

TIMEOUT = 60.0
"""Seconds for one command: what is only shown is not worth more."""

_OUTPUT_LIMIT = 32 << 20
_LARGEST = 64 << 10
_READING = frozenset({"cat-file", "diff", "diff-tree", "merge-base", "rev-list", "rev-parse", "version"})
# `--output` writes a file, `--no-index` and `-O` read any, `--textconv` and `--ext-diff` execute: a list of the others.
# Those of GitPython's `Commit.diff` are not on it: a line break in a name makes further files of its own there.
_OPTIONS = frozenset(
    {"--batch", "--batch-check", "--is-ancestor", "--max-count", "--no-merges", "--no-renames", "--numstat", "--raw",
     "--root", "--verify"}
)  # fmt: skip
# Else GitPython takes what is behind a line separator in a name for another line of its list.
_SETTINGS = (("core.quotePath", "true"),)
_TAKEN = {"istream", "as_process", "with_exceptions", "with_extended_output", "stdout_as_string", "with_stdout",
          "strip_newline_in_stdout"}  # fmt: skip
_ENCODINGS = frozenset(
    {"ascii", "big5", "cp1251", "cp1252", "euc_jp", "euc_kr", "gb18030", "gb2312", "gbk", "iso2022_jp", "iso8859-1",
     "iso8859-15", "iso8859-2", "koi8-r", "shift_jis", "utf-8"}
)  # fmt: skip
"""Of commits that are decoded. Others of Python's take quadratic time, or make what is no text."""
_ENCODING = re.compile(rb"\nencoding (.*)")


class _Ended:
    """A process that has ended, in the shape in which GitPython reads one."""

    stdin = None

    def __init__(self, done: Completed) -> None:
        self.returncode = done.status
        self.stdout = io.BytesIO(done.out)
        self.stderr = io.BytesIO(done.err)

    def poll(self) -> int:
        return self.returncode

    def wait(self) -> int:
        return self.returncode


class HardenedGit(git.Git):
    """GitPython's command object on Paddock's runner: it reads one trusted repository, and can do nothing else."""

    def __init__(self, runner: Runner) -> None:
        super().__init__()
        self._runner = runner

    def execute(self, command: object, *positional: object, **options: object) -> Any:  # noqa: ANN401
        """Runs a reading command; as the original, but for options that choose a programme, a shell or variables.

        Only `cat-file` becomes a process that stays, until `clear_cache`.

        Raises:
            git.exc.GitCommandError: git said no.
            Refusal: history-closed: this is not for reading; git-timeout, git-output, git-missing, git-dir-written.
        """
        words = [str(word) for word in command[1:]] if isinstance(command, list | tuple) else []
        odd = {name for name, value in options.items() if name not in _TAKEN and value is not None}
        if not words or positional or odd or self._environment or not _reads(words):
            raise _closed(f"git {' '.join(words[:24])}")
        as_process = options.get("as_process", False)
        if as_process and words[0] == "cat-file":
            pipe = subprocess.PIPE
            return self.AutoInterrupt(self._runner.start(*words, stdin=pipe, stdout=pipe), words)
        done = self._runner.run(*words, ok=range(256))
        if as_process:
            ended: Any = _Ended(done)
            return self.AutoInterrupt(ended, words)
        if done.status and options.get("with_exceptions", True):
            raise git.exc.GitCommandError(words, done.status, done.err, done.out)
        out: Any = done.out if options.get("with_stdout", True) else b""
        out = out.removesuffix(b"\n") if options.get("strip_newline_in_stdout", True) else out
        if options.get("stdout_as_string", True):
            out = os.fsdecode(out)
        return (done.status, out, os.fsdecode(done.err)) if options.get("with_extended_output") else out


def _reads(words: Sequence[str]) -> bool:
    """Whether a command is on the list, and all of its options."""
    before = words[: words.index("--")] if "--" in words else words
    named = {word.partition("=")[0] for word in before[1:] if word.startswith("-")}
    return words[0] in _READING and named <= _OPTIONS


def _closed(what: str) -> Refusal:
    return Refusal(
        "history-closed",
        f"{printable(what)} cannot be used to read history",
        context="GitPython may read commits, trees and differences here; nothing else",
        hint="use launcher.vcs.git.Git for what has to be done in a repository",
    )


class CommitObjects(GitCmdObjectDB):
    """A repository's objects as git reads them: none that is too large, and commits in UTF-8.

    GitPython's own reader of packs is not used: it is deprecated for its security, and maps files into memory.
    """

    def stream(self, binsha: bytes) -> OStream:
        """An object's content.

        Raises:
            ValueError: it is missing or too large.
        """
        size = self.info(binsha).size
        if size > _LARGEST:
            raise ValueError(f"{binsha.hex()} has {size} bytes")
        found = super().stream(binsha)
        data = found.read()
        if found.type == b"commit":
            data = _in_utf8(data)
        return OStream(found.binsha, found.type, len(data), io.BytesIO(data))

    def store(self, istream: IStream) -> IStream:
        """Refused.

        Refusals: history-closed.
        """
        raise _closed("store")


def _in_utf8(commit: bytes) -> bytes:
    """A commit without its `encoding`, which GitPython (3.2) overlooks, and a later one might believe too readily."""
    head, _, text = commit.partition(b"\n\n")
    named = _ENCODING.search(head)
    if named is None:
        return commit
    whole = head.replace(named[0], b"", 1) + b"\n\n" + text
    try:
        codec = codecs.lookup(named[1].decode("ascii")).name
    except (LookupError, ValueError):
        return whole
    return whole.decode(codec, "replace").encode() if codec in _ENCODINGS else whole


_OPEN = frozenset(
    {"bare", "close", "commit", "common_dir", "git", "git_dir", "is_ancestor", "iter_commits", "merge_base", "odb",
     "re_hexsha_only", "re_hexsha_shortened", "rev_parse", "tree", "unsafe_git_diff_options",
     "unsafe_git_revision_options", "working_dir", "working_tree_dir", "GitCommandWrapperType"}
)  # fmt: skip


class TrustedRepo(git.Repo):
    """GitPython on a git directory that no agent could write: commits, trees and differences.

    It has no files, no index, no configuration, no remotes and no submodules: GitPython would run hooks, write by
    itself, or start processes of its own there. Close it, or use it in `with`.

    Args:
        git_dir: absolute; of a worktree, or of the repository.
        state: Paddock's state directory; by default that of this process's environment.

    Refusals: git-dir-written: an agent could write it.
    """

    GitCommandWrapperType = HardenedGit  # type: ignore[assignment]

    def __init__(self, git_dir: str, *, state: str | None = None) -> None:
        # Not GitPython's own: it goes by GIT_DIR, GIT_COMMON_DIR, GIT_WORK_TREE, GIT_OBJECT_DIRECTORY and the user's
        # configuration.
        runner = Runner(git_dir, timeout=TIMEOUT, output_limit=_OUTPUT_LIMIT, settings=_SETTINGS)
        for directory in (runner.git_dir, runner.common_dir):
            written.refuse_agents_git_dir(directory, state)
        self.git_dir = runner.git_dir
        self._common_dir = runner.common_dir
        self._bare = True
        self.working_dir = runner.git_dir
        self.git = HardenedGit(runner)
        self.odb = CommitObjects(f"{runner.common_dir}/objects", self.git)

    def __enter__(self) -> Self:
        return self

    if not TYPE_CHECKING:

        def __getattribute__(self, name: str) -> object:
            """Attributes that read; the others are closed, those of later releases of GitPython too."""
            if name not in _OPEN and not name.startswith("_"):
                raise _closed(f"Repo.{name}")
            return super().__getattribute__(name)


_ID = re.compile(r"[0-9a-f]{40}")

MOST_COUNTED = 10_000
"""Commits that are counted."""

_SUBJECT, _NAME = 200, 80
"""Characters of a subject and of a name that are taken."""


class Entry(NamedTuple):
    """A commit. What its author wrote is as it was; the last four are empty where it cannot be decoded.

    The date alone is empty where no calendar of Python's has it: an author sets it as he likes.
    """

    commit: str
    subject: str
    author: str
    email: str
    date: str

    def line(self) -> str:
        """The commit for people."""
        date = self.date[:10] or "(no date)"
        said = f"{date} {spoken(self.author)}: {spoken(self.subject)}" if any(self[1:]) else "(not readable)"
        return f"{self.commit[:12]} {said}"


class Change(NamedTuple):
    """A file that differs; the kind is git's letter (A, D, M, T). Binary files have no lines."""

    path: str
    kind: str
    insertions: int
    deletions: int

    def line(self, shown: Callable[[str], str] = cited) -> str:
        """The file for people; `shown` makes its path printable."""
        return f"{self.kind} {shown(self.path)} +{self.insertions} -{self.deletions}"


class History(NamedTuple):
    """What leads from one commit to another.

    Attributes:
        commits: the newest of them.
        commit_count: of all, without merges; at most `MOST_COUNTED`.
        authors: names in `commits`, each once.
        files: the first of those that differ, in git's order.
        file_count: of all files that differ.
        insertions: lines in all of them.
        deletions: lines in all of them.
    """

    commits: tuple[Entry, ...]
    commit_count: int
    authors: tuple[str, ...]
    files: tuple[Change, ...]
    file_count: int
    insertions: int
    deletions: int

    def summary(self) -> str:
        """It all in one line for people."""
        more = "+" if self.commit_count >= MOST_COUNTED else ""
        days = sorted({entry.date[:10] for entry in self.commits if entry.date})
        when = f", {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
        names = ", ".join(map(spoken, self.authors[:3]))
        names += f" and {len(self.authors) - 3} more" if len(self.authors) > 3 else ""
        commits = f"{self.commit_count}{more} commit{'' if self.commit_count == 1 else 's'}"
        files = f"{self.file_count} file{'' if self.file_count == 1 else 's'}"
        by = f" by {names}" if names else ""
        return f"{commits}{by}{when}; {files}, +{self.insertions} -{self.deletions}"

    def lines(self, most: int, shown: Callable[[str], str] = cited) -> list[str]:
        """The summary, then at most so many commits, then at most so many files (`shown`), for people."""
        found = [self.summary(), *("  " + entry.line() for entry in self.commits[:most])]
        found += [f"  and {self.commit_count - most} more"] if self.commit_count > most else []
        found += ["  " + change.line(shown) for change in self.files[:most]]
        return [*found, f"  and {self.file_count - most} more files"] if self.file_count > most else found

    def document(self) -> dict[str, Any]:
        """It all for JSON; bytes that are not UTF-8 become `\\xNN`."""
        return {
            **self._asdict(),
            "commits": [{name: _text(value) for name, value in each._asdict().items()} for each in self.commits],
            "authors": [_text(name) for name in self.authors],
            "files": [{**each._asdict(), "path": _text(each.path)} for each in self.files],
        }


def _text(value: str) -> str:
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def between(repo: TrustedRepo, old: str, new: str, *, commits: int = 50, files: int = 200) -> History:
    """What leads from one commit to another: the commits that only `new` has, and the files that differ.

    Args:
        commits: at most so many are read.
        files: at most so many are named.

    Refusals: history-unreadable: an object is missing, or the repository's ids are not SHA-1, which is all that
    GitPython knows; and as `HardenedGit.execute`.
    """
    try:
        if not (_ID.fullmatch(old) and _ID.fullmatch(new)):
            raise ValueError("an object id has 40 hexadecimal digits here")  # a name would be looked up
        first, last = repo.commit(old), repo.commit(new)
        listed = list(repo.iter_commits(f"{first.hexsha}..{last.hexsha}", no_merges=True, max_count=MOST_COUNTED))
        # `stats` compares with the first parent, and asks nothing else of the object.
        stats = git.Commit(repo, last.binsha, parents=[first]).stats
    except (git.exc.GitError, git.exc.ODBError, ValueError, AssertionError, OSError) as error:
        raise Refusal(
            "history-unreadable",
            f"the commits from {old[:12]} to {new[:12]} cannot be read",
            context=printable(str(error).strip()[:400]),
            hint=f"git log --stat {old[:12]}..{new[:12]}",
        ) from None
    entries = tuple(_entry(commit) for commit in listed[:commits])
    changes = [
        Change(os.fsdecode(decode_path(os.fsencode(path), has_ab_prefix=False) or b""),
               str(each["change_type"]), each["insertions"], each["deletions"])
        for path, each in list(stats.files.items())[:files]
    ]  # fmt: skip
    return History(
        entries,
        len(listed),
        tuple(dict.fromkeys(entry.author for entry in entries if entry.author)),
        tuple(changes),
        stats.total["files"],
        stats.total["insertions"],
        stats.total["deletions"],
    )


def read(git_dir: str, old: str, new: str) -> History | None:
    """`between` in a repository that is opened for it; None where it cannot be read, which is no reason to fail."""
    try:
        with TrustedRepo(git_dir) as repo:
            return between(repo, old, new)
    except Refusal:
        return None


def of_merges(descriptors: Mapping[str, Mapping[str, Any] | None]) -> dict[str, History]:
    """What merges have brought, by the caller's keys; those that brought nothing, or cannot be read, are left out.

    Args:
        descriptors: of `launcher.vcs.merge.descriptors.MergeDescriptor`, as JSON has them.
    """
    found = {}
    for key, descriptor in descriptors.items():
        main = (descriptor or {}).get("main_worktree_merge_result") or {}
        if main.get("commit_id") and main.get("repository"):
            history = read(str(main["repository"]), main["previous_commit_id"], main["commit_id"])
            if history is not None:
                found[key] = history
    return found


def _entry(commit: git.Commit) -> Entry:
    """A commit as its author wrote it; by its id alone where it is not well formed."""
    try:
        summary = commit.summary
        subject = summary if isinstance(summary, str) else os.fsdecode(summary)
        author = commit.author
        try:
            date = commit.authored_datetime.isoformat()
        except (ValueError, ArithmeticError, OSError):
            date = ""
        return Entry(commit.hexsha, subject[:_SUBJECT], (author.name or "")[:_NAME], (author.email or "")[:_NAME], date)
    except GitFailed:
        raise
    except (ValueError, LookupError, AttributeError, AssertionError, ArithmeticError, OSError):
        return Entry(commit.hexsha, "", "", "", "")
