"""The threads that serve notified calls.

One thread at a time leads: it takes calls and serves at once whatever cannot block. A connect can, as long as the other
end likes, so the leader hands the lead over before it makes one. The last thread never does: with all others busy,
further connects wait in a queue, and everything else is served as ever.

Whoever waits in a blocked connect must stay open to signals, although the kernel lets only fatal ones through
(WAIT_KILLABLE_RECV): the leader looks after them, and wakes a thread whose caller has died or has a signal pending.

Launch path of the backend landlock+guard: see launcher/jail/syscalls.py.
"""

import _thread
import errno
import marshal
import select

from launcher.jail import processes, reports, syscall_tables, syscalls
from launcher.jail.guard import metadata, sockets
from launcher.jail.guard.call import Call, Gone, Listener, Refused, Rules
from launcher.jail.spec import JailSpec
from launcher.lean import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
else:
    import _signal


# New pseudo terminals without access to /dev/pts, where the user's other terminals lie.
#
# openpty(3) asks the master for its other side by ioctl, not by name. Landlock judges even that by its path, so the
# guard opens it and hands it over. What opens /dev/pts/N by name stays denied.


TIOCGPTPEER = 0x5441
_FLAGS = os.O_ACCMODE | os.O_NONBLOCK | os.O_CLOEXEC


def terminal_other_side(call: Call, rules: Rules) -> None:
    """ioctl(fd, TIOCGPTPEER, flags); the caller is answered here.

    O_NOCTTY is implied: a terminal becomes the caller's controlling one by TIOCSCTTY.
    """
    del rules  # whoever holds the master has the terminal already
    flags = call.integer(2)
    master = call.descriptor(call.integer(0))
    call.check()
    fd = call.own(syscalls.ioctl(master, TIOCGPTPEER, flags & _FLAGS | os.O_NOCTTY | os.O_CLOEXEC))
    call.listener.answer_with_descriptor(call.identity, fd, close_on_exec=bool(flags & os.O_CLOEXEC))


# Process groups: without a PID namespace a jail's processes can name those of the caller's session, and join them.
#
# Whoever is a member can have the whole group stopped by the terminal (SIGTTIN), or hung up when it is orphaned
# with a stopped member (setpgid(2)). So a process may join the groups that the jail has made, and not the one that
# it was started in either: the caller's pipeline is in it.


def join_group(call: Call, rules: Rules) -> None:
    """setpgid(pid, pgid) with a group that is named; the caller is answered here.

    Both arguments are numbers in registers, so what the kernel carries out is what was judged.
    """
    del rules
    group = call.integer(1)
    if not _of_the_jail(group, call.integer(0) or call.tgid()):
        raise Refused(errno.EPERM, target=f"process group {group}")
    call.check()
    call.listener.let_go(call.identity)


def _of_the_jail(group: int, member: int) -> bool:
    if group < 0:
        return True  # EINVAL, says the kernel
    if group == os.getpgrp():
        return False
    if group == member:
        return True  # it becomes a leader; the kernel allows that for the caller and its children only
    return any(_group(pid) == group for pid in processes.descendants(os.getpid()))


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


MOST_THREADS = 32
LOOK_AFTER = 100
"""Milliseconds between two looks at callers whose connect takes long."""

_STOPS = 1 << _signal.SIGTSTP - 1 | 1 << _signal.SIGTTIN - 1 | 1 << _signal.SIGTTOU - 1 | 1 << _signal.SIGSTOP - 1

Caller = tuple[int, str, str]

