"""One attempt at a session: a launcher process, from the hand-over of its launch to the end of its last process."""

import gc
import marshal
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from launcher import loop as loops
from launcher import wire
from launcher.jail import init, processes, syscalls
from launcher.jail.processes import is_below
from launcher.lean import os
from launcher.service.shim.streams import TERMINAL, Streams
from policy.errors import Refusal
from policy.plan import USAGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from typing import NoReturn
else:
    import _signal


# A session's launcher: a process that a shim has forked, that waits for one launch, and becomes that launch.
#
# What it runs is what `paddock run` runs: the cached Plan, the private git directory, limits, proxy, ledger,
# hand-off check and harvest. Only the interpreter's start and the imports lie behind it already. It is used once:
# two sessions from one process would share its address space layout.
#
# Messages (both ways, packets of `launcher.wire`): one letter, then data for `marshal`.
#
# Launch path: see launcher/jail/syscalls.py.


LAUNCH = b"L"  # to the helper, with standard input, output and error
SESSION = b"S"  # from it: name, directory, worktree, its id, backend, network
JAIL = b"J"  # process id of the jail's first process
STARTED = b"B"  # the command is executed; data: when (`time.monotonic`)
ENDED = b"X"  # status, limit that was passed, denials, harvest, hand-off changes, what was told
REFUSED = b"E"  # the Refusal as a dictionary

_LETTERS = {"session": SESSION, "jail": JAIL, "started": STARTED, "ended": ENDED, "refused": REFUSED}
_NOFILE = 7  # RLIMIT_NOFILE
_TIOCSCTTY = 0x540E

_MOST_TOLD = 64 << 10


def launcher_main(parent: int, descriptor: int, run: "Callable[..., int]") -> "NoReturn":
    """Waits for a launch and carries it out; the process ends with its exit status."""
    processes.tie_to_parent(parent)
    gc.disable()  # as for every launch; and a collection would write to pages that the jail's processes share
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # no KeyboardInterrupt while a plan is made
    os.set_inheritable(descriptor, False)
    os.setsid()
    from launcher.session import watchdog  # noqa: F401  # now: an upgrade may have taken it away when it is needed

    data, streams = wire.receive_packet(descriptor)
    if data[:1] != LAUNCH or len(streams) != 3:  # the shim has no use for this process any more
        os._exit(0)
    launch = _placed(marshal.loads(data[1:]), streams)
    os._exit(_run(launch, descriptor, run))


def _placed(launch: "dict[str, Any]", streams: list[int]) -> "dict[str, Any]":
    """Takes a launch's place: standard streams, environment, mask. Returns it."""
    for number, fd in enumerate(streams):
        os.dup2(fd, number, inheritable=True)
        os.close(fd)
    if launch["terminal"]:
        import fcntl

        fcntl.ioctl(0, _TIOCSCTTY, 0)  # ioctl_tty(2): Ctrl-C and the window's size are for this session from now on
    _replace_environment(launch["environment"])
    os.umask(launch["umask"])
    hard = syscalls.prlimit64(0, _NOFILE)[1]
    syscalls.prlimit64(0, _NOFILE, (min(launch["open_files"], hard), hard))
    return launch


def _replace_environment(wanted: dict[str, str]) -> None:
    """Makes `wanted` the environment, for this module's `os` and for a real one that is imported later."""
    import posix

    for raw in list(posix.environ):
        posix.unsetenv(raw)
    posix.environ.clear()
    for name, value in wanted.items():
        encoded = os.fsencode(name), os.fsencode(value)
        posix.putenv(*encoded)
        posix.environ[encoded[0]] = encoded[1]
    os.environ.clear()
    os.environ.update(wanted)


