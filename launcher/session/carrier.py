"""Between a command and the files, pipes and sockets that the caller gave for its standard streams: pipes, a process.

Only that process holds the caller's streams, outside of the jail. So the command can neither change their modes, times
and flags nor open them once more by /proc: a file's content is in reach then, and of a pipe the other direction, which
adds to a script that a shell reads, or takes what others have written. Output that is one stream to the caller
(``>log 2>&1``) is one pipe, so its order stays. Of input, only what the command has read is gone for the caller: what
it leaves of a file goes back, and from a pipe or socket nothing is taken before it has been read. A file's bytes are
copied, never spliced: what lies in a pipe is no page of it then.

The process ends when the jail has, because its pipes end then: after the launcher's end by SIGKILL, too. That of a
further command goes on for what the command leaves in the background, until the session ends. Signals concern neither.

Loaded where a standard stream is neither a terminal nor a device; see `hygiene.streams_to_carry`.
"""

import errno
import fcntl
import select
from _stat import S_ISFIFO, S_ISREG, S_ISSOCK

from launcher.jail import hygiene, init, syscalls
from launcher.lean import os
from policy.errors import EXIT_REFUSED, Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from typing import NoReturn
else:
    import _signal

_CHUNK = 1 << 16
_F_SETPIPE_SZ = 1031
_F_GETPIPE_SZ = 1032
_PAGE = 4096
_MOST_PAGES = 16
_LONGEST_TICK = 256
_PATIENCE = 1000
_FIONREAD = 0x541B  # asm-generic/ioctls.h
_MSG_PEEK, _MSG_DONTWAIT, _MSG_NOSIGNAL = 0x2, 0x40, 0x4000

_BEGIN, _FLUSH, _DONE = b"B", b"F", b"\xff"


class Carrier:
    """The pipes for a command, and the process at their other ends.

    Attributes:
        streams: for the command, in the places of 0, 1 and 2; 0, 1 and 2 themselves where nothing has to be carried.
    """

    def __init__(self, carried: tuple[int, ...], launcher: int = 0) -> None:
        """Starts the process; nothing moves before `limit`. To be called by the only thread.

        Args:
            carried: from `hygiene.streams_to_carry`.
            launcher: of the session, where the command is a further one: what that leaves in the background goes on
                writing until the launcher has ended, when this process has ended, too. 0: this process is the launcher.

        Refusals: stream-unusable.
        """
        made: list[int] = []
        self.streams = (0, 1, 2)
        try:
            streams, lanes = _lanes(carried, made)
            asked, self._asking = _pipe(made)
            self._answering, answer = _pipe(made)
            session = (syscalls.pidfd_open(launcher),) if launcher else ()
            made += session
            self._child = os.fork()
        except OSError as error:
            for fd in made:
                os.close(fd)
            raise Refusal(
                "stream-unusable",
                "the standard streams cannot be handed to the command",
                context=error.strerror or str(error),
                hint="that takes a process and some pipes: raise what this user may have (ulimit -n, ulimit -u)",
            ) from None
        own = [fd for lane in lanes for fd in lane.pipes]
        if self._child == 0:
            _carry(lanes, asked, answer, *session)
        for fd in (*own, asked, answer, *session):
            os.close(fd)
        self.streams = streams

    @property
    def ends(self) -> tuple[int, ...]:
        """The pipes' ends for the command. The caller closes them as soon as the command, or its parent, has them."""
        return tuple({fd for fd in self.streams if fd > 2})

    def limit(self, limits: tuple[tuple[str, int], ...]) -> None:
        """Bounds the files that are written as the command's own are (`Plan.limits`). From now on bytes move."""
        resource = hygiene.RESOURCES["file_size"]
        try:
            for size in (value for name, value in limits if name == "file_size"):
                hard = syscalls.prlimit64(self._child, resource)[1]
                syscalls.prlimit64(self._child, resource, (min(size, hard),) * 2)
            os.write(self._asking, _BEGIN)
        except (ProcessLookupError, BrokenPipeError):
            return  # killed, which `finish` tells

    def has_died(self) -> bool:
        """Whether somebody has killed the process; to be called before `finish`."""
        return os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def finish(self, *, ended: bool, impatient: bool) -> Refusal | None:
        """Waits until all that the command has written is where it goes, and gives back what it has not read.

        To be called once, with the signals blocked that ask for the end: they are left waiting.

        Args:
            ended: nobody can write any more. Else the process goes on for what the command has left in the background.
            impatient: somebody has asked for the end, as by a signal meanwhile, so who reads has a second. What the
                caller's own pipe has no room for is lost then.

        Returns:
            What is to be told of a stream that did not take, or give, everything.
        """
        answer = b""
        try:
            os.write(self._asking, _FLUSH)
        except BrokenPipeError:
            pass  # it was killed
        why = "the process that carries the bytes was killed"
        signals = init.open_signals(init.ending())
        poll = select.poll()
        for fd in (self._answering, signals):
            poll.register(fd, select.POLLIN)
        while not answer.endswith(_DONE):
            ready = [fd for fd, _ in poll.poll(_PATIENCE if impatient else None)]
            if self._answering in ready:
                if not (piece := os.read(self._answering, 64)):
                    break
                answer += piece
            elif ready:
                poll.unregister(signals)
                impatient = True
            else:
                answer, why = b"" if ended else _DONE, "nobody has read it within a second of the signal for the end"
                break
        for fd in (self._asking, self._answering, signals):
            os.close(fd)
        if ended:
            os.kill(self._child, _signal.SIGKILL)  # it has nothing to do any more
            os.waitpid(self._child, 0)
        if not answer.endswith(_DONE):
            return Refusal("output-lost", "what went through standard streams may be incomplete", context=why)
        if answer[0] == 0:
            return Refusal("input-lost", "standard input was not read to the end", context=os.strerror(answer[1]))
        if answer != _DONE:
            name = "output" if answer[0] == 1 else "error"
            what = f"standard {name} did not accept all that the command wrote"
            return Refusal("output-lost", what, context=os.strerror(answer[1]))
        return None


