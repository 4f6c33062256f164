"""The supervisor: accepts sessions, hands each to a shim in its turn, and follows their states.

Everything happens on the service's one thread, and none of a session's output passes through it. A session that lives
has a `Live`; one that is over is a row. Sessions outlive the service: the next one adopts them (`recovery`).
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.safefs.remove import remove_tree
from launcher.service.event_log import Counters, Events
from launcher.service.instance import Directories
from launcher.service.schema import Outcome, Reason, Session, SessionRequest, SessionState
from launcher.service.settings import Settings
from launcher.service.shim.attempt import SENDABLE, failure, unstartable
from launcher.service.shims import Groups, Pool, Shim
from launcher.service.tables import SessionStore, exists, recorded, session_of
from launcher.session import planning
from launcher.vcs import checkout
from launcher.vcs.disk import Present
from launcher.vcs.worktrees import models
from launcher.workflow.request_context import RequestContext, RequestContextRepository
from launcher.workflow.requests import ArtifactKey
from policy.errors import Refusal
from policy.sandbox_context import WorktreeSandboxContext

# Whether a session is accepted: its words and the quotas, before anything is written down or started.


Parse = Callable[[list[str]], tuple[dict[str, str | list[str] | bool], list[str]]]
"""Understands `SessionRequest.words`: options by name, and the command."""

_NOT_HERE = ("--session", "--supervised", "--detach", "--report", "--dry-run", "--help")


def options_of(request: SessionRequest, parse: Parse) -> dict[str, str | list[str] | bool]:
    """The options of a request. Refuses what `paddock run` would refuse at once, and what means nothing here."""
    options, command = parse(request.words())
    if command != list(request.command):
        raise _usage("the options contain a word that is not an option")
    for name in _NOT_HERE:
        if name in options:
            raise _usage(f"{name} does not apply to sessions of the service")
    return options


def _usage(message: str) -> Refusal:
    return Refusal("usage", message, hint="paddock run --help; the command's own options belong in its command")


def check_quotas(clients: Sequence[int], client_uid: int, settings: Settings) -> None:
    """Refuses one session more than there may be."""
    if len(clients) >= settings.most_sessions:
        raise Refusal(
            "quota-sessions",
            f"limit of {settings.most_sessions} live sessions reached",
            hint="paddock ps; stop some, or raise most_sessions in service.toml",
        )
    if clients.count(client_uid) >= settings.most_sessions_of_client:
        raise Refusal(
            "quota-client",
            f"user {client_uid} has reached the limit of {settings.most_sessions_of_client} live sessions per client",
            hint="paddock ps; stop some, or raise most_sessions_of_client in service.toml",
        )


log = logging.getLogger("paddock.service")

# Sessions in the request-context repository: who names one, by the text of its key, is told the boundaries it has.
#
# The key of a session is ``session/NAME``. Its context gets its labels when the session is accepted, its worktree when
# its command runs, and expires with it. Sessions of ticket runs have the context of their
# request, too, under the id that their label ``session-id`` names.


def key_of(name: str) -> ArtifactKey:
    """The key of a session's context. A session's name is always one plain segment of a key."""
    return ArtifactKey(f"session/{name}")


class Registration:
    """Keeps the contexts of sessions. What goes wrong here is logged: the jail holds a session, not its context.

    Args:
        later: makes a write as soon as the repository takes it, in turn (`Database.later`).
    """

    def __init__(self, contexts: RequestContextRepository, later: Callable[[Callable[[], object]], None]) -> None:
        self._contexts = contexts
        self._later = later

    def of(self, name: str) -> RequestContext | None:
        """The context of a session; None when it is over, or unknown."""
        return self._contexts.get(key_of(name))

    def accepted(self, request: SessionRequest) -> None:
        """A session was accepted."""
        labels = {"session": request.name or "", **({"bridge": request.bridge} if request.bridge else {})}
        key = key_of(request.name or "")
        self._later(lambda: self._contexts.update(key, lambda before: before.with_metadata(**labels)))

    async def placed(self, name: str, worktree: str, options: Mapping[str, str | list[str] | bool]) -> None:
        """A session's command runs."""
        try:
            context = await asyncio.to_thread(_boundaries, worktree, options)
        except (Refusal, OSError, ValueError) as error:  # the worktree has been removed meanwhile, say
            log.warning("session %s is registered without its worktree: %s", name, error)
            return
        self._later(lambda: self._contexts.update(key_of(name), lambda before: before.evolve(worktree_context=context)))

    def ended(self, name: str) -> None:
        """A session is over: nothing may act for it any more."""
        self._later(lambda: self._contexts.clear(key_of(name)))


