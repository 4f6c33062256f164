"""The client's side of the attach stream: this process's standard streams joined to a session's."""

import contextlib
import json
import os
import select
import signal
import socket
import termios
import tty
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

from launcher.service.client import Client, session_path
from launcher.service.packets import END, ERRORS, HELLO, INPUT, OUTPUT, OVER, REFUSED, SIGNAL, WINDOW
from launcher.session.terminal_output import TerminalOutput
from launcher.wire import Decoder, frame, write
from policy.errors import Refusal

# This process's own terminal while it stands for a session's: raw, with a way out that no programme uses.
#
# What is typed goes to the session as it is, Ctrl-C included, whose terminal makes a signal of it there. Leaving is
# Ctrl-] and a full stop, as telnet(1) and ssh(1) have something of the kind.


LEAVE = b"\x1d."
LEAVE_NAME = "Ctrl-] ."


class RawTerminal:
    """Standard input as a raw terminal; a context manager, after which it is as it was."""

    def __init__(self) -> None:
        """Looks how it is now."""
        self._before = termios.tcgetattr(0)
        self._held = b""

    def __enter__(self) -> "RawTerminal":
        self.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    def enter(self) -> None:
        """Makes the terminal raw, again each time after another programme used it."""
        tty.setraw(0, termios.TCSADRAIN)

    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        found = os.get_terminal_size(0)
        return found.lines, found.columns

    def typed(self, data: bytes) -> tuple[bytes, bool]:
        """What of `data` is for the session, and whether its writer wants to leave.

        The first key of `LEAVE` is held back until the next one has come.
        """
        data = self._held + data
        self._held = b""
        before, found, _ = data.partition(LEAVE)
        if found:
            return before, True
        if data.endswith(LEAVE[:1]):
            self._held = data[-1:]
            return data[:-1], False
        return data, False


_PIECE = 64 << 10
_MOST_WAITING = 1 << 20
"""Bytes for the service that wait, before no more is read from standard input."""
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
OF_TERMINALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
"""Those that a terminal sends: to the whole process group in front of it."""


