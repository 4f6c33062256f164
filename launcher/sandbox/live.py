"""A live jail of a programme: a session like that of `paddock run`, and one connection for its commands.

Its launcher is forked from a process beside this one (`launcher.sandbox.launchers`). Its first command is a cat(1) on a
pipe that this process holds: when the pipe closes, by `Live.close` or because this process is gone, the session ends as
every other does, and the work of its commands is harvested.
"""

import _socket
import contextlib
import marshal
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from launcher import programmes, wire
from launcher.jail import minder
from launcher.service.shim import attempt
from launcher.session import exec_client
from launcher.session.places import Places
from policy.errors import Refusal

_PIECE = 1 << 16
_PATIENCE = 10.0
"""Seconds for a jail to take a command, and to end by itself."""

_ENVIRONMENT = {"LC_ALL": "C.UTF-8"}


class Live:
    """One live jail.

    Attributes:
        name: of its session.
        root: where its commands start.
        backend: as `policy.promises` names it.
        messages: what its launcher has said; once it is closed, also how it ended.
        harvest: once it is closed, the report of what was taken over from a worktree.
    """

    def __init__(self, places: Places, name: str, directory: str, options: Sequence[str]) -> None:
        """Makes it; Refusals as of ``paddock run``, sandbox-unopened.

        Args:
            places: Paddock's own directories.
            name: for the session.
            directory: absolute path to start in.
            options: of ``paddock run``.
        """
        self.name = name
        self.root = self.backend = self.messages = ""
        self.harvest: dict[str, Any] | None = None
        self._lock = threading.Lock()
        self._many: _socket.socket | None = None
        self._pidfd = -1
        self._over = False
        try:
            self._make(places, directory, options)
        except OSError as error:
            raise unopened("sandbox", error) from None

    def _make(self, places: Places, directory: str, options: Sequence[str]) -> None:
        name = self.name
        words = ["--quiet", "--ask=no", "--session", name, *options, "--", "cat"]
        ends = list(os.pipe())  # of the first command's input; then of what the launcher says
        try:
            ends += os.pipe()
            input_end, self._first, self._told, told = ends
            self._channel = _launchers.start(words, directory, (input_end, told, told))
        except BaseException:
            for fd in ends:
                os.close(fd)
            raise
        os.close(input_end)
        os.close(told)
        try:
            self._await_start()
            many = self._many = exec_client.connect(places, name)
            many.sendall(wire.frame(minder.MANY))
            many.setblocking(False)
        except BaseException:
            self.close()
            raise

    def send(self, command: minder.Command, descriptors: tuple[int, ...]) -> None:
        """Hands a command over, with a connection of its own and its streams, which stay the caller's.

        Refusals: sandbox-closed, sandbox-ended.
        """
        try:
            frame = wire.frame(minder.COMMAND, command.encode())
        except UnicodeEncodeError as error:
            raise Refusal(
                "request-invalid", "a word or a variable holds half a character", context=str(error)
            ) from None
        with self._lock:
            if self._many is None:
                raise Refusal("sandbox-closed", f"the sandbox {self.name} is closed")
            try:
                wire.send(self._many.fileno(), frame, descriptors, time.monotonic() + _PATIENCE)
            except OSError:  # TimeoutError is one: a part of the message may be on its way
                self.kill()
                raise self.gone() from None

    def gone(self) -> Refusal:
        """The Refusal for a command whose jail has gone."""
        return Refusal(
            "sandbox-ended",
            f"the sandbox {self.name} has ended, or what minds its commands",
            context="a command in it has ended Paddock's processes there, or a limit of the whole sandbox was passed",
            hint="close it: its messages say more",
        )

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return (pidfd := self._pidfd) != -1 and not _ended(pidfd, 0)

    def kill(self) -> None:
        """Ends everything in the jail at once, and waits for that: the last of it may be in the middle of a write."""
        if (pidfd := self._pidfd) != -1:  # another thread may close it at any time
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                _ended(pidfd, _PATIENCE)

    def close(self) -> None:
        """Ends everything in the jail; of a worktree, what was committed is harvested. A second call does nothing."""
        with self._lock:
            first, self._first = self._first, -1
            many, self._many = self._many, None
        if many is not None:
            many.close()
        if first == -1:
            return
        os.close(first)
        for letter, data in self._heard(time.monotonic() + _PATIENCE):
            if letter == attempt.ENDED:
                self.harvest = data[3]
            elif letter == attempt.REFUSED:
                self.messages += f"{Refusal.of(data)}\n"
        os.close(self._told)
        self._channel.close()
        if self._pidfd != -1:
            os.close(self._pidfd)
            self._pidfd = -1

    def _await_start(self) -> None:
        for letter, data in self._heard():
            if letter == attempt.SESSION:
                _, _, self.root, _, self.backend, _ = data
            elif letter == attempt.JAIL:
                with contextlib.suppress(ProcessLookupError):
                    self._pidfd = os.pidfd_open(data)
            elif letter == attempt.REFUSED:
                raise Refusal.of(data)
            elif letter == attempt.STARTED:
                return
        raise Refusal("sandbox-ended", f"the sandbox {self.name} could not be started", context=self.messages)

    def _heard(self, deadline: float | None = None) -> Iterator[tuple[bytes, Any]]:
        """What the launcher reports, while what it says is gathered; ends with it.

        A jail that lives at the deadline is ended: a command in it may have stopped the one that holds it open.
        """
        if self._over:
            return
        poll = select.poll()
        channel = self._channel.fileno()
        for fd in (channel, self._told):
            poll.register(fd, select.POLLIN)
        while True:
            wait = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            ready = [fd for fd, _ in poll.poll(wait)]
            if not ready:
                self.kill()
                deadline = None
            if self._told in ready:
                text = os.read(self._told, _PIECE)
                self.messages += text.decode("utf-8", "replace")
                if not text:
                    poll.unregister(self._told)
            if channel in ready:
                packet, _ = wire.receive_packet(channel)
                if not packet:
                    self._over = True
                    return
                yield packet[:1], marshal.loads(packet[1:])