_BY_NAME = (
    ("chmod", metadata.chmod),
    ("fchmod", metadata.fchmod),
    ("fchmodat", metadata.fchmodat),
    ("fchmodat2", metadata.fchmodat2),
    ("chown", metadata.chown),
    ("lchown", metadata.lchown),
    ("fchown", metadata.fchown),
    ("fchownat", metadata.fchownat),
    ("utime", metadata.utime),
    ("utimes", metadata.utimes),
    ("futimesat", metadata.futimesat),
    ("utimensat", metadata.utimensat),
    ("setxattr", metadata.setxattr),
    ("lsetxattr", metadata.lsetxattr),
    ("fsetxattr", metadata.fsetxattr),
    ("removexattr", metadata.removexattr),
    ("lremovexattr", metadata.lremovexattr),
    ("fremovexattr", metadata.fremovexattr),
    ("connect", sockets.connect),
    ("ioctl", terminal_other_side),
    ("setpgid", join_group),
)
_HANDLERS = {syscall_tables.number(name, syscalls.MACHINE): handler for name, handler in _BY_NAME}
_NAMES = {syscall_tables.number(name, syscalls.MACHINE): name for name in (*(name for name, _ in _BY_NAME), "bind")}
_BIND = syscall_tables.number("bind", syscalls.MACHINE)
_CONNECT = syscall_tables.number("connect", syscalls.MACHINE)


class Server:
    """Serves one listener until nobody is left who could call."""

    def __init__(
        self,
        listener: Listener,
        rules: Rules,
        fault: "Callable[[BaseException], None]",
        refused: "Callable[[str, Caller, Refused], None]",
        *,
        look: "Callable[[Call], bool] | None" = None,
        guards: bool = True,
        makes: int = -1,
    ) -> None:
        """Prepares; `start` begins.

        Args:
            listener: of the jail.
            rules: what is let through.
            fault: told about an exception that should never come; it does not come back.
            refused: told what was refused (name of the system call, caller, what it was about), and must not block.
            look: looks at each call first; whether it may go on if nothing is performed for it.
            guards: performs the calls of `_BY_NAME`; False lets them go on too.
            makes: see `start`.
        """
        self._listener = listener
        self._rules = rules
        self._fault = fault
        self._refused = refused
        self._look = look
        self._handlers = {**_HANDLERS, _BIND: sockets.Binder(makes).bind} if guards else {}
        self._lead = _thread.allocate_lock()
        # The rest is changed under this lock only, and read without it where an old answer does no harm.
        self._lock = _thread.allocate_lock()
        self._threads = 0
        self._idle = 0
        self._ended = False
        self._waiting: list[Call] = []
        self._connecting: dict[int, Call] = {}
        self._poll = select.poll()
        self._poll.register(listener.fd, select.POLLIN)

    def start(self) -> None:
        """Starts the first thread beside the calling one, then serves with the calling one.

        Two are the least: one leads, one may be connecting. RuntimeError when they cannot be had.
        """
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {processes.WAKE})
        self._threads = self._idle = 2
        _thread.start_new_thread(self._work, ())
        self._work()

    def _work(self) -> None:
        # Who comes here counts as idle already: between "nothing to do" and "idle" no call may be put in the queue.
        try:
            while True:
                with self._lead:
                    with self._lock:
                        self._idle -= 1
                    call = self._next()
                while call is not None:
                    self._connect(call)
                    with self._lock:
                        call = self._waiting.pop(0) if self._waiting else None
                        self._idle += call is None
                if self._ended:
                    return
        except BaseException as error:
            self._fault(error)

    def _next(self) -> Call | None:
        """Leads until there is a connect to make that another thread can take the lead for; None at the end."""
        while not self._ended:
            if self._connecting and not self._poll.poll(LOOK_AFTER):
                self._look_after()
                continue
            notified = self._listener.receive()
            if notified is None:
                # Nobody is left, or one caller has gone.
                self._ended = any(event & select.POLLHUP for _, event in self._poll.poll(0))
                continue
            call = Call(self._listener, *notified)
            if call.number != _CONNECT or not self._handlers:
                self._serve(call)
            elif self._another_leads(call):
                return call
        return None

    def _another_leads(self, call: Call) -> bool:
        """Whether another thread can lead, so that this one may make the connect; else the connect waits."""
        with self._lock:
            if self._idle:
                return True
            if self._threads < MOST_THREADS:
                try:
                    _thread.start_new_thread(self._work, ())
                except RuntimeError:
                    self._waiting.append(call)
                    return False
                self._threads += 1
                self._idle += 1
                return True
            self._waiting.append(call)
            return False

    def _connect(self, call: Call) -> None:
        own = _thread.get_ident()
        with self._lock:
            self._connecting[own] = call
        try:
            self._serve(call)
        finally:
            with self._lock:
                del self._connecting[own]

    def _serve(self, call: Call) -> None:
        try:
            may_go_on = self._look is not None and self._look(call)
            handler = self._handlers.get(call.number)
            if handler is None and may_go_on:
                call.listener.let_go(call.identity)
                return
            if handler is None:
                raise AssertionError(f"nothing handles system call {call.number}")
            result = handler(call, self._rules)
            if result is not None:
                call.listener.answer(call.identity, result)
        except Gone:
            return  # nobody waits for an answer
        except Refused as refused:
            # Both while it waits: with the answer the command may end, and with that this process.
            self._refused(_NAMES[call.number], call.caller(), refused)
            call.listener.answer(call.identity, 0, refused.number)
        except OSError as error:
            call.listener.answer(call.identity, 0, error.errno or errno.EPERM)
        finally:
            call.close()

    def _look_after(self) -> None:
        with self._lock:
            connecting = list(self._connecting.items())
        for thread, call in connecting:
            # Twice in a row: one that another thread of the caller's takes is gone by then.
            try:
                pending = _pending(call)
                wake = bool(pending & call.seen)
                call.seen = pending
            except Gone:
                wake = True
            if wake or not call.listener.waiting(call.identity):
                call.interrupted = wake
                # Threads never end before the process does, so this cannot meet a dead one.
                _signal.pthread_kill(thread, processes.WAKE)


