"""A terminal of its own for a run: the caller's never reaches the command.

What a command starts may leave its session (setsid(2)), and job control with it: the caller's terminal in its hands, it
would read what the user types at his shell, once the run is stopped or in the background, and his password with it.
So the launch goes on in a child at a pseudoterminal, as under sudo(8) and script(1), and this process stands between
the two (`relayed`) and ends with it.

Three processes: this one in the caller's job, the leader of the other terminal's session, which watches over the
launcher as a shell over a job (`lead`), and the launcher. When the command stops, the launcher tells the leader, and
the leader this process, which stops as well (`_Front`). When it goes on or ends by itself then, the leader wakes this
process. Stops are numbered: who was continued, or woken, says of which stop, and a later one stands.

The keys are the command's at once where it has the terminal for input and output. Elsewhere, as in ``paddock run --
make | less``, they may be a pager's: there the launcher's job is in the background of its terminal, and takes the keys
when it first asks for them (SIGTTIN, SIGTTOU).

Loaded where a standard stream is a terminal. Where none is, there is no way to tell for whom the keys are (a script may
ask for a password meanwhile): the command gets no terminal at all, and a session without one (`terminal.supervise`).
"""

import fcntl
import select
import termios

from launcher.jail import hygiene, init, processes
from launcher.lean import os
from launcher.session import messages, terminal
from launcher.session.relayed import Relay, can_be_resumed, stop
from policy.errors import EXIT_REFUSED, Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    import signal as _signal
    from collections.abc import Callable
    from typing import NoReturn

    from launcher.session.last_line import LastLine
    from policy.asking import Question
else:
    import _signal
    import _socket


# The leader of a session that was made for a run: it watches over the launcher as a shell does over its job.
#
# A process can only stop, and be continued, where somebody of its session is its parent in another process group
# (setpgid(2), orphaned groups). What becomes of the launcher and its command is told the front, in the caller's job
# (`own_terminal`), which ends the leader with itself.


_WAKE_AGAIN = 0.05
"""Seconds between two SIGCONT for a front that may be stopping just now."""

# Messages of a kind and a number. A stop is what the init says of it: the signal, and above that the stop's number.
#
# From the launcher to the leader: the command has stopped, or goes on. And back: the stop to end, 0 for any.
STOPPED, GOES_ON = b"S", b"C"
# From the leader to the front: the launcher's process id, a stop, the launcher's status or the signal that ended it.
JOB, ENDED, KILLED = b"J", b"E", b"K"
# And back: the stop to end, also with the terminal for the launcher's job; a signal.
FOREGROUND, ONE, GROUP = b"F", b"s", b"g"

_HELD = 1 << 21
"""The number of a stop that is the launcher's own: more than the init gives (`init.Init`)."""


def lead(
    front: int, channel: "_socket.socket", slave: int, terminals: list[int], *, keys: bool, asker: int = -1
) -> bool:
    """Makes this process the leader of a session, and starts the launcher in it, as a job.

    Args:
        front: process id of its parent, the front.
        channel: to the front.
        slave: the session's terminal.
        terminals: standard streams of the launcher that shall be that terminal.
        keys: the launcher's job is in the foreground there.
        asker: the launcher's alone.

    Returns:
        True, in the launcher. The leader itself does not come back.
    """
    # Nothing may escape from here but the launcher: this is a copy of the caller, with all that it has on its stack.
    try:
        processes.tie_to_parent(front)
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        own = os.getpid()
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        launcher = os.fork()
        if launcher == 0:
            processes.tie_to_parent(own)
            channel.close()
            ours.close()
            _become_job(slave, terminals, keys=keys)
            terminal.leader = Link(theirs)
            return True
        theirs.close()
    except BaseException:
        os._exit(1)
    try:
        os.chdir("/")  # as below
        _own_group(launcher)
        init.leave_streams()
        if asker != -1:
            os.close(asker)
        _Leader(front, channel, ours, slave, launcher).run()
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


class Link:
    """The launcher's end of the line to the leader."""

    def __init__(self, channel: "_socket.socket") -> None:
        self._channel = channel
        self.fd = channel.fileno()

    def tell(self, stop: int) -> None:
        """Says which stop the command is in; 0: it goes on."""
        send(self._channel, STOPPED if stop else GOES_ON, stop)

    def asked(self) -> int:
        """The number of the stop that shall end; 0 for any."""
        return received(self._channel)[1]


