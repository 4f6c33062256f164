"""One live session: its attempts, each in a helper of its own, from the hand-over to the end of the last process."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from launcher.jail.processes import is_below
from launcher.service import helper as letters
from launcher.service.groups import Groups, processes
from launcher.service.models import Input, Outcome, Reason, SessionRequest
from launcher.service.pool import Helper, Pool
from launcher.service.settings import Settings
from launcher.service.streams import Streams
from launcher.session.early import Recipe
from policy.errors import Refusal

log = logging.getLogger("paddock.service")

SENDABLE = {
    name: getattr(signal, name)
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGKILL")
}
"""Signals that a session can be sent. The launcher passes them on to its command; SIGKILL ends the jail."""

_DRAIN_SECONDS = 2.0


class Attempt:
    """One attempt at a session: a helper that was handed its launch.

    Attributes:
        helper: it.
        about: what the launcher said of the session, as soon as it did: directory, worktree and so on.
        jail: process id of the jail's first process; 0 before there is one.
        spawn_seconds: from the hand-over to the execution of the command.
        ahead: its jail was made ahead (`launcher.session.early`).
        begun: set when the command is executed, or will never be.
    """

    def __init__(
        self,
        taken: Helper,
        streams: Streams,
        known: Callable[["Attempt"], None],
        learned: Callable[[Recipe], None],
    ) -> None:
        """Prepares; `launch` begins.

        Args:
            taken: from the pool.
            streams: the session's.
            known: called when `about` is known, before anything can be committed.
            learned: called when the helper says what could have been made ahead.
        """
        self._known = known
        self._learned = learned
        self.helper = taken
        self.about: tuple[str, ...] = ()
        self.jail = 0
        self.spawn_seconds: float | None = None
        self.ahead = False
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self._streams = streams
        self._handed = 0.0
        self._end: tuple[Any, ...] | None = None
        self._refusal: dict[str, Any] | None = None

    def launch(self, request: SessionRequest, environment: dict[str, str], open_files: int) -> None:
        """Hands the launch over and begins to listen.

        Raises:
            OSError: no pipes, or the helper has ended.
        """
        fds = self._streams.open(request.stdin)
        self._handed = time.monotonic()
        try:
            self.helper.launch(
                {
                    "words": request.words("--session", request.name or ""),
                    "environment": environment,
                    "directory": request.directory,
                    "umask": request.umask,
                    "open_files": open_files,
                    "terminal": request.stdin is Input.TERMINAL,
                },
                fds,
            )
        finally:
            for fd in fds:
                os.close(fd)
        loop = asyncio.get_running_loop()
        loop.add_reader(self.helper.channel, self._hear)
        loop.add_reader(self.helper.pidfd, self._over)

    def _hear(self) -> None:
        for letter, data in self.helper.messages():
            if letter == letters.SESSION:
                self.about = data
                self._known(self)
            elif letter == letters.JAIL:
                self.jail = data
            elif letter == letters.STARTED:
                self.spawn_seconds = data[0] - self._handed  # not when this loop came to hear of it
                self.ahead = data[1]
                self.begun.set()
            elif letter == letters.ENDED:
                self._end = data
            elif letter == letters.REFUSED:
                self._refusal = data
            elif letter == letters.RECIPE:
                self._learned(data)

    def _over(self) -> None:
        if self.helper.ended() is None:
            return
        self._hear()
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.helper.channel)
        loop.remove_reader(self.helper.pidfd)
        self.begun.set()
        self.ended.set()

    async def finish(self, pool: Pool, groups: Groups) -> None:
        """For after `ended`: takes the last output, ends what may have escaped, gives everything back."""
        groups.kill(self.helper.group)  # nothing of a session outlives its launcher
        try:
            await asyncio.wait_for(self._streams.drained(), _DRAIN_SECONDS)
        except TimeoutError:
            log.info("a process of an ended session holds its output open")
        self._streams.finish_attempt()
        pool.drop(self.helper)

    def outcome(self, stopped: Reason | None) -> Outcome:
        """How it ended.

        Args:
            stopped: why somebody has asked for its end, None when nobody has.
        """
        code = self.helper.ended()
        status, limit, denials, harvest, handoff, notes = self._end or (None, "", 0, None, (), ())
        if status is None and code is not None:
            status = code if code >= 0 else 128 - code
        name = None
        if status is not None and status > 128:
            name = next((each.name for each in signal.Signals if each == status - 128), None)
        if stopped is not None:
            reason = stopped
        elif self._refusal is not None:
            reason, name = Reason.REFUSED, None
        elif limit and status == 128 + signal.SIGKILL:  # else it has outlived what the kernel ended for memory
            reason = Reason.LIMIT
        elif code is not None and code < 0 and self._end is None:
            reason = Reason.LOST  # the launcher itself was killed
        else:
            reason = Reason.SIGNALLED if name else Reason.EXITED
        return Outcome(
            reason=reason, status=status, signal=name, limit=limit or None, denials=denials, refusal=self._refusal,
            harvest=harvest, handoff=handoff, notes=notes,
        )  # fmt: skip

    def send(self, number: int, groups: Groups, *, group: bool = False) -> None:
        """Sends a signal: to the launcher, which passes it on; SIGKILL to the jail, so that its launcher ends well.

        Args:
            number: the signal.
            groups: knows the session's control group.
            group: to the launcher's process group, in which the command and what it has started are, too; the
                launcher and its init know such a signal, and do not send it twice (`launcher.jail.init`).
        """
        if number == signal.SIGKILL:
            self.kill_jail(groups)
        elif group:
            self.helper.signal_group(number)
        else:
            self.helper.send_signal(number)

    def kill_jail(self, groups: Groups) -> None:
        """Ends everything in the jail; the launcher then harvests and ends. Without a jail the launcher is ended."""
        if not self.jail:
            self.helper.kill_now()
            return
        group = self.helper.group
        groups.freeze(group, frozen=True)  # so that nothing starts anything between the looking and the killing
        try:
            for pid in (self.jail, *processes(group)):
                if is_below(pid, self.jail):
                    _kill(pid, self.helper.pid)
        finally:
            groups.freeze(group, frozen=False)


def _kill(pid: int, launcher: int) -> None:
    """SIGKILL for a process of the launcher's; one whose number has gone to somebody else is left alone."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if is_below(pid, launcher):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(pidfd)


