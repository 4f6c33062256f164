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

_LOOK = 100
"""Milliseconds between two looks at what has ended."""

_FAILED, _SHOWN = "notify-failed", 200
"""In the session's directory, what became of a command that failed; and how much of its line is shown."""

_STATUSES = {126: " (it cannot be executed)", 127: " (it was not found)"}
"""Of sh(1)."""


def failure(directory: str) -> list[str]:
    """How the command failed first in the session of a directory, as a line; none where it did not."""
    try:
        with open(f"{directory}/{_FAILED}", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return []
    return [text] if text else []


def started(plan: Plan, session: str, places: Places, directory: str) -> int:
    """Starts the process that runs the command, which ends with this one. Returns its socket, for the proxy.

    Args:
        plan: with the command.
        session, places: it is told of.
        directory: of the session.
    """
    ours, theirs = _socket.socketpair()
    own = os.getpid()
    if os.fork() == 0:
        try:
            processes.tie_to_parent(own)
            os.setsid()
            init.unblock_signals()
            init.leave_streams()
            hygiene.close_inherited((theirs.fileno(),))
            _Notifier(theirs.detach(), plan, session, places, directory).serve()
        finally:
            os._exit(0)
    theirs.close()
    return ours.detach()


class _Command:
    """A command that runs; `output` is its standard output, -1 once that has ended."""

    def __init__(self, question: "Question", process: "subprocess.Popen[bytes]", until: float) -> None:
        assert process.stdout is not None
        self.question = question
        self.output = process.stdout.fileno()
        self.until = until
        self._process = process

    def status(self) -> int:
        """With what it has ended by itself, as sh(1) would tell; 0 while it has not. It is not reaped."""
        found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if found is None or not found.si_pid:
            return 0
        return found.si_status if found.si_code == os.CLD_EXITED else 128 + found.si_status

    def stop(self) -> None:
        """Ends it, with all that it has started. Not reaped before, so that its number is its own."""
        assert self._process.stdout is not None
        os.killpg(self._process.pid, _signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()


class _Notifier:
    def __init__(self, fd: int, plan: Plan, session: str, places: Places, directory: str) -> None:
        self._fd = fd
        self._plan = plan
        self._session = session
        self._places = places
        self._failed = f"{directory}/{_FAILED}"
        self._decoder = wire.Decoder()
        self._commands: dict[int, _Command] = {}  # by the number of their questions

    def serve(self) -> None:
        heard = True
        while heard:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            for command in self._commands.values():
                if command.output != -1:
                    poll.register(command.output, select.POLLIN)
            ready = [fd for fd, _ in poll.poll(_LOOK if self._commands else None)]
            for command in tuple(self._commands.values()):
                if command.output in ready:
                    self._said(command)
                elif time.monotonic() >= command.until:
                    self._stop(command.question.number)
                else:
                    self._look(command)
            heard = self._fd not in ready or self._hear()
        for number in tuple(self._commands):
            self._stop(number)

    def _hear(self) -> bool:
        from policy import asking

        data = wire.receive_piece(self._fd, [])
        for kind, payload in self._decoder.feed(data):
            if kind == asking.ASKED:
                self._start(asking.unpacked(payload))
            elif kind == asking.GONE:
                self._stop(int(payload))
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
            process = subprocess.Popen(
                ("/bin/sh", "-c", self._plan.notify),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self._places.home,
                env={**os.environ, **given},
                start_new_session=True,
                preexec_fn=lambda: processes.tie_to_parent(own),
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._complain(f"cannot be started: {error}")
            self._say(asking.PASS, str(question.number).encode())
            return
        self._commands[question.number] = _Command(question, process, time.monotonic() + asking.SECONDS)

    def _said(self, command: _Command) -> None:
        """A first piece of output, or its end, which may leave something running as long as the question is open."""
        from policy import asking

        words = os.read(command.output, _MOST_SAID).decode("ascii", "replace").split()
        command.output = -1
        if len(words) != 1 or words[0] not in asking.ANSWERS:
            return
        word, question = words[0], command.question
        self._stop(question.number)
        if word == asking.ALWAYS:
            from launcher.session import answers

            word = answers.for_good(self._places, self._plan.worktree, question)
        self._say(asking.ANSWER, asking.answer(question.number, word))

    def _stop(self, number: int) -> None:
        command = self._commands.pop(number, None)
        if command is not None:
            self._look(command)
            command.stop()

    def _look(self, command: _Command) -> None:
        """Takes note of a command that has failed, which nobody else would see."""
        if status := command.status():
            self._complain(f"ended with status {status}{_STATUSES.get(status, '')}")

    def _complain(self, what: str) -> None:
        """Leaves word for the end of the session, once: here is no stream of the user's."""
        line = self._plan.notify
        shown = line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
        try:
            fd = os.open(self._failed, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return  # it is said already, or cannot be
        text = f"the command of network.notify, which hears of refused hosts, {what[:_SHOWN]}: {shown}"
        os.write(fd, text.encode(errors="backslashreplace"))
        os.close(fd)

    def _say(self, kind: bytes, payload: bytes) -> None:
        try:
            wire.send(self._fd, wire.frame(kind, payload))
        except OSError:
            return  # the proxy has ended