def _boundaries(worktree: str, options: Mapping[str, str | list[str] | bool]) -> WorktreeSandboxContext:
    wanted = options.get("--submodule")
    found = checkout.find(worktree, Present(), exact=True)
    boundaries = planning.boundaries_of(found, wanted if isinstance(wanted, list) else [], "--freeze-root" in options)
    return models.context_of(boundaries)


_OF_SHIMS = (
    "replay_bytes", "log_bytes", "log_files", "stdin_seconds", "term_seconds", "end_seconds", "restart_seconds",
    "most_restart_seconds", "agent_idle_seconds",
)  # fmt: skip
"""Settings that shims obey."""
_COLUMNS = ("worktree", "worktree_id", "backend", "network", "spawn_seconds", "started", "ended")
_LEAVE_SECONDS = 10.0
_AGAIN_SECONDS = 0.2
_ENDING_SECONDS = 5.0
"""For a session whose process has hung up to be known as over, or to be joined again."""


class Live:
    """A session that is not over.

    Attributes:
        name: its name.
        bridge: see `SessionRequest`.
        client_uid: who asked for it.
        directory: of its shim.
        about: what its shim said last of it; the fields of `Session` at least.
        shim: None until a slot was free.
        stopped: why somebody has asked for its end.
        ready: set when it has a shim, or never will.
        begun: set when its command runs, waits for a client, or never will.
        over: set when it is over.
        moved: set and replaced at each move, for those who wait for one.
        moves: number of the last one that was heard of.
        unwritten: moves that the database has not taken yet.
    """

    def __init__(self, name: str, directory: str, about: dict[str, Any]) -> None:
        self.name = name
        self.directory = directory
        self.about = about
        self.shim: Shim | None = None
        self.stopped: Reason | None = None
        self.patience: float | None = None
        self.ready = asyncio.Event()
        self.begun = asyncio.Event()
        self.over = asyncio.Event()
        self.moved = asyncio.Event()
        self.moves = 0
        self.unwritten: list[dict[str, Any]] = []
        self.task: asyncio.Task[None] | None = None

    @property
    def client_uid(self) -> int:
        """Who asked for it."""
        return int(self.about["client_uid"])

    @property
    def state(self) -> SessionState:
        """Where it is."""
        return SessionState(self.about["state"])

    def has_moved(self) -> None:
        """Wakes all that wait for a move."""
        self.moved.set()
        self.moved = asyncio.Event()