class Live:
    """A session that is not over.

    Attributes:
        request: as it was asked for, with a name.
        environment: of its launcher; in memory only.
        streams: its standard streams.
        attempt: the present one; None before the first and between two.
        stopped: why somebody has asked for its end.
        idle_since: for `launcher.service.idling`.
        over: set when it is over.
        moved: set and replaced at each move, for those who wait for one.
        wake: set to cut waiting short: it was asked to end.
        client: set when a client is attached.
    """

    def __init__(self, request: SessionRequest, environment: dict[str, str], streams: Streams, client_uid: int) -> None:
        """See the class."""
        self.request = request
        self.environment = environment
        self.streams = streams
        self.client_uid = client_uid
        self.attempt: Attempt | None = None
        self.stopped: Reason | None = None
        self.idle_since: float | None = None
        self.over = asyncio.Event()
        self.moved = asyncio.Event()
        self.wake = asyncio.Event()
        self.client = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.stopping: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Its name."""
        assert self.request.name is not None
        return self.request.name

    def has_moved(self) -> None:
        """Wakes those who wait for a move."""
        self.moved.set()
        self.moved = asyncio.Event()

    async def stop(self, settings: Settings, groups: Groups, term_seconds: float) -> None:
        """Ends the present attempt in order: standard input, SIGTERM, kill of the jail, kill of its launcher.

        A terminal hangs up in place of standard input's end. Without patience (`term_seconds` 0) the jail is killed at
        once.
        """
        attempt = self.attempt
        if attempt is None:
            return
        if self.streams.has_input and term_seconds:
            if self.request.stdin is Input.TERMINAL:
                attempt.send(signal.SIGHUP, groups, group=True)  # an interactive shell obeys no SIGTERM
            else:
                self.streams.end_input()
            if await _within(attempt.ended, settings.stdin_seconds):
                return
        if term_seconds:
            attempt.send(signal.SIGTERM, groups)
            if await _within(attempt.ended, term_seconds):
                return
        attempt.kill_jail(groups)
        if await _within(attempt.ended, settings.end_seconds):
            return
        log.warning("session %s: its launcher did not end in %s s and is killed", self.name, settings.end_seconds)
        attempt.helper.kill_now()
        groups.kill(attempt.helper.group)
        await attempt.ended.wait()


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


def unstartable(error: OSError) -> Refusal:
    """There are no processes, descriptors or terminals left."""
    return Refusal("session-unstartable", "no process for the session can be started",
                   context=error.strerror or str(error), hint="the machine is short of something")  # fmt: skip


def failure(error: Exception) -> Refusal:
    """Something that nobody foresaw."""
    return Refusal("internal-error", "the session could not be carried out", context=repr(error),
                   hint="this is a fault of Paddock; the service's log has more")  # fmt: skip
