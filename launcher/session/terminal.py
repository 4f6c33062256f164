"""The launcher's side of a running jail: signals, job control, the terminal's foreground group, the exit status.

At a terminal launcher, init and command share its session and one process group, so `bash` is interactive. That
terminal was made for them (launcher/session/own_terminal.py). When the command stops, the launcher tells the leader of
the session, and goes on serving; what is sent to the launcher alone is passed on.

Elsewhere the jail has a session of its own, unless the launcher leads one, as in the service: so the caller's terminal
stays outside, and in a group that others share, its processes could have the kernel send SIGHUP to all (setpgid(2),
orphaned groups). What that group is sent reaches the launcher, and is passed on to the command, whose stops are left to
whoever stopped it. At the service's own terminals, where no shell would continue it, those by a key are over at once.

Launch path: see launcher/jail/syscalls.py.
"""

import select
import time

from launcher import wire
from launcher.jail import hygiene, init, processes, reports, spawn
from launcher.jail.spec import JailSpec
from launcher.lean import os
from policy.errors import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from typing import Any

    from launcher.session.carrier import Carrier
    from launcher.session.denial_collector import Denials
    from launcher.session.generous import Generous
    from launcher.session.own_terminal import Link
    from launcher.session.watchdog import Watchdog
else:
    import _signal

START_TIMEOUT = 60.0
"""Seconds until the jail must be built. Only a mount or a file system that hangs takes so long."""

leader: "Link | None" = None
"""Of the session, where a terminal was made for this process: it watches over it as a shell over its job."""


def controlling() -> int:
    """A new descriptor of this session's terminal, -1 where it has none."""
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        # ENXIO: no controlling terminal. Anything else leaves it as little to manage.
        return -1


def in_reach() -> bool:
    """Whether a terminal could be reached by what is started here, on a standard stream or as /dev/tty."""
    if any(os.isatty(fd) for fd in (0, 1, 2)):
        return True
    own = controlling()
    if own != -1:
        os.close(own)
    return own != -1


class Listener:
    """What is to be done about a running jail, and by whom; the defaults do nothing.

    Attributes:
        watchdog: looks at what the jail uses, and may have it ended.
        denials: takes what is refused in the jail.
        carrier: of the command's standard streams; the jail ends with it.
        asked_to_end: somebody has sent the launcher a signal that asks for the end.
    """

    watchdog: "Generous | Watchdog | None" = None
    denials: "Denials | None" = None
    carrier: "Carrier | None" = None
    asked_to_end = False

    def on_report(self, facts: "tuple[Any, ...]") -> None:
        """Takes what `status.send_report` sent, before the command starts to run."""

    def on_child(self, pid: int) -> None:
        """Takes the process id of the jail's first process."""

    def on_executing(self, when: float) -> None:
        """The command was executed, on the clock of `time.monotonic`."""

    def first_denial(self) -> "Denials | None":
        """Makes `denials` when something is refused and there are none yet."""

    def when_empty(self) -> None:
        """Nothing lives inside any more but the init, whose end takes the kernel a while.

        Not called where something was left behind, or nobody knows.
        """


def supervise(spec: JailSpec, listener: Listener, *, start_timeout: float = START_TIMEOUT) -> int:
    """Spawns a jail and stays until it, and all that comes of it, has ended.

    The calling thread must be the only one, and must live as long as the jail: its end kills what is inside.
    Standard streams that are closed are opened on /dev/null. Children that the caller has already outlive the jail.
    Signals of `init.ENDING` stay blocked, so that none cuts off the caller's own end, before `init.unblock_signals`.

    Args:
        spec: see `spawn.spawn`, which closes what it hands over.
        listener: what is to be done meanwhile.
        start_timeout: seconds until the jail must be built.

    Returns:
        The command's exit status, 128+N when signal N ended it; 137 when the watchdog had the jail ended.

    Refusals: whatever building the jail or the last steps before the command refused; start-timeout; jail-lost.
    """
    hygiene.fill_standard_fds()
    keep: set[int] = set()
    if not spec.namespaces:
        keep = set(processes.children(os.getpid()))
        processes.adopt_orphans()
    init.block_signals()
    signals = init.open_signals()
    apart = leader is None and os.getsid(0) != os.getpid()
    terminal = Terminal(-1 if apart else controlling())
    reader = -1
    try:
        jailed = spawn.spawn(
            spec, close=(signals, terminal.fd, leader.fd if leader is not None else -1), own_session=apart
        )
        reader = jailed.status
        listener.on_child(jailed.pid)
        jail = _Jail(jailed, signals, terminal, listener, apart=apart)
        try:
            jail.serve(start_timeout)
        finally:
            jail.end()
            if not spec.namespaces:
                processes.sweep(keep)
        return jail.result()
    finally:
        terminal.take_back()
        terminal.close()
        if reader != -1:
            os.close(reader)
        os.close(signals)
        init.drop_signals()
        init.unblock_signals(held=init.ENDING)