def _run(launch: "dict[str, Any]", channel: int, run: "Callable[..., int]") -> int:
    def send(letter: bytes, data: "Any") -> None:  # noqa: ANN401  # what marshal takes
        try:
            wire.send_packet(channel, letter + marshal.dumps(data))
        except OSError:
            return  # the shim has gone, and with it, in a moment, this process

    started = False

    def observer(what: str, data: object) -> None:
        nonlocal started
        started = started or what == "started"
        if what == "ended" and isinstance(data, tuple):
            data = _bounded(data)
        if what == "session" and isinstance(data, tuple) and "counts" in launch:
            os.symlink(launch["counts"], f"{data[1]}/{USAGE}")  # what keys are used for outlives the attempt
        send(_LETTERS[what], data)

    try:
        os.chdir(launch["directory"])
        if os.getcwd() != launch["directory"]:  # by way of a link, perhaps
            from launcher.vcs import worktree_words

            os.chdir(worktree_words.directory(launch["directory"], "/"))
        return run(launch["words"], observer)
    except Refusal as error:
        refusal = error
    except Exception as error:
        what = "ended, but its end could not be completed" if started else "could not be started"
        refusal = init.failure(f"the session {what}", error)
    send(REFUSED, refusal.as_dict())
    return refusal.exit_code


def _bounded(data: "tuple[Any, ...]") -> "tuple[Any, ...]":
    """The final report, cut to the size of a packet."""
    if len(marshal.dumps(data)) <= _MOST_TOLD:
        return data
    status, limit, denials, harvest, changes, lines = data
    brief = {name: harvest[name] for name in ("state", "errorType", "message") if name in harvest} if harvest else None
    return status, limit, denials, brief, changes[:100], tuple(line[:200] for line in lines[:20])


SENDABLE = {
    name: getattr(signal, name)
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGKILL")
}
"""Signals that a session can be sent. The launcher passes them on to its command; SIGKILL ends the jail."""

_DRAIN_SECONDS = 2.0
_UNFORESEEN = ("launch-failed", "internal-error")
"""Of `launcher.jail.init.failure`."""


class Event:
    """Something that happens once, for which many tasks can wait."""

    def __init__(self) -> None:
        """It has not happened."""
        self.happened = False
        self._waiting: list[Callable[[], None]] = []

    def set(self) -> None:
        """It has happened."""
        self.happened = True
        for each in tuple(self._waiting):
            each()

    def also(self, callback: Callable[[], None]) -> None:
        """Has `callback` called when it happens, at once if it has."""
        self._waiting.append(callback)
        if self.happened:
            callback()

    async def within(self, seconds: float | None = None) -> bool:
        """Waits for it, at most so long; whether it has happened."""
        if self.happened:
            return True
        waiting = loops.Signal()
        self._waiting.append(waiting.set)
        try:
            if seconds is None:
                await waiting
            else:
                with loops.Timeout(seconds):
                    await waiting
        except TimeoutError:
            return self.happened
        finally:
            self._waiting.remove(waiting.set)
        return True


