"""Where a session's work is done: in its live jail, or in one of its own that is made for its worktree.

A worker of ours runs there, and so do the shell tool's commands. Each is one process of `paddock run` or
`paddock exec`, so it is held by exactly what holds every other command.
"""

import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

import launcher
import policy
from launcher import programmes, wire
from launcher.bridges.files import file_worker, tool_calls
from launcher.bridges.files.scope import Scope
from launcher.bridges.files.tool_calls import Answer, Call, ErrorType, ToolFailed
from launcher.ledger import ledgers
from launcher.ledger.denial import VALIDATOR, Denial
from launcher.session import exec_client, messages, planning
from launcher.session.places import Places, places
from launcher.vcs import written
from launcher.workflow.worktrees import run_options
from policy.errors import Refusal, printable
from policy.plan import Plan, beneath
from policy.sandbox_context import WorktreeSandboxContext

# A worker as the router has it: a process, two pipes, and no trust in what comes back.

START_PATIENCE = 60.0
"""Seconds until a worker must have said its first words: a jail is made, modules are loaded."""

CALL_PATIENCE = 60.0
"""Seconds for one call. Searches end after ten by themselves."""

END_PATIENCE = 15.0
"""Seconds for a worker, its jail and its harvest to come to an end."""

_BLOCK = 1 << 16
_MOST_SAID = 4000


class WorkerFailed(Exception):
    """A worker that did not start, has ended, was too slow, or said what no worker of ours says."""

    def __init__(self, why: str, said: str = "") -> None:
        # What strangers say must not drive the terminal on which it is logged.
        super().__init__(printable(f"{why}: {said}" if said else why))


