"""The process that looks after one further command: parent of it, leader of its session, at the client's other end.

Forked from the init, so it is in the jail's namespaces, outside of the command's Landlock domain, and not traceable.
The command gets a process group of its own below it: a group whose parent is in the same session can be stopped
(setpgid(2), orphaned groups cannot), so Ctrl-Z works in the terminal that is made for it.

The command ends: its status goes to the client, and what it left in the background lives as long as the jail. The
client leaves: everything below this process ends.

Loaded when a client comes, from inside the jail's view (`launcher.jail.spawn`): imports nothing but built-in modules
and what every launch has loaded already.
"""

import select
import time
from _stat import S_ISFIFO

from launcher import wire
from launcher.jail import enter, hygiene, init, processes, reports, syscalls
from launcher.jail.spec import JailSpec
from launcher.lean import os
from policy.errors import EXIT_NOT_FOUND, EXIT_REFUSED, Refusal
from policy.plan import beneath

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
    from typing import NoReturn

    from launcher.jail.guard.guard import Guard
    from launcher.jail.spawn import Inside
else:
    import _signal


# What a client asks a running jail for: frames (`launcher.wire`) of NUL-separated fields.
#
# The bytes come from another process of the same user, so they are only ever split, never unmarshalled.

PROOF = b"P"  # the first message: `Session.proof`
ABOUT = b"A"  # what runs here; no fields. Answered by reports.REPORT
MANY = b"M"  # run many: COMMAND messages follow, each with a connection of its own before its streams; no fields
COMMAND = b"Q"  # run a command; fields: see `Command`. Its streams come along as descriptors
GO = b"G"  # the terminal is as it shall be: start; no fields
SIGNAL = b"K"  # two bytes: a signal's number, and 1 when it is for the command's whole process group

TERMINAL = b"T"  # the answer to a COMMAND with a terminal: its master side comes along. Then GO is awaited

MOST_BYTES = 4 << 20
"""Of one message. The kernel takes about 2 MiB of arguments and environment (execve(2))."""

PATIENCE = 10.0
"""Seconds in which a message must be complete."""

_VERSION = b"1"

DIRECT, PTY = "d", "t"
"""Where a stream of the command leads: to a descriptor that comes along, or to the terminal made for it."""


class Command:
    """A further command for a running jail.

    Attributes:
        argv: its words, at least one.
        environment: (name, value) on top of what the session's first command got.
        cwd: canonical path to start in; "" for the session's own directory.
        insists: `cwd` was asked for; else a path outside of the worktree means the session's directory.
        streams: one of `DIRECT` and `PTY` for each of 0, 1 and 2.
    """

    __slots__ = ("argv", "cwd", "environment", "insists", "streams")

    def __init__(
        self,
        argv: list[str],
        environment: tuple[tuple[str, str], ...] = (),
        *,
        cwd: str = "",
        insists: bool = False,
        streams: str = DIRECT * 3,
    ) -> None:
        self.argv = argv
        self.environment = environment
        self.cwd = cwd
        self.insists = insists
        self.streams = streams

    def encode(self) -> bytes:
        """The message's payload. Refusals: request-invalid for a NUL, which no argument can hold; request-too-long."""
        pairs = [f"{name}={value}" for name, value in self.environment]
        fields = [self.streams, "!" if self.insists else "?", self.cwd, str(len(self.argv)), *self.argv, *pairs]
        if any("\0" in field for field in fields):
            raise _invalid("an argument or a variable holds a NUL character")
        payload = b"\0".join((_VERSION, *map(os.fsencode, fields)))
        if len(payload) > MOST_BYTES:
            raise _too_long(f"{len(payload)} bytes, of {MOST_BYTES} at most")
        return payload

    @classmethod
    def decode(cls, payload: bytes) -> "Command":
        """The command that `encode` wrote. Refusal request-invalid for anything else."""
        version, *rest = payload.split(b"\0")
        if version != _VERSION:
            raise _invalid("the session was started by another version of Paddock")
        fields = list(map(os.fsdecode, rest))
        if len(fields) < 5 or not (fields[3].isascii() and fields[3].isdigit() and len(fields[3]) < 8):
            raise _invalid("fields are missing")
        streams, insists, cwd, count, *words = fields
        argv, pairs = words[: int(count)], words[int(count) :]
        if not argv or len(argv) != int(count) or insists not in ("!", "?") or len(streams) != 3:
            raise _invalid("fields are missing")
        if set(streams) - {DIRECT, PTY} or not all(pair.find("=") > 0 for pair in pairs):
            raise _invalid("a field is not valid")
        environment = tuple((name, value) for name, _, value in (pair.partition("=") for pair in pairs))
        return cls(argv, environment, cwd=cwd, insists=insists == "!", streams=streams)


