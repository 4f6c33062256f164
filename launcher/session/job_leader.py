"""The leader of a session that was made for a run: it watches over the launcher as a shell does over its job.

A process can only stop, and be continued, where somebody of its session is its parent in another process group
(setpgid(2), orphaned groups). What becomes of the launcher is told the front, in the caller's job (`own_terminal`),
which ends the leader with itself.

Loaded where a standard stream is a terminal.
"""

import fcntl
import select
import termios

from launcher.jail import init, processes
from launcher.lean import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    import signal as _signal
    from typing import NoReturn
else:
    import _signal

_WAKE_AGAIN = 0.05
"""Seconds between two SIGCONT for a front that may be stopping just now."""

# Messages of a kind and a number, from the leader: the launcher's process id, a signal or a status.
JOB = b"J"
STOPPED, GOES_ON, ENDED, KILLED = b"S", b"C", b"E", b"K"
# And to it: a kind, and a signal.
AWAKE, FOREGROUND, ONE, GROUP = b"A", b"F", b"s", b"g"


def lead(front: int, channel: "_socket.socket", slave: int, terminals: list[int], *, keys: bool) -> bool:
    """Makes this process the leader of a session, and starts the launcher in it, as a job.

    Args:
        front: process id of its parent, the front.
        channel: to the front.
        slave: the session's terminal.
        terminals: standard streams of the launcher that shall be that terminal.
        keys: the launcher's job is in the foreground there.

    Returns:
        True, in the launcher. The leader itself does not come back.
    """
    # Nothing may escape from here but the launcher: this is a copy of the caller, with all that it has on its stack.
    try:
        processes.tie_to_parent(front)
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        own = os.getpid()
        launcher = os.fork()
        if launcher == 0:
            processes.tie_to_parent(own)
            channel.close()
            _become_job(slave, terminals, keys=keys)
            return True
    except BaseException:
        os._exit(1)
    try:
        _own_group(launcher)
        init.leave_streams()
        _Leader(front, channel, slave, launcher).run()
    finally:
        os._exit(1)


def _become_job(slave: int, terminals: list[int], *, keys: bool) -> None:
    _own_group(0)
    if keys:
        before = _signal.pthread_sigmask(_signal.SIG_BLOCK, {_signal.SIGTTOU})
        os.tcsetpgrp(slave, os.getpid())
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
    for fd in terminals:
        os.dup2(slave, fd)
    os.close(slave)


def _own_group(pid: int) -> None:
    """Makes `pid` (0: this process) the leader of a process group; parent and child both do, whoever is first."""
    try:
        os.setpgid(pid, pid)
    except ProcessLookupError:
        return  # it has ended already


class _Leader:
    """Watches over the launcher as a shell does over its job."""

    def __init__(self, front: int, channel: "_socket.socket", slave: int, launcher: int) -> None:
        self._front = front
        self._channel = channel
        self._slave = slave
        self._launcher = launcher
        self._waking = False
        self._asked = False
        init.block_signals()
        self._signals = init.open_signals()

    def run(self) -> "NoReturn":
        """Until the launcher has ended and the front has heard of it, with which this process ends."""
        poll = select.poll()
        for fd in (self._channel.fileno(), self._signals):
            poll.register(fd, select.POLLIN)
        self._tell(JOB, self._launcher)
        self._reap()
        while True:
            events = poll.poll(_WAKE_AGAIN * 1000 if self._waking else None)
            if self._waking:
                os.kill(self._front, _signal.SIGCONT)  # it cannot be gone: this process ends with it
            for fd, _ in events:
                if fd == self._signals:
                    init.read_signals(fd)  # SIGCHLD, and what the terminal sends to the leader of its session
                    self._reap()
                else:
                    self._on_message()

    def _reap(self) -> None:
        while self._launcher:
            pid, code = os.waitpid(self._launcher, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                return
            if os.WIFSTOPPED(code):
                self._waking = self._asked = False
                os.tcsetpgrp(self._slave, os.getpgrp())  # SIGTTOU is blocked
                self._tell(STOPPED, os.WSTOPSIG(code))
            elif os.WIFCONTINUED(code):
                if not self._asked:
                    self._waking = True
                    self._tell(GOES_ON, 0)
                self._asked = False
            else:
                self._launcher = 0
                self._waking = True
                ended = os.waitstatus_to_exitcode(code)
                self._tell(*((ENDED, ended) if ended >= 0 else (KILLED, -ended)))

    def _on_message(self) -> None:
        kind, signal = received(self._channel)
        if not kind:
            os._exit(1)
        if kind == AWAKE:
            self._waking = False
        elif not self._launcher:
            return
        elif kind == ONE:
            os.kill(self._launcher, signal)
        else:
            self._asked |= signal == _signal.SIGCONT
            if kind == FOREGROUND:
                os.tcsetpgrp(self._slave, self._launcher)
            os.killpg(self._launcher, signal)

    def _tell(self, kind: bytes, number: int) -> None:
        send(self._channel, kind, number)


def send(channel: "_socket.socket", kind: bytes, number: int) -> None:
    """Sends a message of a kind and a number (OSError)."""
    channel.send(kind + number.to_bytes(4, "little"))


def received(channel: "_socket.socket") -> tuple[bytes, int]:
    """A message's kind and number; (b"", 0) at the end."""
    message = channel.recv(8)
    return message[:1], int.from_bytes(message[1:], "little")
