"""Calls that block, such as getaddrinfo(3), in threads of their own, a bounded number at a time."""

import _thread
import errno
from collections.abc import Callable
from typing import TypeVar

from launcher.egress.loop import Loop, Signal, running

T = TypeVar("T")


class _Job:
    """A call, and what became of it."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.over = Signal()
        self.wanted = True
        self.error: BaseException | None = None


class Threads:
    """Threads that end with their call."""

    def __init__(self, most: int) -> None:
        """`most`: calls at the same time; further ones wait for their turn."""
        self._most = most
        self._busy = 0
        self._waiting: list[_Job] = []

    async def run(self, function: Callable[[], T]) -> T:
        """What `function` returns or raises. Who stops waiting leaves the thread to its end, and hears no more of it.

        Raises:
            OSError: also when there can be no further thread.
        """
        values: list[T] = []
        job = _Job(lambda: values.append(function()))
        self._waiting.append(job)
        self._start(running())
        try:
            await job.over
        finally:
            job.wanted = False
        if job.error is not None:
            raise job.error
        return values[0]

    def _start(self, loop: Loop) -> None:
        while self._waiting and self._busy < self._most:
            job = self._waiting.pop(0)
            if not job.wanted:
                continue
            try:
                _thread.start_new_thread(self._work, (job, loop))
                self._busy += 1
            except RuntimeError:  # whatever pthread_create(3) has said
                job.error = OSError(errno.EAGAIN, "there can be no further thread")
                job.over.set()

    def _work(self, job: _Job, loop: Loop) -> None:
        try:
            job.call()
        except BaseException as error:
            job.error = error
        loop.post(lambda: self._ended(job, loop))

    def _ended(self, job: _Job, loop: Loop) -> None:
        self._busy -= 1
        job.over.set()
        self._start(loop)