def _pipe(made: list[int]) -> tuple[int, int]:
    ends = os.pipe()
    made += ends
    return ends


def _lanes(carried: tuple[int, ...], made: list[int]) -> "tuple[tuple[int, int, int], list[_Input | _Lent | _Output]]":
    """The command's streams, and what lies between their other ends and the caller's; `made` takes every new one."""
    streams = [0, 1, 2]
    lanes: list[_Input | _Lent | _Output] = []
    known: dict[tuple[int, ...], int] = {}
    for fd in carried:
        identity = _identity(fd)
        if fd and identity in known:
            streams[fd] = streams[known[identity]]
            continue
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == (os.O_RDONLY if fd else os.O_WRONLY):
            streams[fd] = os.open("/dev/null", (os.O_RDONLY if fd else os.O_WRONLY) | os.O_CLOEXEC)  # fails as it does
            made.append(streams[fd])
            continue
        reader, writer = _pipe(made)
        kind = os.fstat(fd).st_mode
        if fd:
            known[identity] = fd
            streams[fd] = writer
            lane = (_Output if S_ISREG(kind) else _Sent if S_ISSOCK(kind) else _Spliced)(fd, reader)
            lane.input = lanes[0] if lanes and isinstance(lanes[0], _Input) else None
            lanes.append(lane)
            continue
        streams[0] = reader
        if S_ISREG(kind):
            kept = os.dup(reader)
        elif S_ISFIFO(kind):
            kept = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
        else:
            lanes.append(_Peeked(fd, writer))
            continue
        made.append(kept)
        lanes.append((_Input if S_ISREG(kind) else _Lent)(fd, writer, kept))
    return (streams[0], streams[1], streams[2]), lanes


