"""`paddock acp` from start to end: the provider in its jail, the conversation with its client, the ending.

Two processes. The child is the launcher of an ordinary session (`launcher.session.run`), with pipes for its standard
input and output; this one, which the client knows, carries the lines and judges them. The child dies with this process,
and its jail with the child, so that a SIGKILL here leaves nothing.

Nothing is read from the client before the provider is executed: what is refused until then is the answer to it.

When the client closes its side the provider gets the end of its input, when a signal asks this process to end it gets
the signal; then a grace period, then SIGTERM, then the jail is ended. The launcher finishes the session as always.
"""

import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from launcher.bridges.acp import refused, rpc
from launcher.bridges.acp.agent_requests import AgentRequests
from launcher.bridges.acp.carrier import Carrier, Lines, Poll
from launcher.bridges.acp.client_requests import ClientRequests, Place, SessionDirectories
from launcher.bridges.acp.rpc import Outcome
from launcher.bridges.acp.rulings import Choices, Decisions, Rules
from launcher.bridges.acp.terminals import Inside
from launcher.jail import hygiene, init, processes
from launcher.ledger import ledgers
from launcher.session import cache, exec_client, messages, run, state
from launcher.session.places import Places
from policy.errors import EXIT_REFUSED, Refusal, printable

# What the launcher of a bridge's session tells the bridge, by a pipe, in lines of words.
#
# Which process is the jail's init; that the provider was executed, or why it was not.


class Teller:
    """The launcher's end."""

    def __init__(self, fd: int) -> None:
        """Takes over the descriptor to write to."""
        self._fd = fd

    def init(self, pid: int) -> None:
        """The jail's init is there."""
        self._write(f"init {pid}\n".encode())

    def begun(self) -> None:
        """The provider is executed: there is no more to be told."""
        self._write(b"begun\n")
        if self._fd != -1:
            os.close(self._fd)
        self._fd = -1

    def refused(self, refusal: Refusal) -> None:
        """Nothing is started. Of a Refusal whose text is too long the first words are told."""
        for most in (1000, 200):
            told = [text[:most] for text in (refusal.reference, refusal.message, refusal.context, refusal.hint)]
            line = f"refused {json.dumps([*told, refusal.exit_code])}\n".encode()
            if len(line) <= select.PIPE_BUF:
                self._write(line)
                return

    def _write(self, line: bytes) -> None:
        if self._fd != -1:
            os.write(self._fd, line)


class Listener:
    """The bridge's end.

    Attributes:
        fd: to be polled; -1 when nothing more is told.
        init: process id of the jail's init; 0 when there is none yet.
        begun: whether the provider was executed.
        refusal: why it was not.
    """

    def __init__(self, fd: int) -> None:
        """Takes over the descriptor to read from."""
        os.set_blocking(fd, False)
        self.fd = fd
        self.init = 0
        self.begun = False
        self.refusal: Refusal | None = None
        self._rest = b""

    def read(self) -> None:
        """Takes what was told."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            what, _, rest = line.partition(b" ")
            if what == b"init":
                self.init = int(rest)
            elif what == b"begun":
                self.begun = True
            elif what == b"refused":
                reference, message, context, hint, code = json.loads(rest)
                self.refusal = Refusal(reference, message, context=context, hint=hint, exit_code=code)
        if not data:
            self.close()

    def close(self) -> None:
        """Gives it up. Safe to call twice."""
        if self.fd != -1:
            os.close(self.fd)
        self.fd = -1


GRACE = 5.0
"""Seconds for a provider to end by itself when the client has left."""

_AFTER_TERM = 2.0
"""Seconds between SIGTERM and the end of the jail."""

_FINISHING = 60.0
"""Seconds for the launcher to finish a session (harvest, ledger) whose jail was ended."""

_LAST_WORDS = 1.0
"""Seconds for a client to read the provider's last words, when this process was asked to end."""

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def serve(
    entry: cache.Entry,
    arguments: tuple[str, ...],
    places: Places,
    *,
    given: dict[str, str],
    name: str | None,
    report: str | None,
    verbose: bool,
    quiet: bool,
    strict: bool,
    choices: Choices,
    grace: float = GRACE,
    observer: Callable[[str, Any], None] | None = None,
) -> int:
    """Runs the planned provider between this process's standard input and output, to its end.

    To be called once, in a process without other threads.

    Args:
        entry: the Plan with what goes with it.
        arguments: the caller's arguments for the provider.
        places: Paddock's own directories.
        given: see `run.run`, as for `report`, `verbose`, `quiet` and `strict`.
        name: the session's name, None for a random one.
        report: file for the enforcement report.
        verbose: say on stderr what is done.
        quiet: no summary of what was refused.
        strict: refuse when hand-off files have changed.
        choices: what the bridge does with what the client offers.
        grace: seconds for the provider to end by itself when the client has left.
        observer: see `run.run`; called in the launcher's process, also with "refused" and a Refusal's dictionary. Where
            there is none, the client is told of a Refusal.

    Returns:
        The provider's exit status, 128+N when signal N ended it; 125 when Paddock refused, which it has said then.
    """
    hygiene.fill_standard_fds()
    session, started = name or os.urandom(5).hex(), time.time_ns()
    to_provider, from_provider, notice = os.pipe(), os.pipe(), os.pipe()
    own = os.getpid()
    init.block_signals()
    child = os.fork()
    if child == 0:
        _launch(own, to_provider, from_provider, notice, observer, lambda told, observed: run.run(
            entry, arguments, places, given=given, name=session, report=report, verbose=verbose, quiet=quiet,
            strict=strict, started=started, on_start=told, observer=observed,
        ))  # fmt: skip
    for fd in (to_provider[0], from_provider[1], notice[1]):
        os.close(fd)
    ledger = ledgers.path_for(places.state, session, started)
    decisions = Decisions(ledger, entry.plan, ledgers.facts_of(session, entry.plan))
    # What requests are checked with takes a while to load: meanwhile the provider starts.
    threading.Thread(target=_load).start()
    rules = Rules(entry.plan, choices, decisions)
    bridge = _Bridge(child, Listener(notice[0]), grace, answers=observer is None)

    def remember(identifier: str, _: Place) -> None:
        try:
            state.remember_alias(places, session, identifier)
        except OSError as error:
            messages.say(f"paddock: warning: tools will not find the session {printable(identifier)}: {error.strerror}")

    provider = (from_provider[0], to_provider[1])
    return bridge.serve(provider, rules, lambda: _connected(places, session), remember)


