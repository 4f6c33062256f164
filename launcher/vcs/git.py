"""Running git on a trusted repository: one whose git directory no agent could write.

Nothing but git itself is executed, whatever configuration, attributes, hooks and environment say
(`hardened_environment`), and every process has its limits of time and output. A git directory that an agent could write
is never given to `Git`: there, only git inside a jail may read (DESIGN section 7).

Why not GitPython's command object: its processes inherit the caller's environment (nothing can be taken out of it),
importing it runs a `git` from the caller's PATH and costs 120 ms, a time limit lists children by running `pgrep` from
that PATH, and output has no limit.
"""

import contextlib
import copy
import io
import os
import re
import resource
import select
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple, Self

from launcher.jail import processes
from launcher.vcs import checkout, written
from launcher.vcs.disk import Present
from launcher.vcs.private import ref_files
from policy.errors import Refusal, in_rows
from policy.pasted import joined
from policy.plan import SYSTEM_PATH

# What git is told so that nothing a repository's configuration names is ever executed.
#
# Programmes that git starts by itself come from five places, and each is closed here:
#
# - the environment (`GIT_SSH_COMMAND`, `GIT_EXTERNAL_DIFF`, `PAGER`, ...): it is built from nothing (`environment`);
# - the system's and the user's configuration and attributes: not read at all; - hooks: looked for in `/dev/null`; -
# configuration keys with fixed names: overridden, whether set or not (`FIXED`); - configuration keys with free names
# (`filter.ANY.smudge`, `merge.ANY.driver`, ...): git has no switch for those, so the names are listed first and each
# is overridden (`overrides`). An attribute that asks for a driver then finds one that does nothing, or what git
# itself would do.
#
# Sources: git(1), git-config(1), gitattributes(5), githooks(5).

Setting = tuple[str, str]

