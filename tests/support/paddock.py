"""The installed command in a small repository: what it says, what it answers, and what it leaves behind."""

import fcntl
import itertools
import os
import re
import subprocess
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import psutil

from launcher import cli
from tests.support import repository, warmed
from tests.support.features import need_backend
from tests.support.identity import Who, Word
from tests.support.install import Installed, base_python
from tests.support.programs.scene import SWITCHES

# A session that exchanges directories for links (renameat2) as long as it lives, and a tree that they lead to.

_PYTHON = ("/usr/bin/python3", "-c")
_LOOP = r"""
import ctypes, os, sys
place, outside = map(os.fsencode, sys.argv[1:])
os.chdir(place)
renameat2 = ctypes.CDLL(None).renameat2
def twice(name, link):
    for _ in range(2):
        renameat2(-100, name, -100, link, 2)
"""

DIRECTORIES = (*_PYTHON, _LOOP + r"""
open(".gitignore", "w").write("*")  # so that no git looks at what is exchanged
names = [f"d{number}".encode() for number in range(150)]
for name in names:
    os.makedirs(name + b"/below")
    open(name + b"/file", "w").close()
    os.symlink(outside, name + b".link")
print("ready", flush=True)
while True:
    for name in names:
        twice(name, name + b".link")
""")  # fmt: skip
"""The command: directories of its own in a place; two arguments, the place and what the links lead to."""

WHATEVER_COMES = (*_PYTHON, _LOOP + r"""
known = {b"known.link"}
os.symlink(outside, b"known.link")
print("ready", flush=True)
while True:
    pending = [b"."]
    while pending:
        here = pending.pop()
        try:
            names = [each.name for each in os.scandir(here) if each.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        for name in names:
            path = here + b"/" + name
            if path.count(b"/") < 3:
                pending.append(path)
            twice(path, b"known.link")
""")  # fmt: skip
"""The command: every directory that anybody makes in a place, three levels deep; arguments as above."""


def canary(who: Who, place: Path) -> Path:
    """A tree of the user's with closed modes, in a place of his."""
    outside = place / "outside"
    for directory in (outside, outside / "below"):
        directory.mkdir()
        (directory / "file").write_text("precious")
        (directory / "file").chmod(0o640)
    who.give(outside)
    for directory in (outside / "below", outside):
        directory.chmod(0o751)
    return outside