def _identity(fd: int) -> tuple[int, ...]:
    """The same for descriptors that write to the same place of the same file."""
    info = os.fstat(fd)
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    place = os.lseek(fd, 0, os.SEEK_CUR) if S_ISREG(info.st_mode) and not flags & os.O_APPEND else 0
    return info.st_dev, info.st_ino, flags, place


def _waiting(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, _FIONREAD, bytes(4)), "little")


class _Lane:
    """One stream.

    Attributes:
        file: the caller's descriptor.
        pipes: this process's own descriptors.
        open: there may be more to move.
        failure: errno, 0 as long as everything could be moved.
        tick: milliseconds until it is to be served in any case; -1 for never.
    """

    def __init__(self, file: int, *pipes: int) -> None:
        """Takes descriptors."""
        self.file = file
        self.pipes = pipes
        self.open = True
        self.failure = 0
        self.tick = -1
        self._pipe = pipes[0]

    def settle(self) -> None:
        """The command has ended."""
        self.end()

    def fail(self, error: OSError) -> None:
        """Ends the stream; that nobody reads any more is no failure."""
        self.failure = 0 if error.errno == errno.EPIPE else error.errno or 0
        self.end()

    def is_idle(self) -> bool:
        """Whether nothing is under way any more, after `settle`."""
        return not self.open

    def end(self) -> None:
        """Ends the stream for the command, and lets go of the caller's: its other end may wait for that."""
        if self.open:
            self.open = False
            os.close(self._pipe)
            os.close(self.file)


class _Input(_Lane):
    """From a file to the command. `wanted` and `serve` are as every lane's."""

    def __init__(self, file: int, pipe: int, kept: int) -> None:
        """As `_Lane`; `kept`: the pipe's other end."""
        super().__init__(file, pipe, kept)
        self._kept = kept
        self._pending = b""
        self._fed = 0
        os.set_blocking(pipe, False)

    def wanted(self, *, alone: bool) -> list[tuple[int, int]]:
        """The descriptors to poll now, with events; `alone` when the launcher has ended."""
        del alone
        return [(self._pipe, select.POLLOUT)]

    def serve(self, fd: int, events: int) -> None:
        """Moves bytes: poll(2) has said this about a descriptor; or nothing, for so long."""
        del fd, events
        try:
            self._pending = self._pending or os.read(self.file, _CHUNK)
            moved = os.write(self._pipe, self._pending) if self._pending else 0
            self._pending = self._pending[moved:]
            self._fed += moved
            if not moved:
                self.end()
        except BlockingIOError:
            pass
        except OSError as error:
            self.fail(error)

    def step_back(self) -> int:
        """Puts the file's place to where the command has read to. Returns how far that was."""
        if self._kept == -1:
            return 0
        # Not more than was given: the command can open the pipe's other end, and write there.
        unread = len(self._pending) + min(_waiting(self._kept), self._fed)
        try:
            os.lseek(self.file, -unread, os.SEEK_CUR)
        except OSError:
            return 0  # it has no position
        return unread

    def settle(self) -> None:
        """Gives back what the command has not read."""
        if self._kept != -1:
            self.step_back()
            os.close(self._kept)
            os.close(self.file)
            self._kept = -1
        self.end()

    def end(self) -> None:
        """Ends the command's input; the file is needed for what it leaves."""
        if self.open:
            self.open = False
            os.close(self._pipe)