FIXED: tuple[Setting, ...] = (
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.ignoreStat", "false"),  # a mark that nothing is to be seen of, on each entry that git writes
    ("core.pager", "cat"),
    ("core.editor", "false"),
    ("sequence.editor", "false"),
    ("core.askPass", ""),
    ("core.sshCommand", "false"),
    ("core.alternateRefsCommand", "true"),
    ("credential.helper", ""),
    ("commit.gpgSign", "false"),
    ("tag.gpgSign", "false"),
    ("tag.forceSignAnnotated", "false"),
    ("push.gpgSign", "false"),
    ("log.showSignature", "false"),
    ("gpg.program", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("submodule.recurse", "false"),
    ("safe.directory", "*"),  # whose the repository is, is asked by `Git.open`; and nothing in it can act
)

_TEXT_MERGE = "git merge-file -q -L ours -L base -L theirs --marker-size=%L %A %O %B"
"""What git does without a driver. A driver that did nothing would pass for a merge without a conflict."""

_FREE: Mapping[str, Mapping[str, str]] = {
    # section -> last part of the key -> harmless value; "" as the last part stands for every other one
    "alias": {"": ""},
    "browser": {"cmd": "false", "path": "false"},
    "core": {"gitproxy": "false"},
    "credential": {"helper": ""},
    "diff": {"external": "false", "command": "false", "textconv": "cat"},
    "difftool": {"cmd": "false", "path": "false"},
    "filter": {"clean": "", "smudge": "", "process": "", "required": "false"},
    "gpg": {"program": "false", "defaultkeycommand": "false"},
    "guitool": {"cmd": "false"},
    "hook": {"command": "true", "enabled": "false"},
    "interactive": {"difffilter": "cat"},
    "man": {"cmd": "false", "path": "false"},
    "merge": {"driver": _TEXT_MERGE},
    "mergetool": {"cmd": "false", "path": "false"},
    "pager": {"": "false"},
    "remote": {"uploadpack": "git-upload-pack", "receivepack": "git-receive-pack"},
    "sendemail": {"sendmailcmd": "false", "tocmd": "false", "cccmd": "false", "headercmd": "false"},
    "submodule": {"update": "checkout"},
    "tar": {"command": "false"},
    "trailer": {"command": "true", "cmd": "true"},
    "uploadpack": {"packobjectshook": ""},
}

PASSED = frozenset(
    {
        "GIT_AUTHOR_DATE",
        "GIT_AUTHOR_EMAIL",
        "GIT_AUTHOR_NAME",
        "GIT_COMMITTER_DATE",
        "GIT_COMMITTER_EMAIL",
        "GIT_COMMITTER_NAME",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_INDEX_FILE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_QUARANTINE_PATH",
        "GIT_REFLOG_ACTION",
        "TZ",
    }
)
"""Variables that a caller of `Git.run` may set. None of them names a programme."""


def overrides(names: Iterable[str], filters: Iterable[str] = ()) -> list[Setting]:
    """Settings that take away what the configured keys `names` could execute, but for the named `filter` drivers."""
    kept = frozenset(filters)
    found = dict.fromkeys(names)
    result: list[Setting] = []
    for name in found:
        section, _, rest = name.partition(".")
        subsection, _, last = rest.rpartition(".")
        table = _FREE.get(section.lower())
        if table is None or (section.lower() == "filter" and subsection in kept):
            continue
        value = table.get(last.lower(), table.get(""))
        if value is not None:
            result.append((name, value))
    return result


def hardened_environment(settings: Iterable[Setting]) -> dict[str, str]:
    """The whole environment of a git process; no transport may be used.

    The settings count above all files. They go through the environment, so they reach the processes that git starts,
    and a `=` in a key is no trouble.
    """
    result = {
        "PATH": SYSTEM_PATH,
        "LC_ALL": "C",
        "LANGUAGE": "C",
        "HOME": "/nonexistent",
        "XDG_CONFIG_HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "SSH_ASKPASS": "",
        "GIT_SSH_COMMAND": "false",
        "GIT_EDITOR": "false",
        "GIT_SEQUENCE_EDITOR": "false",
        "GIT_PAGER": "cat",
        "PAGER": "cat",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_IMPLICIT_WORK_TREE": "0",  # without one, the current directory would be taken for the work tree
        "GIT_ALLOW_PROTOCOL": "",
        "GIT_PROTOCOL_FROM_USER": "0",
    }
    pairs = [*FIXED, *settings]
    result["GIT_CONFIG_COUNT"] = str(len(pairs))
    for number, (key, value) in enumerate(pairs):
        result[f"GIT_CONFIG_KEY_{number}"] = key
        result[f"GIT_CONFIG_VALUE_{number}"] = value
    return result


TIMEOUT = 600.0
"""Seconds after which a git process is killed. Long: a checkout on a slow disk must not die of it."""

OUTPUT_LIMIT = 256 << 20
"""Bytes of standard output that a git process may write to us."""

_MOST_MEMORY = 4 << 30
"""Bytes of its own that a git process may have, as one in a jail: objects of an agent's may describe any number of
things. Packs that it maps do not count (getrlimit(2), RLIMIT_DATA)."""

_DIED_IN_JAIL = frozenset(128 + number for number in signal.valid_signals()) - {129}
"""What a jail exits with when a signal has ended git (`confined.run`). With 129 git says that it knows no option."""

ERROR_TAIL = 64 << 10
"""Bytes of standard error that are kept, from its end."""
_SHOWN_LINES = 12
_BLOCK = 1 << 16
_MOST_CONFIGURED = 512

_configured: dict[str, tuple[dict[str, object], tuple[tuple[str, str, str | None], ...]]] = {}
"""Configuration files when they were read, and what they said; by git directory. Linked worktrees without a file of
their own share the common one's."""

_REPEATS = 3
_READERS = frozenset(
    {"cat-file", "diff-tree", "log", "ls-tree", "merge-base", "merge-tree", "pack-objects", "rev-list"}
)
_VANISHED = re.compile(
    rb"bad (object|tree)|(unable to|could not|failed to) (read|find|open)|cannot be accessed|missing"
)
"""What git says when a pack was replaced by another (`git repack -ad`) while it looked for objects, twice in a row."""

# Their `-p` would run programmes that configuration or attributes name; `.gitmodules` would have them hide submodules.
_DIFFS = frozenset({"diff", "diff-files", "diff-index", "diff-tree", "format-patch", "log", "range-diff", "show"})

_BEHIND_REF = re.compile(r"[~^:]|@\{")
"""What ends the name of a ref in a revision (gitrevisions(7))."""
_OBJECT = re.compile(r"[0-9a-fA-F]{40}|[0-9a-fA-F]{64}")
"""A whole id, which git takes before any ref."""
LIKE_A_COMMIT = re.compile(r"(?:.*-g)?([0-9a-fA-F]{4,})", re.DOTALL)
"""The beginning of an id, and what git-describe(1) prints: git takes it for that commit where it is no ref."""


class Completed(NamedTuple):
    """A git process that has ended: exit status (-N: killed by signal N), standard output, end of standard error."""

    status: int
    out: bytes
    err: bytes


class Object(NamedTuple):
    """An object as ``git cat-file --batch-check`` tells it; the kind of one that is not there is ``missing``."""

    oid: str
    kind: str
    size: int


def split(content: bytes, separator: bytes) -> Iterator[bytes]:
    """As `bytes.split`, one by one: an agent chooses how many there are, and each takes more memory than its text."""
    start = 0
    while (end := content.find(separator, start)) != -1:
        yield content[start:end]
        start = end + 1
    yield content[start:]


def parsed_objects(out: bytes) -> Iterator[Object]:
    """The lines of ``git cat-file --batch-check``."""
    for line in filter(None, split(out, b"\n")):
        oid, kind, size, *_ = [*line.decode(errors="replace").split(" "), "", ""]
        yield Object(oid, kind, int(size) if size.isdigit() else 0)


class Difference(NamedTuple):
    """A path that differs, as git's ``--raw`` tells it: modes and object ids (zeros for none) before and after."""

    old_mode: bytes
    new_mode: bytes
    old: str
    new: str
    kind: bytes
    path: bytes


EMPTY_TREE = {
    40: "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    64: "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
"""The tree without entries, by the length of object ids. Git knows it without having it."""


def parsed_differences(out: bytes) -> Iterator[Difference]:
    """The records of ``--raw -z --no-abbrev``."""
    fields = split(out, b"\0")
    for record in filter(None, fields):
        before, after, old, new, kind = record[1:].split(b" ")
        yield Difference(before, after, old.decode(), new.decode(), kind, next(fields))


class Change(NamedTuple):
    """A file that differs, where renames are looked for; `old_path` differs from `path` where it has one."""

    old_mode: str
    new_mode: str
    old: str
    new: str
    kind: str
    old_path: str
    path: str


def parsed_changes(out: bytes) -> tuple[list[Change], bytes]:
    """The records of ``--raw -z --no-abbrev``, with renames, and what is behind them (with ``--patch``)."""
    found: list[Change] = []
    while out.startswith(b":"):
        record, _, out = out.partition(b"\0")
        old_mode, new_mode, old, new, kind = record[1:].decode("ascii").split(" ")
        first, _, out = out.partition(b"\0")
        second = first
        if kind[0] in "RC":
            second, _, out = out.partition(b"\0")
        found.append(Change(old_mode, new_mode, old, new, kind[0], os.fsdecode(first), os.fsdecode(second)))
    return found, out.removeprefix(b"\0")


class GitFailed(Refusal):
    """Git said no, or was stopped.

    Args:
        reference: ``git-failed`` (it said no, or somebody ended it), ``git-died`` (by itself, and would of the
            same again; perhaps there is a lock), ``git-timeout``, ``git-output`` or ``git-missing``.
        words: the command without its fixed options.
        where: the git directory.
        why: what happened; the last lines of git's own words are put behind it.

    Attributes:
        status: exit status; -N when signal N ended it; None when it did not start.
        err: what git wrote to standard error (its last 64 KiB).
    """

    def __init__(
        self, reference: str, words: Sequence[str], where: str, why: str, *, status: int | None, err: bytes = b""
    ) -> None:
        lines = in_gits_words(err)
        command = joined(["git", *words[:24], *(["..."] if len(words) > 24 else [])])
        super().__init__(
            reference,
            f"git {words[0] if words else ''}: {why}",
            context=in_rows(f"{command}, in {where}", *lines),
            hint="nothing from the repository's own configuration was executed: check whether plain git can do it",
        )
        self.status = status
        self.err = err


def in_gits_words(err: bytes, most: int = _SHOWN_LINES) -> list[str]:
    """The last lines of what git wrote to standard error, each marked: an agent's paths there may hold newlines."""
    lines = [line for line in err.decode(errors="replace").splitlines() if line.strip()]
    return [f"git: {line}" for line in lines[-most:]]


def executable(words: Sequence[str], where: str) -> str:
    """The system's git, whatever the caller's PATH leads to."""
    found = shutil.which("git", path=SYSTEM_PATH)
    if found is None:
        raise GitFailed("git-missing", words, where, f"there is no git in {SYSTEM_PATH}", status=None)
    return os.path.realpath(found)


class Git:
    """Git on one trusted repository: its objects, refs, index and configuration. Cheap to make; thread-safe.

    It has no files: those of a worktree are an agent's, and `jailed_git.JailedGit` works on them.

    Args:
        git_dir: its git directory (a linked worktree's own one, or the main one), absolute.
        own_tree: a directory of files that no session can reach (`Scratch`), for commands that cannot do without.
        timeout: seconds that each process may take.
        output_limit: bytes of standard output that `run` takes.
        filters: names of `filter` drivers that may run as the repository's own configuration says. By default none
            does: files are checked out as they are stored.
        settings: further configuration, as (key, value), above all files and above what protects.
        hold: descriptors that every process inherits. A lock among them (flock(2)) stays taken until the last git has
            ended, also when this process is killed.
    """

    def __init__(
        self,
        git_dir: str | Path,
        *,
        own_tree: str | None = None,
        timeout: float = TIMEOUT,
        output_limit: int = OUTPUT_LIMIT,
        filters: Iterable[str] = (),
        settings: Iterable[Setting] = (),
        hold: Iterable[int] = (),
    ) -> None:
        self.git_dir = os.fspath(git_dir)
        self.own_tree = own_tree
        self.common_dir = checkout.common_dir(self.git_dir, Present())
        self.timeout = timeout
        self.output_limit = output_limit
        self._filters = tuple(filters)
        self._settings = tuple(settings)
        self._hold = tuple(hold)
        self._environment: dict[str, str] = {}
        self._asked = False

    def variant(
        self,
        settings: Iterable[Setting] = (),
        *,
        own_tree: str | None = None,
        hold: Iterable[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Git on the same repository with more settings, descriptors or variables, or with another tree of our own."""
        other = copy.copy(self)
        other.own_tree = own_tree or self.own_tree
        other._hold = (*self._hold, *hold)
        other._environment = {**self._environment, **(environment or {})}
        other._settings = (*self._settings, *settings)
        return other

    @classmethod
    def open(cls, worktree: str | Path) -> "Git":
        """Git on the worktree (main, linked or submodule) whose root is `worktree`.

        The git directory is found by reading pointers; one that an agent may have planted is refused. It must belong
        to the caller or to root, unless the caller is root.

        Refusals: what `checkout.find` refuses, git-not-ours.
        """
        found = checkout.find(os.path.abspath(worktree), Present(), exact=True)
        for directory in {found.git_dir, found.common_dir}:
            owner = os.stat(directory).st_uid
            if os.geteuid() not in (0, owner) and owner != 0:
                raise Refusal(
                    "git-not-ours",
                    f"{directory} belongs to another user",
                    context=f"its owner is user {owner}, and this is user {os.geteuid()}",
                    hint="work in a clone of your own",
                )
        return cls(found.git_dir)

    def run(
        self,
        *arguments: str,
        input: bytes | None = None,
        ok: Iterable[int] = (0,),
        environment: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Completed:
        """Runs a git command to its end.

        Args:
            arguments: the command and its own arguments; paths are taken literally, without pathspec magic.
            ok: exit statuses that are no failure.
            environment: variables of `PASSED` (author, committer, index file ...).
            timeout: seconds, in place of the repository's.

        Raises:
            GitFailed: another exit status, no git, out of time, or too much output. No process is left.
            Refusal: git-dir-written: a session could write the git directory.
        """
        for _ in range(_REPEATS):
            try:
                return self._run(arguments, input, ok, environment, timeout)
            except GitFailed as error:
                if arguments[0] not in _READERS or not _VANISHED.search(error.err):
                    raise
        return self._run(arguments, input, ok, environment, timeout)

    def _run(
        self,
        arguments: Sequence[str],
        input: bytes | None,
        ok: Iterable[int],
        environment: Mapping[str, str] | None,
        timeout: float | None,
    ) -> Completed:
        pipe = subprocess.PIPE
        process = self.start(
            *arguments,
            stdin=pipe if input is not None else subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            environment=environment,
        )
        limit = self.timeout if timeout is None else timeout
        try:
            deadline = time.monotonic() + limit
            out, err, stopped = _collected(process, input or b"", deadline, self.output_limit, self._look(process))
        finally:
            kill(process)
        if stopped == "time":
            raise GitFailed(
                "git-timeout", arguments, self.git_dir, f"not finished after {limit:g} s", status=None, err=err
            )
        if stopped == "output":
            why = f"more than {self.output_limit} bytes of output"
            raise GitFailed("git-output", arguments, self.git_dir, why, status=None, err=err)
        if process.returncode not in ok:
            ended = process.returncode
            number = -ended if ended < 0 else ended - 128 if ended in _DIED_IN_JAIL else 0
            why = f"ended by {signal.Signals(number).name}" if number else f"exit status {ended}"
            reference = "git-died" if number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT) else "git-failed"
            raise self._failure(GitFailed(reference, arguments, self.git_dir, why, status=ended, err=err))
        return Completed(process.returncode, out, err)

    def _look(self, process: "subprocess.Popen[bytes]") -> Callable[[], None] | None:
        """What is done each second or so while a command runs; what it raises ends the command."""
        return None

    def _failure(self, error: GitFailed) -> Refusal:
        """What is raised for a command that failed."""
        return error

    def text(self, *arguments: str) -> str:
        """Standard output of a command that succeeded, decoded (surrogateescape), without its last newline."""
        return os.fsdecode(self.run(*arguments).out.removesuffix(b"\n"))

    def refs(self, *patterns: str) -> dict[str, str]:
        """Full name (surrogateescape) of each ref below one of `patterns`, or of all -> object id. Options go first."""
        listed = self.text("for-each-ref", "--format=%(objectname) %(refname)", *patterns)
        # By git's newline alone: a name may hold what else ends a line for Python.
        return {ref: oid for oid, _, ref in (line.partition(" ") for line in listed.split("\n") if line)}

    def ref(self, name: str, *, ok: Collection[int] = (0, 1)) -> str:
        """The object id of HEAD, or of a ref that all working trees share; "" when there is none.

        Git is asked only where the files do not say it.
        """
        self._refuse_written()
        if found := ref_files.one(self.git_dir, self.common_dir, name):
            return found
        if 1 in ok and ref_files.absent(self.common_dir, name):
            return ""
        return self.run("rev-parse", "--verify", "--quiet", "--end-of-options", name, ok=ok).out.decode().strip()

    def ref_named(self, word: str, known: Mapping[str, str] | None = None) -> str:
        """The full name of the ref that a word of the user's stands for, by gitrevisions(7); "" when there is none.

        Git takes a tag before a branch, and agents choose names of refs: where a word is several, or one and a commit
        besides, none is guessed. `known`: all refs, where they have been asked for.

        Refusals: ref-ambiguous.
        """
        if word.startswith("refs/"):
            return word
        if word in ("", "HEAD", "@") or _OBJECT.fullmatch(word):
            return ""
        places = [*(f"refs/{kind}{word}" for kind in ("heads/", "tags/", "remotes/", "")), f"refs/remotes/{word}/HEAD"]
        known = self.refs(*places) if known is None else known
        found = {place: known[place] for place in places if place in known}
        if found and (of_commit := LIKE_A_COMMIT.fullmatch(word)):
            begun = self.objects(self.text("rev-parse", f"--disambiguate={of_commit[1]}").split())
            commits = [one.oid for one in begun if one.kind == "commit"]
            found |= dict.fromkeys(commits, commits[0]) if len(commits) == 1 else {}
        if len({*found.values()}) > 1:
            raise Refusal(
                "ref-ambiguous",
                f"{word} has several meanings",
                context=f"{', '.join(found)}; an agent may have chosen one of the names",
                hint=f"name the one that you mean: {next(iter(found))}",
            )
        return next(iter(found), "")

    def commit_of(self, name: str) -> str:
        """The commit that a word of the user's (gitrevisions(7)) stands for; "" when there is none.

        Refusals: ref-ambiguous.
        """
        base = _BEHIND_REF.split(name, maxsplit=1)[0]
        start = f"{self.ref_named(base) or base}{name[len(base) :]}^{{commit}}"
        done = self.run("rev-parse", "--verify", "--quiet", "--end-of-options", start, ok=(0, 1, 128))
        return done.out.decode("ascii").strip() if done.status == 0 else ""

    def contains(self, newer: str, older: str) -> bool:
        """Whether a commit has another one in its history, or is it; False also where one of the two is missing."""
        return self.run("merge-base", "--is-ancestor", older, newer, ok=(0, 1, 128)).status == 0

    def objects(self, names: Iterable[str], environment: Mapping[str, str] | None = None) -> list[Object]:
        """What each name stands for, in their order."""
        asked = os.fsencode("".join(f"{name}\n" for name in names))
        out = self.run("cat-file", "--batch-check", input=asked, environment=environment).out if asked else b""
        return list(parsed_objects(out))

    def contents(self, oids: Sequence[str], environment: Mapping[str, str] | None = None) -> list[bytes]:
        """The contents of objects, all of which are there, in their order."""
        asked = "".join(f"{oid}\n" for oid in oids).encode()
        out = self.run("cat-file", "--batch", input=asked, environment=environment).out if oids else b""
        found = []
        at = 0
        for _ in oids:
            start = out.index(b"\n", at) + 1
            at = start + int(out[at:start].split()[2]) + 1
            found.append(out[start : at - 1])
        return found

    def differences(self, old: str, new: str, environment: Mapping[str, str] | None = None) -> Iterator[Difference]:
        """The paths at which two trees differ, in git's order; renames are not looked for."""
        words = ("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames")
        return parsed_differences(self.run(*words, old, new, "--", environment=environment).out)

    def start(
        self,
        *arguments: str,
        stdin: int | IO[bytes] | None = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = subprocess.DEVNULL,
        stderr: int | IO[bytes] | None = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
    ) -> "subprocess.Popen[bytes]":
        """Starts a git command, for streams. It leads a session and process group of its own; `kill` ends it.

        The limits of time and output are the caller's to keep.
        """
        return self._started(arguments, stdin, stdout, stderr, environment, self._overrides())

    def _started(
        self,
        arguments: Sequence[str],
        stdin: int | IO[bytes] | None,
        stdout: int | IO[bytes] | None,
        stderr: int | IO[bytes] | None,
        environment: Mapping[str, str] | None,
        overrides: list[Setting],
    ) -> "subprocess.Popen[bytes]":
        if not arguments or not arguments[0].replace("-", "").isalnum() or arguments[0].startswith("-"):
            raise ValueError(f"the first argument must be a git command: {arguments[:1]}")
        environment = {**self._environment, **(environment or {})}
        foreign = set(environment) - PASSED
        if foreign:
            raise ValueError(f"not to be passed to git: {sorted(foreign)}")
        self._refuse_written()
        program = executable(arguments, self.git_dir)
        # Never its own `core.worktree`, to which git would change: the files there are a session's, or missing.
        words = [program, f"--git-dir={self.git_dir}", f"--work-tree={self.own_tree or '/nonexistent'}", "--no-pager"]
        words.append(arguments[0])
        if arguments[0] in _DIFFS:
            words += ["--no-ext-diff", "--no-textconv", "--ignore-submodules=none"]
        variables = hardened_environment([*overrides, *self._settings]) | environment
        return self._spawned(words + list(arguments[1:]), variables, stdin, stdout, stderr)

    def _refuse_written(self) -> None:
        if not self._asked:
            for directory in (self.common_dir, self.git_dir):
                written.refuse_agents_git_dir(directory)
            self._asked = True

    def _spawned(
        self,
        words: list[str],
        environment: dict[str, str],
        stdin: int | IO[bytes] | None,
        stdout: int | IO[bytes] | None,
        stderr: int | IO[bytes] | None,
    ) -> "subprocess.Popen[bytes]":
        """Starts the process itself; `environment` is all of it."""
        process = subprocess.Popen(
            words,
            cwd=self.own_tree or "/",
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=self._hold,
            start_new_session=True,
        )
        # From here, not between fork and exec: a service has threads.
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = [_MOST_MEMORY if value == resource.RLIM_INFINITY else min(value, _MOST_MEMORY) for value in (soft, hard)]
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (most[0], most[1]))
        return process

    def _overrides(self) -> list[Setting]:
        """What the repository's configuration needs to be harmless; asked again whenever a file of it has changed."""
        return overrides((name for _, name, _ in self.configured()), self._filters)

    def configured(self) -> tuple[tuple[str, str, str | None], ...]:
        """The repository's configuration: (file that sets it, key, value; None for the short form of true).

        Executes nothing. Asked once in this process, and again whenever a file of it has changed.

        Refusals: git-dir-written.
        """
        self._refuse_written()
        own = f"{self.git_dir}/config.worktree"
        key = self.git_dir if os.path.lexists(own) else self.common_dir
        known = _configured.get(key)
        if known is not None and known[0] == _stamp(known[0]):
            return known[1]
        # Looked at before they are read: what changes meanwhile is read again.
        stamp = _stamp((f"{self.common_dir}/config", own))
        entries = tuple(self._read_configuration())
        # An include may be conditional (on the branch, say), or its file may appear later: nothing is kept then.
        if stamp.keys() >= {origin for origin, _, _ in entries} and not any(
            name.startswith(("include.", "includeif.")) for _, name, _ in entries
        ):
            if len(_configured) >= _MOST_CONFIGURED:
                _configured.clear()
            _configured[key] = (stamp, entries)
        else:
            _configured.pop(key, None)
        return entries

    def _read_configuration(self) -> list[tuple[str, str, str | None]]:
        words = ["config", "--list", "--includes", "--show-origin", "--null"]
        process = self._started(words, subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE, None, [])
        try:
            out, err, stopped = _collected(process, b"", time.monotonic() + self.timeout, OUTPUT_LIMIT, None)
        finally:
            kill(process)
        if stopped or process.returncode:
            raise GitFailed("git-failed", words, self.git_dir, "its configuration cannot be read",
                            status=process.returncode, err=err)  # fmt: skip
        fields = os.fsdecode(out).split("\0")
        found: list[tuple[str, str, str | None]] = []
        for origin, item in zip(fields[::2], fields[1::2], strict=False):
            if origin.startswith("file:"):
                name, newline, value = item.partition("\n")
                found.append((os.path.join("/", origin.removeprefix("file:")), name, value if newline else None))
        return found


def _stamp(files: Iterable[str]) -> dict[str, object]:
    return {path: _identity(path) for path in files}


_DYING = 5.0
"""Seconds in which the kernel ends processes that were killed; what is behind a disk that hangs may take longer."""


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process of `Git.start` and all of its process group, takes its exit status, and closes its pipes.

    In a jail the kernel ends what is below the process only after it: nothing of it is left when its pipes have no
    other end any more.
    """
    if process.returncode is None:
        # Not reaped yet, so the group's number cannot belong to anybody else.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None and not stream.closed:
                ends = select.poll()
                ends.register(stream, 0)  # POLLHUP is always told (poll(2))
                ends.poll(_DYING * 1000)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _identity(path: str) -> object:
    try:
        found = os.stat(path)
    except OSError as error:
        return error.errno
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _collected(
    process: "subprocess.Popen[bytes]", content: bytes, deadline: float, limit: int, look: Callable[[], None] | None
) -> tuple[bytes, bytes, str]:
    """Feeds and reads a process until it has ended: output, end of its errors, and what stopped it, if anything.

    The process is waited for without being reaped when it was stopped, so that its group can still be killed.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    out = io.BytesIO()  # whose value takes no second copy
    err = b""
    left = memoryview(content)
    with selectors.DefaultSelector() as selector, os.fdopen(os.pidfd_open(process.pid), "rb", 0) as end:
        for readable in (end, process.stdout, process.stderr):
            selector.register(readable, selectors.EVENT_READ)
        if process.stdin is not None:
            if left:
                os.set_blocking(process.stdin.fileno(), False)
                selector.register(process.stdin, selectors.EVENT_WRITE)
            else:
                process.stdin.close()
        looked = time.monotonic()
        pause = processes.LOOK
        while selector.get_map():
            now = time.monotonic()
            remaining = deadline - now
            if remaining <= 0:
                return b"", err, "time"
            if look is not None and now - looked >= pause:
                look()
                # By chance: whoever knew the time could have git awake just then.
                looked, pause = time.monotonic(), processes.LOOK * (0.5 + os.urandom(1)[0] / 255)
            ready = selector.select(remaining if look is None else min(remaining, max(0.0, looked + pause - now)))
            for key, _ in ready:
                if key.fileobj is end:
                    selector.unregister(end)
                    continue
                if key.fileobj is process.stdin:
                    try:
                        left = left[os.write(key.fd, left[:_BLOCK]) :]
                    except BrokenPipeError:
                        left = left[:0]  # git has seen enough; its exit status tells
                    if not left:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                block = os.read(key.fd, _BLOCK)
                if not block:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    err = (err + block)[-ERROR_TAIL:]
                else:
                    out.write(block)
                    if out.tell() > limit:
                        return b"", err, "output"
    process.wait()
    return out.getvalue(), err, ""
