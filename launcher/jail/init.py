"""The process between the launcher and the command: starts it, reaps, passes signals on, ends what is left.

With a PID namespace this is its process 1, and the kernel ends everything inside when it ends. Without one it is a
subreaper that watches the launcher, as the launcher watches it (RECIPES 1.6); either of the two ends the rest.

Everything stays in the caller's session and process group, so terminal signals reach the command by themselves.
Only what is sent to the launcher alone is passed on: as `COMMAND` with the wanted signal as its value, because a
real-time signal is queued, while a second SIGTERM or SIGCONT that is still pending would be merged with the first.

Launch path: see launcher/jail/syscalls.py.
"""

import select
import time

from launcher.jail import hygiene, processes, reports, syscalls
from launcher.lean import ctypes, os
from policy.errors import EXIT_NOT_EXECUTABLE, EXIT_REFUSED, Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
    from typing import NoReturn
else:
    import _signal

MOST_OTHERS = 64
"""Further commands at the same time."""

COMMAND = _signal.SIGRTMIN
STOPPING = (_signal.SIGTSTP, _signal.SIGTTIN, _signal.SIGTTOU)
FORWARDED = (
    _signal.SIGHUP,
    _signal.SIGINT,
    _signal.SIGQUIT,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
    _signal.SIGALRM,
    _signal.SIGTERM,
    _signal.SIGWINCH,
    *STOPPING,
)
ENDING = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTERM)
"""Those by which an end is asked for."""

BLOCKED = (*FORWARDED, _signal.SIGCONT, _signal.SIGCHLD, COMMAND, _signal.SIGIO)
"""The last does nothing: the command can have its terminal send it to the foreground group (O_ASYNC), and would end
launcher and init by it. Any other signal than that is out of its hands (`seccomp`, F_SETSIG)."""

SI_KERNEL = 128
_SIGINFO = 128  # sizeof(struct signalfd_siginfo), which starts with ssi_signo, ssi_errno, ssi_code; ssi_int is at 44

# A signal for the whole process group reaches the command directly and again by way of the launcher. Within this time
# the second is taken for the first; a second one that somebody really sent is lost no more than a pending one is.
_SAME_SIGNAL = 0.1

# Stops are numbered, and their number travels in a signal's value beside a signal number.
_MOST_STOPS = 1 << 20

# What the caller had before `block_signals`: the mask, and whether SIGCHLD was ignored. Inherited over fork.
_before: "tuple[set[int], bool]" = (set(map(int, _signal.pthread_sigmask(_signal.SIG_BLOCK, ()))), False)


def block_signals() -> None:
    """Keeps every signal of `BLOCKED` for a signalfd. To be called once, in the launcher, before it forks.

    SIGCHLD gets its default meaning back: where it is ignored, children are reaped by the kernel and their status is
    lost (wait(2)). `unblock_signals` undoes both.
    """
    global _before
    ignored = _signal.getsignal(_signal.SIGCHLD) == _signal.SIG_IGN
    _before = (set(map(int, _signal.pthread_sigmask(_signal.SIG_BLOCK, BLOCKED))), ignored)
    if ignored:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)


def unblock_signals(*, held: tuple[int, ...] = ()) -> None:
    """Restores what `block_signals` found, but for signals that stay blocked (`held`)."""
    mask, ignored = _before
    if ignored:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, mask.union(held))


def ending() -> tuple[int, ...]:
    """The signals of `ENDING` that the caller does not ignore, as nohup(1) does."""
    return tuple(number for number in ENDING if _signal.getsignal(number) not in (None, _signal.SIG_IGN))


def take_ending() -> int:
    """Takes the signals of `ending` that are held back; returns one of them, 0 when there is none."""
    return max((taken.si_signo for taken in iter(lambda: _signal.sigtimedwait(ending(), 0), None)), default=0)


def drop_signals() -> None:
    """Takes what has come for a command that has ended, but for `ENDING`: that asks for the caller's own end, too."""
    while _signal.sigtimedwait([number for number in BLOCKED if number not in ENDING], 0) is not None:
        pass


