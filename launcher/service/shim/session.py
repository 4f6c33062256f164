"""A session in its shim: its attempts, states, clients and end."""

import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from launcher import loop
from launcher.safefs import walk
from launcher.service import log_files, packets
from launcher.service.packets import SHIM_END, SHIM_SOCKET
from launcher.service.shim.attempt import SENDABLE, Attempt, Event, Launcher, failure, unstartable
from launcher.service.shim.clients import Client, client_for
from launcher.service.shim.streams import TERMINAL, Streams
from policy.errors import Refusal
from policy.plan import USAGE

_RETRY_SECONDS = 5.0
_MOST_MOVES = 300
"""Kept for a service that catches up."""
_MOST_IN_MESSAGE = 50
_CLIENT_SECONDS = 60.0
_LOOK_SECONDS = 5.0
_HOME_SECONDS = 60.0
"""For the work of an agent on another machine to come home, once it was asked to stop."""
_LEAVING_SECONDS = 5.0
"""For a launcher to end whose session is over. That of an agent for editors carries what the agent said until then."""
_BACKLOG = 64
_WELL = ("stopped", "service-stopped", "idle")
_FAILED = ("exited", "signalled", "limit", "lost")
CREATED, STARTING, RUNNING, STOPPING = "created", "starting", "running", "stopping"
ENDED, FAILED, UNHARVESTED = "ended", "failed", "unharvested"
"""Of `launcher.service.schema.SessionState`."""


class Listener:
    """A service that listens.

    Attributes:
        moves: number of the last move that it knows; None until it has said so. It is not told of any until then: it
            would take a later one for all that it had missed.
        current: it knows all that there is to know of the session.
        waiting: other messages for it.
    """

    def __init__(self, connection: socket.socket, moves: int | None) -> None:
        """Args: nonblocking; `moves`."""
        self.connection = connection
        self.moves = moves
        self.current = moves is None
        self.waiting: list[dict[str, Any]] = []