class _Launchers:
    """The process that launchers are forked from: one for this process, started when the first jail is made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = -1
        self._socket: socket.socket | None = None

    def start(self, words: list[str], directory: str, streams: tuple[int, int, int]) -> socket.socket:
        """Starts a launcher; the streams stay the caller's. Refusal: session-unstartable."""
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._send(theirs.fileno())
            launch = {
                "words": words,
                "directory": directory,
                "environment": dict(os.environ),
                "umask": _umask(),
                "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                "terminal": False,
            }
            wire.send_packet(ours.fileno(), attempt.LAUNCH + marshal.dumps(launch), streams)
        except OSError as error:
            raise attempt.unstartable(error) from None
        return ours

    def _send(self, descriptor: int) -> None:
        with self._lock:
            if self._socket is not None and self._owner == os.getpid():
                with contextlib.suppress(OSError):  # somebody has ended it
                    wire.send_packet(self._socket.fileno(), b"L", (descriptor,))
                    return
            self._socket = self._begun()
            self._owner = os.getpid()
            wire.send_packet(self._socket.fileno(), b"L", (descriptor,))

    @staticmethod
    def _begun() -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = programmes.helper("launchers", str(theirs.fileno()), sys.prefix, site=False)
        with theirs:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=_ENVIRONMENT, cwd="/",
                pass_fds=(theirs.fileno(),),
            )  # fmt: skip
        process.returncode = 0  # it ends after this one, which does not wait for it
        return ours


_launchers = _Launchers()


def _ended(pidfd: int, seconds: float) -> bool:
    """Whether a jail's first process has ended by then: after all of its PID namespace (pid_namespaces(7))."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def unopened(what: str, error: OSError) -> Refusal:
    """The Refusal for a sandbox, or a command in one, for which this process has no descriptors left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Refusal(
        "sandbox-unopened",
        f"this process cannot open another {what}",
        context=f"{error.strerror or error}; it may open {soft} files (RLIMIT_NOFILE): a sandbox takes five of them, "
        "and a command as many while it runs",
        hint=f"close sandboxes; or resource.setrlimit(resource.RLIMIT_NOFILE, ({hard}, {hard}))",
    )


def _umask() -> int:
    """This process's, without changing it (proc_pid_status(5))."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next((int(line.split()[1], 8) for line in file if line.startswith("Umask:")), 0o022)
