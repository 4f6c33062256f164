"""Tasks, timers and readiness over epoll(7) in one thread, under asyncio's names; and sockets for the tasks.

Every session has two processes with a loop, its proxy and its shim. asyncio brings logging, subprocess and concurrent
along: 4.9 MiB of private memory and 32 ms for each of the two, where this module takes 1.4 MiB and 5 ms.
"""

import _thread
import errno
import heapq
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Generator, Iterable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")
Callback = Callable[[], object]
Work = Coroutine["Signal", None, None]
"""What becomes a task."""

_FEW_TIMERS = 100
"""Cancelled timers that are not worth removing."""

_running: "Loop | None" = None


class Cancelled(BaseException):
    """Thrown into a task that is to end. No `Exception`, so that no handler takes it for a failure."""


def running() -> "Loop":
    """The loop that runs, of which a process has one at a time."""
    if _running is None:
        raise RuntimeError("no loop is running")
    return _running


def current() -> "Task":
    """The task that runs."""
    task = running().current
    if task is None:
        raise RuntimeError("no task is running")
    return task


def forget() -> None:
    """For the child of a fork: the loop that runs is its parent's, and this process may have one of its own."""
    global _running
    _running = None


class Signal:
    """An event that happens once and that one task can await."""

    __slots__ = ("happened", "waiter")

    def __init__(self) -> None:
        self.waiter: Task | None = None
        self.happened = False

    def set(self) -> None:
        """Marks it as happened and wakes the waiter. Safe to call twice."""
        self.happened = True
        if self.waiter is not None:
            self.waiter.wake()

    def __await__(self) -> "Generator[Signal, None, None]":
        """Returns once it has happened."""
        while not self.happened:
            self.waiter = current()
            yield self


class Timer:
    """A callback that waits for its time; made by `Loop.call_later`."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callback) -> None:
        self.when = when
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Drops the callback. Safe to call twice, or late."""
        self.callback = None

    def __lt__(self, other: "Timer") -> bool:
        """Whether it comes before another one: heapq orders by this."""
        return self.when < other.when


