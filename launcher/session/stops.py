"""Stopping as the command did, so that the shell at the terminal takes over, and going on when the command does.

A launcher that has stopped itself reads nothing, so a child of it waits meanwhile. The init cannot do that: from its
PID namespace the launcher can be signalled neither by number nor by pidfd (pidfd_send_signal(2), EINVAL). The child
sends the stop as well as its end: two signals of one sender arrive in order, and the later cancels the earlier
(signal(7)), so a command that goes on just now leaves nobody stopped.

Loaded when a command stops.
"""

import select
import time

from launcher import wire
from launcher.jail import processes, reports, syscalls
from launcher.lean import ctypes, os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
    from typing import NoReturn
else:
    import _signal

_SPLICE_F_NONBLOCK = 2
_MOST = 1 << 20
_LOOK_AGAIN = 0.05
"""Seconds between two looks at a pipe that holds messages, but none that ends the stop."""


def can_be_resumed(signal: int, terminal: int) -> bool:
    """Whether this process may stop by `signal`: there is a terminal, and a shell at it that will notice.

    Of an orphaned process group (setpgid(2)) nobody looks after the stops. The terminal's signals do not stop one;
    SIGSTOP does.
    """
    return terminal != -1 and (signal != _signal.SIGSTOP or _has_shell())


def _has_shell() -> bool:
    group, pid = os.getpgrp(), os.getppid()
    try:
        while pid and os.getpgid(pid) == group:
            pid = processes.parent(pid)
        return pid != 0 and os.getsid(pid) == os.getsid(0)
    except ProcessLookupError:
        return False


def stop(signal: int, reader: int, child: int, decoder: wire.Decoder, look: "Callable[[], float] | None") -> None:
    """Stops this process; comes back when somebody continues it, or its command has gone on, ended or used too much.

    Comes back at once where the signal cannot stop it: the process group is orphaned, or the signal is ignored.

    Args:
        signal: to stop by. Blocked, unless it is SIGSTOP: the terminal's own may be pending, and two would stop twice.
        reader: the pipe with the init's messages. They are left there.
        child: process id of the init, not reaped.
        decoder: of what has been read from the pipe before.
        look: asked while this process is stopped, as a watchdog's (`launcher.session.watchdog.Watchdog.look`).
    """
    parent = os.getpid()
    ends: tuple[int, ...] = ()
    pid = 0
    try:
        ends = os.pipe()
        pid = os.fork()
        if pid == 0:
            _attend(signal, reader, child, decoder, parent, ends[1], look)
        os.close(ends[1])
        ends = ends[:1]
        os.read(ends[0], 1)
    except OSError:
        # No processes or descriptors are left: stopped without attendance rather than not at all.
        os.kill(parent, signal)
    finally:
        for fd in ends:
            os.close(fd)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {signal})
    _signal.pthread_sigmask(_signal.SIG_BLOCK, {signal})
    if pid:
        os.kill(pid, _signal.SIGKILL)
        os.waitpid(pid, 0)


def _attend(
    signal: int,
    reader: int,
    child: int,
    decoder: wire.Decoder,
    parent: int,
    tell: int,
    look: "Callable[[], float] | None",
) -> "NoReturn":
    # Nothing may escape from here: this is a copy of the launcher, with all that it has on its stack.
    try:
        processes.tie_to_parent(parent)
        end = syscalls.pidfd_open(child)
        poll = select.poll()
        for fd in (reader, end):
            poll.register(fd, select.POLLIN)
        copy = os.pipe()
        if stands_still(child):
            os.kill(parent, signal)
            os.write(tell, b".")
            by_shell = False
            try:
                while (rest := 1.0 if look is None else look()) > 0:
                    ready = [fd for fd, _ in poll.poll(None if look is None else rest * 1000)]
                    if end in ready:
                        break
                    # Blocked here, so it stays pending.
                    by_shell = by_shell or _signal.SIGCONT in _signal.sigpending()
                    if ready and has_continued(reader, decoder.twin(), copy, by_shell=by_shell):
                        break
                    time.sleep(_LOOK_AGAIN if ready else 0.0)
            except BaseException:
                os.kill(child, _signal.SIGKILL)  # what nobody can look at does not go on
            os.kill(parent, _signal.SIGCONT)
    finally:
        os._exit(0)


def stands_still(child: int) -> bool:
    """Whether the command, a child of its init, has not gone on since it stopped; see proc(5).

    What the pipe says may be older than what the shell has done since: it has continued launcher and command before
    the launcher came to read of the stop, and a launcher that stopped then would stop once too often.

    Args:
        child: process id of the init.
    """
    states = ["".join(processes.stat_fields(pid)[:1]) for pid in processes.children(child)]
    # A first thread that has ended is a zombie, whatever the others do. Bubblewrap itself is a child, too, and no other
    # but the command ever stops.
    return states[:1] == ["Z"] or any(state in ("T", "t") for state in states)


def has_continued(reader: int, decoder: wire.Decoder, copy: tuple[int, int], *, by_shell: bool) -> bool:
    """Whether the pipe says that the command runs again or has ended; tee(2) takes nothing out of it.

    Args:
        decoder: of what has been read from it before.
        copy: a pipe for what `reader` holds.
        by_shell: the shell has continued the process group, and the launcher with it. A launcher that has not run
            since may have been stopped a second time by the terminal; only a command that was continued after that
            stop, and not by the first SIGCONT, makes it go on.
    """
    tee = ctypes.CDLL(None, use_errno=True)["tee"]
    tee.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint)
    size: int = tee(reader, copy[1], _MOST, _SPLICE_F_NONBLOCK)
    if size <= 0:
        return size == 0  # the pipe's end
    kinds = [kind for kind, _ in decoder.feed(os.read(copy[0], size))]
    if reports.EXITED in kinds or reports.REFUSED in kinds:
        return True
    turns = [kind for kind in kinds if kind in (reports.STOPPED, reports.CONTINUED)]
    return turns[-1:] == [reports.CONTINUED] and (not by_shell or reports.STOPPED in turns)
