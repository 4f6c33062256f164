"""Between a command and the files or named FIFOs that the caller gave for its standard streams: pipes, and a process.

Only that process holds the files, outside of the jail: so the command can neither change their modes and times nor
open them once more, and their positions stay the caller's. Output that is one file to the caller (``>log 2>&1``) is one
pipe, so its order stays. Input is read as far as a pipe holds; what the command leaves unread goes back, where a file
has a position. A file's bytes are copied, never spliced: what lies in a pipe is no page of it then.

The process ends when the jail has, because its pipes end then: after the launcher's end by SIGKILL, too. Signals do not
concern it.

Loaded where a standard stream is a file; see `hygiene.streams_to_carry`.
"""

import errno
import fcntl
import select
from _stat import S_ISFIFO

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
_PAGE = 4096
_FIONREAD = 0x541B  # asm-generic/ioctls.h

_BEGIN, _FLUSH, _DONE = b"B", b"F", b"\xff"


class Carrier:
    """The pipes for a command, and the process at their other ends.

    Attributes:
        streams: for the command, in the places of 0, 1 and 2; 0, 1 and 2 themselves where nothing has to be carried.
    """

    def __init__(self, carried: tuple[int, ...], limits: "tuple[tuple[str, int], ...] | None" = None) -> None:
        """Starts the process. To be called by the only thread.

        Args:
            carried: from `hygiene.streams_to_carry`.
            limits: see `limit`; None: they are not known yet, and nothing moves before they are.

        Refusals: stream-unusable.
        """
        made: list[int] = []
        self.streams = (0, 1, 2)
        try:
            streams, lanes = _lanes(carried, made)
            asked, self._asking = _pipe(made)
            self._answering, answer = _pipe(made)
            self._child = os.fork()
        except OSError as error:
            for fd in made:
                os.close(fd)
            raise Refusal(
                "stream-unusable",
                "the files on standard streams cannot be handed to the command",
                context=error.strerror or str(error),
                hint="pipes can: cat FILE | paddock ... | cat >FILE",
            ) from None
        own = [fd for lane in lanes for fd in lane.pipes]
        if self._child == 0:
            _carry(lanes, asked, answer)
        for fd in (*own, asked, answer):
            os.close(fd)
        self.streams = streams
        if limits is not None:
            self.limit(limits)

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

    def finish(self, *, ended: bool) -> Refusal | None:
        """Waits until all that the command has written is in its files, and gives back what it has not read.

        To be called once.

        Args:
            ended: nobody can write any more. Else the process goes on for what the command has left in the background.

        Returns:
            What is to be told of a file that did not take, or give, everything.
        """
        answer = b""
        try:
            os.write(self._asking, _FLUSH)
        except BrokenPipeError:
            pass  # it was killed
        while not answer.endswith(_DONE) and (piece := os.read(self._answering, 64)):
            answer += piece
        os.close(self._asking)
        os.close(self._answering)
        if ended:
            os.kill(self._child, _signal.SIGKILL)  # it has nothing to do any more
            os.waitpid(self._child, 0)
        if not answer.endswith(_DONE):
            what, why = "files on standard streams may be incomplete", "the process that carries the bytes was killed"
            return Refusal("output-lost", what, context=why)
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


def _lanes(carried: tuple[int, ...], made: list[int]) -> "tuple[tuple[int, int, int], list[_Input | _Output]]":
    """The command's streams, and what lies between their other ends and the files; `made` takes every new one."""
    streams = [0, 1, 2]
    lanes: list[_Input | _Output] = []
    known: dict[tuple[int, ...], int] = {}
    for fd in carried:
        identity = _identity(fd)
        if fd and identity in known:
            streams[fd] = streams[known[identity]]
            continue
        reader, writer = _pipe(made)
        if fd == 0:
            streams[0] = reader
            kept = -1 if _is_fifo(fd) else os.dup(reader)
            made += [kept] if kept != -1 else []
            lanes.append(_Input(fd, writer, kept))
        else:
            known[identity] = fd
            streams[fd] = writer
            lanes.append(_Output(fd, reader))
    return (streams[0], streams[1], streams[2]), lanes


def _is_fifo(fd: int) -> bool:
    return S_ISFIFO(os.fstat(fd).st_mode)


def _identity(fd: int) -> tuple[int, ...]:
    """The same for descriptors that write to the same place of the same file."""
    info = os.fstat(fd)
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    place = 0 if S_ISFIFO(info.st_mode) or flags & os.O_APPEND else os.lseek(fd, 0, os.SEEK_CUR)
    return info.st_dev, info.st_ino, flags, place


def _waiting(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, _FIONREAD, bytes(4)), "little")