class Task:
    """A running coroutine; made by `Loop.spawn`.

    Attributes:
        done: it has returned, has raised, or was cancelled.
        error: what it raised, other than `Cancelled`.
        ending: `cancel` was called.
    """

    __slots__ = (
        "_awaited", "_callbacks", "_coroutine", "_interrupted", "_loop", "_runs", "_scheduled", "done", "ending",
        "error",
    )  # fmt: skip

    def __init__(self, loop: "Loop", work: Work) -> None:
        self._loop = loop
        self._coroutine = work
        self._callbacks: list[Callable[[Task], object]] = []
        self._interrupted = False
        self._runs = False
        self._scheduled = False
        self._awaited: Signal | None = None
        self.done = False
        self.ending = False
        self.error: BaseException | None = None

    def when_done(self, callback: "Callable[[Task], object]") -> None:
        """Has `callback` called with this task, once it is done."""
        self._callbacks.append(callback)

    def cancel(self) -> None:
        """Ends it where it waits, before this returns; one that runs, where it waits next. Safe to call twice, or late.

        So whoever has cancelled a task can close what it waited for: in the next round the number of the descriptor
        might be another socket's, which the loop would then take for the old one.
        """
        if not self.done:
            self.ending = True
            self._interrupted = True
            if self._runs:
                self.wake()
            else:
                self._step()

    def interrupt(self) -> None:
        """Throws `Cancelled` where it waits, in the next round; `Timeout` catches it again."""
        self._interrupted = True
        self.wake()

    def wake(self) -> None:
        """Resumes it in the next round."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        self._scheduled = False
        if self.done:
            return
        if self._awaited is not None:
            self._awaited.waiter = None  # it may happen later, when this task awaits something else
        interrupted, self._interrupted = self._interrupted, False
        before, self._loop.current = self._loop.current, self
        self._runs = True
        try:
            self._awaited = self._coroutine.throw(Cancelled()) if interrupted else self._coroutine.send(None)
            return
        except (StopIteration, Cancelled):
            pass
        except BaseException as error:
            self.error = error
        finally:
            self._loop.current = before
            self._runs = False
        self.done = True
        self._loop.tasks.discard(self)
        for callback in self._callbacks:
            callback(self)


class Timeout:
    """``with Timeout(seconds):`` raises `TimeoutError` out of the block when it takes longer."""

    __slots__ = ("_expired", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._expired = False

    def __enter__(self) -> None:
        """Starts the clock."""
        self._task = current()
        self._timer = running().call_later(self._seconds, self._expire)

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        """Stops the clock."""
        self._timer.cancel()
        if self._expired and kind is Cancelled and not self._task.ending:
            raise TimeoutError from None

    def _expire(self) -> None:
        self._expired = True
        self._task.interrupt()


async def sleep(seconds: float) -> None:
    """Waits so long; with 0 until every other task that is ready has had a turn."""
    over = Signal()
    if not seconds:
        running().call_soon(over.set)
        await over
        return
    timer = running().call_later(seconds, over.set)
    try:
        await over
    finally:
        timer.cancel()


class Loop:
    """The loop of one thread.

    Attributes:
        current: the task that runs, None between tasks.
        tasks: all that are not done.
        waker: a descriptor; writing to it wakes the loop (`signal.set_wakeup_fd`).
    """

    def __init__(self, fault: Callable[[BaseException], object]) -> None:
        """`fault`: called with what a callback raised; the loop continues."""
        self._fault = fault
        self._epoll = select.epoll()
        self._readers: dict[int, Callback] = {}
        self._writers: dict[int, Callback] = {}
        self._ready: list[Callback] = []
        self._posted: list[Callback] = []
        self._timers: list[Timer] = []
        self._prune_at = _FEW_TIMERS
        self._stopped = False
        self._ended = False
        self._hears_signals = False
        self._ending = _thread.RLock()  # `stop` may interrupt whoever holds it
        self.current: Task | None = None
        self.tasks: set[Task] = set()
        self._woken, self.waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.add_reader(self._woken, self._take_posted)

    def time(self) -> float:
        """Seconds on the monotonic clock."""
        return time.monotonic()

    def call_soon(self, callback: Callback) -> None:
        """Calls back in the next round."""
        self._ready.append(callback)

    def call_later(self, seconds: float, callback: Callback) -> Timer:
        """Calls back once, `seconds` from now."""
        if len(self._timers) >= self._prune_at:
            self._timers = [timer for timer in self._timers if timer.callback is not None]
            heapq.heapify(self._timers)
            self._prune_at = 2 * len(self._timers) + _FEW_TIMERS
        timer = Timer(time.monotonic() + seconds, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def post(self, callback: Callback) -> None:
        """`call_soon`, from other threads."""
        self._posted.append(callback)
        self._wake()

    def spawn(self, work: Work) -> Task:
        """Starts a task."""
        task = Task(self, work)
        self.tasks.add(task)
        task.wake()
        return task

    def add_reader(self, fd: int, callback: Callback) -> None:
        """Calls back whenever there is something to read or the other side is gone. Replaces an earlier callback."""
        self._watch(fd, select.EPOLLIN, self._readers, callback)

    def add_writer(self, fd: int, callback: Callback) -> None:
        """Calls back whenever there is room to write or the other side is gone. Replaces an earlier callback."""
        self._watch(fd, select.EPOLLOUT, self._writers, callback)

    def remove_reader(self, fd: int, callback: Callback | None = None) -> None:
        """Ends `add_reader`, before `fd` is closed; with `callback` only where it is still that one."""
        if callback is None or self._readers.get(fd) is callback:
            self._watch(fd, select.EPOLLIN, self._readers, None)

    def remove_writer(self, fd: int, callback: Callback | None = None) -> None:
        """Ends `add_writer`, before `fd` is closed; with `callback` only where it is still that one."""
        if callback is None or self._writers.get(fd) is callback:
            self._watch(fd, select.EPOLLOUT, self._writers, None)

    def run(self) -> None:
        """Serves until `stop`, then cancels all tasks. To be called once."""
        global _running  # a stack of calls has one loop at its bottom
        if _running is not None:
            raise RuntimeError("a loop is running already")
        _running = self
        try:
            while not self._stopped:
                self._round()
            for task in list(self.tasks):
                task.cancel()
            while self.tasks:
                self._round()
        finally:
            _running = None
            self._epoll.close()
            if self._hears_signals:
                signal.set_wakeup_fd(-1)
            with self._ending:
                self._ended = True
                for fd in (self._woken, self.waker):
                    os.close(fd)

    def hear_signals(self) -> None:
        """Has signals wake the loop, until it ends; the interpreter would write to the pipe's number for ever."""
        signal.set_wakeup_fd(self.waker, warn_on_full_buffer=False)
        self._hears_signals = True

    def stop(self) -> None:
        """Makes `run` return. From signal handlers and other threads, too."""
        self._stopped = True
        self._wake()

    def _wake(self) -> None:
        with self._ending:  # a thread that ends late writes to nobody else's descriptor
            if self._ended:
                return
            try:
                os.write(self.waker, b"\0")
            except BlockingIOError:
                return  # full, so it wakes up anyway

    def _take_posted(self) -> None:
        os.read(self._woken, 4096)
        while self._posted:
            self._ready.append(self._posted.pop(0))

    def _watch(self, fd: int, event: int, table: dict[int, Callback], callback: Callback | None) -> None:
        before = (select.EPOLLIN if fd in self._readers else 0) | (select.EPOLLOUT if fd in self._writers else 0)
        after = before & ~event if callback is None else before | event
        if callback is None:
            table.pop(fd, None)
        if not before and after:
            self._epoll.register(fd, after)  # may raise ENOSPC: the table follows only then
        elif before and not after:
            self._epoll.unregister(fd)
        elif before != after:
            self._epoll.modify(fd, after)
        if callback is not None:
            table[fd] = callback

    def _round(self) -> None:
        happened = []
        for fd, events in self._epoll.poll(self._patience()):
            for table, others in ((self._readers, select.EPOLLOUT), (self._writers, select.EPOLLIN)):
                callback = table.get(fd)
                if callback is not None and events & ~others:
                    happened.append((table, fd, callback))
        for table, fd, callback in happened:
            # An earlier callback may have removed this one, or closed the descriptor, whose number is reused.
            if table.get(fd) is callback:
                self._call(callback)
        now = time.monotonic()
        while self._timers and self._timers[0].when <= now:
            timer = heapq.heappop(self._timers)
            callback, timer.callback = timer.callback, None
            if callback is not None:
                self._call(callback)
        ready, self._ready = self._ready, []
        for callback in ready:
            self._call(callback)

    def _patience(self) -> float | None:
        """Seconds until the next timer, None without one."""
        if self._ready or self._stopped:
            return 0
        return max(0.0, self._timers[0].when - time.monotonic()) if self._timers else None

    def _call(self, callback: Callback) -> None:
        try:
            callback()
        except Exception as error:
            self._fault(error)