class _Lent(_Lane):
    """From a pipe to the command: what it is to read next stays in the caller's pipe until it has been read.

    The command's pipe is as large as what it is lent. So it is full, and poll(2) speaks of it when the command reads;
    from then on it is looked at now and then until it is empty.
    """

    def __init__(self, file: int, pipe: int, *null: int) -> None:
        """As `_Lane`; `null`: /dev/null."""
        super().__init__(file, pipe, *null)
        self._lent = 0
        self._full = False
        os.set_blocking(pipe, False)

    def _lend(self, size: int) -> int:
        """Copies so many bytes at most; returns how many, 0 at the end."""
        return syscalls.tee(self.file, self._pipe, size, os.SPLICE_F_NONBLOCK)

    def _drop(self, size: int) -> int:
        """Takes bytes from the caller's stream; returns how many there were."""
        return os.splice(self.file, self.pipes[1], size, flags=os.SPLICE_F_NONBLOCK)

    def wanted(self, *, alone: bool) -> list[tuple[int, int]]:
        del alone
        if self._lent or self._full:
            return [(self._pipe, select.POLLOUT if self.tick == -1 else 0)]
        return [(self.file, select.POLLIN), (self._pipe, 0)]

    def serve(self, fd: int, events: int) -> None:
        try:
            if self._lent:
                self._take()
                self.tick = -1 if not self._lent else 1 if self.tick == -1 else min(2 * self.tick, _LONGEST_TICK)
                if self._lent and events & select.POLLERR:
                    self.end()  # nobody reads the rest
            elif self._full:
                self._full, self.tick = self.tick != -1, -1
            elif fd == self._pipe:
                self.end()
            else:
                pages = min(max(_waiting(self.file) // _PAGE, 1), _MOST_PAGES)
                size = _PAGE << pages.bit_length() - 1
                self._resize(size)
                self._lent = self._lend(size)
                if not self._lent:
                    self.end()
        except BlockingIOError:
            if not self._lent:  # the pipe is full of the command's own; or poll(2) speaks of urgent data all the time
                self._full, self.tick = True, _LONGEST_TICK // 8
        except OSError as error:
            self.fail(error)

    def _resize(self, size: int) -> None:
        try:
            if fcntl.fcntl(self._pipe, _F_GETPIPE_SZ) != size:
                fcntl.fcntl(self._pipe, _F_SETPIPE_SZ, size)
        except OSError:
            pass  # not empty, or this user has too many: it is not full then, and looked at now and then

    def _take(self) -> None:
        """Takes from the caller's stream what the command has read."""
        size = self._lent - min(self._lent, _waiting(self._pipe))
        self._lent -= size
        while size and (taken := self._drop(size)):
            size -= taken

    def end(self) -> None:
        if self.open:
            try:
                self._take()
            except OSError:
                pass  # somebody else has
            super().end()


class _Peeked(_Lent):
    """From a socket, in the same way."""

    def _lend(self, size: int) -> int:
        data = syscalls.recv(self.file, size, _MSG_PEEK | _MSG_DONTWAIT)
        return os.write(self._pipe, data) if data else 0

    def _drop(self, size: int) -> int:
        return len(syscalls.recv(self.file, size, _MSG_DONTWAIT))


class _Output(_Lane):
    """From the command to a file."""

    def __init__(self, file: int, pipe: int) -> None:
        """As `_Lane`."""
        super().__init__(file, pipe)
        self.input: _Input | None = None
        self._pending = b""
        self._full = False
        self._due = 0
        os.set_blocking(pipe, False)  # the command can take back what it has written

    def _move(self, size: int) -> int:
        """Moves so many bytes at most; 0 at the end. BlockingIOError: there are none, or the stream takes no more."""
        data = os.read(self._pipe, size)
        moved = len(data)
        ahead = self.input.step_back() if self.input is not None else 0  # standard input may be the same open file
        try:
            while data:
                data = data[os.write(self.file, data) :]
        finally:
            if ahead:
                os.lseek(0, ahead, os.SEEK_CUR)
        return moved

    def wanted(self, *, alone: bool) -> list[tuple[int, int]]:
        if not self._full:
            return [(self._pipe, select.POLLIN), (self.file, 0)]
        return [(self.file, select.POLLOUT), *([(self._pipe, 0)] if alone else [])]

    def serve(self, fd: int, events: int) -> None:
        del events
        if fd == self.file and not self._full:
            self.end()  # nobody reads any more
            return
        try:
            moved = self._move(self._due if self._due > 0 else _CHUNK)  # what somebody adds is not due
            self._full = bool(self._pending)
            self._due -= moved
            if not moved:
                self.end()
        except BlockingIOError:
            if self._full and fd == self._pipe:
                self.end()  # the last writer has ended, too, and nobody reads
            else:
                self._full = self._unmoved() > 0
        except OSError as error:
            self.fail(error)  # the command's next write fails, as it would have without a pipe

    def _unmoved(self) -> int:
        return len(self._pending) + _waiting(self._pipe)

    def settle(self) -> None:
        """What the command has written by now is due. What it left may write without an end."""
        self._due = self._unmoved() if self.open else 0

    def is_idle(self) -> bool:
        return not self.open or self._due <= 0 or self._unmoved() == 0


class _Spliced(_Output):
    """From the command to a pipe."""

    def _move(self, size: int) -> int:
        return os.splice(self._pipe, self.file, size, flags=os.SPLICE_F_NONBLOCK)


class _Sent(_Output):
    """From the command to a socket."""

    def _move(self, size: int) -> int:
        self._pending = self._pending or os.read(self._pipe, size)
        if not self._pending:
            return 0
        moved = syscalls.send(self.file, self._pending, _MSG_DONTWAIT | _MSG_NOSIGNAL)
        self._pending = self._pending[moved:]
        return moved


def _carry(lanes: "list[_Input | _Lent | _Output]", asked: int, answer: int, session: int = -1) -> "NoReturn":
    """The life of the process. Nothing may escape from here: this is a copy of the launcher."""
    try:
        os.setsid()  # Ctrl-C and Ctrl-Z mean the command
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        init.leave_streams(tuple({0, 1, 2}.difference(lane.file for lane in lanes)))
        hygiene.close_inherited((asked, answer, session, *(fd for lane in lanes for fd in lane.pipes)))
        _move(lanes, asked, answer, session)
    finally:
        os._exit(EXIT_REFUSED)


def _move(lanes: "list[_Input | _Lent | _Output]", asked: int, answer: int, session: int) -> None:
    if os.read(asked, 1) != _BEGIN:
        os.write(answer, _DONE)  # it was never started
        return
    alone = gone = over = flushing = answered = False
    while not (alone or answered) or any(lane.open for lane in lanes):
        if over and any(lane.open for lane in lanes) and all(lane.is_idle() for lane in lanes):
            for lane in lanes:
                lane.end()  # who holds a pipe still has it from a command of the jail that has ended
            continue
        if flushing and not answered and all(lane.is_idle() for lane in lanes):
            answered = True
            failures = (bytes((lane.file, lane.failure)) for lane in lanes if lane.failure)
            try:
                os.write(answer, b"".join(failures) + _DONE)
            except BrokenPipeError:
                pass  # the launcher has been killed meanwhile
            continue
        poll = select.poll()
        if not alone:
            poll.register(asked, select.POLLIN)
        if session != -1 and not gone:
            poll.register(session, select.POLLIN)
        lane_of = {}
        for lane in lanes:
            for fd, events in lane.wanted(alone=alone) if lane.open else ():
                poll.register(fd, events)
                lane_of[fd] = lane
        ticks = [lane.tick for lane in lanes if lane.open and lane.tick != -1]
        found = poll.poll(min(ticks, default=None))
        for lane in lanes:  # at other times than theirs, too: else output without an end would keep input away
            if lane.open and lane.tick != -1:
                lane.serve(-1, 0)
        for fd, events in found:
            if fd in lane_of:
                if lane_of[fd].open:
                    lane_of[fd].serve(fd, events)
                continue
            if fd == session:
                gone = True
            elif os.read(asked, 1):
                flushing = True
            else:
                alone = True
            # Of a further command whose session was killed, not before it has been killed, too: else it would see its
            # input end, or its output break, and end by itself first, with a status of its own.
            settled, over = over, alone if session == -1 else over or (gone and (flushing or alone))
            for lane in lanes if not settled and (flushing or alone) else ():
                lane.settle()
