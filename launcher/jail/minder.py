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

from launcher import wire
from launcher.jail import hygiene, init, processes, request, status, syscalls
from launcher.jail.spec import JailSpec
from launcher.lean import os
from policy.errors import EXIT_NOT_FOUND, EXIT_REFUSED, Refusal
from policy.plan import beneath

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from typing import NoReturn

    from launcher.jail.guard.attach import Guard
    from launcher.jail.spawn import Inside
else:
    import _signal

_TIOCSCTTY = 0x540E
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
        kind, payload = request.receive(connection, descriptors, len(jail.spec.proof))
        if kind and (kind != request.PROOF or payload != jail.spec.proof):
            raise Refusal("peer-refused", "this process may not use the session's control socket")
        kind, payload = request.receive(connection, descriptors) if kind else (b"", b"")
        if kind == request.ABOUT:
            status.send_report(connection, jail.spec.about)
        elif kind == request.COMMAND:
            _Minder(connection, jail, request.Command.decode(payload), descriptors).run()
        elif kind:
            raise Refusal("request-invalid", "the request is of an unknown kind")
    except Refusal as refusal:
        status.send_refusal(connection, refusal)
    except BaseException as error:
        status.send_refusal(connection, init.failure("the further command could not be run", error))
    finally:
        os._exit(0)


def _is_outside(pid: int, peer: int, uid: int, *, pid_namespace: bool) -> bool:
    """Whether this user connected, from outside. The directory's mode says so already; this does not rely on it.

    From inside, where the socket cannot be reached either: in a PID namespace processes outside have no number, so
    whoever has one is inside; without it a jailed connect(2) is the guard's, of this session or of another one. In a
    user namespace every other user looks like 65534, so that user relies on the mode alone.

    Args:
        pid: of who connected, 0 without a number here.
        peer: that process's user id, as this process sees it.
        uid: the user's, as this process sees it.
        pid_namespace: the init is process 1 of one.
    """
    if pid != 0 and (pid_namespace or processes.jailed(pid)):
        return False
    return peer == uid


class _Minder:
    """The loop around one command."""

    def __init__(self, connection: int, jail: "Inside", wanted: request.Command, descriptors: list[int]) -> None:
        self._connection = connection
        self._jail = jail
        self._wanted = wanted
        self._descriptors = descriptors
        if len(descriptors) != wanted.streams.count(request.DIRECT):
            raise Refusal("request-invalid", "the request does not bring the streams that it speaks of")
        self._spec = jail.spec.replace(
            cwd=_directory(wanted, jail.spec),
            argv=tuple(wanted.argv),
            environment=jail.spec.environment | dict(wanted.environment),
        )
        self._command = 0

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
        if request.PTY in self._wanted.streams:
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
        poll = select.poll()
        for fd in (self._connection, signals):
            poll.register(fd, select.POLLIN)
        while self._command:
            for fd, _ in poll.poll():
                if not (self._on_signals(signals) if fd == signals else self._on_message()):
                    break
        if guard is not None:
            self._outlive()

    def _open_terminal(self) -> int:
        """Makes the controlling terminal of this session and hands the client its other side; -1: it has left."""
        try:
            master, terminal = os.openpty()
            name = os.ttyname(terminal)
        except OSError as error:
            raise Refusal("no-terminal", "no terminal could be made inside the jail", context=str(error)) from None
        syscalls.ioctl(terminal, _TIOCSCTTY, 0)
        if self._spec.guard:
            # One of the machine's own, of which no other is granted.
            self._spec = self._spec.replace(grants=(*self._spec.grants, (name, "rwi", "the command's terminal")))
        wire.send(self._connection, wire.frame(request.TERMINAL), (master,))
        os.close(master)
        kind, _ = request.receive(self._connection, [], 0)
        return terminal if kind == request.GO else -1

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
                os.dup2(terminal if stream == request.PTY else next(sources), fd, inheritable=True)
            for signal in _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP}:
                _signal.signal(signal, _signal.SIG_DFL)
            _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
            size = dict(self._spec.limits).get("file_size", 0)
            status.send(self._connection, status.STARTING, size.to_bytes(8, "little"))
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
            status.send_refusal(self._connection, refusal)
        except BaseException as error:
            status.send_refusal(self._connection, init.failure("the command could not be started", error))
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
                status.send(self._connection, status.STOPPED, bytes((os.WSTOPSIG(code),)) + bytes(4))
            elif os.WIFCONTINUED(code):
                status.send(self._connection, status.CONTINUED)
            else:
                self._command = 0
                status.send_exited(self._connection, code)
        return False

    def _on_message(self) -> bool:
        """Passes a signal on. When the client has left or says nonsense, everything below ends, and this process."""
        descriptors: list[int] = []
        kind, payload = request.receive(self._connection, descriptors, _SIGNAL_BYTES)
        for fd in descriptors:
            os.close(fd)
        if kind != request.SIGNAL or len(payload) != _SIGNAL_BYTES:
            processes.sweep()
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


def _own_group(pid: int) -> None:
    """Makes `pid` (0: this process) the leader of a process group; parent and child both do, whoever is first."""
    try:
        os.setpgid(pid, 0)
    except (PermissionError, ProcessLookupError):
        return  # it has executed something already, so the child was first


def _directory(wanted: request.Command, spec: JailSpec) -> str:
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
