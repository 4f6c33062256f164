"""Jobs: slow work with git, each in a process of its own, as a function from plain data to plain data.

In a process because it would hold up the service's one thread; on a thread it could not be, because jails end with the
thread that started them (prctl(2), PR_SET_PDEATHSIG), and a harvest starts some. A job dies with the service; harvests
and merges have journals for that.

Each is forked from a process that has Python and the modules already: those took 0.1 to 0.3 s of each job.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from launcher import programmes, wire
from policy.errors import Refusal

log = logging.getLogger("paddock.service")

MOST_ANSWER = 64 << 20
_TERM_SECONDS = 10.0
"""Patience between SIGTERM and the kill: a job may be about to tell its jail, or be stopped."""


class Jobs:
    """Starts jobs and waits for them."""

    def __init__(self, most: int = 2) -> None:
        """Args: how many at the same time; others wait."""
        self._turns = asyncio.Semaphore(most)
        self._starter = _Starter()
        self._running: set[_Process] = set()
        self._ending: set[asyncio.Future[None]] = set()

    async def run(
        self,
        name: str,
        arguments: Mapping[str, Any],
        step: Callable[[dict[str, Any]], None] = lambda step: None,
    ) -> dict[str, Any]:
        """Runs one job to its end.

        Args:
            name: of a function in `launcher.service.job`.
            arguments: its keywords, as JSON knows them.
            step: told each step of which the job tells.

        Returns:
            What it gives back.

        Refusals: the job's own; job-lost when it ended without an answer.
        """
        async with self._turns:
            starting = asyncio.ensure_future(self._starter.start(name))
            try:
                process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                starting.add_done_callback(self._unwanted)  # it is there in a moment, and somebody has to wait for it
                raise
            self._running.add(process)
            try:
                answer = await _answer(process, json.dumps(arguments).encode(), step)
            except BaseException:
                await asyncio.shield(self._end(process))
                raise
            finally:
                self._running.discard(process)
        if answer is None:
            raise Refusal("job-lost", f"the job for {name} ended without an answer",
                          context=f"status {process.status}; the log may say more")  # fmt: skip
        if "refusal" in answer:
            raise Refusal.of(answer["refusal"])
        result: dict[str, Any] = answer["result"]
        return result

    def _unwanted(self, starting: "asyncio.Future[_Process]") -> None:
        if not starting.cancelled() and starting.exception() is None:
            self._end(starting.result())

    def _end(self, process: "_Process") -> "asyncio.Future[None]":
        """Ends a job, and waits for it whatever becomes of who began it: nobody else takes its exit status."""
        process.terminate()
        process.writer.close()  # here: the loop may end before the task has begun
        ending = asyncio.ensure_future(process.wait())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    async def close(self) -> None:
        """Ends those that run."""
        for process in tuple(self._running):
            process.terminate()
        for process in tuple(self._running):
            await process.wait()
        self._starter.close()


class _Process:
    """A job's process, a child of this one."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._pid, self.reader, self.writer = pid, reader, writer
        self.status: int | None = None

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(_TERM_SECONDS, self._signal, signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.status is None:
            os.kill(self._pid, number)  # not waited for yet, so the number is still its own

    async def wait(self) -> None:
        """Until it has ended: `status` then."""
        self.writer.close()
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        if self.status is None:
            pidfd = os.pidfd_open(self._pid)
            loop.add_reader(pidfd, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(pidfd)
                os.close(pidfd)
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


class _Starter:
    """The process that jobs are forked from (`launcher.service.job.serve`), started for the first one.

    It ends when it has had nothing to do for a while; the next job starts another one.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    async def start(self, name: str) -> _Process:
        """Refusals: job-lost."""
        for _ in range(2):  # the second time where it ended in this moment
            ours, theirs = socket.socketpair()
            try:
                with theirs:
                    asked = self._ask(name, theirs)
            except BaseException:
                ours.close()
                raise
            reader, writer = await asyncio.open_connection(sock=ours, limit=MOST_ANSWER)
            try:
                line = await reader.readline()
            except BaseException:
                writer.close()
                raise
            if line.endswith(b"\n"):
                return _Process(int(json.loads(line)["process"]), reader, writer)
            writer.close()
            if self._process is asked:
                self.close()
        raise Refusal("job-lost", f"the job for {name} could not be started", context="the log may say more")

    def _ask(self, name: str, own: socket.socket) -> "subprocess.Popen[bytes] | None":
        """The process that was asked."""
        if self._socket is None:
            ours, theirs = socket.socketpair()
            try:
                with theirs:
                    self._process = subprocess.Popen(
                        programmes.helper("jobs", str(theirs.fileno()), str(os.getpid())), cwd="/",
                        stdin=subprocess.DEVNULL, stdout=2, pass_fds=(theirs.fileno(),), start_new_session=True,
                    )  # fmt: skip
            except BaseException:
                ours.close()  # or it would be taken for one that has a process
                raise
            self._socket = ours
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self.close)  # its end; it never says a word
        with contextlib.suppress(OSError):
            wire.send(self._socket.fileno(), wire.frame(b"J", name.encode()), (own.fileno(),))
        return self._process

    def close(self) -> None:
        """Has it end; jobs that run go on."""
        if self._socket is not None and self._process is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._process.kill()
            self._process.wait()
            self._socket = self._process = None


async def _answer(process: _Process, arguments: bytes, step: Callable[[dict[str, Any]], None]) -> dict[str, Any] | None:
    """The last line of a job that has ended; None when it is no answer."""
    answer: dict[str, Any] | None = None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.writer.write(arguments)
        await process.writer.drain()
        process.writer.write_eof()
    with contextlib.suppress(ConnectionResetError):
        async for line in process.reader:
            if not line.endswith(b"\n"):
                break  # it was killed
            content: dict[str, Any] = json.loads(line)
            if "step" in content:
                step(content["step"])
            else:
                answer = content
    await process.wait()
    return answer