class _Leader:
    def __init__(
        self, front: int, channel: "_socket.socket", link: "_socket.socket", slave: int, launcher: int
    ) -> None:
        self._front = front
        self._channel = channel
        self._link = link
        self._slave = slave
        self._launcher = launcher
        self._stop = 0  # the number of what the front was told and has not answered
        self._next = 0  # what it is to be told then
        self._waking = False
        init.block_signals()
        self._signals = init.open_signals()

    def run(self) -> "NoReturn":
        """Until the launcher has ended and the front has heard of it, with which this process ends."""
        poll = select.poll()
        for fd in (self._channel.fileno(), self._link.fileno(), self._signals):
            poll.register(fd, select.POLLIN)
        self._tell(JOB, self._launcher)
        self._reap()
        while True:
            events = poll.poll(_WAKE_AGAIN * 1000 if self._waking else None)
            if self._waking:
                init.queue(self._front, _signal.SIGCONT, self._stop)
            for fd, _ in events:
                if fd == self._signals:
                    init.read_signals(fd)  # SIGCHLD, and what the terminal sends to the leader of its session
                    self._reap()
                elif fd == self._channel.fileno():
                    self._on_front()
                elif not self._on_launcher():
                    poll.unregister(fd)

    def _reap(self) -> None:
        while self._launcher:
            pid, code = os.waitpid(self._launcher, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                return
            if os.WIFSTOPPED(code):
                if not self._stop:  # else it is continued with the command
                    self._stopped(os.WSTOPSIG(code) | _HELD << 8)
            elif os.WIFCONTINUED(code):
                self._waking |= self._stop == _HELD
            else:
                self._launcher = 0
                self._waking = True
                ended = os.waitstatus_to_exitcode(code)
                self._tell(*((ENDED, ended) if ended >= 0 else (KILLED, -ended)))

    def _on_launcher(self) -> bool:
        """False at the end."""
        kind, stop = received(self._link)
        if kind == STOPPED:
            self._stopped(stop)
        elif kind == GOES_ON:
            self._next, self._waking = 0, self._stop != 0
        return bool(kind)

    def _stopped(self, stop: int) -> None:
        if self._stop:  # is over; a front that is stopping by it just now would not hear of another one
            self._next, self._waking = stop, True
            return
        self._stop = stop >> 8
        if self._stop != _HELD:  # then the command may be reading
            os.tcsetpgrp(self._slave, os.getpgrp())  # SIGTTOU is blocked
        self._tell(STOPPED, stop)

    def _on_front(self) -> None:
        kind, number = received(self._channel)
        if not kind:
            os._exit(1)
        if not self._launcher:
            return
        if kind == ONE:
            os.kill(self._launcher, number)
        elif kind == GROUP:
            os.killpg(self._launcher, number)
        elif number in (0, self._stop):  # else it has been answered before
            self._go_on(number, foreground=kind == FOREGROUND)

    def _go_on(self, stop: int, *, foreground: bool) -> None:
        over = self._waking
        if stop:
            self._stop, self._waking = 0, False
        if self._next:
            stop, self._next = self._next, 0
            self._stopped(stop)
            return
        if foreground and os.tcgetpgrp(self._slave) == os.getpgrp():
            os.tcsetpgrp(self._slave, self._launcher)
        if not over:
            os.killpg(self._launcher, _signal.SIGCONT)
        try:
            send(self._link, GOES_ON, stop)
        except OSError:
            return  # the launcher has ended just now

    def _tell(self, kind: bytes, number: int) -> None:
        send(self._channel, kind, number)


def send(channel: "_socket.socket", kind: bytes, number: int) -> None:
    """Sends a message of a kind and a number (OSError)."""
    channel.send(kind + number.to_bytes(4, "little"))


def received(channel: "_socket.socket") -> tuple[bytes, int]:
    """A message's kind and number; (b"", 0) at the end."""
    try:
        message = channel.recv(8)
    except ConnectionResetError:  # who is there has ended without reading all: what it has sent comes after that
        message = channel.recv(8)
    return message[:1], int.from_bytes(message[1:], "little")


_LOOK_AGAIN = 200  # milliseconds between two looks at whether a background job has come to the foreground
_TIOCGDEV = 0x80045432  # asm-generic/ioctls.h; not in termios

_ASKING = (_signal.SIGTTIN, _signal.SIGTTOU)


def enter(
    after_failure: "Callable[[bytes], None] | None" = None, allow: "Callable[[Question], str] | None" = None
) -> int:
    """Comes back in a child process whose terminal is its own, or at once where no standard stream is one.

    To be called once, single-threaded, before anything is made that belongs to this process. The calling process does
    not come back: it ends as the child does, 128+N when signal N ended that.

    Args:
        after_failure: called in the calling process, with the last of what was said on the other terminal, when the
            child has ended by itself, with another status than 0 and 125.
        allow: called there, when the user has allowed a host for good; returns what went wrong, or "". Where it is
            given, and the terminal is the command's, refused hosts are asked about on its last line.

    Returns:
        A socket for the proxy (`handle.Egress`), which asks by it; -1 where nobody is asked.

    Refusals: no-terminal.
    """
    hygiene.fill_standard_fds()
    terminals = [fd for fd in (0, 1, 2) if os.isatty(fd)]
    if not terminals:
        return -1
    keys = terminals[:2] == [0, 1]
    try:
        master, slave = os.openpty()
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        asked = [sock.detach() for sock in _socket.socketpair()] if keys and allow is not None else []
    except OSError as error:
        raise Refusal(
            "no-terminal",
            "no terminal could be made for the command",
            context=error.strerror or str(error),
            hint="the caller's own stays outside of jails; without one: paddock run -- ... </dev/null 2>&1 | cat",
        ) from None
    caller = _caller(terminals)
    front = _Front(ours, caller, master, keys=keys)
    if allow is not None and asked:
        front.asks = (asked[0], caller[1], allow)
    own = os.getpid()
    leader = os.fork()
    if leader == 0:
        ours.close()
        for fd in {master, *caller, *asked[:1]}.difference(terminals):
            os.close(fd)
        if lead(own, theirs, slave, terminals, keys=keys, asker=asked[1] if asked else -1):
            return asked[1] if asked else -1
    theirs.close()
    for fd in (slave, *asked[1:]):
        os.close(fd)
    os.chdir("/")  # a worktree that goes at the end of its session (--rm) is in nobody's use
    init.leave_streams(tuple({0, 1, 2}.difference(terminals)))
    try:
        code = front.follow()
    finally:
        front.close()
    for text in front.said:
        messages.say(f"paddock: warning: {text}")
    if front.interrupted and code == 128 + _signal.SIGINT:
        # A shell ends its loop or list where the user has interrupted a command, and knows by this.
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGINT)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {_signal.SIGINT})
    if after_failure is not None and 0 < code < 128 and code != EXIT_REFUSED:
        try:
            after_failure(front.tail)
        except (OSError, ValueError, Refusal):
            pass  # a hint less; the command's status is what counts
    os._exit(code)  # what is to be done at the end of a launch is the launcher's affair


