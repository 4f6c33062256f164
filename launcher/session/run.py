"""One run from start to end: private directories, supervision, what was enforced, the end.

Launch path: see launcher/jail/syscalls.py.
"""

import os
import sys

from launcher.jail import enter, hygiene, init, status, syscalls
from launcher.jail.namespaces import enter as namespaces
from launcher.jail.namespaces import layout
from launcher.session import cache, report_file, state, terminal
from launcher.session.places import Places
from policy import promises
from policy.errors import printable
from policy.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def run(
    entry: cache.Entry,
    arguments: tuple[str, ...],
    places: Places,
    *,
    given: dict[str, str],
    name: str | None,
    report: str | None,
    verbose: bool,
) -> int:
    """Runs the planned command to its end.

    Args:
        entry: the Plan with what goes with it.
        arguments: the caller's arguments for the command.
        places: Paddock's own directories.
        given: environment variables that the caller gave a value.
        name: the session's name, None for a random one.
        report: file for the enforcement report.
        verbose: say on stderr what is done.

    Returns:
        The exit status: the command's own, or 128+N when signal N ended it.

    Raises:
        Refusal: nothing was started, or the command could not be executed. Nothing is left behind.
    """
    hygiene.fill_standard_fds()
    plan = entry.plan
    target = report_file.Target(report) if report is not None else None
    for warning in plan.warnings:
        sys.stderr.write(f"paddock: warning: {printable(warning)}\n")
    session = state.open_session(places, plan.worktree_id, name)
    facts: list[tuple[str, str, str]] = []
    status_code: int | None = None
    try:
        bound = plan.bind(session.slots)
        if verbose:
            sys.stderr.write(f"paddock: session {session.name}, {plan.backend}, worktree {printable(plan.worktree)}\n")
        sys.stderr.flush()
        worker = _Worker(
            bound,
            bound.argv(arguments),
            hygiene.environment(bound, os.environ, given),
            entry.filter,
            (session.slots["home"], session.slots["tmp"]),
        )
        status_code = terminal.supervise(
            worker,
            namespaces=worker.namespaces,
            on_report=facts.extend,
        )
    finally:
        failures = session.close()
        if target is not None:
            from launcher.ledger import enforcement

            content = enforcement.document(plan, tuple(facts), session=session.name, status=status_code)
            target.write(enforcement.text(content))
    for failure in failures:
        sys.stderr.write(f"paddock: warning: not removed: {printable(failure)}\n")
    return status_code


class _Worker:
    """What runs in the child process: the jail's view, then init, then the command."""

    __slots__ = ("_argv", "_environment", "_filter", "_gid", "_operations", "_plan", "_uid", "namespaces")

    def __init__(
        self, plan: Plan, argv: list[str], environment: dict[str, str], filter_program: bytes, slots: tuple[str, ...]
    ) -> None:
        self._plan = plan
        self._argv = argv
        self._environment = environment
        self._filter = filter_program
        self._uid, self._gid = os.geteuid(), os.getegid()
        self._operations: tuple[layout.Operation, ...] = ()
        self.namespaces = 0
        if plan.backend == promises.NAMESPACES:
            nested = [path for path, _, source in plan.grants if source == promises.NESTED]
            self._operations = layout.prepare(plan, (*slots, *nested))
            self.namespaces = namespaces.flags(plan)

    def __call__(self, status_fd: int, launcher_pidfd: int) -> "NoReturn":
        held = ["survival"]
        if self.namespaces:
            facts = namespaces.enter(self._plan, self._operations, uid=self._uid, gid=self._gid)
            status.send_report(status_fd, facts)
            held += [name for name, state, _ in facts if state == "held"]

        def start() -> "NoReturn":
            enter.enter(
                self._plan,
                self._argv,
                self._environment,
                filter_program=self._filter,
                kernel_uid=self._uid,
                held_outside=tuple(held),
                report=lambda facts: status.send_report(status_fd, facts),
                keep=(status_fd,),
            )

        init.run_init(status_fd, launcher_pidfd, start, pid_namespace=bool(self.namespaces & syscalls.CLONE_NEWPID))
