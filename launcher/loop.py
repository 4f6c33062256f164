"""Tasks, timers and readiness over epoll(7): as much of an event loop as a proxy needs, with asyncio's words for it.

asyncio brings logging, inspect, subprocess and a TLS client along: 26 ms of a processor, on which the agent that starts
at the same time has to wait. What is here loads in less than one. It behaves as asyncio does: callbacks run one after
the other in one thread, and a task runs until it awaits something that has not happened yet.
"""

import heapq
import os
import select
import time
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType

Callback = Callable[[], object]
Work = Coroutine["Signal", None, None]
"""What becomes a task."""

_FEW_TIMERS = 100
"""Cancelled timers that are not worth a look through all of them."""

_running: "Loop | None" = None


class Cancelled(BaseException):
    """Thrown into a task that is to end. It is no `Exception`, so that nobody takes it for a failure."""


def running() -> "Loop":
    """The loop that runs. There is one in a process at a time."""
    if _running is None:
        raise RuntimeError("no loop is running")
    return _running


def current() -> "Task":
    """The task that runs."""
    task = running().current
    if task is None:
        raise RuntimeError("no task is running")
    return task


class Signal:
    """Something that happens once, for which one task can wait: ``await signal``."""

    __slots__ = ("_task", "happened")

    def __init__(self) -> None:
        self._task: Task | None = None
        self.happened = False

    def set(self) -> None:
        """It has happened. Safe to call twice."""
        self.happened = True
        if self._task is not None:
            self._task.wake()

    def forget(self) -> None:
        """Nobody waits for it any more."""
        self._task = None

    def __await__(self) -> "Generator[Signal, None, None]":
        """Returns once it has happened."""
        while not self.happened:
            self._task = current()
            yield self


class Timer:
    """A callback that waits for its time; made by `Loop.call_later`."""

    __slots__ = ("_loop", "callback", "when")

    def __init__(self, loop: "Loop", when: float, callback: Callback) -> None:
        self._loop = loop
        self.when = when
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """The callback is not wanted any more. Safe to call twice, or late."""
        if self.callback is not None:
            self.callback = None
            self._loop.timer_cancelled()

    def __lt__(self, other: "Timer") -> bool:
        """Whether it comes before another one: heapq(3) orders by this."""
        return self.when < other.when