def _caller(terminals: list[int]) -> tuple[int, int]:
    """Descriptors of the caller's terminal, to read and to write."""
    own = terminal.controlling()
    if own != -1 and any(_device(fd) == _device(own) for fd in terminals):
        return own, own  # what was meant for another one is shown there, too
    target = next(fd for fd in (1, 2, 0) if fd in terminals)
    if own != -1:
        os.close(own)
    return 0 if 0 in terminals else target, target  # it controls nothing, so there is no job control, either


def _device(fd: int) -> bytes:
    return fcntl.ioctl(fd, _TIOCGDEV, bytes(4))


class _Front:
    """Stands for the launcher in the caller's job.

    Attributes:
        interrupted: the user has pressed the key for it, Ctrl-C.
        asks: what the last line is made of when it is needed (`last_line.LastLine`).
    """

    def __init__(self, channel: "_socket.socket", terminal: tuple[int, int], master: int, *, keys: bool) -> None:
        self._channel = channel
        self._keys = keys
        self._controlled = terminal[0] == terminal[1] > 2
        self._job = 0
        self._typed_stop = False
        self.interrupted = False
        self._status: int | None = None
        self.asks: tuple[int, int, Callable[[Question], str]] | None = None
        self._line: LastLine | None = None
        self._height = 0
        self._relay = Relay(*terminal, keys=keys, on_signal=self._share, on_output=self._begin_line)
        self._relay.begin(master)

    @property
    def said(self) -> list[str]:
        return self._line.said if self._line is not None else []

    @property
    def tail(self) -> bytes:
        """The last of what the command has said."""
        return self._relay.tail

    def close(self) -> None:
        self._relay.close()

    def follow(self) -> int:
        """Serves both terminals until the launcher has ended, and returns its exit status."""
        init.block_signals()
        signals = init.open_signals()
        while self._status is None:
            poll = select.poll()
            for fd in (self._channel.fileno(), signals):
                poll.register(fd, select.POLLIN)
            for fd, events in self._relay.wanted():
                poll.register(fd, events)
            foreground = self._relay.in_foreground()
            patience = None if foreground else _LOOK_AGAIN
            asking = -1
            if self.asks is not None:
                asking, patience = self._serve_line(poll, patience)
            for fd, events in poll.poll(patience):
                if fd == asking:
                    self._on_question(foreground=foreground)
                elif fd == signals:
                    self._on_signals(signals)
                elif fd == self._channel.fileno():
                    self._on_message()
                else:
                    self._relay.serve(fd, events)
        if self._line is not None:
            self._line.end()
            self._relay.show()
        self._relay.finish()
        return self._status

    def _serve_line(self, poll: "select.poll", patience: int | None) -> tuple[int, int | None]:
        """Has the last line drawn where that is due. Returns what to read of, and the milliseconds until it is next."""
        assert self.asks is not None
        line = self._line
        fd = self.asks[0] if line is None else line.fd
        if fd != -1:
            poll.register(fd, select.POLLIN)
        if line is None:
            return fd, patience
        if line.is_due():
            self._relay.show()
            for each, events in self._relay.wanted():
                poll.register(each, events)
        if line.height != self._height:
            self._height = line.height
            self._relay.resize()
        return fd, line.patience(patience)

    def _begin_line(self) -> None:
        """Makes the last line, where somebody can be asked: before the command's first word passes."""
        if self._line is None and self.asks is not None:
            from launcher.session.last_line import LastLine

            self._line = self._relay.line = LastLine(*self.asks)

    def _on_question(self, *, foreground: bool) -> None:
        self._begin_line()
        assert self._line is not None
        self._line.hear(foreground=foreground)

    def _on_signals(self, signals: int) -> None:
        for signal, code, value in init.read_signals(signals):
            if signal == _signal.SIGWINCH:
                self._relay.resize()
            elif signal == _signal.SIGCONT:
                self._go_on(value)
            elif signal in init.FORWARDED:
                # The terminal means the whole job; a process that sends one means who it names.
                self.interrupted |= code == init.SI_KERNEL and signal == _signal.SIGINT
                self._say(GROUP if code == init.SI_KERNEL else ONE, signal)

    def _on_message(self) -> None:
        kind, number = received(self._channel)
        if kind == JOB:
            self._job = number
        elif kind == STOPPED:
            self._stop(number & 0xFF, number >> 8)
        elif kind == ENDED:
            self._status = number
        else:  # without a word the leader has been killed, and all below it with it
            self._status = 128 + (number or _signal.SIGKILL)

    def _stop(self, signal: int, number: int) -> None:
        """Stops as the command did, so that the shell takes over; when continued, lets it go on."""
        asks = signal in _ASKING and not self._keys
        if not asks or not self._relay.is_foreground():
            if not can_be_resumed(signal, terminal=self._controlled):
                if signal != _signal.SIGSTOP:  # that one is left to whoever stopped it
                    self._go_on(number)
                return
            if self._line is not None:
                self._line.give_up()
                self._relay.show()
            self._relay.pause()
            stop(signal, job=self._typed_stop and signal == _signal.SIGTSTP)
            self._typed_stop = False
            self._relay.resume()
        if asks and self._relay.is_foreground():
            self._keys = True
            self._relay.take_keys()
        self._go_on(number)

    def _share(self, signal: int) -> None:
        """What a key has sent to the launcher's job goes to the rest of the caller's, as from one terminal for both."""
        if self._relay.job() != self._job:
            return
        if signal == _signal.SIGTSTP:
            self._typed_stop = True  # all at once, when the terminal is as the shell left it
        else:
            self.interrupted |= signal == _signal.SIGINT
            os.killpg(os.getpgrp(), signal)
            _signal.sigtimedwait({signal}, 0)  # this process ends as the launcher does

    def _go_on(self, stop: int) -> None:
        """Has the command go on if it is in that stop; 0: in any."""
        self._say(FOREGROUND if self._keys else GOES_ON, stop)

    def _say(self, kind: bytes, number: int) -> None:
        try:
            send(self._channel, kind, number)
        except OSError:
            return  # the leader has gone; its end is on the way
