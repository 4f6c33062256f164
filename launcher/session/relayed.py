"""Between the caller's terminal and the one that a command got: bytes, window size, modes.

While the keys belong to the command and this process is in the foreground, the caller's terminal is raw, so that every
key, Ctrl-C and Ctrl-Z included, means what the other terminal makes of it. In the background it keeps its hands off, as
any job must. Without the keys the terminal stays as it is: its signals reach this process, which passes them on.
"""

import errno
import fcntl
import select
import termios
import tty

from launcher.jail import processes
from launcher.lean import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable

    from launcher.session.last_line import LastLine
else:
    import _signal

_CHUNK = 4096
_PIECE = 1024  # the room that a terminal has at least when poll(2) calls it writable
_MOST_PENDING = 1 << 16
_TAIL = 4096
_MOST_UNREAD = 1 << 18
"""Bytes. A pseudoterminal holds less of what nobody has read (tty_buffer_set_limit in the kernel's pty.c)."""
_SIGNALLING = (
    (termios.VINTR, _signal.SIGINT),
    (termios.VQUIT, _signal.SIGQUIT),
    (termios.VSUSP, _signal.SIGTSTP),
)
_DISABLED = b"\0"  # _POSIX_VDISABLE


class Relay:
    """The caller's terminal, and the master side of the one inside. `close` gives the former back as it was."""

    def __init__(
        self,
        source: int,
        target: int,
        *,
        keys: bool,
        on_signal: "Callable[[int], None]" = lambda signal: None,
        on_output: "Callable[[], None]" = lambda: None,
    ) -> None:
        """Reads how the caller's terminal is set; changes nothing yet.

        Args:
            source: a descriptor of it that can be read, where keys are or will be taken.
            target: one that can be written; the same, perhaps.
            keys: what is typed is the command's; see `take_keys`.
            on_signal: told the signal, before a key makes the other terminal send one to its foreground group.
            on_output: called when the command has said something, before that is passed on.
        """
        self._on_signal = on_signal
        self._on_output = on_output
        self._source = source
        self._target = target
        self._master = -1
        self._settings = termios.tcgetattr(target)
        self._given = self._settings
        self._raw = False
        self._cooks = True
        self._keys = keys
        self._alone = True
        self._hung_up = False
        self._output_open = True
        self._to_command = b""
        self._to_user = b""
        self.tail = b""
        """The last bytes that the command has written."""
        self.line: LastLine | None = None
        """What asks the user on the last line of his terminal; None where nobody is asked."""

    def begin(self, master: int) -> None:
        """Takes over `master`, before the command starts: it gets the caller's modes and window size."""
        self._master = master
        os.set_inheritable(master, False)
        os.set_blocking(master, False)
        self._set_modes()
        self.resize()

    def take_keys(self) -> None:
        """From now on what is typed is the command's. Others of the job go on writing to the terminal as they did."""
        self._keys = True
        self._alone = False

    def resize(self) -> None:
        """Gives the terminal inside the window's present size; the kernel tells who runs there (SIGWINCH)."""
        if self._master == -1:
            return
        try:
            size = fcntl.ioctl(self._target, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size if self.line is None else self.line.left_of(size))
        except OSError:
            return  # one of the two has hung up

    def in_foreground(self) -> bool:
        """Whether the client may use its terminal. Makes it raw as soon as it may."""
        if self._master == -1 or not self._keys or self._hung_up:
            return True  # nothing to look for
        if not self.is_foreground():
            self._raw, self._cooks = False, True
            return False
        if not self._raw:
            self._settings = termios.tcgetattr(self._source)
            if termios.tcgetattr(self._master) == self._given:
                self._set_modes()  # a job in the background starts with those of a shell that edits a line
            tty.setraw(self._source, termios.TCSANOW)
            self._raw = True
            self._cooks = False
            self._cook(not self._alone)
            self.resize()
        return True

    def wanted(self) -> list[tuple[int, int]]:
        """The descriptors to poll now, with events."""
        found = []
        foreground = self.in_foreground()
        mine: dict[int, int] = {}
        if self._to_user and self._output_open:
            mine[self._target] = select.POLLOUT
        if self._master != -1:
            reading = len(self._to_user) < _MOST_PENDING
            events = select.POLLIN * reading | (select.POLLOUT if self._to_command else 0)
            if not self._is_held():
                found.append((self._master, events))
            elif self._to_command:  # else its hanging up, which always polls, would be said over and over
                found.append((self._master, select.POLLOUT))
            if foreground and self._keys and not self._hung_up and not self._to_command:
                mine[self._source] = mine.get(self._source, 0) | select.POLLIN
        return [*found, *mine.items()]

    def serve(self, fd: int, events: int) -> None:
        """Moves bytes for what poll(2) has said about one of `wanted`."""
        if fd == self._master:
            if events & select.POLLOUT:
                self._write_command()
            if events & (select.POLLIN | select.POLLHUP) and not self._is_held():
                self._read_command()
            return
        if fd == self._target:
            if events & (select.POLLERR | select.POLLHUP):
                self._output_open, self._to_user = False, b""
            elif events & select.POLLOUT:
                self._write_user(_PIECE)
        if fd == self._source and events & (select.POLLIN | select.POLLERR | select.POLLHUP):
            self._read_user()

    def _is_held(self) -> bool:
        """Whether the command's output waits for the user's answer. What was polled before may say otherwise."""
        return self.line is not None and self.line.awaits_key

    def show(self) -> None:
        """Draws what the last line shows, where that is due; between what the command says."""
        if self.line is not None and self._output_open and not self._to_user:
            self._to_user += self.line.drawing()

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
        # Others may go on writing: what was said before is less than the bound.
        left = _MOST_UNREAD
        while left > 0 and self._master != -1 and (size := self._read_command()):
            left -= size
            while self._to_user and self._output_open:
                self._write_user(_CHUNK)
        while self._to_user and self._output_open:
            self._write_user(_CHUNK)

    def _restore(self) -> None:
        if not self._raw:
            return
        self._raw, self._cooks = False, True
        if self.is_foreground():
            termios.tcsetattr(self._source, termios.TCSADRAIN, self._settings)

    def _read_command(self) -> int:
        """Reads what the command has said, and returns how much. 0: there is nothing now, or never again."""
        try:
            data = os.read(self._master, _CHUNK)
        except BlockingIOError:
            return 0
        except OSError:  # EIO: nobody has the other side open
            data = b""
        if not data:
            os.close(self._master)
            self._master = -1
            return 0
        size = len(data)
        self.tail = (self.tail + data)[-_TAIL:]
        self._on_output()
        if self._output_open:
            if self._raw and not self._alone:
                self._cook(self._other_cooks())
            if self.line is not None:
                data = self.line.passing(data)
            # The caller's terminal makes two characters of a line's end then, as the other one has done.
            self._to_user += data.replace(b"\r\n", b"\n") if self._cooks else data
        return size

    def _write_command(self) -> None:
        try:
            self._to_command = self._to_command[os.write(self._master, self._to_command) :]
        except BlockingIOError:
            return
        except OSError:
            self._to_command = b""

    def _read_user(self) -> None:
        try:
            data = os.read(self._source, _CHUNK)
        except OSError:
            data = b""
        if data and self.line is not None:
            data = self.line.typed(data)
            if not data:
                return
        if data:
            for signal in self._signals_of(data):
                self._on_signal(signal)
            self._to_command += data
            self._write_command()
        else:
            self._hung_up = True  # SIGHUP says so too

    def _cook(self, wanted: bool) -> None:
        """Has the raw terminal process what is written there, or not (termios(3), OPOST)."""
        if wanted != self._cooks:
            self._cooks = wanted
            modes = termios.tcgetattr(self._source)
            modes[1] = self._settings[1] if wanted else modes[1] & ~termios.OPOST
            termios.tcsetattr(self._source, termios.TCSADRAIN, modes)

    def _other_cooks(self) -> bool:
        try:
            return bool(termios.tcgetattr(self._master)[1] & termios.OPOST)
        except termios.error:
            return True

    def _set_modes(self) -> None:
        # On a pty's master this sets what the command will find (tty_ioctl(4)).
        termios.tcsetattr(self._master, termios.TCSANOW, self._settings)
        self._given = termios.tcgetattr(self._master)

    def _signals_of(self, data: bytes) -> list[int]:
        """Those that typing `data` sends (termios(3), ISIG)."""
        try:
            modes = termios.tcgetattr(self._master)
        except termios.error:
            return []
        if not modes[3] & termios.ISIG:
            return []
        keys = {modes[6][at]: signal for at, signal in _SIGNALLING}
        return [keys[key] for at in range(len(data)) if (key := data[at : at + 1]) in keys and key != _DISABLED]

    def _write_user(self, most: int) -> None:
        try:
            self._to_user = self._to_user[os.write(self._target, self._to_user[:most]) :]
        except OSError:
            self._output_open, self._to_user = False, b""

    def job(self) -> int:
        """The foreground process group of the other terminal, 0 when there is none."""
        try:
            return os.tcgetpgrp(self._master)
        except OSError:
            return 0

    def is_foreground(self) -> bool:
        """Whether this process's job has the caller's terminal, or nobody says who has."""
        try:
            return os.tcgetpgrp(self._source) == os.getpgrp()
        except OSError as error:
            # Not the controlling terminal: then there is no job control on it. Anything else: it has hung up.
            return error.errno == errno.ENOTTY