def _connected(places: Places, session: str) -> socket.socket:
    return socket.socket(fileno=exec_client.connect(places, session).detach())


def _load() -> None:
    import acp.schema

    import policy.sandbox

    assert acp.schema is not None
    assert policy.sandbox is not None


def _launch(parent: int, to_provider: tuple[int, int], from_provider: tuple[int, int], notice: tuple[int, int],
            observer: Callable[[str, Any], None] | None,
            session: Callable[[Callable[[int], None], Callable[[str, Any], None]], int]) -> NoReturn:  # fmt: skip
    """The child: the launcher of the session. Nothing may escape from here."""
    status = EXIT_REFUSED
    teller = Teller(notice[1])
    try:
        processes.tie_to_parent(parent)
        init.unblock_signals()
        os.dup2(to_provider[0], 0)
        os.dup2(from_provider[1], 1)
        for fd in (*to_provider, *from_provider, notice[0]):
            os.close(fd)

        def observed(what: str, data: Any) -> None:  # noqa: ANN401  # as `observer`
            if what == "started":
                teller.begun()
            if observer is not None:
                observer(what, data)

        status = session(teller.init, observed)
    except Refusal as refusal:
        messages.say(str(refusal))
        status = refusal.exit_code
        teller.refused(refusal)
        if observer is not None:
            observer("refused", refusal.as_dict())
    except BaseException as error:
        failure = init.failure("paddock could not go on", error)
        messages.say(str(failure))
        teller.refused(failure)
    finally:
        os._exit(status)


class Conversation:
    """Carries and judges what a client and an agent say to each other.

    Attributes:
        carrier: says who has ended.
    """

    def __init__(
        self,
        poll: Poll,
        client: tuple[int, int],
        agent: tuple[int, int],
        rules: Rules,
        connect: Callable[[], socket.socket],
        on_session: Callable[[str, Place], None],
    ) -> None:
        """Begins to carry.

        Args:
            poll: of the loop that hands events over.
            client: descriptors to read what it says and to write to it: owned from now on, different numbers.
            agent: the same of the agent, not blocking.
            rules: what is judged, and how.
            connect: makes a connection to the session's control socket (`exec_client.connect`).
            on_session: called with the id of each new session of the protocol, and where it works.
        """
        directories = SessionDirectories(rules.plan, rules.judge, rules.choices.cwd)
        self._inside = Inside(poll, connect, rules, self._tell_agent, self._tell_client)
        up = AgentRequests(rules, directories, self._inside, on_session)
        down = ClientRequests(rules, directories, up.awaits, up.opened)
        to_agent = Lines(_guarded(down), down.unreadable)
        to_client = Lines(_guarded(up), up.unreadable, last_words=up.last_words)
        self.carrier = Carrier(poll, client, agent, to_agent, to_client)

    def serve(self, fd: int, events: int) -> bool:
        """Handles what poll said of a descriptor; False when it is none of this object's."""
        if self.carrier.owns(fd):
            self.carrier.serve(fd, events)
        elif fd in self._inside.descriptors:
            self._inside.serve(fd)
        else:
            return False
        return True

    def close(self) -> None:
        """Closes all descriptors, and ends what runs for the bridge in the jail."""
        self._inside.close()
        self.carrier.close()

    def _tell_agent(self, line: bytes) -> None:
        self.carrier.reply_to_agent(line)

    def _tell_client(self, line: bytes) -> None:
        self.carrier.reply_to_client(line)