class ShimSession:
    """The one session of this process.

    Attributes:
        name: its name.
        request: as the service's record has it (`launcher.service.schema.SessionRequest`), with the environment.
        streams: its standard streams.
    """

    def __init__(
        self,
        launch: dict[str, Any],
        channel: socket.socket,
        run: Callable[..., int],
        group: str,
        warm: Launcher | None,
    ) -> None:
        """Takes the launch; `serve` carries it out."""
        self.request: dict[str, Any] = launch["request"]
        self.name: str = self.request["name"]
        self._launch = launch
        self._settings: dict[str, Any] = launch["settings"]
        self._run = run
        self._group = group
        self._warm = warm
        self._directory = os.open(launch["directory"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        redact = log_files.Redactor(log_files.secrets(launch["environment"], launch["given"], launch["declared"]))
        writer = log_files.LogWriter(
            launch["logs"], redact, most_bytes=self._settings["log_bytes"], files=self._settings["log_files"]
        )
        self.streams = Streams(writer, self._settings["replay_bytes"], tuple(self.request["window"]))
        self.about: dict[str, Any] = {**launch["session"], "group": group}
        self._moves: list[dict[str, Any]] = []
        self._numbered = 0
        self._listeners: list[Listener] = [Listener(channel, 0)]
        self._clients: list[Client] = []
        self._attempt: Attempt | None = None
        self._stopped: str | None = None
        self._stopping: loop.Task | None = None
        self._wake = Event()
        self._client = Event()
        self._collected = Event()
        self._over = False
        self._idle_since: float | None = None
        self._editors: Any = None
        self._acp: Any = None
        if self.request["bridge"] == "acp":  # now: when an editor comes, it may be another Paddock that is installed
            from launcher.service.shim import editors

            self._acp = editors
        self._loop = loop.Loop(self._fault)
        self._socket: socket.socket | None = None

    def serve(self) -> int:
        """Keeps the session until it is over and reported; returns the exit status."""
        # A session may live for weeks, and be restarted without end. What is there already is shared with the launcher.
        gc.freeze()
        gc.enable()
        self._loop.call_soon(self._begin)
        self._loop.run()
        return 0

    def _fault(self, error: BaseException) -> None:
        self.streams.log.note(f"bug in Paddock: {error!r}")
        sys.stderr.write(f"paddock: session {self.name}: {error!r}\n")

    def _begin(self) -> None:
        self._loop.hear_signals()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._loop.post(lambda: self.stop(None, "stopped")))
        channel = self._listeners[0].connection
        channel.setblocking(False)
        self._loop.add_reader(channel.fileno(), lambda: self._hear(self._listeners_of(channel)))
        self._loop.spawn(self._life())
        self._look()

    # The session's life

    async def _life(self) -> None:
        outcome: dict[str, Any] = _outcome("stopped")
        try:
            self._listen()
            outcome = await self._attempts()
        except Refusal as refusal:
            outcome = _outcome("refused", refusal)
        except Exception as error:
            self._fault(error)
            outcome = _outcome("refused", failure(error))
        finally:
            await self._finish(outcome)
            self._loop.stop()

    async def _attempts(self) -> dict[str, Any]:
        if self.request["wait_for_client"]:
            await self._first_client()
        number = 0
        while True:
            number += 1
            outcome = await self._attempted(number)
            pause = self._pause(outcome, number)
            if pause is None:
                return outcome
            why = f"{outcome['reason']}, status {outcome['status']}"
            self.streams.log.note(f"attempt {number} ended ({why})")
            self._move(CREATED, f"{why}: retry in {pause:g} s", outcome=outcome, pid=None)
            if await self._wake.within(pause):
                return {**outcome, "reason": self._stopped}

    async def _first_client(self) -> None:
        either = Event()
        for event in (self._client, self._wake):
            event.also(either.set)
        if not await either.within(_CLIENT_SECONDS):
            raise Refusal("session-unattended", "no client attached to the session, which waits for one",
                          context=f"within {_CLIENT_SECONDS:g} s")  # fmt: skip

    async def _attempted(self, number: int) -> dict[str, Any]:
        if self._stopped is not None:
            return _outcome(self._stopped)
        warm, self._warm = self._warm, None
        try:
            if warm is None or warm.ended() is not None:
                warm = Launcher(self._run, self._group and f"{self._group}/run")
            attempt = Attempt(warm, self.streams, self._placed)
        except OSError as error:
            raise unstartable(error) from None
        self._attempt = attempt
        self._move(STARTING, "a slot was free", attempt=number, pid=warm.pid)
        launch = {key: self._launch[key] for key in ("words", "environment", "open_files")}
        launch |= {"directory": self.request["directory"], "umask": self.request["umask"]}
        launch["counts"] = f"{self._launch['directory']}/{USAGE}"
        try:
            attempt.launch(launch, self.request["stdin"])
        except OSError as error:
            self._attempt = None
            self.streams.finish_attempt()
            warm.close()
            raise unstartable(error) from None
        await attempt.begun.within()
        if not attempt.ended.happened:
            self._running(attempt)
        await attempt.ended.within()
        self._running(attempt)
        await attempt.finish()
        self._attempt = None
        if self.about.get("frozen"):
            self._note(frozen=False)
        return attempt.outcome(self._stopped)

    def _placed(self) -> None:
        """Takes the launcher's report of where it works."""
        assert self._attempt is not None
        name, _, worktree, worktree_id, backend, network = self._attempt.about
        assert name == self.name
        self._note(worktree=worktree, worktree_id=worktree_id, backend=backend, network=network)

    def _running(self, attempt: Attempt) -> None:
        """The command runs, unless that is known, or it was asked to end meanwhile."""
        if attempt.spawn_seconds is None:
            return
        changed = {"spawn_seconds": attempt.spawn_seconds, "started": self.about["started"] or time.time()}
        if self.about["state"] == STARTING:
            self._move(RUNNING, f"its command runs, in {self.about['backend']}", **changed)
        elif self.about["spawn_seconds"] is None:
            self._note(**changed)

    def _pause(self, outcome: dict[str, Any], attempt: int) -> float | None:
        """Seconds until it is to be started again; None when it is not."""
        restart = self.request["restart"]
        failed = outcome["reason"] in _FAILED and outcome["status"] != 0
        if restart["policy"] != "on-failure" or not failed or attempt > restart["most"] or self._stopped is not None:
            return None
        first, most = self._settings["restart_seconds"], self._settings["most_restart_seconds"]
        return float(min(first * 2 ** min(attempt - 1, 32), most))

    async def _finish(self, outcome: dict[str, Any]) -> None:
        """Tells everybody how it ended, and waits until that is written down somewhere."""
        if self._warm is not None:
            self._warm.close()
            self._warm = None
        well = outcome["reason"] in _WELL or (outcome["reason"] == "exited" and outcome["status"] == 0)
        refused = outcome["harvest"] is not None and "errorType" in outcome["harvest"]
        after = UNHARVESTED if refused else ENDED if well else FAILED
        why = outcome["reason"] if outcome["status"] is None else f"{outcome['reason']}, status {outcome['status']}"
        if refused:
            why += f"; its commits are not harvested: {outcome['harvest'].get('message', '')}"
        self.streams.log.flush()
        self._over = True
        self._move(after, why, ended=time.time(), outcome=outcome, pid=None)
        self.streams.close()
        for client in list(self._clients):
            client.over()
        recorded = self._recorded()
        while (not recorded and not self._collected.happened) or self._clients:
            if self._clients:
                gone = Event()
                self._loop.call_later(0.05, gone.set)
                await gone.within()
            elif not await self._collected.within(_RETRY_SECONDS):
                recorded = self._recorded()
        if self._socket is not None:
            self._socket.close()

    def _recorded(self) -> bool:
        content = json.dumps({"about": self.about, "moves": self._moves}).encode()
        try:
            walk.put(self._directory, SHIM_END, content, lasting=False)
        except FileNotFoundError:
            return True  # a service has taken it over, directory and all
        except OSError:
            return False
        return True

    # What is told

    def _note(self, **changed: Any) -> None:  # noqa: ANN401  # as the columns are
        self.about.update(changed)
        self._tell()

    def _move(self, after: str, why: str, **changed: Any) -> None:  # noqa: ANN401  # as the columns are
        self._numbered += 1
        before = self.about["state"]
        self.about.update(changed, state=after)
        self._moves.append({"number": self._numbered, "time": time.time(), "before": before, "after": after,
                            "attempt": self.about["attempt"], "why": str(why), **changed})  # fmt: skip
        del self._moves[:-_MOST_MOVES]
        self._tell()

    def _tell(self) -> None:
        for listener in list(self._listeners):
            if listener.moves is not None:
                listener.current = False
                self._flush(listener)

    def _send(self, listener: Listener, content: dict[str, Any]) -> None:
        listener.waiting.append(content)
        self._flush(listener)

    def _flush(self, listener: Listener) -> None:
        fd = listener.connection.fileno()
        try:
            while listener.moves is not None and not listener.current:
                known = listener.moves
                new = [move for move in self._moves if move["number"] > known][:_MOST_IN_MESSAGE]
                about = {**self.about, "log_note": self.streams.log.lost}
                packets.send(listener.connection, {"event": "state", "about": about, "moves": new})
                listener.moves = new[-1]["number"] if new else self._numbered
                listener.current = listener.moves == self._numbered
            while listener.waiting:
                packets.send(listener.connection, listener.waiting[0])
                listener.waiting.pop(0)
        except BlockingIOError:
            self._loop.add_writer(fd, lambda: self._flush(listener))
        except OSError:
            self._hung_up(listener)
        else:
            self._loop.remove_writer(fd)

    def session(self) -> dict[str, Any]:
        """See `launcher.service.shim.clients.Host`."""
        return {key: self.about[key] for key in self._launch["session"]}

    # Who asks

    def _listen(self) -> None:
        """Makes the socket by which services to come find this session."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        before = os.umask(0o177)
        try:
            made.bind(f"/proc/self/fd/{self._directory}/.{SHIM_SOCKET}")
            made.listen(_BACKLOG)
            # Under its name only now: a name that nobody answers at is that of a shim that was killed.
            os.rename(f".{SHIM_SOCKET}", SHIM_SOCKET, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except OSError as error:
            made.close()
            raise unstartable(error) from None
        finally:
            os.umask(before)
        self._socket = made
        self._loop.add_reader(made.fileno(), self._accept)

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return
        launcher = {self._attempt.launcher.pid} if self._attempt is not None else set()
        try:
            packets.check(packets.of(connection), os.geteuid(), lambda: launcher)
        except Refusal as refusal:
            self.streams.log.note(refusal.message)
            connection.close()
            return
        connection.setblocking(False)
        listener = Listener(connection, None)
        self._listeners.append(listener)
        self._loop.add_reader(connection.fileno(), lambda: self._hear(listener))

    def _listeners_of(self, connection: socket.socket) -> Listener:
        return next(each for each in self._listeners if each.connection is connection)

    def _hung_up(self, listener: Listener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)
            self._loop.remove_reader(listener.connection.fileno())
            self._loop.remove_writer(listener.connection.fileno())
            listener.connection.close()

    def _hear(self, listener: Listener) -> None:
        descriptors: list[int] = []
        try:
            content, descriptors = packets.receive(listener.connection)
            if content is None:
                self._hung_up(listener)
                return
            answer = self._asked(listener, content, descriptors)
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            self._hung_up(listener)
            return
        finally:
            for fd in descriptors:
                os.close(fd)
        if answer is not None:
            self._send(listener, {"event": "answer", "to": content.get("number"), "refusal": answer})

    def _asked(self, listener: Listener, content: dict[str, Any], descriptors: list[int]) -> dict[str, Any] | None:
        what = content["op"]
        try:
            if what == "hello":
                listener.moves, listener.current = min(int(content["moves"]), self._numbered), False
                self._flush(listener)
                return None
            if what == "collected":
                self._collected.set()
                return None
            if what == "settings":
                self._settings |= content["settings"]
                return None
            if what == "attach":
                self._attach(content["query"], bytes.fromhex(content["ahead"]), descriptors.pop(0))
                return None
            if what == "stop":
                self.stop(content["term_seconds"], content["why"])
            elif what == "signal":
                self.signal(int(content["signal"]), group=bool(content["group"]))
            elif what == "freeze":
                self.freeze(frozen=bool(content["frozen"]))
        except Refusal as refusal:
            return dict(refusal.as_dict())
        return {}

    # Clients

    def _attach(self, query: str, ahead: bytes, fd: int) -> None:
        connection = socket.socket(fileno=fd)
        try:
            client = client_for(self, query, self._editor)
        except Refusal as refusal:
            with connection, suppress(OSError):  # it is gone already: no fault of the service's, which waits here
                connection.setblocking(False)
                connection.send(packets.raw(refusal))  # the first bytes on it: there is room
            return
        client.begin(connection, ahead)
        self._client.set()
        if self._over:
            client.over()

    def _editor(self, take: bool) -> Client:
        assert self._acp is not None
        if self._editors is None:
            self._editors = self._acp.AgentSide(self.streams)
        client: Client = self._acp.EditorClient(self, self._editors, take=take)
        return client

    def joined(self, client: Client) -> None:
        """See `launcher.service.shim.clients.Host`."""
        self._clients.append(client)
        self._note(attached=len(self._clients))

    def detached(self, client: Client) -> None:
        """See `launcher.service.shim.clients.Host`."""
        if client in self._clients:
            self._clients.remove(client)
            self._note(attached=len(self._clients))

    # Ending

    def freeze(self, *, frozen: bool) -> None:
        """Lets nothing of the session run until it is let go on, or asked to end."""
        if self._attempt is None:
            raise Refusal("session-not-running", f"session {self.name} has no process at the moment",
                          hint=f"paddock show {self.name}")  # fmt: skip
        self._attempt.freeze(frozen=frozen)
        self._note(frozen=frozen)

    def signal(self, number: int, *, group: bool = False) -> None:
        """Sends one of `SENDABLE` to the command, or to its process group, as Ctrl-C at a terminal does."""
        if number not in SENDABLE.values():
            raise Refusal("signal-unknown", f"signal {number} cannot be sent to a session",
                          hint=f"one of {', '.join(SENDABLE)}")  # fmt: skip
        if self._attempt is None:
            raise Refusal("session-not-running", f"session {self.name} has no process at the moment",
                          hint=f"paddock show {self.name}")  # fmt: skip
        self._attempt.send(number, group=group)

    def stop(self, term_seconds: float | None, why: str) -> None:
        """Begins to end the session."""
        if self._over:
            return
        if self._stopped is None:
            self._stopped = why
            self._wake.set()
            if self._attempt is not None and not self._attempt.ended.happened:
                self._move(STOPPING, f"asked to end: {why}")
        patience = self._settings["term_seconds"] if term_seconds is None else term_seconds
        if self._stopping is not None and patience == 0:
            self._stopping.cancel()
            self._stopping = None
        if self._stopping is None or self._stopping.done:
            self._stopping = self._loop.spawn(self._end(patience))

    async def _end(self, term_seconds: float) -> None:
        """Ends the present attempt in order: standard input, SIGTERM, kill of the jail, kill of its launcher.

        A terminal hangs up in place of standard input's end. Without patience (`term_seconds` 0) the jail is killed at
        once.
        """
        attempt = self._attempt
        if attempt is None:
            return
        if self.about.get("frozen"):
            self.freeze(frozen=False)  # or it would hear nothing of it
        if self.streams.has_input and term_seconds:
            if self.request["stdin"] == TERMINAL:
                attempt.send(signal.SIGHUP, group=True)  # an interactive shell obeys no SIGTERM
            else:
                self.streams.end_input()
            if await attempt.ended.within(self._settings["stdin_seconds"]):
                return
        if term_seconds and not attempt.at_home:
            attempt.send(signal.SIGTERM)
            term_seconds += _HOME_SECONDS if self.request["bridge"] == "remote" else 0
            if await attempt.ended.within(term_seconds):
                return
        attempt.kill_jail()
        patience = self._settings["end_seconds"]
        if await attempt.reported.within(patience):
            patience = _LEAVING_SECONDS
            if await attempt.ended.within(patience):
                return
        self.streams.log.note(f"the launcher did not end within {patience:g} s and is killed")
        attempt.launcher.signal(signal.SIGKILL)

    def _look(self) -> None:
        """Ends an agent for editors that has long had neither an editor nor work.

        An agent that works, or waits for a person's answer, is not idle, however long nobody looks on.
        """
        patience = self._settings["agent_idle_seconds"]
        self._loop.call_later(min(_LOOK_SECONDS, patience + 0.5) if patience else _LOOK_SECONDS, self._look)
        if not self._listeners and os.readlink(f"/proc/self/fd/{self._directory}").endswith(" (deleted)"):
            self.streams.log.note("its directory is missing, so no service could find it again")
            self.stop(None, "lost")
        hub = self._editors.hub if self._editors is not None else None
        now = time.monotonic()
        if (
            not patience
            or self.request["bridge"] != "acp"
            or self._attempt is None
            or self._stopped is not None
            or (hub is not None and (hub.clients or hub.busy))
        ):
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since >= patience:
            self.streams.log.note(f"no editor for {patience:g} s")
            self.stop(None, "idle")


def _outcome(reason: str, refusal: Refusal | None = None) -> dict[str, Any]:
    return {
        "reason": reason, "status": None if refusal is None else refusal.exit_code, "signal": None, "limit": None,
        "denials": 0, "refusal": None if refusal is None else refusal.as_dict(), "harvest": None, "handoff": (),
        "notes": (),
    }  # fmt: skip