def end_group(process: "subprocess.Popen[bytes]", patience: float) -> None:
    """Ends a process that leads its group: SIGTERM, which a launcher passes on and obeys; SIGKILL for what does not."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, sent)
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            continue


class WorkerProcess:
    """One worker. Calls come one after the other; safe to share between threads.

    Args:
        scope: its boundaries; or what makes them of the first words of what is started, which are said before it
            becomes the worker (`begin`).
    """

    def __init__(self, argv: list[str], scope: Scope | Callable[[bytes], Scope], cwd: str) -> None:
        """Starts it and waits for its first words."""
        self._lock = threading.Lock()
        self._number = 0
        self._said = b""
        try:
            self._process = subprocess.Popen(
                argv,
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # no terminal, and no signal of one
            )
        except OSError as error:
            raise WorkerFailed(f"it cannot be started: {error.strerror}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._input = self._process.stdin.fileno()
        self._output = self._process.stdout.fileno()
        self._errors = self._process.stderr.fileno()
        for fd in (self._input, self._output, self._errors):
            os.set_blocking(fd, False)
        try:
            if not isinstance(scope, Scope):
                scope = scope(self._exchange(b"", START_PATIENCE, tool_calls.MOST_REQUEST))
            tool_calls.Hello.model_validate_json(self._exchange(tool_calls.packed(scope), START_PATIENCE))
        except ValidationError:
            self.kill()
            raise WorkerFailed("it does not start like a worker", self.said) from None
        except WorkerFailed:
            self.kill()
            raise

    @property
    def said(self) -> str:
        """The end of what was written to standard error so far."""
        return self._said.decode(errors="backslashreplace").strip()

    @property
    def ended(self) -> bool:
        """Whether it runs no more."""
        return self._process.poll() is not None

    def call(self, call: Call, *, sweep: bool = False) -> Answer:
        """Has one call done.

        Raises:
            WorkerFailed: it was not, or not wholly. The worker has ended then.
        """
        with self._lock:
            self._number += 1
            request = tool_calls.Request(
                number=self._number, tool=call.tool, arguments=call.model_dump(mode="json"), sweep=sweep
            )
            try:
                reply = tool_calls.Reply.model_validate_json(self._exchange(tool_calls.packed(request), CALL_PATIENCE))
            except ValidationError:
                self.kill()
                raise WorkerFailed("its answer is not a worker's") from None
            except WorkerFailed:
                self.kill()
                raise
            if reply.number != self._number:
                self.kill()
                raise WorkerFailed("it answers another request")
            return reply.answer

    def close(self) -> None:
        """Lets it end by itself, with its jail; after `END_PATIENCE` it is ended."""
        with self._lock:
            self._close_pipes()
            try:
                self._process.wait(END_PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Ends it: the launcher first, so that it can clean up, and by force when that takes too long."""
        self._close_pipes()
        end_group(self._process, END_PATIENCE)

    def _close_pipes(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _exchange(self, data: bytes, patience: float, most: int = tool_calls.MOST_REPLY) -> bytes:
        rest = memoryview(data)
        came: list[tuple[bytes, bytes]] = []
        decoder = wire.Decoder(most)
        deadline = time.monotonic() + patience
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        poll.register(self._errors, select.POLLIN)
        if rest:
            poll.register(self._input, select.POLLOUT)
        while True:
            left = deadline - time.monotonic()
            ready = poll.poll(max(0.0, left) * 1000)
            if not ready:
                raise WorkerFailed(f"it did not answer within {patience:g} seconds", self.said)
            for fd, _ in ready:
                if fd == self._input:
                    rest = self._sent(rest)
                    if not rest:
                        poll.unregister(self._input)
                elif fd == self._errors:
                    if not self._overheard():
                        poll.unregister(self._errors)
                else:
                    came += self._decoded(decoder)
            if len(came) > 1 or (came and decoder.is_within):
                raise WorkerFailed("it sends more than a worker would")
            if came:
                return came[0][1]

    def _sent(self, rest: memoryview) -> memoryview:
        try:
            return rest[os.write(self._input, rest) :]
        except BlockingIOError:
            return rest
        except OSError:
            raise WorkerFailed("it has ended", self._last_words()) from None

    def _decoded(self, decoder: wire.Decoder) -> list[tuple[bytes, bytes]]:
        try:
            return list(decoder.feed(self._read()))
        except wire.Malformed:
            raise WorkerFailed("it sends more than a worker would") from None

    def _read(self) -> bytes:
        try:
            data = os.read(self._output, _BLOCK)
        except BlockingIOError:
            return b""
        if not data:
            raise WorkerFailed("it has ended", self._last_words())
        return data

    def _overheard(self) -> bool:
        try:
            data = os.read(self._errors, _BLOCK)
        except BlockingIOError:
            return True
        self._said = (self._said + data)[-_MOST_SAID:]
        return bool(data)

    def _last_words(self) -> str:
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            pass
        self._overheard()
        return self.said


# Workers by session: started when they are needed, kept while they are used, ended when they are not.

MOST = 32
"""Workers at the same time. The one that was used longest ago makes room."""

IDLE_SECONDS = 300.0
"""Workers that nobody has used for so long are ended, with their jails."""


class Worker(Protocol):
    """What does a session's calls; see `launcher.bridges.files.workers.WorkerProcess`."""

    def call(self, call: Call, *, sweep: bool = False) -> Answer:
        """Has one call done."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


class Room(Protocol):
    """Where a session's work is done."""

    @property
    def process(self) -> Worker:
        """The worker."""
        ...

    @property
    def usable(self) -> bool:
        """Whether it can take calls."""
        ...

    def command(self, line: str, directory: str) -> list[str]:
        """The words that run a line of sh(1) there."""
        ...

    def refused(self, call: Call) -> None:
        """Told of each call that was refused for its path."""
        ...


class _Entry:
    """A session's room, made by the first thread that needs it, while others wait for that session alone."""

    def __init__(self, key: object) -> None:
        self.key = key
        self.lock = threading.Lock()
        self.room: Room | None = None
        self.users = 0
        self.used = time.monotonic()


class Pool:
    """All rooms of one router. Safe to share between threads.

    Args:
        most: rooms at the same time; more only while all of them are in use.
    """

    def __init__(self, most: int = MOST, idle_seconds: float = IDLE_SECONDS) -> None:
        self._most = most
        self._idle = idle_seconds
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._ending: list[threading.Thread] = []
        self._closed = threading.Event()
        self._caretaker: threading.Thread | None = None

    def __len__(self) -> int:
        """How many there are."""
        return len(self._entries)

    @contextmanager
    def lease(self, session_id: str, key: object, make: Callable[[], Room]) -> Iterator[Room]:
        """The session's room, made when there is none that is usable; it is not ended before the block is left.

        Args:
            key: what it was made from; another one makes a new room.
            make: makes it. What it raises is passed on.
        """
        with self._lock:
            entry = self._entries.get(session_id)
            if entry is None or entry.key != key:
                old = entry
                entry = self._entries[session_id] = _Entry(key)
            else:
                old = None
            self._entries.move_to_end(session_id)
            entry.users += 1
            leaving = self._leaving()
            if self._caretaker is None:
                self._caretaker = threading.Thread(target=self._take_care, daemon=True)
                self._caretaker.start()
        self._end_later(leaving)
        if old is not None and old.users == 0:
            _end(old)
        try:
            with entry.lock:
                if entry.room is not None and not entry.room.usable:
                    entry.room.process.close()
                    entry.room = None
                if entry.room is None:
                    entry.room = make()
                room = entry.room
            yield room
        finally:
            self._release(entry)

    def _release(self, entry: _Entry) -> None:
        with self._lock:
            entry.users -= 1
            entry.used = time.monotonic()
            orphaned = entry.users == 0 and entry not in self._entries.values()
        if orphaned:
            _end(entry)

    def close(self) -> None:
        """Ends all workers, at the same time."""
        self._closed.set()
        with self._lock:
            entries = list(self._entries.values())
            self._entries.clear()
        threads = [threading.Thread(target=_end, args=(entry,)) for entry in entries]
        for thread in threads:
            thread.start()
        for thread in (*threads, *self._ending):
            thread.join()

    def _end_later(self, entries: Iterable[_Entry]) -> None:
        """Ends them in threads of their own: a jail takes its time, and the call that made room is another session's.

        Where as many end already as may live, it waits all the same: else they would become ever more.
        """
        for entry in entries:
            thread = threading.Thread(target=_end, args=(entry,))
            with self._lock:
                self._ending = [each for each in self._ending if each.is_alive()]
                full = len(self._ending) >= self._most
                thread.start()
                self._ending = [*self._ending, thread]
            if full:
                thread.join()

    def _take_care(self) -> None:
        """Ends what is idle while no call comes: work that was committed in a jail is harvested when that ends."""
        while not self._closed.wait(self._idle / 4):
            with self._lock:
                leaving = self._leaving()
            for each in leaving:
                _end(each)

    def _leaving(self) -> list[_Entry]:
        """Takes out what is too much or too old. The lock is held."""
        limit = time.monotonic() - self._idle
        found = []
        for name, entry in list(self._entries.items()):
            if entry.users == 0 and (entry.used < limit or len(self._entries) > self._most):
                found.append(self._entries.pop(name))
        return found


def _end(entry: _Entry) -> None:
    with entry.lock:
        if entry.room is not None:
            entry.room.process.close()
            entry.room = None


# The step before a worker: makes the plan of its jail, says which boundaries follow from it, and becomes the
# launcher.
#
# A process of its own, because planning tries out what the kernel offers in forked children, which a process with
# threads must not do, and the router has some. Standard output is a pipe to it and carries nothing but these words;
# the jail does not exist yet, so they can be believed.
#
# Started as ``python -I -m launcher.bridges.files.workers TASK``.


class Task(BaseModel):
    """What is to be begun.

    Attributes:
        options: launch options, as `launcher.cli.parse` gives them.
        root: the worktree.
        worker: the worker's command line, which the plan is made for.
        argv: what this process becomes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    options: dict[str, str | list[str] | bool]
    root: str
    worker: list[str]
    argv: list[str]


class Begun(BaseModel):
    """What follows for the session.

    Attributes:
        scope: the worker's boundaries.
        plan: of its jail, as `Plan.to_data` gives it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    scope: Scope
    plan: tuple[object, ...]

    @field_validator("plan")
    @classmethod
    def _tuples(cls, value: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(map(_as_tuple, value))  # JSON knows lists only


def _as_tuple(value: object) -> object:
    return tuple(map(_as_tuple, value)) if isinstance(value, list | tuple) else value


def main(text: str) -> int:
    """Returns only when the plan is refused: the exit status."""
    task = Task.model_validate_json(text)
    try:
        own = places(os.environ)
        planned = planning.make(dict(task.options), task.worker, task.root, own)
        written.remember(own.state, planned.plan)
    except Refusal as refusal:
        messages.say(str(refusal))
        return refusal.exit_code
    scope = Scope(context=planning.context_for_tools(planned), handoff=planned.plan.handoff_patterns)
    wire.write(1, tool_calls.packed(Begun(scope=scope, plan=planned.plan.to_data())))
    os.execv(task.argv[0], task.argv)


# What the tools refused, in the session's ledger: shown by `paddock denials`, with what would allow it.


MOST_KINDS = 2000
"""Kinds of denials that are written down for one worker; those beyond, and repetitions, are left out."""


class Denials:
    """Writes denials of one session. Safe to share between threads.

    Args:
        plan: of its jail; says what would allow a denial.
    """

    def __init__(self, state: str, session: str, plan: Plan) -> None:
        self._state = state
        self._session = session
        self._plan = plan
        self._started = time.time_ns()
        self._lock = threading.Lock()
        self._known: set[tuple[str, str]] = set()
        self._broken = False

    def add(self, call: Call) -> None:
        """A call was refused for its path."""
        path = call.path.replace("\0", "")
        if len(path) < ledgers.PATH_MAX:  # else no kernel takes it, and a part of it would be another path
            path = os.path.normpath(os.path.join(self._plan.worktree, path))
        path = path[: ledgers.PATH_MAX]
        with self._lock:
            key = (call.tool, path)
            if key in self._known or len(self._known) >= MOST_KINDS or self._broken:
                return
            self._known.add(key)
            # A live session may have one by now, made by whoever was first to refuse something.
            ledger = ledgers.path_of(self._state, self._session)
            try:
                self._broken = not ledgers.append(
                    ledger or ledgers.path_for(self._state, self._session, self._started),
                    self._plan,
                    Denial(
                        time.time(),
                        VALIDATOR,
                        call.operation.value.lower(),
                        path,
                        rights=(call.tool,),
                        wanted="w" if call.operation.mutates else "r",
                    ),
                    ledgers.facts_of(self._session, self._plan),
                )
            except OSError as error:
                self._broken = True  # the denial holds without its record; that it is missing is said once
                messages.say(f"paddock: the ledger cannot be written: {error.strerror}")


WORKER = (sys.executable, "-I", "-m", file_worker.__name__)
BEGIN = (sys.executable, "-I", "-m", __name__)


class Jail:
    """A jail that lives, with a worker in it."""

    def __init__(self, name: str, process: WorkerProcess, root: str, denials: Denials | None) -> None:
        self.name = name
        self._denials = denials
        self.process = process
        self.root = root
        self.identity = identity(root)

    def command(self, line: str, directory: str) -> list[str]:
        """The words that run a line of sh(1) there."""
        return programmes.paddock("exec", self.name, "--cwd", directory, "--", "sh", "-c", line)

    def refused(self, call: Call) -> None:
        """Writes down that a call was refused for its path."""
        if self._denials is not None:
            self._denials.add(call)

    @property
    def usable(self) -> bool:
        """Whether the worker lives and the worktree's root is still the directory that it was."""
        return not self.process.ended and self.identity is not None and identity(self.root) == self.identity


class Outside:
    """The legacy behaviour of the mode `compatible`: a worker and commands without a jail.

    Args:
        base: where relative paths start.
    """

    def __init__(self, base: str) -> None:
        self.process = WorkerProcess(list(WORKER), Scope(context=None, base=base, narrow=False), base)

    def command(self, line: str, directory: str) -> list[str]:
        """The words that run a line of sh(1) in `directory`."""
        return ["env", "-C", directory, "--", "sh", "-c", line]

    def refused(self, call: Call) -> None:
        """Nothing is refused for its path where there are no boundaries."""

    @property
    def usable(self) -> bool:
        """Whether the worker lives."""
        return not self.process.ended


class Jails:
    """Finds or makes jails.

    Args:
        options: launch options for jails that are made, as `launcher.cli.parse` gives them.
        live: the name of the running `paddock run --session NAME` that an id stands for, None for an id whose jail is
            to be made here.
    """

    def __init__(
        self, places: Places, options: planning.Options, live: Callable[[str], str | None] = lambda session_id: None
    ) -> None:
        self._places = places
        self._options = options
        self._live = live

    def enter(self, session_id: str, context: WorktreeSandboxContext) -> Jail:
        """A worker in the session's live jail where it has one, else in a new one.

        A live jail that has no room for the worker (its view lacks this interpreter) is not replaced by another one,
        which might allow more.

        Raises:
            WorkerFailed: it did not start, or its jail is refused.
            ToolFailed: the live session has just ended.
        """
        options = self._options_for(context)
        root = str(context.worktree_path)
        name = self._live(session_id)
        if name is None:
            own = _name(session_id)
            return self._begun(own, options, root, ["run", "--quiet", "--session", own, *_words(options)])
        try:
            return self._begun(name, options, root, ["exec", name, "--cwd", root])
        except WorkerFailed as failed:
            if exec_client.about(self._places, name) is None:
                why = f"the worktree of session {name} could not be resolved: it has ended"
                raise ToolFailed(ErrorType.WORKTREE_UNRESOLVED, why) from None
            hint = f"session {name} must be able to run {sys.executable}: start it with --ro {sys.prefix}"
            raise WorkerFailed(hint, str(failed)) from None

    def _begun(self, name: str, options: planning.Options, root: str, words: list[str]) -> Jail:
        """The jail of session `name`, with a worker, that `paddock WORDS... -- WORKER` makes or enters."""
        argv = programmes.paddock(*words, "--", *WORKER)
        task = Task(options=options, root=root, worker=list(WORKER), argv=argv)
        plans: list[Plan | None] = []

        def scope(data: bytes) -> Scope:
            begun = Begun.model_validate_json(data)
            plans.append(Plan.from_data(begun.plan))
            return begun.scope

        process = WorkerProcess([*BEGIN, task.model_dump_json()], scope, root)
        plan = plans[0]
        return Jail(name, process, root, None if plan is None else Denials(self._places.state, name, plan))

    def _options_for(self, context: WorktreeSandboxContext) -> planning.Options:
        """The launch options for a session: the server's own, its boundaries, and Paddock's code to read."""
        found: planning.Options = dict(self._options)
        words = iter([*run_options(context), *(word for path in _code() for word in ("--ro", path))])
        for name in words:
            if name == "--freeze-root":
                found[name] = True
                found.pop("--no-freeze-root", None)
            elif name == "--worktree":
                found[name] = next(words)
            else:
                before = found.get(name, [])
                found[name] = [*(before if isinstance(before, list) else []), next(words)]
        return found


def identity(path: str) -> tuple[int, int] | None:
    """What tells a directory from another one that takes its name; None when there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _name(session_id: str) -> str:
    """A name for a session's own jail that nobody else has, and that people can tell whose it is."""
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in session_id[-32:])
    return f"files-{plain}-{secrets.token_hex(4)}"


def _words(options: planning.Options) -> list[str]:
    """Launch options as `launcher.cli.parse` would read them back."""
    found: list[str] = []
    for name, value in options.items():
        if isinstance(value, list):
            found += [f"{name}={item}" for item in value]
        else:
            found.append(name if value is True else f"{name}={value}")
    return found


def needed() -> list[str]:
    """What a session's jail must show so that a worker can be started in it."""
    return [os.path.realpath(sys.prefix), *_code()]


def _code() -> list[str]:
    """Paddock's own packages, where they do not lie in the interpreter's environment, which the jail has anyway."""
    found = [os.path.dirname(os.path.realpath(module.__file__ or "")) for module in (launcher, policy)]
    return [path for path in found if not beneath(path, os.path.realpath(sys.prefix))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