def _guarded(judge: Callable[[bytes], Outcome]) -> Callable[[bytes], Outcome]:
    """`judge`, which refuses what it fails at: one line must not end what both sides have built up."""

    def judged(line: bytes) -> Outcome:
        try:
            return judge(line)
        except Exception as error:
            messages.say(f"paddock: a message could not be judged, so it is refused: {printable(repr(error)[:1000])}")
            return Outcome(back=rpc.error(None, rpc.INTERNAL_ERROR, "paddock could not judge this message"))

    return judged


class _Bridge:
    """The loop."""

    def __init__(self, child: int, notice: Listener, grace: float, *, answers: bool) -> None:
        self._child = child
        self._notice = notice
        self._grace = grace
        self._answers = answers
        self._status: int | None = None
        self._deadline: float | None = None
        self._step = 0
        self._hurry = False

    def serve(
        self,
        provider: tuple[int, int],
        rules: Rules,
        connect: Callable[[], socket.socket],
        on_session: Callable[[str, Place], None],
    ) -> int:
        """Carries lines until the launcher has ended and the client has got everything."""
        for fd in provider:
            os.set_blocking(fd, False)
        poll = select.poll()
        signals = init.open_signals()
        poll.register(signals, select.POLLIN)
        poll.register(self._notice.fd, select.POLLIN)
        client = (os.dup(0), os.dup(1))
        _close_standard()
        conversation: Conversation | None = None
        try:
            while self._status is None or not (
                conversation is None or conversation.carrier.agent_ended or self._is_late()
            ):
                for fd, events in poll.poll(self._patience()):
                    if fd == signals:
                        self._on_signals(signals)
                    elif conversation is not None and conversation.serve(fd, events):
                        continue
                    elif fd == self._notice.fd:
                        self._on_notice(poll)
                if conversation is None and self._notice.begun:
                    conversation = Conversation(poll, client, provider, rules, connect, on_session)
                left = conversation is not None and conversation.carrier.client_ended
                if left and self._deadline is None and self._status is None:
                    self._deadline = time.monotonic() + self._grace
                if self._status is None and self._is_late():
                    self._next_step(conversation)
            if self._answers and self._notice.refusal is not None and conversation is None:
                refused.answer(self._notice.refusal, client)
        finally:
            self._notice.close()
            if conversation is not None:
                conversation.close()
            else:
                os.close(client[0])
                os.close(client[1])
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code

    def _patience(self) -> float | None:
        """Milliseconds until something is due."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic()) * 1000 + 1

    def _is_late(self) -> bool:
        """Whether what is awaited has taken too long: the provider's end, or that its last words are read."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _on_signals(self, signals: int) -> None:
        for number, code, _ in init.read_signals(signals):
            if number == signal.SIGCHLD:
                self._reap()
            elif number in (*init.FORWARDED, signal.SIGCONT):
                if code != init.SI_KERNEL:
                    self._signal(number)
                if number in _ENDING:
                    self._end()

    def _end(self) -> None:
        """This process was asked to end, and so was the provider: by the signal, not by the end of its input."""
        self._hurry = True
        if self._deadline is None:
            self._deadline = time.monotonic() + self._grace

    def _next_step(self, conversation: Conversation | None) -> None:
        """The grace period is over, or the time after SIGTERM is."""
        if conversation is not None:
            conversation.carrier.end_agent_input()
        self._step += 1
        if self._step == 1:
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGTERM)
            self._deadline = time.monotonic() + _AFTER_TERM
            return
        self._hurry = True
        self._deadline = time.monotonic() + _FINISHING
        if self._step == 2 and self._notice.init:
            self._kill_init()
        else:
            os.kill(self._child, signal.SIGKILL)

    def _kill_init(self) -> None:
        """Ends the jail by its init, so that the launcher is there to finish the session."""
        try:
            pidfd = os.pidfd_open(self._notice.init)
        except ProcessLookupError:
            return
        try:
            # Its number may be somebody else's by now; a child of the launcher is the init.
            if self._notice.init in processes.children(self._child):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            os.close(pidfd)

    def _signal(self, number: int) -> None:
        if self._status is None:
            os.kill(self._child, number)

    def _reap(self) -> None:
        while self._status is None:
            pid, status = os.waitpid(self._child, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            if not os.WIFSTOPPED(status):
                self._status = status
                self._deadline = time.monotonic() + _LAST_WORDS if self._hurry else None

    def _on_notice(self, poll: select.poll) -> None:
        fd = self._notice.fd
        self._notice.read()
        if self._notice.fd == -1:
            poll.unregister(fd)


def _close_standard() -> None:
    """Leaves nobody but the relay at the client's ends."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
