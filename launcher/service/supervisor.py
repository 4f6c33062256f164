"""The supervisor: accepts sessions, starts them in their turn, restarts, stops and remembers them.

Everything happens on the service's one thread. A session that lives has a `Live` and a task; one that is over is a row.
Sessions die with the service (their helpers are tied to it), so what lives is always what this process has started.
"""

import asyncio
import functools
import hashlib
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from launcher.service import admission, logs
from launcher.service.counters import Counters
from launcher.service.groups import Groups
from launcher.service.models import Outcome, Reason, RestartPolicy, Session, SessionRequest
from launcher.service.pool import Pool
from launcher.service.redaction import Redactor, secrets
from launcher.service.registration import Registration
from launcher.service.running import SENDABLE, Attempt, Live, failure, unstartable
from launcher.service.settings import Settings
from launcher.service.states import SessionState
from launcher.service.store import SessionStore, exists, session_of
from launcher.service.streams import Streams
from policy.errors import Refusal

log = logging.getLogger("paddock.service")

_CLIENT_SECONDS = 60.0


class Supervisor:
    """All sessions of one service."""

    def __init__(
        self,
        store: SessionStore,
        settings: Settings,
        groups: Groups,
        registration: Registration,
        *,
        log_directory: str,
        environment: Mapping[str, str],
        open_files: int,
        parse: admission.Parse,
        declared: tuple[str, ...] = (),
    ) -> None:
        """Prepares; `start` begins.

        Args:
            store: of sessions.
            settings: replaced at a reload.
            groups: makes control groups.
            registration: of sessions' contexts.
            log_directory: of all sessions' logs.
            environment: for sessions that bring none.
            open_files: the soft limit that sessions get (RLIMIT_NOFILE); the service's own may be higher.
            parse: understands the words of `paddock run`.
            declared: names of variables that hold credentials.
        """
        self.store = store
        self.settings = settings
        self.groups = groups
        self.registration = registration
        self.pool = Pool(settings.helpers, groups)
        self.live: dict[str, Live] = {}
        self.closing: Reason | None = None
        self.counters = Counters()
        self.logs = log_directory
        self._environment = dict(environment)
        self._open_files = open_files
        self._parse = parse
        self._declared = declared
        self._turns = asyncio.Semaphore(settings.most_starting)

    def start(self) -> None:
        """Starts the warm helpers."""
        self.pool.fill()

    def reload(self, settings: Settings) -> None:
        """Obeys other settings from now on. What lives goes on."""
        self.settings = settings
        self.pool.size = settings.helpers
        self._turns = asyncio.Semaphore(settings.most_starting)
        self.pool.fill()

    def launchers_by_name(self) -> dict[str, int]:
        """Process ids of live sessions' launchers, by the sessions' names."""
        return {name: live.attempt.helper.pid for name, live in self.live.items() if live.attempt is not None}

    def launchers(self) -> set[int]:
        """Process ids of live sessions' launchers."""
        return set(self.launchers_by_name().values())

    # Creating

    def create(self, request: SessionRequest, client_uid: int, key: str | None = None) -> tuple[Session, bool]:
        """Accepts a session; it is started in its turn.

        Args:
            request: what is wanted.
            client_uid: who wants it.
            key: of idempotency: the same request with the same key is accepted once.

        Returns:
            The session, and whether it is new.

        Raises:
            Refusal: service-stopping, usage, session-exists, quota-sessions, quota-client, idempotency-mismatch.
        """
        digest = hashlib.sha256(request.model_dump_json().encode(errors="surrogatepass")).hexdigest() if key else ""
        if key is not None:
            known = self.store.remembered(key, client_uid, digest)
            if known is not None:
                return self.session(known), False
        if self.closing is not None:
            raise Refusal("service-stopping", "the service is stopping", hint="try again when it runs again")
        options = self.options_of(request)
        clients = [live.client_uid for live in self.live.values()]
        admission.check_quotas(clients, client_uid, self.settings)
        if request.name is None:
            request = request.model_copy(update={"name": os.urandom(5).hex()})
        assert request.name is not None
        if request.name in self.live:
            raise exists(request.name)
        self.store.create(request, client_uid)
        self.counters.created += 1
        if key is not None:
            self.store.remember(key, client_uid, digest, request.name)
        live = self._live(request, client_uid, options.get("--env"))
        self.live[live.name] = live
        live.task = asyncio.get_running_loop().create_task(self._life(live), name=f"session {live.name}")
        return self.session(live.name), True

    def options_of(self, request: SessionRequest) -> dict[str, str | list[str] | bool]:
        """See `admission.options_of`."""
        return admission.options_of(request, self._parse)

    def _live(self, request: SessionRequest, client_uid: int, given: object) -> Live:
        environment = self._environment if request.environment is None else dict(request.environment)
        redact = Redactor(secrets(environment, given if isinstance(given, list) else (), self._declared))
        log_writer = logs.LogWriter(
            self.log_of(request.name or ""),
            redact,
            most_bytes=self.settings.log_bytes,
            files=self.settings.log_files,
        )
        return Live(request, environment, Streams(log_writer, self.settings.replay_bytes), client_uid)

    # Living

    async def _life(self, live: Live) -> None:
        """A session from its acceptance to its end."""
        attempt = 0
        outcome = Outcome(reason=Reason.STOPPED)
        try:
            self.registration.accepted(live.request)
            if live.request.wait_for_client:
                await self._await_client(live)
            while True:
                attempt += 1
                outcome = await self._attempt(live, attempt)
                pause = self._pause(live, outcome, attempt)
                if pause is None:
                    break
                why = f"{outcome.reason}, status {outcome.status}: again in {pause:g} s"
                live.streams.log.note(f"attempt {attempt} ended ({outcome.reason}, status {outcome.status})")
                self._move(live, SessionState.CREATED, why, outcome=outcome.model_dump_json())
                try:
                    await asyncio.wait_for(live.wake.wait(), pause)
                    break
                except TimeoutError:
                    continue
        except Refusal as refusal:
            outcome = Outcome(reason=Reason.REFUSED, status=refusal.exit_code, refusal=refusal.as_dict())
        except Exception as error:
            log.exception("session %s", live.name)
            outcome = Outcome(reason=Reason.REFUSED, status=125, refusal=failure(error).as_dict())
        finally:
            self._end(live, outcome)

    async def _await_client(self, live: Live) -> None:
        """Waits for the first client, or for the word to end.

        Raises:
            Refusal: session-unattended.
        """
        waiting = [asyncio.ensure_future(event.wait()) for event in (live.client, live.wake)]
        try:
            done, _ = await asyncio.wait(waiting, timeout=_CLIENT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        if not done:
            raise Refusal("session-unattended", "nobody has attached to the session, which was to wait for that",
                          context=f"within {_CLIENT_SECONDS:g} s")  # fmt: skip

    async def _attempt(self, live: Live, number: int) -> Outcome:
        """One attempt; its outcome."""
        async with self._turns:
            if live.stopped is not None:
                return Outcome(reason=live.stopped)
            try:
                known = functools.partial(self._known, live)
                attempt = Attempt(self.pool.take(), live.streams, known, self.pool.learn)
            except OSError as error:
                raise unstartable(error) from None
            live.attempt = attempt
            taken = attempt.helper
            self._move(live, SessionState.STARTING, "its turn has come", attempt=number, process=taken.pid,
                       process_started=taken.started, cgroup=taken.group)  # fmt: skip
            try:
                attempt.launch(live.request, live.environment, self._open_files)
            except OSError as error:
                live.attempt = None
                live.streams.finish_attempt()
                taken.kill()
                self.pool.drop(taken)
                self.pool.fill()
                raise unstartable(error) from None
            await attempt.begun.wait()
            self.pool.fill()
        if attempt.spawn_seconds is not None and not attempt.ended.is_set():
            self._running(live, attempt)
            await self.registration.placed(live.name, attempt.about[2], self.options_of(live.request))
        await attempt.ended.wait()
        if attempt.about and attempt.spawn_seconds is not None:
            self._running(live, attempt)
        await attempt.finish(self.pool, self.groups)
        live.attempt = None
        outcome = attempt.outcome(live.stopped)
        self.counters.count(outcome, attempt.spawn_seconds, ahead=attempt.ahead)
        return outcome

    def _known(self, live: Live, attempt: Attempt) -> None:
        """Writes down where a session works: if the service is killed, its commits are looked for there."""
        name, _, worktree, worktree_id, backend, network = attempt.about
        assert name == live.name
        self.store.note(name, worktree=worktree, worktree_id=worktree_id, backend=backend, network=network)

    def _running(self, live: Live, attempt: Attempt) -> None:
        """Writes down that the command runs, unless that is known, or it was asked to end meanwhile."""
        row = self.store.required(live.name)
        columns = {"spawn_seconds": attempt.spawn_seconds, "started": row["started"] or time.time()}
        if row["state"] == SessionState.STARTING:
            self._move(live, SessionState.RUNNING, f"its command runs, in {row['backend']}", **columns)
        elif row["spawn_seconds"] is None:
            self.store.note(live.name, **columns)

    def _pause(self, live: Live, outcome: Outcome, attempt: int) -> float | None:
        """Seconds until it is to be started again; None when it is not."""
        policy = live.request.restart
        failed = outcome.reason in (Reason.EXITED, Reason.SIGNALLED, Reason.LIMIT, Reason.LOST) and outcome.status != 0
        if policy.policy is not RestartPolicy.ON_FAILURE or not failed or attempt > policy.most:
            return None
        if live.stopped is not None or self.closing is not None:
            return None
        return float(min(self.settings.restart_seconds * 2 ** min(attempt - 1, 32), self.settings.most_restart_seconds))

    def _end(self, live: Live, outcome: Outcome) -> None:
        well = outcome.reason in (Reason.STOPPED, Reason.SERVICE_STOPPED, Reason.IDLE) or (
            outcome.reason is Reason.EXITED and outcome.status == 0
        )
        why = outcome.reason if outcome.status is None else f"{outcome.reason}, status {outcome.status}"
        try:
            self._move(
                live,
                SessionState.ENDED if well else SessionState.FAILED,
                why,
                ended=time.time(),
                outcome=outcome.model_dump_json(),
                process=None,
            )
        except Refusal as refusal:
            # The disk is full, say. At the next start the row is found live and becomes lost.
            log.error("session %s ended, which cannot be written down: %s", live.name, refusal.message)
        self.registration.ended(live.name)
        live.streams.close()
        self.live.pop(live.name, None)
        live.over.set()
        live.has_moved()

    def _move(self, live: Live, after: SessionState, why: str, **columns: Any) -> None:  # noqa: ANN401
        self.store.move(live.name, after, str(why), **columns)
        fields = {"session": live.name, "state": str(after)}
        log.info("session %s is %s: %s", live.name, after, why, extra={"fields": fields})
        live.has_moved()

    # Asking

    def session(self, name: str) -> Session:
        """What is known of a session.

        Raises:
            Refusal: session-unknown.
        """
        return session_of(self.store.required(name))

    def required(self, name: str) -> Live:
        """A session that is not over.

        Raises:
            Refusal: session-unknown, session-over.
        """
        live = self.live.get(name)
        if live is None:
            raise Refusal("session-over", f"session {name} is {self.store.required(name)['state']}",
                          hint=f"paddock logs {name} has what it wrote, paddock show {name} how it ended")  # fmt: skip
        return live

    def log_of(self, name: str) -> str:
        """Directory of a session's log."""
        return f"{self.logs}/{name}"

    async def wait(self, name: str, states: frozenset[SessionState], seconds: float) -> Session:
        """Waits until a session is in one of `states`, or over, or `seconds` have passed."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.session(name)
            live = self.live.get(name)
            left = deadline - time.monotonic()
            if found.state in states or live is None or left <= 0:
                return found
            moved = live.moved
            try:
                await asyncio.wait_for(moved.wait(), left)
            except TimeoutError:
                continue

    # Ending

    def signal(self, name: str, number: int, *, group: bool = False) -> None:
        """Sends a signal to a session's command.

        Args:
            name: the session.
            number: of `SENDABLE`.
            group: to the command's process group, as Ctrl-C at a terminal does.

        Raises:
            Refusal: session-unknown, session-over, session-not-running, signal-unknown.
        """
        if number not in SENDABLE.values():
            raise Refusal("signal-unknown", f"signal {number} cannot be sent to a session",
                          hint=f"one of {', '.join(SENDABLE)}")  # fmt: skip
        attempt = self.required(name).attempt
        if attempt is None:
            raise Refusal("session-not-running", f"session {name} has no process now", hint=f"paddock show {name}")
        attempt.send(number, self.groups, group=group)

    def stop(self, name: str, term_seconds: float | None = None, why: Reason = Reason.STOPPED) -> None:
        """Begins to end a session; a session that is over is left alone.

        Args:
            name: the session.
            term_seconds: patience between SIGTERM and the kill; the settings' when None.
            why: for its record.

        Raises:
            Refusal: session-unknown.
        """
        live = self.live.get(name)
        if live is None:
            self.store.required(name)
            return
        if live.stopped is None:
            live.stopped = why
            live.wake.set()
            if live.attempt is not None and not live.attempt.ended.is_set():
                self._move(live, SessionState.STOPPING, f"asked to end: {why}")
        patience = self.settings.term_seconds if term_seconds is None else term_seconds
        if live.stopping is not None and patience == 0:
            live.stopping.cancel()
            live.stopping = None
        if live.stopping is None or live.stopping.done():
            live.stopping = asyncio.get_running_loop().create_task(live.stop(self.settings, self.groups, patience))

    async def close(self, why: Reason = Reason.SERVICE_STOPPED) -> None:
        """Ends all sessions in order, and the helpers. No new session is accepted from now on."""
        self.closing = why
        everything = list(self.live.values())
        for live in everything:
            self.stop(live.name, why=why)
        for live in everything:
            await live.over.wait()
        self.pool.close()

    def forget(self, name: str) -> None:
        """Forgets a session that is over, and its log.

        Raises:
            Refusal: session-unknown, session-live.
        """
        self.store.forget(name)
        for left in logs.forget(self.log_of(name)):
            log.warning("log of %s not removed: %s", name, left)