class _Input:
    """From a file or a FIFO to the command.

    Attributes:
        open: there may be more to move.
        failure: errno, 0 as long as everything could be moved.
    """

    def __init__(self, file: int, pipe: int, kept: int) -> None:
        """Takes descriptors."""
        self.pipes = (pipe,) if kept == -1 else (pipe, kept)
        self.file = file
        self.open = True
        self.failure = 0
        self._pipe = pipe
        self._kept = kept
        self._pending = b""
        self._full = False
        self._fed = 0
        os.set_blocking(pipe, False)
        if kept == -1:
            fcntl.fcntl(pipe, _F_SETPIPE_SZ, _PAGE)  # what has left a FIFO cannot be put back

    def wanted(self, *, alone: bool) -> list[tuple[int, int]]:
        """The descriptors to poll now, with events; `alone` when the launcher has ended."""
        del alone
        if self._kept != -1 or self._full:
            return [(self._pipe, select.POLLOUT)]
        return [(self.file, select.POLLIN), (self._pipe, 0)]

    def serve(self, fd: int) -> None:
        try:
            if self._kept != -1:
                self._pending = self._pending or os.read(self.file, _CHUNK)
                moved = os.write(self._pipe, self._pending) if self._pending else 0
                self._pending = self._pending[moved:]
                self._fed += moved
            else:
                # Nobody reads the pipe any more, when poll(2) speaks of it before it was full.
                gone = fd == self._pipe and not self._full
                moved = 0 if gone else os.splice(self.file, self._pipe, _PAGE, flags=os.SPLICE_F_NONBLOCK)
                self._full = False
            if not moved:
                self.end()
        except BlockingIOError:
            self._full = not self._full  # the pipe, or else somebody else has read the FIFO's bytes
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EBADF):  # the latter: opened for writing only
                self.failure = error.errno or 0
            self.end()

    def settle(self) -> None:
        """The command has ended: gives back what it has not read."""
        if self._kept != -1:
            # Not more than was given: the command can open the pipe's other end, and write there.
            unread = len(self._pending) + min(_waiting(self._kept), self._fed)
            try:
                os.lseek(self.file, -unread, os.SEEK_CUR)
            except OSError:
                pass  # it has no position
            os.close(self._kept)
            self._kept = -1
        self.end()

    def is_idle(self) -> bool:
        """Whether nothing is under way any more, after `settle`."""
        return not self.open

    def end(self) -> None:
        """Ends the command's input."""
        if self.open:
            self.open = False
            os.close(self._pipe)


class _Output:
    """From the command to a file or a FIFO; attributes as in `_Input`."""

    def __init__(self, file: int, pipe: int) -> None:
        self.pipes = (pipe,)
        self.file = file
        self.open = True
        self.failure = 0
        self._pipe = pipe
        self._fifo = _is_fifo(file)
        self._full = False
        self._due = 0

    def wanted(self, *, alone: bool) -> list[tuple[int, int]]:
        if not self._full:
            return [(self._pipe, select.POLLIN)]
        return [(self.file, select.POLLOUT), *([(self._pipe, 0)] if alone else [])]

    def serve(self, fd: int) -> None:
        try:
            if self._fifo:
                moved = os.splice(self._pipe, self.file, _CHUNK, flags=os.SPLICE_F_NONBLOCK)
                self._full = False
            else:
                data = os.read(self._pipe, _CHUNK)
                moved = len(data)
                while data:
                    data = data[os.write(self.file, data) :]
            self._due -= moved
            if not moved:
                self._end()
        except BlockingIOError:
            if self._full and fd == self._pipe:
                self._end()  # the last writer has ended, too, and nobody reads the FIFO
            self._full = True
        except OSError as error:
            if error.errno != errno.EPIPE:
                self.failure = error.errno or 0
            self._end()  # the command's next write fails, as it would have without a pipe

    def settle(self) -> None:
        """The command has ended: what it has written by now is due. What it left may write without an end."""
        self._due = _waiting(self._pipe) if self.open else 0

    def is_idle(self) -> bool:
        return not self.open or self._due <= 0

    def _end(self) -> None:
        if self.open:
            self.open = False
            os.close(self._pipe)


def _carry(lanes: "list[_Input | _Output]", asked: int, answer: int) -> "NoReturn":
    """The life of the process. Nothing may escape from here: this is a copy of the launcher."""
    try:
        os.setsid()  # Ctrl-C and Ctrl-Z mean the command
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        init.leave_streams(tuple({0, 1, 2}.difference(lane.file for lane in lanes)))
        hygiene.close_inherited((asked, answer, *(fd for lane in lanes for fd in lane.pipes)))
        _move(lanes, asked, answer)
    finally:
        os._exit(EXIT_REFUSED)


def _move(lanes: "list[_Input | _Output]", asked: int, answer: int) -> None:
    if os.read(asked, 1) != _BEGIN:
        os.write(answer, _DONE)  # it was never started
        return
    alone = flushing = answered = False
    while not (alone or answered) or any(lane.open for lane in lanes):
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
        lane_of = {}
        for lane in lanes:
            for fd, events in lane.wanted(alone=alone) if lane.open else ():
                poll.register(fd, events)
                lane_of[fd] = lane
        for fd, _ in poll.poll():
            if fd in lane_of:
                if lane_of[fd].open:
                    lane_of[fd].serve(fd)
                continue
            flushing, alone = (True, alone) if os.read(asked, 1) else (flushing, True)
            for lane in lanes:
                lane.settle()
