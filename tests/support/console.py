"""A terminal with a person at it: a pty, an interactive shell on it, and what the screen has shown."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.support.identity import Who, Word

PATIENCE = 20.0
CTRL_C, CTRL_D, CTRL_Z = "\x03", "\x04", "\x1a"
SHELL = ("bash", "--norc", "--noprofile", "--noediting", "-i")


class Console:
    """A session of its own on a new pty, without echo. Use it as a context manager: what is left is ended."""

    def __init__(self, who: Who, cwd: Path, argv: Sequence[Word] = SHELL) -> None:
        self.master, slave = pty.openpty()
        settings = termios.tcgetattr(slave)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, settings)
        if os.geteuid() == 0:
            os.fchown(slave, who.uid, who.gid)
        self.screen = ""
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *who.command(argv)],
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

    def status(self) -> int:
        """Waits for the end of the programme at the terminal, and returns its exit status."""
        return self._process.wait(PATIENCE)

    def resize(self, rows: int, columns: int) -> None:
        """Gives the window another size; the kernel tells the foreground process group."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
