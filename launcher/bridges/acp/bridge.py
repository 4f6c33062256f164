"""`paddock acp` from start to end: the provider in its jail, the conversation with its client, the ending.

Three processes. One child is the launcher of an ordinary session (`launcher.session.running`), with pipes for its
standard input and output. This process, which the client knows, carries the lines and judges them. It is confined
before the first line is read (`launcher.jail.cell`), and asks the other child (`Outside`) for what a confined
process cannot do. The children die with this process, and the jail with its launcher, so that a SIGKILL here leaves
nothing.

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
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from launcher import wire
from launcher.bridges.acp import start_failed
from launcher.bridges.acp.client_requests import Place
from launcher.bridges.acp.conversation import Conversation, HostQuestions
from launcher.bridges.acp.rulings import Choices, Decisions, Rules
from launcher.jail import cell, hygiene, init, processes
from launcher.ledger import ledgers
from launcher.session import cache, exec_client, messages, running, state, view_denials
from launcher.session.places import Places
from policy.asking import Question, unpacked
from policy.errors import EXIT_REFUSED, Refusal, Rows, printable

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


# What the bridge needs done outside of its own confinement, by a process that reads nothing else of an agent.
#
# Requests are packets on a socket pair: a letter and its argument. The answer is empty, or the reason of a failure, and
# comes with a descriptor where one was asked for. Whoever takes the bridge over can run commands in the jail by it, as
# the agent can, end the session, give it more names, and answer as the editor's user would about refused hosts.

_CONNECT, _NAME, _SIGNAL, _END, _ALLOW = b"C", b"N", b"S", b"E", b"A"
_LONGEST_NAME = 1 << 14
"""Bytes of an id of the protocol's."""


class Outside:
    """The confined process's end."""

    def __init__(self, places: Places, session: str, launcher: int, worktree: str) -> None:
        """Starts the process outside, which ends with this one."""
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own = os.getpid()
        if os.fork() == 0:
            try:
                processes.tie_to_parent(own)
                _close_standard()
                hygiene.close_inherited((other.fileno(),))
                _serve_requests(other, places, session, launcher, worktree)
            finally:
                os._exit(EXIT_REFUSED)
        other.close()

    def connect(self) -> socket.socket:
        """A connection to the session's control socket, as `exec_client.connect`.

        Refusals: it takes none.
        """
        failure, descriptors = self._ask(_CONNECT)
        if failure:
            reference, message, context, hint = json.loads(failure)
            raise Refusal(reference, message, context=Rows(context), hint=Rows(hint))
        return socket.socket(fileno=descriptors[0])

    def name(self, identifier: str) -> str:
        """Has the session found by an id of the protocol's, too; returns why that failed, or nothing."""
        data = identifier.encode("utf-8", "surrogatepass")
        return self._ask(_NAME, data)[0].decode() if len(data) <= _LONGEST_NAME else "it is too long"

    def signal(self, number: int) -> None:
        """Sends the launcher a signal. To be called while it is a child of this process, so that its id is its own."""
        self._ask(_SIGNAL, bytes([number]))

    def allow(self, question: Question) -> str:
        """Has a host allowed for good; returns why that failed, or nothing."""
        return self._ask(_ALLOW, question.packed())[0].decode()

    def end_jail(self, init: int) -> None:
        """Ends the jail by its init."""
        self._ask(_END, str(init).encode())

    def _ask(self, kind: bytes, argument: bytes = b"") -> tuple[bytes, list[int]]:
        wire.send_packet(self._socket.fileno(), kind + argument)
        answer, descriptors = wire.receive_packet(self._socket.fileno())
        if not answer:
            raise OSError("the process outside the bridge's confinement has exited")
        return answer[1:], descriptors


def _serve_requests(requests: socket.socket, places: Places, session: str, launcher: int, worktree: str) -> None:
    """The process outside."""
    while True:
        request, _ = wire.receive_packet(requests.fileno())
        kind, argument = request[:1], request[1:]
        if not kind:
            return
        answer = b""
        descriptors: tuple[int, ...] = ()
        if kind == _CONNECT:
            try:
                descriptors = (exec_client.connect(places, session).detach(),)
            except Refusal as refusal:
                parts = (refusal.reference, refusal.message, refusal.context, refusal.hint)
                answer = json.dumps([part[:1000] for part in parts]).encode()
        elif kind == _NAME:
            try:
                state.remember_alias(places, session, argument.decode("utf-8", "surrogatepass"))
            except OSError as error:
                answer = (error.strerror or "it cannot be written").encode()
        elif kind == _SIGNAL:
            with suppress(ProcessLookupError):
                os.kill(launcher, argument[0])
        elif kind == _END:
            with suppress(ProcessLookupError):
                _end(int(argument), launcher)
        elif kind == _ALLOW:
            from launcher.session import answers

            answer = answers.allow_always(places, worktree, unpacked(argument)).encode()
        wire.send_packet(requests.fileno(), kind + answer, descriptors)
        for fd in descriptors:
            os.close(fd)


def _end(init: int, launcher: int) -> None:
    """Ends the jail by its init, so that the launcher is there to finish the session."""
    pidfd = os.pidfd_open(init)
    try:
        # Its number may be somebody else's by now; a child of the launcher is the init.
        if init in processes.children(launcher):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)


NAME = "paddock-acp"
"""Of the process, as ps(1) shows it, once it is confined."""

GRACE = 5.0
"""Seconds for a provider to end by itself when the client has left."""

_AFTER_TERM = 2.0
"""Seconds between SIGTERM and the end of the jail."""

