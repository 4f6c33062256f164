"""Where a session's work is done: in its live jail, or in one of its own that is made for its worktree.

A worker of ours runs there, and so do the shell tool's commands. Each is one process of `paddock run` or
`paddock exec`, so it is held by exactly what holds every other command.
"""

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable

import launcher
import policy
from launcher.bridges.files import begin, worker
from launcher.bridges.files.answers import ErrorType, ToolFailed
from launcher.bridges.files.begin import Begun, Task
from launcher.bridges.files.calls import Call
from launcher.bridges.files.process import WorkerFailed, WorkerProcess
from launcher.bridges.files.scope import Scope
from launcher.ledger import ledgers
from launcher.ledger.denial import VALIDATOR, Denial
from launcher.session import exec_client, messages, planning
from launcher.session.places import Places
from launcher.workflow.worktrees import run_options
from policy.plan import Plan, beneath
from policy.sandbox_context import WorktreeSandboxContext

# What the tools refused, in the session's ledger: shown by `paddock denials`, with what would allow it.


MOST_KINDS = 2000
"""Kinds of denials that are written down for one worker; those beyond, and repetitions, are left out."""


class Denials:
    """Writes denials of one session. Safe to share between threads.

    Args:
        state: Paddock's state directory.
        session: the session's name.
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
        path = os.path.normpath(os.path.join(self._plan.worktree, call.path.replace("\0", "")))
        with self._lock:
            key = (call.tool, path)
            if key in self._known or len(self._known) >= MOST_KINDS or self._broken:
                return
            self._known.add(key)
            # A live session may have one by now, made by whoever was first to refuse something.
            ledger = ledgers.path_of(self._state, self._session)
            try:
                ledgers.append(
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


PADDOCK = (sys.executable, "-I", "-m", "launcher")
WORKER = (sys.executable, "-I", "-m", worker.__name__)
BEGIN = (sys.executable, "-I", "-m", begin.__name__)


class Jail:
    """A jail that lives, with a worker in it.

    Args:
        name: of its session.
        process: the worker.
        root: the worktree.
        denials: takes what the tools refuse.
    """

    def __init__(self, name: str, process: WorkerProcess, root: str, denials: Denials | None) -> None:
        self.name = name
        self._denials = denials
        self.process = process
        self.root = root
        self.identity = identity(root)

    def command(self, line: str, directory: str) -> list[str]:
        """The words that run a line of sh(1) there."""
        return [*PADDOCK, "exec", self.name, "--cwd", directory, "--", "sh", "-c", line]

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
        self.process = WorkerProcess(list(WORKER), Scope(context=None, base=base), base)

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
        places: Paddock's own directories.
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
        argv = [*PADDOCK, *words, "--", *WORKER]
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


def _code() -> list[str]:
    """Paddock's own packages, where they do not lie in the interpreter's environment, which the jail has anyway."""
    found = [os.path.dirname(os.path.realpath(module.__file__ or "")) for module in (launcher, policy)]
    return [path for path in found if not beneath(path, os.path.realpath(sys.prefix))]