def _invalid(why: str) -> Refusal:
    return Refusal("request-invalid", "the request for a further command is malformed", context=why)


def receive(connection: int, descriptors: list[int], most: int = MOST_BYTES) -> tuple[bytes, bytes]:
    """The next message as (kind, payload); (b"", b"") when the client has left.

    Args:
        connection: to read from.
        descriptors: takes what comes along; the caller owns them, after an exception too.
        most: bytes that the payload may have.

    Refusals: request-too-long, request-late, request-invalid.
    """
    try:
        return wire.receive(connection, descriptors, deadline=time.monotonic() + PATIENCE, most=most)
    except TimeoutError:
        raise Refusal("request-late", f"the request was incomplete after {PATIENCE:.0f} seconds") from None
    except wire.TooLong as error:
        raise _too_long(str(error)) from None
    except wire.Malformed as error:
        raise _invalid(str(error)) from None


def _too_long(why: str) -> Refusal:
    return Refusal("request-too-long", "arguments and environment together are too long", context=why)


_ENDING = 16
"""Processes whose clients have heard of their commands' ends, and that have not quite ended themselves."""

_TIOCSCTTY = 0x540E
_AF_UNIX, _SOCK_SEQPACKET = 1, 5
_SIGNAL_BYTES = 2


def run(connection: int, jail: "Inside", *, uid: int, pid_namespace: bool) -> "NoReturn":
    """Serves one client, then ends this process.

    Args:
        connection: to the client, who may not have said anything yet.
        jail: which it runs in.
        uid: the user's, as this process sees it.
        pid_namespace: the init is process 1 of one.
    """
    descriptors: list[int] = []
    try:
        if not _is_outside(*wire.peer(connection), uid, pid_namespace=pid_namespace):
            os._exit(0)
        processes.adopt_orphans()
        hygiene.close_inherited((connection, *jail.descriptors))
        kind, payload = receive(connection, descriptors, len(jail.spec.proof))
        if kind and (kind != PROOF or payload != jail.spec.proof):
            raise Refusal("peer-refused", "this process may not use the session's control socket")
        kind, payload = receive(connection, descriptors) if kind else (b"", b"")
        if kind == ABOUT:
            reports.send_report(connection, jail.spec.about)
        elif kind == MANY:
            _Many(connection, jail).run()
        elif kind == COMMAND:
            _Minder(connection, jail, Command.decode(payload), descriptors).run()
        elif kind:
            raise Refusal("request-invalid", "the request is of an unknown kind")
    except Refusal as refusal:
        reports.send_refusal(connection, refusal)
    except BaseException as error:
        reports.send_refusal(connection, init.failure("the further command could not be run", error))
    finally:
        os._exit(0)


