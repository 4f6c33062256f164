"""Who a test acts as, root or an ordinary user without any capability, and the terminal that they sit at."""

import fcntl
import os
import pty
import re
import select
import shutil
import stat
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pytest

AS_A_USER = pytest.mark.parametrize("who", ["user"], indirect=True)
"""Of a test that knows no difference between root and others: streams, words, tools, the network's ways. What is about
rights, and what attacks, is for both."""

NOBODY = 65534
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"

# What the kernel is told before an ordinary user's command starts; see setpriv(1).
DROP = (
    "setpriv",
    f"--reuid={NOBODY}",
    f"--regid={NOBODY}",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all",
)

MARKER = "PADDOCK_TEST_MARKER"
"""Set per test by the kernel suite, inherited by every command, so that survivors can be told apart."""

Word = str | Path


@dataclass(frozen=True)
class Who:
    """An identity with a home of its own; runs commands with nothing of the suite's environment but PATH.

    Args:
        name: ``root`` or ``user``.
        uid: user id that commands run as.
        gid: group id that commands run as.
        home: home directory, owned by that user.
        prefix: words in front of every command, empty when the suite itself already is that user.
        path: value of PATH.
    """

    name: str
    uid: int
    gid: int
    home: Path
    prefix: tuple[str, ...]
    path: str

    def command(self, argv: Sequence[Word]) -> list[str]:
        """The argument vector that runs `argv` as this user."""
        return [*self.prefix, *map(str, argv)]

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The whole environment of this user's commands, with `extra` on top."""
        clean = {"PATH": self.path, "HOME": str(self.home), "LANG": "C.UTF-8", "USER": self.name}
        marker = {name: value for name, value in os.environ.items() if name == MARKER}
        return clean | marker | dict(extra or {})

    def run(
        self,
        argv: Sequence[Word],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout: float = 60,
    ) -> "subprocess.CompletedProcess[str]":
        """Runs `argv` to its end and returns status, stdout and stderr (never raises for a status).

        Args:
            argv: the command.
            cwd: directory to start in, the user's home by default.
            env: variables on top of `environment()`.
            stdin: text that the command reads.
            timeout: seconds until it is killed (subprocess.TimeoutExpired).
        """
        return subprocess.run(
            self.command(argv),
            cwd=cwd or self.home,
            env=self.environment(env),
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=timeout,
            check=False,
        )

    def start(
        self,
        argv: Sequence[Word],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        start_new_session: bool = False,
    ) -> "subprocess.Popen[bytes]":
        """Starts `argv` with pipes on 0, 1 and 2 and returns at once; the caller ends it."""
        return subprocess.Popen(
            self.command(argv),
            cwd=cwd or self.home,
            env=self.environment(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=start_new_session,
        )

    def give(self, path: Path) -> Path:
        """Makes this user the owner of `path` and of everything below it, and returns `path`."""
        if os.geteuid() == 0:
            for name in (path, *path.rglob("*")):
                os.chown(name, self.uid, self.gid, follow_symlinks=False)
        return path


def root(home: Path) -> Who:
    """The superuser with all capabilities; only where the suite itself is root."""
    assert os.geteuid() == 0, "only root can act as root"
    home.mkdir(mode=0o700, exist_ok=True)
    return Who("root", 0, 0, home, (), os.environ.get("PATH", SYSTEM_PATH))


def user(home: Path) -> Who:
    """An ordinary user: nobody when the suite is root, else the suite's own user."""
    home.mkdir(mode=0o700, exist_ok=True)
    if os.geteuid() != 0:
        return Who("user", os.getuid(), os.getgid(), home, (), os.environ.get("PATH", SYSTEM_PATH))
    assert shutil.which("setpriv"), "setpriv(1) is missing: install util-linux"
    who = Who("user", NOBODY, NOBODY, home, DROP, SYSTEM_PATH)
    who.give(home)
    return who


def reachable_by_all(path: Path) -> bool:
    """Whether every user can enter `path`: each directory on the way has the execute bit for others."""
    resolved = path.resolve()
    return all(stat.S_IMODE(step.stat().st_mode) & 0o001 for step in (resolved, *resolved.parents))


# A terminal with a person at it: a pty, an interactive shell on it, and what the screen has shown.

PATIENCE = 20.0
CTRL_C, CTRL_D, CTRL_Z = "\x03", "\x04", "\x1a"
SHELL = ("bash", "--norc", "--noprofile", "--noediting", "-i")


class Console:
    """A session of its own on a new pty, without echo. Use it as a context manager: what is left is ended."""

    def __init__(self, who: Who, cwd: Path, argv: Sequence[Word] = SHELL, prefix: Sequence[Word] = ()) -> None:
        """`prefix`: words in front of what acts as `who` (`proxied.World.prefix`)."""
        self.master, slave = pty.openpty()
        settings = termios.tcgetattr(slave)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, settings)
        if os.geteuid() == 0:
            os.fchown(slave, who.uid, who.gid)
        self.screen = ""
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *prefix, *who.command(argv)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env=who.environment({"PS1": "", "PS2": "", "HISTFILE": "/dev/null", "TERM": "dumb"}),
        )
        os.close(slave)

    def __enter__(self) -> "Console":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.master)  # hangs up, which ends the session
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()

    def type(self, text: str) -> None:
        """Types `text`, control characters included."""
        os.write(self.master, text.encode())

    def run(self, command: str) -> None:
        """Types a command line that says its exit status, as `<N>`, when it has ended."""
        self.type(f'{command}; echo "<$?>"\n')

    def expect(self, pattern: str) -> re.Match[str]:
        """Waits until the screen shows `pattern` (a regular expression) after what was expected before."""
        deadline = time.monotonic() + PATIENCE
        while (found := re.search(pattern, self.screen)) is None:
            ready, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the screen does not show {pattern!r} but: {self.screen!r}"
            try:
                self.screen += os.read(self.master, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"the terminal closed without {pattern!r}: {self.screen!r}") from None
        self.screen = self.screen[found.end() :]
        return found

    @property
    def process(self) -> int:
        """Process id of the programme at the terminal."""
        return self._process.pid

    def status(self) -> int:
        """Waits for the end of the programme at the terminal, and returns its exit status."""
        return self._process.wait(PATIENCE)

    def resize(self, rows: int, columns: int) -> None:
        """Gives the window another size; the kernel tells the foreground process group."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