class Launcher:
    """A warm launcher process (`launcher_main`), which this process has forked. Used once.

    Attributes:
        pid: its process id; it leads a session (setsid(2)) of that number.
    """

    def __init__(self, run: Callable[..., int], group: str) -> None:
        """Forks it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own = os.getpid()
        self.group = _made(group)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                become(own, theirs.fileno(), run)
            finally:
                os._exit(125)
        theirs.close()
        ours.setblocking(False)
        self.channel = ours
        self.pidfd = os.pidfd_open(self.pid)
        self._code: int | None = None
        if self.group:
            _enter(self.group, self.pid)

    def launch(self, launch: dict[str, Any], streams: tuple[int, int, int]) -> None:
        """Hands over the one launch (see `_placed`); the streams stay the caller's. OSError: it has ended."""
        wire.send_packet(self.channel.fileno(), LAUNCH + marshal.dumps(launch), streams)

    def messages(self) -> list[tuple[bytes, Any]]:
        """Its messages since the last call: (letter, data)."""
        found: list[tuple[bytes, Any]] = []
        while True:
            try:
                packet, _ = wire.receive_packet(self.channel.fileno())
            except BlockingIOError:
                return found
            if not packet:
                return found
            found.append((packet[:1], marshal.loads(packet[1:])))

    def ended(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def signal(self, number: int, *, group: bool = False) -> None:
        """Signals the process, or its process group, which it leads from the launch on; unless it has ended."""
        if self.ended() is not None:
            return
        if group:
            try:
                os.killpg(self.pid, number)
                return
            except ProcessLookupError:
                pass  # before the launch it is alone
        os.kill(self.pid, number)

    def close(self) -> None:
        """Ends it if it still runs, and everything in its control group."""
        self.channel.close()
        os.close(self.pidfd)
        if self.ended() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if self.group:
            _write(self.group, "cgroup.kill", "1")
            _removed(self.group)


def become(parent: int, channel: int, run: Callable[..., int]) -> None:
    """Turns the child of a fork into a launcher: nothing of its parent's stays open in it but `channel`.

    The first one of a session is forked before its shim has a loop, all others from within that.
    """
    loops.forget()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.closerange(3, channel)
    os.closerange(channel + 1, 1 << 20)
    launcher_main(parent, channel, run)


def _made(group: str) -> str:
    if group:
        try:
            os.mkdir(group, 0o755)
        except FileExistsError:
            return group
        except OSError:
            return ""  # its processes are ended by other means, too
    return group


def _enter(group: str, pid: int) -> None:
    _write(group, "cgroup.procs", str(pid))


def _write(group: str, name: str, text: str) -> None:
    try:
        fd = os.open(f"{group}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError:
        return  # the group has gone, or the kernel is older than the file: other means follow


def _removed(group: str) -> None:
    deadline = time.monotonic() + _DRAIN_SECONDS
    while time.monotonic() < deadline:
        try:
            os.rmdir(group)
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.002)  # ended processes leave a moment after they were waited for


class Attempt:
    """A launcher that was handed its launch.

    Attributes:
        launcher: it.
        about: what it said of the session, as soon as it did: directory, worktree and so on.
        jail: process id of the jail's first process; 0 before there is one.
        spawn_seconds: from the hand-over to the execution of the command; None before.
        begun: the command is executed, or will never be.
        reported: the session is over, work brought home and all; nothing is left to the launcher but to end.
        ended: the launcher has ended.
    """

    def __init__(self, launcher: Launcher, streams: Streams, placed: Callable[[], None]) -> None:
        """Prepares; `launch` begins. `placed` is called before anything can be committed."""
        self.launcher = launcher
        self.about: tuple[str, ...] = ()
        self.jail = 0
        self.spawn_seconds: float | None = None
        self.begun = Event()
        self.reported = Event()
        self.ended = Event()
        self._placed = placed
        self._streams = streams
        self._handed = 0.0
        self._end: tuple[Any, ...] | None = None
        self._refusal: dict[str, Any] | None = None

    def launch(self, launch: dict[str, Any], stdin: str) -> None:
        """Hands the launch over and begins to listen. OSError: no pipes, or the launcher has ended."""
        fds = self._streams.open(stdin)
        self._handed = time.monotonic()
        try:
            self.launcher.launch({**launch, "terminal": stdin == TERMINAL}, fds)
        finally:
            for fd in fds:
                os.close(fd)
        loop = loops.running()
        loop.add_reader(self.launcher.channel.fileno(), self._hear)
        loop.add_reader(self.launcher.pidfd, self._over)

    def _hear(self) -> None:
        for letter, data in self.launcher.messages():
            if letter == SESSION:
                self.about = data
                self._placed()
            elif letter == JAIL:
                self.jail = data
            elif letter == STARTED:
                self.spawn_seconds = data - self._handed  # not when this loop came to hear of it
                self.begun.set()
            elif letter == ENDED:
                self._end = data
                self.reported.set()
            elif letter == REFUSED:
                self._refusal = data
                self.reported.set()

    def _over(self) -> None:
        if self.launcher.ended() is None:
            return
        self._hear()
        loop = loops.running()
        loop.remove_reader(self.launcher.channel.fileno())
        loop.remove_reader(self.launcher.pidfd)
        self.begun.set()
        self.reported.set()
        self.ended.set()

    async def finish(self) -> None:
        """For after `ended`: takes the last output, ends what may have escaped, gives everything back."""
        if self.launcher.group:
            _write(self.launcher.group, "cgroup.kill", "1")  # nothing of a session outlives its launcher
        self._streams.hurry()
        while True:
            try:
                with loops.Timeout(_DRAIN_SECONDS):
                    await self._streams.drained()
                break
            except TimeoutError:
                if not self._streams.is_held:  # a client that does not read is let go in a while
                    self._streams.log.note("a process of the ended session keeps its output open")
                    break
        self._streams.finish_attempt()
        self.launcher.close()

    def outcome(self, stopped: str | None) -> dict[str, Any]:
        """How it ended, as fields of `launcher.service.schema.Outcome`; `stopped` is why somebody asked for that."""
        code = self.launcher.ended()
        status, limit, denials, harvest, handoff, notes = self._end or (None, "", 0, None, (), ())
        if status is None and code is not None:
            status = code if code >= 0 else 128 - code
        refusal = self._refusal
        if refusal is not None and self._end is not None and refusal["errorType"] in _UNFORESEEN:
            # The command itself has come to its end. What could not be done after it, the service does.
            harvest, refusal = harvest or refusal, None
        name = None
        if status is not None and status > 128:
            name = next((each.name for each in signal.Signals if each == status - 128), None)
        if stopped is not None:
            reason = stopped
        elif refusal is not None:
            reason, name = "refused", None
        elif limit and status == 128 + signal.SIGKILL:  # else it has outlived what the kernel ended for memory
            reason = "limit"
        elif code is not None and code < 0 and self._end is None:
            reason = "lost"  # the launcher itself was killed
        else:
            reason = "signalled" if name else "exited"
        return {
            "reason": reason, "status": status, "signal": name, "limit": limit or None, "denials": denials,
            "refusal": refusal, "harvest": harvest, "handoff": handoff, "notes": notes,
        }  # fmt: skip

    def send(self, number: int, *, group: bool = False) -> None:
        """Sends a signal to the launcher, which passes it on; SIGKILL goes to the jail, so that its launcher ends well.

        A signal for the group reaches the command and what it started as well: launcher and init know such a signal,
        and do not send it twice (`launcher.jail.init`).
        """
        if number == signal.SIGKILL:
            self.kill_jail()
        else:
            self.launcher.signal(number, group=group)

    def freeze(self, *, frozen: bool) -> None:
        """Lets nothing of the session run, its launcher included, or lets it go on.

        Refusals: freeze-unavailable.
        """
        if not self.launcher.group:
            raise Refusal("freeze-unavailable", "a session can be frozen only where it has a control group of its own",
                          hint="paddock status says why there are none")  # fmt: skip
        _write(self.launcher.group, "cgroup.freeze", "1" if frozen else "0")

    @property
    def at_home(self) -> bool:
        """Whether the jail has ended, and the launcher brings home what it has left: it is not to be disturbed."""
        return bool(self.jail) and not is_below(self.jail, self.launcher.pid)

    def kill_jail(self) -> None:
        """Ends everything in the jail; the launcher then harvests and ends. Without a jail the launcher is ended."""
        if not self.jail:
            self.launcher.signal(signal.SIGKILL)
            return
        group = self.launcher.group
        if group:
            _write(group, "cgroup.freeze", "1")  # nothing starts anything between the looking and the killing
        try:
            for pid in (self.jail, *_processes(group)):
                if is_below(pid, self.jail):
                    _kill(pid, self.launcher.pid)
        finally:
            if group:
                _write(group, "cgroup.freeze", "0")


def _processes(group: str) -> list[int]:
    try:
        with open(f"{group}/cgroup.procs", "rb") as file:
            return [int(line) for line in file.read().split()] if group else []
    except OSError:
        return []


def _kill(pid: int, launcher: int) -> None:
    """Kills a process of the launcher's, unless its number belongs to another process by now."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if is_below(pid, launcher):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(pidfd)


def unstartable(error: OSError) -> Refusal:
    """The Refusal for a machine without free processes, descriptors or terminals."""
    context, hint = syscalls.explained(error, "the machine is out of some resource")
    return Refusal("session-unstartable", "no process for the session can be started", context=context, hint=hint)


def failure(error: Exception) -> Refusal:
    """The Refusal for an unforeseen error."""
    return Refusal("internal-error", "the session failed unexpectedly", context=repr(error),
                   hint="this is a bug in Paddock; the service's log has more")  # fmt: skip