class Threads:
    """Blocking calls, a bounded number at a time, each in a thread that ends with it."""

    def __init__(self, most: int, each: int) -> None:
        """Further calls than `most` at the same time, or than `each` of one group, wait in their order."""
        self._free = most
        self._each = each
        self._busy: dict[str, int] = {}
        self._waiting: list[tuple[str, Signal]] = []

    async def run(self, function: Callable[[], T], group: str) -> T:
        """What `function` returns or raises. A caller that stops waiting leaves the thread to its end.

        Raises:
            OSError: also when there can be no further thread.
        """
        await self._turn(group)
        loop, over = running(), Signal()
        values: list[T] = []
        errors: list[BaseException] = []

        def ended() -> None:
            self._release(group)
            over.set()

        def work() -> None:
            try:
                values.append(function())
            except BaseException as error:
                errors.append(error)
            loop.post(ended)

        try:
            _thread.start_new_thread(work, ())
        except RuntimeError:  # whatever errno pthread_create(3) returned
            self._release(group)
            raise OSError(errno.EAGAIN, "there can be no further thread") from None
        await over
        if errors:
            raise errors[0]
        return values[0]

    async def _turn(self, group: str) -> None:
        turn = Signal()
        waiting = (group, turn)
        self._waiting.append(waiting)
        self._start()
        try:
            await turn
        except BaseException:
            if turn.happened:
                self._release(group)
            else:
                self._waiting.remove(waiting)
            raise

    def _release(self, group: str) -> None:
        self._free += 1
        self._busy[group] -= 1
        if not self._busy[group]:
            del self._busy[group]
        self._start()

    def _start(self) -> None:
        """Gives the first that waits, and whose group has room, its turn."""
        for waiting in self._waiting if self._free else ():
            group, turn = waiting
            if self._busy.get(group, 0) < self._each:
                self._waiting.remove(waiting)
                self._free -= 1
                self._busy[group] = self._busy.get(group, 0) + 1
                turn.set()
                return


# Non-blocking sockets: a call returns when it is done, and other tasks run meanwhile.


async def accept(listener: socket.socket) -> socket.socket:
    """The next client of a listening socket: non-blocking, owned by the caller. Raises OSError (accept(2))."""
    while True:
        try:
            client, _ = listener.accept()
        except (BlockingIOError, InterruptedError):
            await _readable(listener)
        else:
            client.setblocking(False)
            return client


async def receive(sock: socket.socket, most: int) -> bytes:
    """Up to `most` bytes; b"" at the end of the stream. Raises OSError (recv(2))."""
    while True:
        try:
            return sock.recv(most)
        except (BlockingIOError, InterruptedError):
            await _readable(sock)


async def send_all(sock: socket.socket, data: bytes) -> None:
    """Sends everything. Raises OSError (send(2))."""
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except (BlockingIOError, InterruptedError):
            await writable((sock,))


async def _readable(sock: socket.socket) -> None:
    loop, fd, ready = running(), sock.fileno(), Signal()
    callback = ready.set
    loop.add_reader(fd, callback)
    try:
        await ready
    finally:
        loop.remove_reader(fd, callback)


async def writable(socks: Iterable[socket.socket], patience: float | None = None) -> list[socket.socket]:
    """Waits until one of them can be written or has failed.

    Args:
        socks: connecting or connected ones.
        patience: seconds, None for ever.

    Returns:
        Those that are ready; none when the time is over.
    """
    loop, some = running(), Signal()
    ready: list[socket.socket] = []
    watched: list[tuple[int, Callback]] = []

    def watch(sock: socket.socket) -> None:
        def callback() -> None:
            loop.remove_writer(fd, callback)
            ready.append(sock)
            some.set()

        fd = sock.fileno()
        loop.add_writer(fd, callback)
        watched.append((fd, callback))

    timer: Timer | None = None
    try:
        for sock in socks:
            watch(sock)
        if patience is not None:
            timer = loop.call_later(patience, some.set)
        await some
    finally:
        if timer is not None:
            timer.cancel()
        for fd, callback in watched:
            loop.remove_writer(fd, callback)
    return ready