class _Many:
    """Commands side by side for one client, each minded by a process like this one, until the client leaves.

    Where a process can be confined before its command is known, one is always ready: what a command waits for then is
    little more than execve(2).
    """

    def __init__(self, connection: int, jail: "Inside") -> None:
        self._connection = connection
        self._jail = jail
        self._own = os.getpid()
        self._signals = init.open_signals()
        self._living: set[int] = set()
        self._ready: tuple[int, int] | None = None  # to the process that minds, and to the one that will execute

    def run(self) -> None:
        """To the client's end; then everything ends."""
        self._jail.share()
        for signal in _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP, _signal.SIGPIPE}:
            _signal.signal(signal, _signal.SIG_DFL)
        self._refill()
        poll = select.poll()
        for fd in (self._connection, self._signals):
            poll.register(fd, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self._signals in ready:
                init.read_signals(self._signals)
                self._living -= set(_ended())
            if self._connection in ready and not self._serve():
                processes.sweep()
                return

    def _serve(self) -> bool:
        """The next message. False: the client has left, or talks nonsense."""
        descriptors: list[int] = []
        kind, payload = receive(self._connection, descriptors)
        if kind != COMMAND or not descriptors:
            return False
        client, *streams = descriptors
        try:
            if len(self._living) >= init.MOST_OTHERS:
                self._living -= set(_ended())
            if len(self._living) - (self._ready is not None) >= init.MOST_OTHERS + _ENDING:
                raise init.busy()
            if not self._hand_over(payload, descriptors):
                pid = os.fork()
                if pid == 0:
                    self._alone(client, lambda: _Minder(client, self._jail, Command.decode(payload), streams).run())
                self._living.add(pid)
        except Refusal as refusal:
            reports.send_refusal(client, refusal)
        except OSError as error:
            reports.send_refusal(client, init.failure("the session cannot start another process", error))
        for fd in descriptors:
            os.close(fd)
        self._refill()
        return True

    def _hand_over(self, payload: bytes, descriptors: list[int]) -> bool:
        """Whether a process was ready for it."""
        if self._ready is None:
            return False
        minding, executing = self._ready
        self._ready = None
        try:
            wire.send_packet(executing, payload, tuple(descriptors))
        except OSError:  # another command of the jail has ended it
            os.close(minding)
            return False
        finally:
            os.close(executing)
        try:  # the command may have run to its end by now: whatever comes, no other process is made for it
            wire.send_packet(minding, b"", (descriptors[0],))
        except OSError:
            pass  # another command has ended that one, of which the client hears by the end of its connection
        os.close(minding)
        return True

    def _refill(self) -> None:
        """Has a process ready. Without one, the next command's is made when it comes."""
        if self._ready is not None or not self._jail.ahead:
            return
        pairs: list[int] = []
        try:
            pairs += syscalls.socketpair(_AF_UNIX, _SOCK_SEQPACKET | os.O_CLOEXEC)
            pairs += syscalls.socketpair(_AF_UNIX, _SOCK_SEQPACKET | os.O_CLOEXEC)
            pid = os.fork()
        except OSError:
            for fd in pairs:
                os.close(fd)
            return
        minding, minds, executing, executes = pairs
        if pid == 0:
            os.close(minding)
            os.close(executing)
            self._alone(-1, _Ahead(self._jail, minds, executes).run)
        os.close(minds)
        os.close(executes)
        self._living.add(pid)
        self._ready = minding, executing

    def _alone(self, client: int, work: "Callable[[], None]") -> "NoReturn":
        """The life of a process that minds one command."""
        try:
            os.close(self._connection)
            os.close(self._signals)
            processes.tie_to_parent(self._own)
            processes.adopt_orphans()
            work()
        except BaseException as error:
            _tell(client, "the further command could not be run", error)
        finally:
            os._exit(0)


class _Ahead:
    """A command whose process is confined and ready, and that is not known yet."""

    def __init__(self, jail: "Inside", minds: int, executes: int) -> None:
        self._jail = jail
        self._minds = minds
        self._executes = executes

    def run(self) -> None:
        """Until the command has ended."""
        os.setsid()
        signals = init.open_signals()
        own = os.getpid()
        command = os.fork()
        if command == 0:
            self._become(own)
        os.close(self._executes)
        _own_group(command)
        _, clients = wire.receive_packet(self._minds)  # none: the process has ended before it had a command
        os.close(self._minds)
        if clients:  # and the command may have ended: its signal is still to be read
            _Minder(clients[0], self._jail, None, []).follow(command, signals)

    def _become(self, parent: int) -> "NoReturn":
        client, code = -1, EXIT_REFUSED
        try:
            processes.tie_to_parent(parent)
            _own_group(0)
            _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
            _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
            refusal: Refusal | None = None
            try:
                self._jail.confine(self._executes)
            except Refusal as error:
                refusal = error
            payload, (client, *streams) = wire.receive_packet(self._executes)
            if refusal is not None:
                raise refusal
            wanted = Command.decode(payload)
            if wanted.streams != DIRECT * len(streams) or not all(map(_is_pipe, streams)):
                raise Refusal("request-invalid", "the streams of one command among many are pipes, three of them")
            spec = self._jail.spec
            enter.change_directory(_directory(wanted, spec))
            for fd, source in enumerate(streams):
                os.dup2(source, fd, inheritable=True)
            environment = spec.environment | dict(wanted.environment)
            search = _candidates(wanted.argv[0], environment.get("PATH", os.defpath))
            enter.execute(search, tuple(wanted.argv), environment, searched=True)
        except BaseException as error:
            code = _tell(client, "the command could not be started", error)
        finally:
            os._exit(code)


def _tell(client: int, what: str, error: BaseException) -> int:
    """Tells a client, unless there is none yet (-1), why there is no command. Returns the exit status for it."""
    refusal = error if isinstance(error, Refusal) else init.failure(what, error)
    if client != -1:
        reports.send_refusal(client, refusal)
    return refusal.exit_code


def _is_pipe(fd: int) -> bool:
    return S_ISFIFO(os.fstat(fd).st_mode)


def _ended() -> list[int]:
    """Process ids of children that have ended, reaped."""
    found: list[int] = []
    try:
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            found.append(pid)
    except ChildProcessError:
        pass
    return found


def _is_outside(pid: int, peer: int, uid: int, *, pid_namespace: bool) -> bool:
    """Whether this user connected, from outside. The directory's mode says so already; this does not rely on it.

    From inside, where the socket cannot be reached either: in a PID namespace processes outside have no number, so
    whoever has one is inside; without it a jailed connect(2) is the guard's, of this session or of another one. In a
    user namespace every other user looks like 65534, so that user relies on the mode alone.
    """
    if pid != 0 and (pid_namespace or processes.jailed(pid)):
        return False
    return peer == uid


class _Minder:
    """The loop around one command."""

    def __init__(self, connection: int, jail: "Inside", wanted: Command | None, descriptors: list[int]) -> None:
        """Args: `wanted` is None for a command that has been started already."""
        self._connection = connection
        self._jail = jail
        self._command = 0
        self._descriptors = descriptors
        if wanted is None:
            return
        self._wanted = wanted
        if len(descriptors) != wanted.streams.count(DIRECT):
            raise Refusal("request-invalid", "the request lacks the streams that it announces")
        self._spec = jail.spec.replace(
            cwd=_directory(wanted, jail.spec),
            argv=tuple(wanted.argv),
            environment=jail.spec.environment | dict(wanted.environment),
        )

    def run(self) -> None:
        """From the session's start to the command's end; see the module's text."""
        try:
            self._run()
        except BaseException:
            processes.sweep()
            raise

    def _run(self) -> None:
        os.setsid()
        terminal = -1
        if PTY in self._wanted.streams:
            terminal = self._open_terminal()
            if terminal == -1:
                return
        signals = init.open_signals()
        guard = self._jail.guard(self._spec, self._connection)
        own = self._jail.separate()
        self._command = os.fork()
        if self._command == 0:
            self._run_command(terminal, own, guard)
        _own_group(self._command)
        for fd in (*self._descriptors, *((terminal,) if terminal != -1 else ())):
            os.close(fd)
        if guard is not None:
            guard.serve(self._command)
        self.follow(self._command, signals)
        if guard is not None:
            self._outlive()

    def follow(self, command: int, signals: int) -> None:
        """Handles the client's messages until the command has ended, or the client has left: then everything ends."""
        self._command = command
        poll = select.poll()
        for fd in (self._connection, signals):
            poll.register(fd, select.POLLIN)
        self._on_signals(signals)
        while self._command:
            for fd, _ in poll.poll():
                if not (self._on_signals(signals) if fd == signals else self._on_message()):
                    break

    def _open_terminal(self) -> int:
        """Makes the controlling terminal of this session and hands the client its other side; -1: it has left."""
        try:
            master, terminal = os.openpty()
            name = os.ttyname(terminal)
        except OSError as error:
            raise Refusal("no-terminal", "cannot make a terminal inside the jail", context=str(error)) from None
        syscalls.ioctl(terminal, _TIOCSCTTY, 0)
        if self._spec.guard:
            # One of the machine's own, of which no other is granted.
            self._spec = self._spec.replace(grants=(*self._spec.grants, (name, "rwi", "the command's terminal")))
        wire.send(self._connection, wire.frame(TERMINAL), (master,))
        os.close(master)
        kind, _ = receive(self._connection, [], 0)
        return terminal if kind == GO else -1

    def _run_command(self, terminal: int, parent: int, guard: "Guard | None") -> "NoReturn":
        # Nothing may escape from here: this is a copy of its parent, with all that it has on its stack.
        code = EXIT_REFUSED
        try:
            processes.tie_to_parent(parent)
            _own_group(0)
            if terminal != -1:
                os.tcsetpgrp(terminal, os.getpid())  # SIGTTOU is blocked
            sources = iter(self._descriptors)
            for fd, stream in enumerate(self._wanted.streams):
                os.dup2(terminal if stream == PTY else next(sources), fd, inheritable=True)
            _default_signals()
            size = dict(self._spec.limits).get("file_size", 0)
            reports.send(self._connection, reports.STARTING, size.to_bytes(8, "little"))
            if guard is not None:
                # Forked from a process that is not, and the guard has to fetch its listener.
                syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
            self._jail.enter(
                self._spec,
                guard=guard,
                pipe=self._connection,
                search=_candidates(self._spec.argv[0], self._spec.environment.get("PATH", os.defpath)),
            )
        except Refusal as refusal:
            code = refusal.exit_code
            reports.send_refusal(self._connection, refusal)
        except BaseException as error:
            reports.send_refusal(self._connection, init.failure("the command could not be started", error))
        finally:
            os._exit(code)

    def _on_signals(self, signals: int) -> bool:
        """Reaps. False: the command has ended."""
        init.read_signals(signals)  # SIGCHLD, and what the terminal sends to the leader of its session
        while self._command:
            pid, code = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                return True
            if pid != self._command:
                continue
            if os.WIFSTOPPED(code):
                reports.send(self._connection, reports.STOPPED, bytes((os.WSTOPSIG(code),)) + bytes(4))
            elif os.WIFCONTINUED(code):
                reports.send(self._connection, reports.CONTINUED)
            else:
                self._command = 0
                reports.send_exited(self._connection, code)
        return False

    def _on_message(self) -> bool:
        """Passes a signal on. When the client has left or says nonsense, everything below ends, and this process."""
        descriptors: list[int] = []
        kind, payload = receive(self._connection, descriptors, _SIGNAL_BYTES)
        for fd in descriptors:
            os.close(fd)
        if kind != SIGNAL or len(payload) != _SIGNAL_BYTES:
            processes.sweep()
            try:
                reports.send(self._connection, reports.SWEPT)
            except OSError:
                pass  # it has left for good
            os._exit(0)
        signal, group = payload
        if signal == _signal.SIGCONT or (group and signal in init.FORWARDED):
            try:
                os.killpg(self._command, signal)
            except ProcessLookupError:  # it has made another group for itself
                os.kill(self._command, signal)
        elif signal in init.FORWARDED:
            os.kill(self._command, signal)
        return True

    def _outlive(self) -> None:
        """Stays the guard of what the command has left, and lets the client's descriptors go."""
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, self._connection, inheritable=False)
        try:
            while True:
                os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _default_signals() -> None:
    for signal in _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP}:
        _signal.signal(signal, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def _own_group(pid: int) -> None:
    """Makes `pid` (0: this process) the leader of a process group; parent and child both do, whoever is first."""
    try:
        os.setpgid(pid, 0)
    except (PermissionError, ProcessLookupError):
        return  # it has executed something already, so the child was first


def _directory(wanted: Command, spec: JailSpec) -> str:
    """The directory to start in: inside the worktree."""
    inside = beneath(wanted.cwd, spec.worktree) and os.path.normpath(wanted.cwd) == wanted.cwd
    if inside:
        return wanted.cwd
    if wanted.insists:
        raise Refusal(
            "directory-outside",
            f"{wanted.cwd} is not inside the session's worktree",
            context=f"the worktree is {spec.worktree}",
            hint="leave --cwd out to start where the session's first command did",
        )
    return spec.cwd


def _candidates(name: str, path: str) -> tuple[str, ...]:
    """The files that `name` may mean. As at every launch, a relative entry of PATH means nothing."""
    if "/" in name:
        return (name,)
    found = tuple(f"{entry.rstrip('/')}/{name}" for entry in path.split(":") if entry.startswith("/"))
    if not found or not name:
        raise Refusal(
            "command-not-found",
            f"{name}: command not found" if name else "the command's name is empty",
            context="PATH has no absolute entry" if name else "",
            exit_code=EXIT_NOT_FOUND,
        )
    return found