class Patience:
    """A long step of the end: of `ENDING`, which are blocked around it, the first signal waits until it is over.

    The next one ends this process in the middle, as it would have without all this.
    """

    def __init__(self, first: "Callable[[], None]") -> None:
        """`first` is called at the first signal, to say so."""
        self._first = first
        self._taken = 0

    def __enter__(self) -> None:
        """Takes the signals that the caller does not ignore."""
        self._before = {number: _signal.getsignal(number) for number in ending()}
        for number in self._before:
            _signal.signal(number, self._take)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, self._before)

    def __exit__(self, *_: object) -> None:
        """Blocks them again, with the first one among those that wait."""
        _signal.pthread_sigmask(_signal.SIG_BLOCK, self._before)
        for number, handler in self._before.items():
            _signal.signal(number, handler)
        if self._taken:
            os.kill(os.getpid(), self._taken)

    def _take(self, number: int, _: object) -> None:
        self._taken = number
        for each in self._before:
            _signal.signal(each, _signal.SIG_DFL)
        self._first()


def open_signals(signals: tuple[int, ...] = BLOCKED) -> int:
    """A signalfd (close-on-exec, non-blocking) for blocked signals, owned by the caller."""
    return syscalls.signalfd4(tuple(map(int, signals)), syscalls.SFD_CLOEXEC | syscalls.SFD_NONBLOCK)


def read_signals(fd: int) -> list[tuple[int, int, int]]:
    """What has arrived at a signalfd: (signal, si_code, si_value), in the kernel's order; [] when nothing has."""
    try:
        data = os.read(fd, 16 * _SIGINFO)
    except BlockingIOError:
        return []
    return [
        (
            int.from_bytes(data[at : at + 4], "little"),
            int.from_bytes(data[at + 8 : at + 12], "little", signed=True),
            int.from_bytes(data[at + 44 : at + 48], "little", signed=True),
        )
        for at in range(0, len(data), _SIGINFO)
    ]


def send_command(pid: int, signal: int, stop: int = 0) -> None:
    """Asks the init with process id `pid` to pass `signal` on to the command.

    A process that has ended is no error: its end is on the way to the caller.

    Args:
        pid: of the init.
        signal: one of `FORWARDED`, or SIGCONT to continue the command.
        stop: with SIGCONT, the stop to end; if the command has run since, it is left alone. 0: whatever its state.
    """
    queue(pid, COMMAND, signal | stop << 8)


def queue(pid: int, signal: int, value: int) -> None:
    """Sends a signal with a value (sigqueue(3)). A process that has ended is no error."""
    sigqueue = ctypes.CDLL(None, use_errno=True)["sigqueue"]
    sigqueue.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    sigqueue(pid, signal, value)


def run_init(
    status_fd: int,
    launcher_pidfd: int,
    start: "Callable[[], NoReturn]",
    *,
    pid_namespace: bool,
    attend: "Callable[[int], None] | None" = None,
    further: "tuple[int, Callable[[int, int], NoReturn]] | None" = None,
    end: "Callable[[], None] | None" = None,
    told: tuple[int, int] = (reports.NOBODY, reports.NOBODY),
) -> "NoReturn":
    """Runs the command and ends this process when the command, and all it left, has ended.

    Call it in the process that `supervise` made, signals blocked, after `processes.tie_to_launcher`
    (PID namespace) or `processes.adopt_orphans` (without).

    Args:
        status_fd: write end of the pipe to the launcher, close-on-exec (`launcher.jail.reports`).
        launcher_pidfd: of the launcher; readable when it has ended.
        start: executes the command, in the child; a Refusal or OSError in it goes to the launcher.
        pid_namespace: this is process 1 of one.
        attend: told the command's process id, right after the fork. It may start threads, and must not block.
        further: a listening socket for further commands (close-on-exec, non-blocking), and what serves a connection
            to it, in a child process: called with the connection and this process's id as that one sees it.
        end: ends all that was started. For a process that stands outside of its children's PID namespace.
        told: where there is no launcher, a pipe of this process's own in its place (close-on-exec). Standard
            error is the command's, too, and whatever it says there, it was not refused.
    """
    own = os.getpid()
    agent = os.fork()
    if agent == 0:
        pipes = (status_fd,) if told[1] == reports.NOBODY else (told[1], status_fd)
        run_agent(pipes, own if end is None else 0, start)
    if told[1] != reports.NOBODY:
        os.close(told[1])
    if end is None:  # else this process has entered a view with another /proc than its own
        hygiene.close_callers()
    if attend is not None:
        attend(agent)
    end_all = end or (None if pid_namespace else processes.sweep)
    seen_as = own if end is None else 0
    Init(status_fd, launcher_pidfd, agent, end_all=end_all, further=further, seen_as=seen_as, told=told[0]).run()