class Task:
    """A coroutine on its way; made by `Loop.spawn`.

    Attributes:
        done: it has returned, has raised, or was cancelled.
        error: what it has raised, other than `Cancelled`.
        ending: `cancel` was called.
    """

    __slots__ = ("_callbacks", "_coroutine", "_interrupted", "_loop", "_scheduled", "_waits", "done", "ending", "error")

    def __init__(self, loop: "Loop", work: Work) -> None:
        self._loop = loop
        self._coroutine = work
        self._callbacks: list[Callable[[Task], object]] = []
        self._interrupted = False
        self._scheduled = False
        self._waits: Signal | None = None
        self.done = False
        self.ending = False
        self.error: BaseException | None = None

    def when_done(self, callback: "Callable[[Task], object]") -> None:
        """Has `callback` called with this task, once it is done."""
        self._callbacks.append(callback)

    def cancel(self) -> None:
        """Ends it where it waits. Safe to call twice, or late."""
        if not self.done:
            self.ending = True
            self.interrupt()

    def interrupt(self) -> None:
        """Throws `Cancelled` where it waits: `cancel` for good, `Timeout` to catch it again."""
        self._interrupted = True
        self.wake()

    def wake(self) -> None:
        """Lets it go on in the next round."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        self._scheduled = False
        if self.done:
            return
        if self._waits is not None:
            self._waits.forget()  # it may happen later, when this waits for something else
        interrupted, self._interrupted = self._interrupted, False
        self._loop.current = self
        try:
            self._waits = self._coroutine.throw(Cancelled()) if interrupted else self._coroutine.send(None)
            return
        except (StopIteration, Cancelled):
            pass
        except BaseException as error:
            self.error = error
        finally:
            self._loop.current = None
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
        """The time begins."""
        self._task = current()
        self._timer = running().call_later(self._seconds, self._expire)

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        """The time ends."""
        self._timer.cancel()
        if self._expired and kind is Cancelled and not self._task.ending:
            raise TimeoutError from None

    def _expire(self) -> None:
        self._expired = True
        self._task.interrupt()


async def sleep(seconds: float) -> None:
    """Waits so long; with 0 until everybody else has had a turn."""
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
    """One thread's loop.

    Attributes:
        current: the task that runs, None between tasks.
        tasks: all that are not done.
        waker: a descriptor; the loop wakes up when something is written there (`signal.set_wakeup_fd`).
    """

    def __init__(self, fault: Callable[[BaseException], object]) -> None:
        """`fault`: told what a callback has raised; the loop goes on."""
        self._fault = fault
        self._epoll = select.epoll()
        self._readers: dict[int, Callback] = {}
        self._writers: dict[int, Callback] = {}
        self._ready: list[Callback] = []
        self._posted: list[Callback] = []
        self._timers: list[Timer] = []
        self._cancelled = 0
        self._stopped = False
        self._ended = False
        self.current: Task | None = None
        self.tasks: set[Task] = set()
        self._woken, self.waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.add_reader(self._woken, self._take_posted)

    def time(self) -> float:
        """Seconds, on a clock that never goes back."""
        return time.monotonic()

    def call_soon(self, callback: Callback) -> None:
        """Calls back in the next round."""
        self._ready.append(callback)

    def call_later(self, seconds: float, callback: Callback) -> Timer:
        """Calls back once, `seconds` from now."""
        timer = Timer(self, time.monotonic() + seconds, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def post(self, callback: Callback) -> None:
        """`call_soon`, for other threads."""
        self._posted.append(callback)
        self._wake()

    def spawn(self, work: Work) -> Task:
        """Starts a task."""
        task = Task(self, work)
        self.tasks.add(task)
        task.wake()
        return task

    def add_reader(self, fd: int, callback: Callback) -> None:
        """Calls back whenever there is something to read, or the other side is gone; instead of an earlier callback."""
        self._watch(fd, self._readers, callback)

    def add_writer(self, fd: int, callback: Callback) -> None:
        """Calls back whenever there is room to write, or the other side is gone; instead of an earlier callback."""
        self._watch(fd, self._writers, callback)

    def remove_reader(self, fd: int, callback: Callback | None = None) -> None:
        """Ends `add_reader`, before `fd` is closed; with `callback` only where it is still that one."""
        if callback is None or self._readers.get(fd) is callback:
            self._watch(fd, self._readers, None)

    def remove_writer(self, fd: int, callback: Callback | None = None) -> None:
        """Ends `add_writer`, before `fd` is closed; with `callback` only where it is still that one."""
        if callback is None or self._writers.get(fd) is callback:
            self._watch(fd, self._writers, None)

    def run(self) -> None:
        """Serves until `stop`, then cancels all tasks. Once only, and at most one loop of a process at a time."""
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
            self._ended = True
            self._epoll.close()
            for fd in (self._woken, self.waker):
                os.close(fd)

    def stop(self) -> None:
        """Has `run` return. From signal handlers and other threads, too."""
        self._stopped = True
        self._wake()

    def timer_cancelled(self) -> None:
        """For `Timer`: throws the cancelled ones away, when there are more of them than others."""
        self._cancelled += 1
        if self._cancelled > _FEW_TIMERS and self._cancelled > len(self._timers) // 2:
            self._timers = [timer for timer in self._timers if timer.callback is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def _wake(self) -> None:
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

    def _watch(self, fd: int, table: dict[int, Callback], callback: Callback | None) -> None:
        before = self._events(fd)
        if callback is None:
            table.pop(fd, None)
        else:
            table[fd] = callback
        after = self._events(fd)
        if before and after:
            if before != after:
                self._epoll.modify(fd, after)
        elif after:
            self._epoll.register(fd, after)
        elif before:
            self._epoll.unregister(fd)

    def _events(self, fd: int) -> int:
        return (select.EPOLLIN if fd in self._readers else 0) | (select.EPOLLOUT if fd in self._writers else 0)

    def _round(self) -> None:
        happened = []
        for fd, events in self._epoll.poll(self._patience()):
            for table, others in ((self._readers, select.EPOLLOUT), (self._writers, select.EPOLLIN)):
                callback = table.get(fd)
                if callback is not None and events & ~others:
                    happened.append((table, fd, callback))
        for table, fd, callback in happened:
            if table.get(fd) is callback:  # else one before it has seen to that, or the number belongs to another one
                self._call(callback)
        now = time.monotonic()
        while self._timers and self._timers[0].when <= now:
            timer = heapq.heappop(self._timers)
            if timer.callback is None:
                self._cancelled -= 1
                continue
            callback, timer.callback = timer.callback, None
            self._call(callback)
        ready, self._ready = self._ready, []
        for callback in ready:
            self._call(callback)

    def _patience(self) -> float | None:
        """Seconds that may be waited, None for ever."""
        if self._ready or self._stopped:
            return 0
        return max(0.0, self._timers[0].when - time.monotonic()) if self._timers else None

    def _call(self, callback: Callback) -> None:
        try:
            callback()
        except Exception as error:
            self._fault(error)