class Attached:
    """One attachment. `follow` carries it out."""

    def __init__(self, client: Client, name: str, *, mode: str, take: bool = False, offset: int | None = 0) -> None:
        """Joins a session.

        Args:
            mode: "read"; "write" passes standard input on, and its end, and there is one such client; "acp" is an
                editor's, whose end is not the agent's.
            take: become that one in place of another.
            offset: see output from there on; 0 is all that is kept, None only what comes.

        Refusals: the service's.
        """
        self._mode = mode
        query = {"mode": mode, "take": 1 if take else None, "offset": offset}
        self._connection, ahead = client.upgrade(session_path(name, "attach"), query)
        self._connection.setblocking(False)
        self._waiting = bytearray()
        self._terminal: RawTerminal | None = None
        # What cannot be undone does not reach a person's terminal; anything else is passed on as it is.
        self._shown = {fd: TerminalOutput() for fd in (1, 2) if mode != "acp" and os.isatty(fd)}
        # Said before `follow` can undo it: a signal would end this process as it is until then.
        self._early: list[tuple[int, bytes]] | None = []
        self.left = False
        """Whether this client has left a session that goes on."""
        self.heard = False
        """Whether anything was read from standard input."""
        self._decoder = Decoder()
        self.hello: dict[str, Any] = {}
        self.session: dict[str, Any] | None = None
        """The session as it was when it was over; None as long as it is not."""
        self._going_on = self._take(ahead)
        while self._going_on and not self.hello:
            select.select([self._connection], [], [])
            self._going_on = self._receive()

    @property
    def at_terminal(self) -> bool:
        """Whether this process's terminal stands for one of the session's."""
        return self._mode == "write" and bool(self.hello.get("terminal")) and os.isatty(0)

    def follow(self, *, signals: bool) -> None:
        """Passes everything on until the session is over or one side hangs up.

        Args:
            signals: whether signals for this process are passed on, too; else they mean this process.

        Raises:
            Refusal: the service's.
            KeyboardInterrupt: a signal has ended this client, not the session; the terminal is as it was.
        """
        reading = self._mode != "read"
        with contextlib.ExitStack() as stack:
            stack.callback(self._connection.close)
            stack.callback(self._restore)
            waking = stack.enter_context(self._signals()) if signals else -1
            going_on = self._going_on
            if waking == -1 and (self.at_terminal or self._shown):
                waking = stack.enter_context(self._signals())
            early, self._early = self._early or [], None
            for fd, said in early:
                self._show(fd, said)
            if self.at_terminal:
                self._terminal = stack.enter_context(RawTerminal())
                self._resize()
            while going_on and not (self.left and not self._waiting):
                wanted: list[Any] = [self._connection]
                # What the service does not take is not read: it would gather here.
                if reading and len(self._waiting) < _MOST_WAITING:
                    wanted.append(0)
                if waking != -1:
                    wanted.append(waking)
                ready, writable, _ = select.select(wanted, [self._connection] if self._waiting else [], [])
                if waking in ready:
                    for number in os.read(waking, 64):
                        self._signalled(number, pass_on=signals)
                if 0 in ready:
                    reading = self._read()
                if writable:
                    self._push()
                if self._connection in ready:
                    going_on = self._receive()

    def _read(self) -> bool:
        """Passes standard input on, and its end; whether there is more to read."""
        try:
            data = os.read(0, _PIECE)
        except OSError:  # a terminal that has hung up
            data = b""
        self.heard = self.heard or bool(data)
        if self._terminal is not None:
            ended = not data  # only by hanging up, which a signal tells, too
            data, self.left = self._terminal.typed(data)
            if data:
                self._waiting += frame(INPUT, data)
            return not ended and not self.left
        if not data and self._mode == "acp":
            self.left = True
        else:
            self._waiting += frame(INPUT, data) if data else frame(END)
        return bool(data)

    def _signalled(self, number: int, *, pass_on: bool) -> None:
        if number in (signal.SIGWINCH, signal.SIGCONT):
            if self._terminal is not None:
                self._terminal.enter()  # a shell that has continued this process had the terminal meanwhile
                self._resize()
        elif pass_on:
            group = b"\1" if number in OF_TERMINALS else b""
            self._waiting += frame(SIGNAL, bytes((number,)) + group)
        else:
            raise KeyboardInterrupt

    def _restore(self) -> None:
        for fd, output in self._shown.items():
            if undoing := output.undoing():
                with contextlib.suppress(OSError):  # it has hung up
                    write(fd, undoing if self.session is not None else undoing + b"\r\n")

    def _resize(self) -> None:
        assert self._terminal is not None
        rows, columns = self._terminal.size()
        self._waiting += frame(WINDOW, rows.to_bytes(2, "little") + columns.to_bytes(2, "little"))

    def _push(self) -> None:
        try:
            del self._waiting[: self._connection.send(self._waiting)]
        except BlockingIOError:
            return
        except OSError:
            self._waiting.clear()  # it has hung up; why, is to be read from it

    def _receive(self) -> bool:
        try:
            data = self._connection.recv(_PIECE)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        return bool(data) and self._take(data)

    def _take(self, data: bytes) -> bool:
        for kind, payload in self._decoder.feed(data):
            if kind in (OUTPUT, ERRORS):
                self._show(1 if kind == OUTPUT else 2, payload)
            elif kind == HELLO:
                self.hello = json.loads(payload)
            elif kind == OVER:
                self.session = json.loads(payload)
                return False
            elif kind == REFUSED:
                raise Refusal.of(json.loads(payload))
        return True

    def _show(self, fd: int, said: bytes) -> None:
        if self._early is not None:
            self._early.append((fd, said))
        else:
            write(fd, self._shown[fd].passing(said) if fd in self._shown else said)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[int]:
        """A descriptor from which the numbers of signals can be read that are for this process."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        before: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int | None] = {}
        for number in (*PASSED_ON, signal.SIGWINCH, signal.SIGCONT):
            before[number] = signal.signal(number, _noted)
        waking = signal.set_wakeup_fd(theirs.fileno())
        try:
            yield ours.fileno()
        finally:
            signal.set_wakeup_fd(waking)
            for number, handler in before.items():
                signal.signal(number, handler)
            ours.close()
            theirs.close()


def _noted(number: int, where: FrameType | None) -> None:
    """Python itself writes the number to the descriptor."""
    del number, where


def status_of(session: dict[str, Any] | None) -> int:
    """The exit status of a session's command, as `paddock run` returns it.

    Refusals: the launcher's own; service-gone when it is not known how the session ended.
    """
    if session is None:
        raise Refusal("service-gone", "the service closed the connection before the session ended",
                      hint="paddock status; paddock ps --all")  # fmt: skip
    outcome = session["outcome"]
    if outcome["refusal"]:
        raise Refusal.of(outcome["refusal"])
    status = outcome["status"]
    return 128 + signal.SIGKILL if status is None else int(status)