def run_agent(status_fds: tuple[int, ...], parent: int, start: "Callable[[], NoReturn]") -> "NoReturn":
    """The life of the command's process, from the fork to the exec; see `run_init`. All of the pipes get a Refusal."""
    # Nothing may escape from here: this is a copy of the launcher, with all that it has on its stack.
    code = EXIT_REFUSED
    try:
        processes.tie_to_parent(parent)
        if callable(_signal.getsignal(_signal.SIGINT)):  # else the caller ignores it, and so shall the command
            _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        for signal in (_signal.SIGPIPE, _signal.SIGXFSZ):  # ignored by the interpreter, whatever the caller had
            _signal.signal(signal, _signal.SIG_DFL)
        unblock_signals()
        reports.send(status_fds[0], reports.STARTING)
        start()
        raise AssertionError("the command's start returned")
    except Refusal as refusal:
        code = refusal.exit_code
        for fd in status_fds:
            reports.send_refusal(fd, refusal)
    except BaseException as error:
        for fd in status_fds:
            reports.send_refusal(fd, failure("the command could not be started", error))
    finally:
        os._exit(code)


def failure(what: str, error: BaseException) -> Refusal:
    """The Refusal for an exception that nobody foresaw: a failed system call, or a fault of ours."""
    if isinstance(error, OSError):
        return Refusal("launch-failed", what, context=str(error))
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}: " if trace is not None else ""
    return Refusal(
        "internal-error", what, context=f"{where}{error!r}", hint="this is a bug in Paddock; please report it"
    )