def seen(top: Path) -> dict[str, tuple[object, ...]]:
    """What is below a directory, with all that anybody could change of it: nobody sets a ctime back."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (top, *sorted(top.rglob("*"))):
        entry = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(top))] = (entry.st_mode, entry.st_nlink, entry.st_ctime_ns, content)
    return found


@contextmanager
def session(who: Who, installed: Installed, backend: str, root: Path, *words: str) -> Iterator[None]:
    """A session with this command, which says `ready`, lives when the block begins, and is gone when it has ended."""
    need_backend(backend)
    extra, switches = SWITCHES[backend]
    process = subprocess.Popen(
        who.command([installed.paddock, "run", *switches, *words]),
        cwd=root,
        env=who.environment(extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n", process.stderr.read()
        yield
    finally:
        process.kill()
        process.communicate()


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


LAUNCH = frozenset({"run", "exec", "learn"})
"""Verbs whose command has their streams."""
BEGUN = frozenset({"acp", "serve", "selftest"})
"""Verbs that prepare themselves or their process for what they start: they are started, too."""


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
        """Runs `paddock WORDS...` in the worktree to its end; launches, and verbs that do not become something else, in
        a process that has already loaded the command, see `warmed`.
        """
        cwd, env = cwd or self.worktree, {**self.env, **(env or {})}
        if words and words[0] in LAUNCH:
            return warmed.launch(self.who, self.installed.python, words, cwd=cwd, env=env, stdin=stdin)
        if words and words[0] in cli.VERBS and words[0] not in BEGUN:
            return warmed.run(self.who, self.installed.python, words, cwd=cwd, env=env, stdin=stdin)
        return self.who.run(self.words(*words), cwd=cwd, env=env, stdin=stdin, timeout=120)

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

    def each(
        self, *commands: Sequence[Word], cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> list["subprocess.CompletedProcess[str]"]:
        """As `call` with each of these."""
        return [self.call(*words, cwd=cwd, env=env) for words in commands]

    def refused_each(
        self, *commands: Sequence[Word], cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> list[Said]:
        """As `refused` with each of these."""
        found = []
        for ended in self.each(*commands, cwd=cwd, env=env):
            assert (ended.returncode, ended.stdout) == (125, ""), ended
            found.append(said(ended.stderr))
        return found

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


def make(who: Who, installed: Installed, place: Path, more: str = "") -> Paddock:
    """A repository with one linked worktree in `place`, which `who` owns, and what sh(1) does `more` in it."""
    repository.grow(who, place, f"{_SCRIPT}cd main\n{more}" if more else _SCRIPT)
    return Paddock(who, installed, place, place / "one", place / "main")


_SSH = """#!/bin/sh
printf '%s\\n' "$SSH_ASKPASS" >"${0%/*}/askpass"
shift $(($# - 1))
exec env -i PATH=/usr/local/bin:/usr/bin:/bin sh -c "$1"
"""


def far(here: Paddock) -> Path:
    """Gives the repository a remote `origin` by ssh; its directory.

    The stand-in for ssh runs here what it would on another machine, with none of the user's own variables and settings,
    and leaves the value of SSH_ASKPASS beside itself.
    """
    away = here.place / "origin.git"
    tools = here.place / "far"
    tools.mkdir()
    (tools / "ssh").write_text(_SSH)
    (tools / "ssh").chmod(0o755)
    here.who.give(tools)
    for words in (
        ["clone", "-q", "--bare", "main", away.name],
        ["-C", "main", "remote", "add", "origin", f"ssh://far.invalid{away}"],
        ["-C", "main", "config", "core.sshCommand", f"{tools}/ssh"],
    ):
        assert here.who.run(["git", *words], cwd=here.place).returncode == 0
    return away


def said(stderr: str) -> Said:
    """The one error in `stderr`; fails when there is none, more than one, or anything else beside it."""
    lines = [line for line in stderr.splitlines() if not WARNING.fullmatch(line)]
    assert lines, f"no error in {stderr!r}"
    first = FIRST.fullmatch(lines[0])
    assert first, f"not an error of Paddock's: {stderr}"
    assert all(MORE.fullmatch(line) for line in lines[1:]), f"more than one error: {stderr}"
    assert stderr.replace("\n", "").isprintable(), f"not for a terminal: {stderr!r}"
    return Said(first["reference"], stderr)


# The bubblewrap backend of the installed command, for its tests.

BACKEND = ("--backend", "bubblewrap")
PATIENCE = 30.0


def run_in_bubblewrap(paddock: Paddock, *words: str, **options: object) -> "subprocess.CompletedProcess[str]":
    """`paddock run --backend bubblewrap WORDS...`."""
    return paddock.run(*BACKEND, *words, **options)


def shell_in_bubblewrap(paddock: Paddock, line: str, *options: str) -> str:
    """What a line of sh(1) in the jail prints; it must succeed."""
    ended = run_in_bubblewrap(paddock, *options, "--", "sh", "-euc", line)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    return ended.stdout


def program(code: str) -> list[str]:
    """A Python programme for the jail."""
    return [str(base_python()), "-I", "-S", "-c", textwrap.dedent(code)]


def content(pid: int, name: str) -> bytes:
    """A file of /proc/PID, empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def below(pid: int) -> list[int]:
    """Every process below `pid`."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


# A live session of the installed command, for tests that run further commands in it.

EXEC_PATIENCE = 30.0

# Lives until its standard input is closed.
WAITING = ("sh", "-c", "echo ready; exec cat")

SPACES = "for kind in user mnt pid net ipc uts cgroup; do readlink /proc/self/ns/$kind; done"
"""Prints what namespaces a command is in, one a line."""

# The same, and leaves in the worktree what it has been given.
WITNESS = ("sh", "-c", f"{SPACES} >first.spaces; cat /proc/self/status >first.status; ls /proc/self/fd >first.fds; "
                       "echo ready; exec cat")  # fmt: skip
KNOWN = ("--limit", "open_files=77", "--env", "GIVEN=at start")
"""Options of the session that `WITNESS` is the first command of."""

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
            return self.process.wait(EXEC_PATIENCE)
        finally:
            self.process.kill()
            for stream in (self.process.stdout, self.process.stderr):
                assert stream is not None
                stream.close()

    def kill(self) -> None:
        """Kills the launcher with SIGKILL, and waits until the last process of the session has ended."""
        lock = os.open(self.directory, os.O_RDONLY)
        self.process.kill()
        self.process.wait(EXEC_PATIENCE)
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