class _Jail:
    def __init__(
        self, jailed: spawn.Jailed, signals: int, terminal: "Terminal", listener: Listener, *, apart: bool
    ) -> None:
        self._listener = listener
        self._apart = apart
        if listener.denials is not None:
            listener.denials.attach(jailed.pid)
        self._watch = listener.watchdog
        if self._watch is not None:
            self._watch.attach(jailed.pid)
        self._child: int | None = jailed.pid
        self._reader = jailed.status
        self._signals = signals
        self._terminal = terminal
        self._decoder = wire.Decoder()
        self._started = False
        self._late = self._cut = False
        self._stop = self._told = 0  # as the init numbers it, with the signal; 0 while the command runs
        self._child_status = 0
        self._status: int | None = None
        self._refusal: Refusal | None = None
        os.set_blocking(self._reader, False)

    def serve(self, start_timeout: float) -> None:
        poll = select.poll()
        if leader is not None:  # before what the init says: that may be of a later stop
            poll.register(leader.fd, select.POLLIN)
        poll.register(self._reader, select.POLLIN)
        poll.register(self._signals, select.POLLIN)
        denials = self._listener.denials
        if denials is not None and denials.fd != -1:
            poll.register(denials.fd, select.POLLIN)
        deadline = time.monotonic() + start_timeout
        # What arrived before the fork did not reach the jail: pass it on, whoever sent it.
        self._on_signals(everything=True)
        while self._child is not None and not self._cut:
            left = None if self._started else max(0.0, deadline - time.monotonic()) * 1000
            if self._started and self._watch is not None:
                left = self._watch.look() * 1000
                if self._watch.ended:
                    return
            events = poll.poll(left)
            if not events and not self._started:
                self._late = True
                return
            for fd, _ in events:
                if fd == self._signals:
                    self._on_signals(everything=self._apart)
                elif leader is not None and fd == leader.fd:
                    self._terminal.give_back()
                    self._command(_signal.SIGCONT, leader.asked())
                elif denials is not None and fd == denials.fd:
                    denials.hear()
                elif not self._on_message():
                    poll.unregister(fd)

    def end(self) -> None:
        """Ends the child if it lives, reaps it, and reads its last words. Safe to call twice."""
        if self._child is not None:
            os.kill(self._child, _signal.SIGKILL)
            self._child_status = os.waitpid(self._child, 0)[1]
            self._child = None
        while self._on_message():
            pass
        self._tell()

    def result(self) -> int:
        """The exit status; see `supervise`."""
        if self._refusal is not None:
            raise self._refusal
        if self._late:
            raise Refusal(
                "start-timeout",
                "the jail was not ready in time, so it was ended",
                hint="a granted path may be on a file system that does not answer (network, FUSE, autofs)",
            )
        if self._watch is not None and self._watch.ended:
            return 128 + _signal.SIGKILL
        if self._status is None and not os.WIFSIGNALED(self._child_status):
            raise Refusal(
                "jail-lost", "the jail's init exited without saying why", context=f"status {self._child_status}"
            )
        code = os.waitstatus_to_exitcode(self._child_status if self._status is None else self._status)
        return code if code >= 0 else 128 - code

    def _on_signals(self, *, everything: bool) -> None:
        for signal, code, _ in init.read_signals(self._signals):
            self._listener.asked_to_end |= signal in init.ENDING
            if signal == _signal.SIGCHLD:
                self._reap()
            elif signal == _signal.SIGCONT:
                if leader is None:  # else it says which stop is meant
                    self._command(signal)
            elif signal in init.FORWARDED and (everything or code != init.SI_KERNEL):
                # Those of the kernel are the terminal's: they reached the command, being for its whole group.
                self._command(signal)

    def _command(self, signal: int, stop: int = 0) -> None:
        if self._child is not None:  # else its number may be somebody else's by now
            init.send_command(self._child, signal, stop)

    def _reap(self) -> None:
        if self._child is not None:
            pid, code = os.waitpid(self._child, os.WNOHANG)
            if pid:
                self._child, self._child_status = None, code
        self._cut = self._listener.carrier is not None and self._listener.carrier.has_died()

    def _on_message(self) -> bool:
        """Reads what the pipe holds; False when there is nothing, and at its end."""
        try:
            data = os.read(self._reader, 65536)
        except BlockingIOError:
            return False
        for kind, payload in self._decoder.feed(data):
            if kind == reports.STARTING:
                self._started = True
            elif kind == reports.REPORT:
                self._listener.on_report(reports.report(payload))
            elif kind == reports.EXECUTING:
                self._listener.on_executing(reports.executing(payload))
            elif kind == reports.DENIED:
                self._on_denied(payload)
            elif kind == reports.WANTED:
                if self._listener.denials is not None:
                    self._listener.denials.wanted(payload)
            elif kind == reports.REFUSED:
                self._refusal = self._refusal or reports.refusal(payload)
            elif kind == reports.EXITED:
                self._stop = 0
                self._status, alone = reports.exited(payload)
                if alone:
                    self._listener.when_empty()
            elif kind == reports.CONTINUED:
                self._stop = 0
            elif kind == reports.STOPPED:
                self._stop = int.from_bytes(payload, "little")
        self._tell()
        return bool(data)

    def _on_denied(self, payload: bytes) -> None:
        denials = self._listener.denials or self._listener.first_denial()
        if denials is not None:
            denials.observe(payload)

    def _tell(self) -> None:
        """Tells the leader whether the command is stopped, if that has changed."""
        stop = self._stop if self._child is not None else 0
        if stop == self._told:
            return
        self._told = stop
        if leader is not None:
            if stop and self._child is not None:
                self._terminal.remember(self._child)
            leader.tell(stop)
        elif self._terminal.fd != -1 and stop & 0xFF in init.STOPPING:
            self._command(_signal.SIGCONT, stop >> 8)  # no shell is there that would do it