class Supervisor:
    """All sessions of one service."""

    def __init__(
        self,
        store: SessionStore,
        settings: Settings,
        groups: Groups,
        registration: Registration,
        *,
        own: Directories,
        environment: Mapping[str, str],
        open_files: int,
        parse: Parse,
        declared: tuple[str, ...] = (),
        harvest: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepares; `start` begins.

        `environment` is for sessions that bring none; `open_files` is their soft limit (RLIMIT_NOFILE), which the
        service's own may exceed; `declared` names variables that hold credentials; `harvest` is called when a session
        has left commits that wait.
        """
        self.store = store
        self.settings = settings
        self.groups = groups
        self.registration = registration
        self.pool = Pool(settings.helpers, groups)
        self.live: dict[str, Live] = {}
        self.closing: Reason | None = None
        self.counters = Counters()
        self.events = Events(store.database)
        self.harvest = harvest
        self._own = own
        self.logs = own.logs
        self._environment = dict(environment)
        self._open_files = open_files
        self._parse = parse
        self._declared = declared
        self._turns = asyncio.Semaphore(settings.most_starting)
        self._leaving = False
        self._unwritten: list[Live] = []  # sessions that are over, and whose end the database lacks
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Starts the warm helpers."""
        self.pool.fill()

    def reload(self, settings: Settings) -> None:
        """Obeys other settings from now on; live sessions continue."""
        self.settings = settings
        self.pool.size = settings.helpers
        self._turns = asyncio.Semaphore(settings.most_starting)
        self.pool.fill()
        for live in self.live.values():
            if live.shim is not None:
                live.shim.send("settings", settings=self._of_shims())

    def _of_shims(self) -> dict[str, Any]:
        return {name: getattr(self.settings, name) for name in _OF_SHIMS}

    def launchers_by_name(self) -> dict[str, int]:
        """Process ids of live sessions' launchers, by the sessions' names."""
        return {name: live.about["pid"] for name, live in self.live.items() if live.about["pid"]}

    def launchers(self) -> set[int]:
        """Process ids of live sessions' launchers."""
        return set(self.launchers_by_name().values())

    @property
    def attached(self) -> int:
        """How many clients are attached to sessions."""
        return sum(live.about["attached"] for live in self.live.values())

    # Creating

    def create(self, request: SessionRequest, client_uid: int, key: str | None = None) -> tuple[Session, bool]:
        """Accepts a session, once for the same key, and starts it in its turn; returns it, and whether it is new."""
        digest = hashlib.sha256(request.model_dump_json().encode(errors="surrogatepass")).hexdigest() if key else ""
        if key is not None:
            known = self.store.remembered(key, client_uid, digest)
            if known is not None:
                return self.session(known), False
        if self.closing is not None or self._leaving:
            raise Refusal("service-stopping", "the service is stopping", hint="try again once it is running again")
        options = self.options_of(request)
        clients = [live.client_uid for live in self.live.values()]
        check_quotas(clients, client_uid, self.settings)
        if request.name is None:
            request = request.model_copy(update={"name": os.urandom(5).hex()})
        assert request.name is not None
        if request.name in self.live:
            raise exists(request.name)
        self.store.create(request, client_uid, key, digest)
        try:
            directory, lock = self._own.session(request.name, recorded(request), client_uid)
        except Refusal:
            self.store.forget(request.name, live=True)
            raise
        self.counters.created += 1
        self.events.moved(request.name, SessionState.CREATED, "accepted")
        live = Live(request.name, directory, self.session(request.name).model_dump(mode="json"))
        self.live[live.name] = live
        live.task = self._spawn(self._launch(live, request, options.get("--env"), lock), f"session {live.name}")
        return self.session(live.name), True

    def options_of(self, request: SessionRequest) -> dict[str, str | list[str] | bool]:
        """See `options_of`."""
        return options_of(request, self._parse)

    def _spawn(self, work: Any, name: str) -> asyncio.Task[None]:  # noqa: ANN401  # a coroutine
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _launch(self, live: Live, request: SessionRequest, given: object, lock: int) -> None:
        environment = self._environment if request.environment is None else dict(request.environment)
        try:
            self.registration.accepted(request)
            async with self._turns if not self._leaving else contextlib.nullcontext():
                if live.stopped is not None:
                    self._lost(live, SessionState.ENDED, Outcome(reason=live.stopped))
                    return
                shim = self.pool.take()
                content = request.model_dump(mode="json", exclude={"environment"})
                taken = shim.send(
                    "launch", lock, request=content, words=request.words("--session", live.name), session=live.about,
                    environment=environment, open_files=self._open_files, settings=self._of_shims(),
                    declared=self._declared, given=given if isinstance(given, list) else [],
                    logs=self.log_of(live.name), directory=live.directory,
                )  # fmt: skip
                if not taken:
                    shim.kill()
                    self.pool.drop(shim)
                    raise unstartable(OSError(32, "its process has ended"))
                self._join(live, shim)
                if not request.wait_for_client and not self._leaving:
                    await live.begun.wait()
                self.pool.fill()
        except OSError as error:
            self._refused(live, unstartable(error))
        except Refusal as refusal:
            self._refused(live, refusal)
        except Exception as error:
            log.exception("session %s", live.name)
            self._refused(live, failure(error))
        finally:
            os.close(lock)

    def _refused(self, live: Live, refusal: Refusal) -> None:
        outcome = Outcome(reason=Reason.REFUSED, status=refusal.exit_code, refusal=refusal.as_dict())
        self._lost(live, SessionState.FAILED, outcome)

    # What shims say

    def adopt(self, live: Live, shim: Shim) -> None:
        """Takes over a live session of an earlier service; its shim reports what happened since."""
        self.live[live.name] = live
        live.begun.set()
        self._join(live, shim)
        shim.send("hello", moves=live.moves)
        shim.send("settings", settings=self._of_shims())

    def _join(self, live: Live, shim: Shim) -> None:
        live.shim = shim
        live.ready.set()
        asyncio.get_running_loop().add_reader(shim.channel, self._hear, live, shim)
        if live.stopped is not None:
            shim.send("stop", term_seconds=live.patience, why=live.stopped)

    def _hear(self, live: Live, shim: Shim) -> None:
        messages, more = shim.messages()
        for message in messages:
            try:
                if message["event"] == "state":
                    self.heard(live, message["about"], message["moves"])
            except Exception:
                log.exception("session %s", live.name)
        if not more:
            asyncio.get_running_loop().remove_reader(shim.channel)
            if not live.over.is_set():
                self._spawn(self._hung_up(live, shim), f"shim of {live.name}")
            else:
                self._let_go(shim)
                # The shim may have written there while it was removed. What the database lacks is still needed.
                if live.name not in self.live and not live.unwritten:
                    self._remove(live)

    def heard(self, live: Live, about: dict[str, Any], moves: list[dict[str, Any]]) -> None:
        """Takes all that a shim knows of its session, and the moves from state to state since the last time."""
        changed = any(about[name] != live.about.get(name) for name in _COLUMNS)
        live.about = about
        moves = [move for move in moves if not move["number"] or move["number"] > live.moves]
        for move in moves:
            gap = not move["number"] or move["number"] != live.moves + 1
            live.unwritten.append({**move, "about": about, "gap": gap})
            live.moves = move["number"] or live.moves
            self._moved(live, move)
        self._write(live, note=changed and not moves)
        if moves and SessionState(moves[-1]["after"]).final:
            self._over(live)
        elif moves:
            live.has_moved()

    def _moved(self, live: Live, move: dict[str, Any]) -> None:
        after, why = SessionState(move["after"]), move["why"]
        if after is SessionState.RUNNING:
            self.counters.spawn.add(move["spawn_seconds"])
            self._spawn(self._placed(live), f"place of {live.name}")
        if after not in (SessionState.CREATED, SessionState.STARTING) or move.get("outcome"):
            live.begun.set()
        outcome = Outcome.model_validate(move["outcome"]) if move.get("outcome") else None
        self.events.moved(live.name, after, why, outcome, live.about["worktree"])
        if outcome is not None:
            self.counters.count(outcome)
            if outcome.reason is Reason.LOST or (outcome.harvest and "errorType" in outcome.harvest):
                self.harvest()

    async def _placed(self, live: Live) -> None:
        row = self.store.row(live.name)
        if row is not None:
            request = SessionRequest.model_validate({**json.loads(row["request"]), "environment": None})
            await self.registration.placed(live.name, live.about["worktree"], self.options_of(request))

    def _write(self, live: Live, *, note: bool = False) -> None:
        """Writes down what has happened. What the database does not take now is tried again (`write_again`)."""
        try:
            while live.unwritten:
                move = live.unwritten[0]
                outcome = move.get("outcome")
                columns = {name: move["about"].get(name) for name in _COLUMNS}
                columns |= {"process": move["about"]["pid"], "cgroup": move["about"]["group"]}
                if outcome is not None:
                    columns["outcome"] = json.dumps(outcome)
                if move["number"]:
                    columns["moves"] = move["number"]
                self.store.move(
                    live.name, SessionState(move["after"]), move["why"], attempt=move["attempt"], when=move["time"],
                    checked=not move.get("gap"), **columns,
                )  # fmt: skip
                live.unwritten.pop(0)
            if note:
                self.store.note(live.name, **{name: live.about.get(name) for name in _COLUMNS})
        except Refusal as refusal:
            if refusal.reference in ("session-transition", "session-unknown"):  # nothing will make it fit
                log.error("session %s: %s", live.name, refusal.message)
                live.unwritten.clear()
                return
            log.error("session %s is %s, which cannot be recorded now: %s", live.name, live.state, refusal.message)

    def write_again(self) -> bool:
        """Writes down what could not be before; whether nothing waits any more. To be called now and then."""
        for live in [*self.live.values(), *self._unwritten]:
            if live.unwritten:
                self._write(live)
        for live in [each for each in self._unwritten if not each.unwritten]:
            self._unwritten.remove(live)
            self._collected(live)
        return not any(live.unwritten for live in [*self.live.values(), *self._unwritten])

    async def _hung_up(self, live: Live, shim: Shim) -> None:
        """Handles a shim that hung up before its session was over: it was killed, or this service read too late."""
        while not shim.ended():
            try:
                again = Shim.join(live.directory)
            except (OSError, Refusal) as error:
                log.info("session %s: its shim does not answer now: %s", live.name, error)
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            again.group = shim.group
            shim.close()
            self._join(live, again)
            again.send("hello", moves=live.moves)
            return
        self._let_go(shim)
        end = self._own.end(live.name)
        if end is not None:
            self.heard(live, end["about"], end["moves"])
            if live.over.is_set():
                return
        self.lose(live, "its processes were killed")

    def lose(self, live: Live, why: str) -> None:
        """Records a session as over whose end was not observed."""
        self._lost(live, SessionState.LOST, Outcome(reason=Reason.LOST), why)

    def _let_go(self, shim: Shim) -> None:
        """Ends a finished shim's control group, and forgets the shim."""
        if shim.group:
            self.groups.kill(shim.group)
        shim.ended()
        self.pool.drop(shim)

    def _lost(self, live: Live, after: SessionState, outcome: Outcome, why: str = "") -> None:
        """A session without a shim is over."""
        move = {
            "number": 0, "time": time.time(), "after": after, "attempt": live.about["attempt"],
            "why": why or (outcome.reason if outcome.status is None else f"{outcome.reason}, status {outcome.status}"),
            "outcome": outcome.model_dump(mode="json"), "ended": time.time(),
        }  # fmt: skip
        about = {"group": "", **live.about, "state": str(after), "ended": time.time(), "pid": None}
        self.heard(live, about, [move])

    def _over(self, live: Live) -> None:
        self.live.pop(live.name, None)
        self.registration.ended(live.name)
        live.about["attached"] = 0
        for event in (live.ready, live.begun, live.over):
            event.set()
        live.has_moved()
        if live.unwritten:
            self._unwritten.append(live)
        else:
            self._collected(live)

    def _collected(self, live: Live) -> None:
        if live.shim is None:
            self._remove(live)
            return
        remove_tree(live.directory)
        live.shim.send("collected")

    def _remove(self, live: Live) -> None:
        for name in remove_tree(live.directory):
            log.warning("session %s: %s was not removed", live.name, name)

    # Asking

    def session(self, name: str) -> Session:
        """What is known of a session (else session-unknown)."""
        live = self.live.get(name) or next((each for each in self._unwritten if each.name == name), None)
        if live is not None and live.shim is not None:
            return Session.model_validate({key: live.about[key] for key in Session.model_fields if key in live.about})
        return session_of(self.store.required(name))

    def required(self, name: str) -> Live:
        """A session that is not over (else session-unknown or session-over)."""
        live = self.live.get(name)
        if live is None:
            raise Refusal("session-over", f"session {name} is {self.store.required(name)['state']}",
                          hint=f"its output: paddock logs {name}; how it ended: paddock show {name}")  # fmt: skip
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
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(moved.wait(), left)

    async def attach(self, name: str, query: str, ahead: bytes, connection: int) -> None:
        """Hands a client's connection to the session's shim, once it has one; the descriptor stays the caller's."""
        live = self.required(name)
        await live.ready.wait()
        if live.shim is None or not live.shim.send("attach", connection, query=query, ahead=ahead.hex()):
            raise Refusal("session-over", f"session {name} has just ended", hint=f"paddock show {name}")

    # Ending

    async def signal(self, name: str, number: int, *, group: bool = False) -> None:
        """Sends one of `SENDABLE` to a session's command, or to its process group, as Ctrl-C at a terminal does."""
        if number not in SENDABLE.values():
            raise Refusal("signal-unknown", f"signal {number} cannot be sent to a session",
                          hint=f"one of {', '.join(SENDABLE)}")  # fmt: skip
        shim = self.required(name).shim
        if shim is None:
            raise Refusal(
                "session-not-running", f"session {name} has no process at the moment", hint=f"paddock show {name}"
            )
        await shim.ask("signal", signal=number, group=group)

    async def freeze(self, name: str, *, frozen: bool) -> None:
        """Lets nothing of a live session run, or lets it go on (refused without control groups)."""
        shim = self.required(name).shim
        if shim is None:
            raise Refusal(
                "session-not-running", f"session {name} has no process at the moment", hint=f"paddock show {name}"
            )
        await shim.ask("freeze", frozen=frozen)

    def stop(self, name: str, term_seconds: float | None = None, why: Reason = Reason.STOPPED) -> None:
        """Begins to end a session; a session that is over is left alone."""
        live = self.live.get(name)
        if live is None:
            self.store.required(name)
            return
        live.stopped, live.patience = live.stopped or why, term_seconds
        if live.shim is not None:
            live.shim.send("stop", term_seconds=term_seconds, why=live.stopped)

    async def ask_to_stop(self, name: str, term_seconds: float | None = None, why: Reason = Reason.STOPPED) -> None:
        """`stop`; returns when the session is known to be ending."""
        live = self.live.get(name)
        if live is None or live.shim is None:
            self.stop(name, term_seconds, why)
            return
        live.stopped = live.stopped or why
        try:
            await live.shim.ask("stop", term_seconds=term_seconds, why=live.stopped)
        except Refusal:
            # It has just ended by itself, or is joined again in a moment, and is told then.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(live.over.wait(), _ENDING_SECONDS)
            if not live.over.is_set():
                raise

    async def close(self, why: Reason = Reason.SERVICE_STOPPED) -> None:
        """Ends all sessions in order, and the helpers. No new session is accepted from now on."""
        self.closing = why
        everything = list(self.live.values())
        await asyncio.gather(*(self._stopped_or_killed(live, why) for live in everything))
        for live in everything:
            await live.over.wait()
        self._end()

    async def _stopped_or_killed(self, live: Live, why: Reason) -> None:
        """Begins to end a session. One whose shim does not answer is killed, or this process would never end."""
        try:
            await self.ask_to_stop(live.name, why=why)
        except Refusal as refusal:
            log.error("session %s is killed: %s", live.name, refusal.message)
            if live.shim is not None:
                live.shim.kill()

    async def leave(self) -> None:
        """Leaves all sessions to themselves, and to the next service. No new session is accepted from now on."""
        self._leaving = True
        waiting = [live for live in self.live.values() if live.shim is None]
        for _ in waiting:  # a session that waits for its turn is known to this process alone
            self._turns.release()
        for live in waiting:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(live.ready.wait(), _LEAVE_SECONDS)
        for live in self.live.values():
            if live.shim is not None:
                asyncio.get_running_loop().remove_reader(live.shim.channel)
                live.shim.close()
        self._end()

    def _end(self) -> None:
        self.write_again()
        for task in self._tasks:
            task.cancel()
        self.pool.close()

    def forget(self, name: str) -> None:
        """Forgets a session that is over, and its log."""
        self.store.forget(name)
        for left in remove_tree(self.log_of(name)):
            log.warning("log of %s not removed: %s", name, left)
