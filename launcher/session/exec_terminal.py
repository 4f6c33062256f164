"""Between the caller's terminal and the one that a further command got inside the jail: bytes, window size, modes.

While the client is in the foreground its terminal is raw, so that every key, Ctrl-C and Ctrl-Z included, means what the
terminal inside makes of it. In the background it keeps its hands off, as any job must. Where input comes from elsewhere
the terminal stays as it is: its signals reach the client, which passes them on.
"""

import errno
import fcntl
import os
import select
import termios
import tty

_IN, _OUT = 0, 1
_CHUNK = 4096
_PIECE = 1024  # the room that a terminal has at least when poll(2) calls it writable
_MOST_PENDING = 1 << 16


class Relay:
    """The caller's terminal, and the master side of the one inside. `close` gives the former back as it was."""

    def __init__(self, *, has_input: bool) -> None:
        """Reads how the terminal on standard output is set; changes nothing yet.

        Args:
            has_input: standard input is the terminal, too, and leads to the command.
        """
        self._master = -1
        self._settings = termios.tcgetattr(_OUT)
        self._raw = False
        self._has_input = has_input
        self._input_open = has_input
        self._output_open = True
        self._to_command = b""
        self._to_user = b""

    def begin(self, master: int) -> None:
        """Takes over `master`, before the command starts: it gets the caller's modes and window size."""
        self._master = master
        os.set_inheritable(master, False)
        os.set_blocking(master, False)
        # On a pty's master this sets what the command will find (tty_ioctl(4)).
        modes = list(self._settings)
        if not self._has_input:
            modes[1] &= ~termios.OPOST  # the caller's terminal, which is not raw, sees to that
        termios.tcsetattr(master, termios.TCSANOW, modes)
        self.resize()

    def resize(self) -> None:
        """Gives the terminal inside the window's present size; the kernel tells who runs there (SIGWINCH)."""
        if self._master == -1:
            return
        try:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, fcntl.ioctl(_OUT, termios.TIOCGWINSZ, bytes(8)))
        except OSError:
            return  # one of the two has hung up

    def in_foreground(self) -> bool:
        """Whether the client may use its terminal. Makes it raw as soon as it may."""
        if self._master == -1 or not self._input_open:
            return True  # nothing to look for
        if not _is_foreground():
            self._raw = False
            return False
        if not self._raw:
            self._settings = termios.tcgetattr(_IN)
            tty.setraw(_IN, termios.TCSANOW)
            self._raw = True
            self.resize()
        return True

    def wanted(self) -> list[tuple[int, int]]:
        """The descriptors to poll now, with events."""
        found = []
        foreground = self.in_foreground()
        if self._master != -1:
            reading = len(self._to_user) < _MOST_PENDING
            found.append((self._master, select.POLLIN * reading | (select.POLLOUT if self._to_command else 0)))
            if foreground and self._input_open and not self._to_command:
                found.append((_IN, select.POLLIN))
        if self._to_user and self._output_open:
            found.append((_OUT, select.POLLOUT))
        return found

    def serve(self, fd: int, events: int) -> None:
        """Moves bytes for what poll(2) has said about one of `wanted`."""
        if fd == self._master:
            if events & select.POLLOUT:
                self._write_command()
            if events & (select.POLLIN | select.POLLHUP):
                self._read_command()
        elif fd == _IN:
            self._read_user()
        elif events & (select.POLLERR | select.POLLHUP):
            self._output_open, self._to_user = False, b""
        else:
            self._write_user(_PIECE)

    def pause(self) -> None:
        """Before the client stops: what the command has said is shown, and the terminal is as the shell left it."""
        self._drain()
        self._restore()

    def resume(self) -> None:
        """After it was continued."""
        self.in_foreground()
        self.resize()

    def finish(self) -> None:
        """The command has ended: shows the rest of what it has said."""
        self._drain()

    def close(self) -> None:
        """Gives the terminal back."""
        self._restore()
        if self._master != -1:
            os.close(self._master)
            self._master = -1

    def _drain(self) -> None:
        # A read of an empty master has flushed what was still under way inside the kernel, so EAGAIN means all of it.
        while self._master != -1 and self._read_command():
            while self._to_user and self._output_open:
                self._write_user(_CHUNK)
        while self._to_user and self._output_open:
            self._write_user(_CHUNK)

    def _restore(self) -> None:
        if not self._raw:
            return
        self._raw = False
        if _is_foreground():
            termios.tcsetattr(_IN, termios.TCSADRAIN, self._settings)

    def _read_command(self) -> bool:
        """Reads what the command has said. False: there is nothing now, or never again."""
        try:
            data = os.read(self._master, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # EIO: nobody has the other side open
            data = b""
        if not data:
            os.close(self._master)
            self._master = -1
            return False
        if self._output_open:
            self._to_user += data
        return True

    def _write_command(self) -> None:
        try:
            self._to_command = self._to_command[os.write(self._master, self._to_command) :]
        except BlockingIOError:
            return
        except OSError:
            self._to_command = b""

    def _read_user(self) -> None:
        try:
            data = os.read(_IN, _CHUNK)
        except OSError:
            data = b""
        if data:
            self._to_command += data
            self._write_command()
        else:
            self._input_open = False  # hung up: SIGHUP says so too

    def _write_user(self, most: int) -> None:
        try:
            self._to_user = self._to_user[os.write(_OUT, self._to_user[:most]) :]
        except OSError:
            self._output_open, self._to_user = False, b""


def _is_foreground() -> bool:
    try:
        return os.tcgetpgrp(_IN) == os.getpgrp()
    except OSError as error:
        # Not the controlling terminal: then there is no job control on it. Anything else: it has hung up.
        return error.errno == errno.ENOTTY