class Terminal:
    """The controlling terminal, as far as its foreground process group is concerned. Owns `fd` (-1: there is none)."""

    def __init__(self, fd: int) -> None:
        self._inner = 0
        self.fd = fd

    def close(self) -> None:
        """Closes the terminal."""
        if self.fd != -1:
            os.close(self.fd)
            self.fd = -1

    def remember(self, child: int) -> None:
        """Notes the foreground group if it is one that was made below `child` (a shell inside does that)."""
        group = self._foreground()
        if group == os.getpgrp():
            self._inner = 0
        elif group and any(_group(pid) == group for pid in processes.descendants(child)):
            self._inner = group

    def give_back(self) -> None:
        """Makes the noted group the foreground group again, if the leader has put the launcher there."""
        if self._inner and self._foreground() == os.getpgrp():
            self._set_foreground(self._inner)

    def take_back(self) -> None:
        """Makes the launcher's group the foreground group if the present one has died with the jail.

        A shell inside cannot do it when it ends: from its PID namespace the outer group has no number.
        """
        group = self._foreground()
        if group in (0, os.getpgrp()):
            return
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            self._set_foreground(os.getpgrp())
        except PermissionError:
            return  # somebody else's, so it lives

    def _foreground(self) -> int:
        if self.fd == -1:
            return 0
        try:
            return os.tcgetpgrp(self.fd)
        except OSError:
            return 0  # the terminal has hung up

    def _set_foreground(self, group: int) -> None:
        # SIGTTOU is blocked, or setting it from the background would stop the launcher.
        try:
            os.tcsetpgrp(self.fd, group)
        except OSError:
            return  # the group or the terminal has gone meanwhile: nobody is left to serve


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
