"""What a person may want to be told of while he does not look, and the user's own command that tells him.

`notify` in `service.toml` is a line for sh(1), run in the user's home directory, without his PATH, which may lead into
a worktree. What happened is in its environment and in no shell's text. (Questions about refused hosts are told of by
`network.notify`, whose command may answer them: `launcher.session.notifier`.)
"""

import asyncio
import contextlib
import logging
import os
import signal
from typing import NamedTuple

from launcher.service.schema import Event, EventKind
from launcher.service.supervisor import Supervisor
from launcher.session.places import Places
from policy.plan import SYSTEM_PATH

log = logging.getLogger("paddock.service")

_KINDS = (EventKind.SESSION, EventKind.TICKET)
_ENDED = ("ended", "failed", "lost", "unharvested")
_CONFLICTED = "conflicted"
_MOST_COMMANDS = 4
_SECONDS = 30.0


class Notice(NamedTuple):
    """Something worth telling.

    Attributes:
        kind: "session" or "conflict".
        title: in a few words, Paddock's own.
        subject: name of the session, or of the ticket run.
        text: more of it.
        address: on the page.
    """

    kind: str
    title: str
    subject: str
    text: str
    address: str


def notice_of(event: Event) -> Notice | None:
    """What is worth telling of an event; None for most."""
    state = event.data.get("state")
    if event.kind is EventKind.SESSION and state in _ENDED:
        title = f"a session has {state}" if state != "unharvested" else "a session's commits are not harvested"
        why = str(event.data.get("why", ""))
        return Notice("session", title, event.session, why, f"/sessions/{event.session}")
    if event.kind is EventKind.TICKET and state == _CONFLICTED:
        run = str(event.data.get("run", ""))
        return Notice("conflict", "a merge conflicts", run, f"ticket {event.data.get('number', '')}", "/merges")
    return None


class Notices:
    """Runs the user's command for each notice, as long as the settings name one."""

    def __init__(self, supervisor: Supervisor, places: Places) -> None:
        """Args: of sessions, with their settings; of this user."""
        self._supervisor = supervisor
        self._places = places
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Follows the service's events."""
        while True:
            events = self._supervisor.events.follow(None, _KINDS, (), lambda: None)
            async for event in events:
                notice = notice_of(event) if event is not None else None
                if notice is not None and self._supervisor.settings.notify:
                    self._start(notice)
            await asyncio.sleep(1)  # they came quicker than they were read, or the service ends

    def _start(self, notice: Notice) -> None:
        if len(self._running) >= _MOST_COMMANDS:
            log.warning("notify: %d commands run already; none is started for %s", _MOST_COMMANDS, notice.subject)
            return
        task = asyncio.get_running_loop().create_task(self._tell(notice), name="notify")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _tell(self, notice: Notice) -> None:
        line = self._supervisor.settings.notify
        given = {
            "PATH": SYSTEM_PATH, "PADDOCK_NOTICE": notice.kind, "PADDOCK_TITLE": notice.title,
            "PADDOCK_SUBJECT": notice.subject, "PADDOCK_TEXT": notice.text,
        }  # fmt: skip
        try:
            process = await asyncio.create_subprocess_exec(
                "/bin/sh", "-c", line, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL, cwd=self._places.home, env={**os.environ, **given},
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            log.warning("notify: the command cannot be started: %s", error.strerror)
            return
        try:
            status = await asyncio.wait_for(process.wait(), _SECONDS)
            if status:
                log.warning("notify: the command ended with status %d", status)
        except TimeoutError:
            log.warning("notify: the command did not end within %g s", _SECONDS)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