class Init:
    """The loop of the process above the command. `run` does not come back."""

    __slots__ = (
        "_agent", "_direct", "_end", "_further", "_handlers", "_others", "_seen_as", "_signals", "_status_fd",
        "_stopped", "_stops", "_told",
    )  # fmt: skip

    def __init__(
        self,
        status_fd: int,
        launcher_pidfd: int,
        agent: int,
        *,
        end_all: "Callable[[], object] | None",
        further: "tuple[int, Callable[[int, int], NoReturn]] | None",
        seen_as: int,
        told: int,
    ) -> None:
        self._status_fd = status_fd
        self._told = told
        self._agent = agent
        self._end = end_all
        self._direct: dict[int, float] = {}
        self._stops = 0
        self._stopped = False
        self._signals = open_signals()
        self._further = further
        self._others: set[int] = set()
        self._seen_as = seen_as  # this process's id, as its children see it
        # One row per source of events.
        self._handlers: dict[int, Callable[[], None]] = {
            self._signals: self._on_signals,
            launcher_pidfd: self._on_launcher_death,
        }
        if further is not None:
            self._handlers[further[0]] = self._on_connection

    def run(self) -> "NoReturn":
        """Serves events until the command has ended; see `run_init`."""
        try:
            leave_streams()
            # A copy of the launcher: its memory and environment are none of the command's business (proc(5)).
            syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
            # What arrived before the fork did not reach the command: pass it on once, whoever sent it.
            for signal, code, value in read_signals(self._signals):
                if signal in FORWARDED:
                    self._direct[signal] = time.monotonic()
                    self._kill(signal)
                elif signal == COMMAND:
                    self._on_signal(signal, code, value)
            self._reap()
            poll = select.poll()
            for fd in self._handlers:
                poll.register(fd, select.POLLIN)
            while True:
                for fd, _ in poll.poll():
                    self._handlers[fd]()
        except BaseException as error:
            reports.send_refusal(self._status_fd, failure("the jail's init failed", error))
        finally:
            self._end_all()
            os._exit(EXIT_REFUSED)

    def _on_signals(self) -> None:
        arrived = read_signals(self._signals)
        # First, so that a request to continue meets what is known about the stop that it means.
        self._reap()
        for signal, code, value in arrived:
            self._on_signal(signal, code, value)

    def _on_signal(self, signal: int, code: int, value: int) -> None:
        if signal in FORWARDED:
            if code != SI_KERNEL:
                self._direct[signal] = time.monotonic()
        elif signal != COMMAND:
            return
        elif value & 0xFF == _signal.SIGCONT:
            stop = value >> 8
            # The shell's SIGCONT may have been here before, and a new Ctrl-Z since: that one must stand.
            if not stop or (self._stopped and stop == self._stops):
                self._continue()
        elif value in FORWARDED and time.monotonic() - self._direct.pop(value, -1.0) > _SAME_SIGNAL:
            self._kill(value)

    def _continue(self) -> None:
        try:
            # A group that the command made for itself stopped as a whole. 0: it is still in the launcher's
            # group, which this process cannot name and the shell has continued already.
            group = os.getpgid(self._agent)
            if group not in (0, os.getpgrp()):
                os.killpg(group, _signal.SIGCONT)
        except ProcessLookupError:
            return
        self._kill(_signal.SIGCONT)

    def _kill(self, signal: int) -> None:
        # Not reaped yet, so the number is still the command's.
        os.kill(self._agent, signal)

    def _on_launcher_death(self) -> None:
        self._end_all()
        os._exit(128 + _signal.SIGKILL)

    def _on_connection(self) -> None:
        """Leaves a client to a process of its own: one that is slow or talks nonsense cannot stop this one."""
        assert self._further is not None
        listener, serve = self._further
        try:
            connection = syscalls.accept4(listener, os.O_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            # The client has left, or there are no descriptors, no memory: do not ask again and again meanwhile.
            time.sleep(0.02)
            return
        try:
            if len(self._others) >= MOST_OTHERS:
                raise busy()
            pid = os.fork()
            if pid == 0:
                try:
                    processes.tie_to_parent(self._seen_as)
                    serve(connection, self._seen_as)
                except BaseException as error:
                    refused = failure("the further command could not be run", error)
                    reports.send_refusal(connection, error if isinstance(error, Refusal) else refused)
                finally:
                    os._exit(EXIT_REFUSED)
            self._others.add(pid)
        except Refusal as refusal:
            reports.send_refusal(connection, refusal)
        except OSError as error:
            reports.send_refusal(connection, failure("the session cannot start another process", error))
        finally:
            os.close(connection)

    def _reap(self) -> None:
        while True:
            pid, code = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                return
            if pid != self._agent:
                if not os.WIFSTOPPED(code) and not os.WIFCONTINUED(code):
                    self._others.discard(pid)
                continue
            if os.WIFSTOPPED(code):
                self._stopped = True
                self._stops = self._stops % _MOST_STOPS + 1
                payload = bytes((os.WSTOPSIG(code),)) + self._stops.to_bytes(4, "little")
                reports.send(self._status_fd, reports.STOPPED, payload)
            elif os.WIFCONTINUED(code):
                self._stopped = False
                reports.send(self._status_fd, reports.CONTINUED)
            else:
                self._end_all()
                alone = self._seen_as != 0 and _childless()
                reports.send_exited(self._status_fd, code, alone=alone)
                if self._told != reports.NOBODY:
                    os._exit(EXIT_REFUSED if reports.have_refused(self._told) else own_status(code))
                os._exit(status_of(code))

    def _end_all(self) -> None:
        if self._end is not None:  # else the kernel does it, when this process ends
            self._end()


def status_of(wait_status: int) -> int:
    """The exit status for a wait status: 128+N for signal N."""
    code = os.waitstatus_to_exitcode(wait_status)
    return code if code >= 0 else 128 - code


def own_status(wait_status: int) -> int:
    """As `status_of`, of a command that was executed: 125 says that there was no jail for it, so its own is 126."""
    code = status_of(wait_status)
    return EXIT_NOT_EXECUTABLE if code == EXIT_REFUSED else code


def busy() -> Refusal:
    """The Refusal for one command more than `MOST_OTHERS`."""
    return Refusal(
        "session-busy",
        "the session's limit of further commands is reached",
        context=f"{MOST_OTHERS} at the same time",
        hint="wait until one has ended",
    )


def _childless() -> bool:
    """Whether no child is left. In the first process of a PID namespace, or in a subreaper that has ended all below
    it: whether nothing of the jail lives any more."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def leave_streams(streams: "tuple[int, ...]" = (0, 1, 2)) -> None:
    """Lets go of standard streams, or a pipe's other end never learns that the command has closed it."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in streams:
        os.dup2(null, fd, inheritable=True)
    os.close(null)