_FINISHING = 60.0
"""Seconds for the launcher to finish a session (harvest, ledger) whose jail was ended."""

_LAST_WORDS = 1.0
"""Seconds for a client to read the provider's last words, when this process was asked to end."""

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

LOOK_SECONDS = 2.0
MOST_LOOKS = 5
"""Seconds of processor time after which one event is looked at, and how often, before the session is ended. The
slowest line of those that were tried took 3; an agent must not find one with which no signal ends this process."""


class Overdue(BaseException):
    """One event takes too long. No `Exception`: nothing goes on with what it was in the middle of."""


class Watch:
    """Bounds the time in which an event is handled. There is less of it once this process is asked to end."""

    def __init__(self, client: int) -> None:
        """Takes SIGPROF. To be made in the main thread.

        Args:
            client: descriptor by which the client says something: that it has hung up asks this process to end.
        """
        self._client = select.poll()
        self._client.register(client, select.POLLRDHUP)
        self._looks = 0
        signal.signal(signal.SIGPROF, self._look)

    def handles(self, work: Callable[[], object]) -> bool:
        """Does `work`; False when that took too long, and was left in the middle."""
        self._looks = 0
        try:
            signal.setitimer(signal.ITIMER_PROF, LOOK_SECONDS, LOOK_SECONDS)
            try:
                work()
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0.0)
        except Overdue:
            return False
        return True

    def _look(self, number: int, frame: object) -> None:
        self._looks += 1
        if self._looks >= MOST_LOOKS or signal.sigpending() & set(_ENDING) or self._client.poll(0):
            raise Overdue


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
    asked = [sock.detach() for sock in socket.socketpair()] if entry.plan.ask == "yes" else [-1, -1]
    init.block_signals()
    child = os.fork()
    if child == 0:
        if asked[0] != -1:
            os.close(asked[0])
        _launch(own, to_provider, from_provider, notice, observer, lambda told, observed: running.run(
            entry, arguments, places, given=given, name=session, report=report, verbose=verbose, quiet=quiet,
            strict=strict, started=started, on_start=told, observer=observed, asker=asked[1],
        ))  # fmt: skip
    for fd in (to_provider[0], from_provider[1], notice[1], *filter(lambda fd: fd != -1, asked[1:])):
        os.close(fd)
    hints = view_denials.of_command(entry.plan, arguments, places)
    ledger = ledgers.path_for(places.state, session, started)
    decisions = Decisions(ledger, entry.plan, ledgers.facts_of(session, entry.plan))
    outside = Outside(places, session, child, entry.plan.worktree)
    with suppress(OSError):  # that there is no record will be said when one is to be written
        os.makedirs(os.path.dirname(ledger), mode=0o700, exist_ok=True)
    # The worktree may lie in another user's directory: requests' paths are looked at there.
    cell.confine(NAME, writable=[os.path.dirname(ledger)], capability=cell.CAP_DAC_READ_SEARCH)
    # What requests are checked with takes a while to load: meanwhile the provider starts.
    threading.Thread(target=_load).start()
    rules = Rules(entry.plan.replace(warnings=(*entry.plan.warnings, *hints)), choices, decisions)
    bridge = _Bridge(child, Listener(notice[0]), grace, outside, answers=observer is None)

    def remember(identifier: str, _: Place) -> None:
        if failure := outside.name(identifier):
            messages.say(f"paddock: warning: tools will not find the session {printable(identifier[:1000])}: {failure}")

    provider = (from_provider[0], to_provider[1])
    return bridge.serve(provider, rules, outside.connect, remember, HostQuestions(asked[0], outside.allow))


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
        failure = init.failure("paddock failed unexpectedly", error)
        messages.say(str(failure))
        teller.refused(failure)
    finally:
        os._exit(status)


class _Bridge:
    def __init__(self, child: int, notice: Listener, grace: float, outside: Outside, *, answers: bool) -> None:
        self._child = child
        self._notice = notice
        self._grace = grace
        self._outside = outside
        self._answers = answers
        self._status: int | None = None
        self._deadline: float | None = None
        self._step = 0
        self._hurry = False
        self._is_overdue = False

    def serve(
        self,
        provider: tuple[int, int],
        rules: Rules,
        connect: Callable[[], socket.socket],
        on_session: Callable[[str, Place], None],
        questions: HostQuestions,
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
        watch = Watch(client[0])
        conversation: Conversation | None = None
        try:
            while self._status is None or not (
                conversation is None or conversation.carrier.agent_ended or self._is_late() or self._is_overdue
            ):
                for fd, events in poll.poll(self._patience()):
                    if fd == signals:
                        self._on_signals(signals)
                    elif fd == self._notice.fd:
                        self._on_notice(poll)
                    elif conversation is not None and not watch.handles(partial(conversation.serve, fd, events)):
                        messages.say("paddock: the session is ended: one message takes too long to be checked")
                        self._is_overdue = True
                        conversation.close()
                        self._end()
                        break  # what poll said of its other descriptors holds no more
                if conversation is None and self._notice.begun:
                    conversation = Conversation(poll, client, provider, rules, connect, on_session, questions)
                left = conversation is not None and conversation.carrier.client_ended
                if left and self._deadline is None and self._status is None:
                    self._deadline = time.monotonic() + self._grace
                if self._status is None and self._is_late():
                    self._next_step(conversation)
            if self._answers and self._notice.refusal is not None and conversation is None:
                start_failed.answer(self._notice.refusal, client)
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
        if conversation is not None and not self._is_overdue:
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
            self._outside.end_jail(self._notice.init)
        else:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._status is None:
            self._outside.signal(number)

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