def _pending(call: Call) -> int:
    """The signals that wait for the caller and that a blocking call would be interrupted by, as a mask."""
    own, shared, blocked, caught = (int(call.status(name), 16) for name in (b"SigPnd", b"ShdPnd", b"SigBlk", b"SigCgt"))
    return (own | shared) & ~blocked & (caught | _STOPS)


# Answering a jail's calls, and telling of those that were refused.


_PIPE_BUF = 4096 - 5  # with a message's header


def start(
    fd: int,
    spec: JailSpec,
    ledger_fd: int,
    fault: "Callable[[BaseException], None]",
    *,
    look: "Callable[[Call], bool] | None" = None,
    guards: bool = True,
    names: bytes = b"",
    makes: int = -1,
) -> None:
    """Serves a listener in threads of its own from now on.

    Args:
        fd: the listener.
        ledger_fd: where refused calls are told (`launcher.jail.reports`, DENIED).
        fault: told about an exception that should never come; it does not come back.
        look: looks at each call first, see `server.Server`.
        guards: whether calls are performed, see `server.Server`.
        names: what the jail's abstract addresses begin with.
        makes: a Landlock domain, in which sockets are bound (`landlock.ruleset`); without one they are not.
    """

    def refused(call: str, caller: Caller, why: Refused) -> None:
        _tell(ledger_fd, call, caller, why)

    Server(Listener(fd), Rules(spec, names), fault, refused, look=look, guards=guards, makes=makes).start()


def _tell(ledger_fd: int, call: str, caller: Caller, refused: Refused) -> None:
    """Tells the launcher, for the ledger. One that does not read is not waited for: its jail must go on."""
    path, wanted, host, port, target = refused.subject
    pid, name, program = caller
    words = (call, reports.shortened(path), wanted, host, port, target, pid, name, reports.shortened(program))
    payload = marshal.dumps(words)
    # A pipe with room for anything takes PIPE_BUF bytes at once (pipe(7)), and whole.
    if len(payload) < _PIPE_BUF:
        room = select.poll()  # one for each call: several threads come here, and a poll object serves one
        room.register(ledger_fd, select.POLLOUT)
        if room.poll(0):
            reports.send(ledger_fd, reports.DENIED, payload)
