"""The user's own command that is told of questions about refused hosts, and may answer them; outside of the jail.

It runs in his home directory, without his PATH, which may lead into a worktree. The question is in its environment and
in no shell's text. It has as long as the question is open. Prints it one word of the answers, and nothing else, that is
the answer.

Loaded where `network.notify` is set.
"""

import _socket
import select
import time

from launcher import wire
from launcher.jail import hygiene, init, processes
from launcher.lean import os
from launcher.session.places import Places
from policy.plan import SYSTEM_PATH, Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    import subprocess

    from policy.asking import Question
else:
    import _signal

_MOST_SAID = 64
"""Bytes that are read of what a command prints."""


def started(plan: Plan, session: str, places: Places) -> int:
    """Starts the process that runs the command, which ends with this one. Returns its socket, for the proxy."""
    ours, theirs = _socket.socketpair()
    own = os.getpid()
    if os.fork() == 0:
        try:
            processes.tie_to_parent(own)
            os.setsid()
            init.unblock_signals()
            init.leave_streams()
            hygiene.close_inherited((theirs.fileno(),))
            _Notifier(theirs.detach(), plan, session, places).serve()
        finally:
            os._exit(0)
    theirs.close()
    return ours.detach()


class _Notifier:
    """Runs a command for each question."""

    def __init__(self, fd: int, plan: Plan, session: str, places: Places) -> None:
        self._fd = fd
        self._plan = plan
        self._session = session
        self._places = places
        self._decoder = wire.Decoder()
        self._commands: dict[int, tuple[Question, subprocess.Popen[bytes], float]] = {}

    def serve(self) -> None:
        """Until the proxy has ended."""
        while True:
            poll = select.poll()
            for fd in (self._fd, *self._commands):
                poll.register(fd, select.POLLIN)
            ready = [fd for fd, _ in poll.poll(1000 if self._commands else None)]
            for fd in ready:
                if fd != self._fd and fd in self._commands:
                    self._ended(fd)
            for fd, (_, _, deadline) in tuple(self._commands.items()):
                if time.monotonic() >= deadline:
                    self._stop(fd)
            if self._fd in ready and not self._hear():
                break
        for fd in tuple(self._commands):
            self._stop(fd)

    def _hear(self) -> bool:
        from policy import asking

        data = wire.receive_piece(self._fd, [])
        for kind, payload in self._decoder.feed(data):
            if kind == asking.ASKED:
                self._start(asking.unpacked(payload))
            elif kind == asking.GONE:
                for fd in [fd for fd, (each, _, _) in self._commands.items() if each.number == int(payload)]:
                    self._stop(fd)
        return bool(data)

    def _start(self, question: "Question") -> None:
        import subprocess

        from policy import asking

        given = {
            "PATH": SYSTEM_PATH,
            "PADDOCK_HOST": question.host,
            "PADDOCK_PORT": str(question.port),
            "PADDOCK_PROCESS": question.process,
            "PADDOCK_SESSION": self._session,
            "PADDOCK_WORKTREE": self._plan.worktree,
            "PADDOCK_RISK": asking.RISK,
        }
        own = os.getpid()
        try:
            command = subprocess.Popen(
                ("/bin/sh", "-c", self._plan.notify),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self._places.home,
                env={**os.environ, **given},
                start_new_session=True,
                preexec_fn=lambda: processes.tie_to_parent(own),
            )
        except (OSError, subprocess.SubprocessError):
            self._say(asking.PASS, str(question.number).encode())
            return
        assert command.stdout is not None
        self._commands[command.stdout.fileno()] = question, command, time.monotonic() + asking.SECONDS

    def _ended(self, fd: int) -> None:
        """It has printed something, or closed its output: a first piece is all that counts."""
        from policy import asking

        question = self._commands[fd][0]
        said = os.read(fd, _MOST_SAID).decode("ascii", "replace").split()
        self._stop(fd, kill=bool(said))
        if len(said) == 1 and said[0] in asking.ANSWERS:
            word = said[0]
            if word == asking.ALWAYS:
                from launcher.session import answers

                word = answers.for_good(self._places, self._plan.worktree, question)
            self._say(asking.ANSWER, asking.answer(question.number, word))

    def _stop(self, fd: int, *, kill: bool = True) -> None:
        """Forgets a command, with all that it has started."""
        _, command, _ = self._commands.pop(fd)
        if kill and command.poll() is None:
            os.killpg(command.pid, _signal.SIGKILL)
            command.wait()
        assert command.stdout is not None
        command.stdout.close()

    def _say(self, kind: bytes, payload: bytes) -> None:
        try:
            wire.send(self._fd, wire.frame(kind, payload))
        except OSError:
            return  # the proxy has ended