# Stopping as the command has done, so that the shell at the caller's terminal takes over.


def can_be_resumed(signal: int, *, terminal: bool) -> bool:
    """Whether this process may stop by `signal`: there is a terminal, and a shell at it that will notice.

    Of an orphaned process group (setpgid(2)) nobody looks after the stops. The terminal's signals do not stop one;
    SIGSTOP does.
    """
    return terminal and (signal != _signal.SIGSTOP or _has_shell())


def _has_shell() -> bool:
    group, pid = os.getpgrp(), os.getppid()
    try:
        while pid and os.getpgid(pid) == group:
            pid = processes.parent(pid)
        return pid != 0 and os.getsid(pid) == os.getsid(0)
    except ProcessLookupError:
        return False


def stop(signal: int, *, job: bool = False) -> None:
    """Stops this process, with `job` all of its process group; comes back when it is continued.

    Comes back at once where the signal cannot stop it: the process group is orphaned, or the signal is ignored.

    Args:
        signal: SIGSTOP, or one that is blocked, as is SIGCONT.
    """
    # Sent while blocked: the terminal's own may be pending, and two would stop twice.
    if job:
        os.killpg(os.getpgrp(), signal)
    else:
        os.kill(os.getpid(), signal)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {signal})
    _signal.pthread_sigmask(_signal.SIG_BLOCK, {signal})
    _signal.sigtimedwait({_signal.SIGCONT}, 0)  # answered by the caller
