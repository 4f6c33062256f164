"""One run from start to end: private directories, supervision, what was enforced, the end.

Launch path: see launcher/jail/syscalls.py.
"""

from launcher.jail import hygiene, syscalls
from launcher.lean import os
from launcher.session import cache, handoff, messages, state, terminal
from launcher.session.places import AUDIT_SOCKET, Places
from launcher.session.worker import Worker
from policy import promises
from policy.errors import Refusal, printable
from policy.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from launcher.egress.start import Egress
    from launcher.session.denials import Denials
    from launcher.session.learning import Wants
    from launcher.session.limits import Limits
    from launcher.session.logins import Logins
    from launcher.vcs.quarantine.lease import Lease

_CAP_AUDIT_READ = 37


def run(
    entry: cache.Entry,
    arguments: tuple[str, ...],
    places: Places,
    *,
    given: dict[str, str],
    name: str | None,
    report: str | None,
    verbose: bool,
    quiet: bool = False,
    strict: bool = False,
    wants: "Wants | None" = None,
    started: int = 0,
    on_start: "Callable[[int], None] | None" = None,
    observer: "Callable[[str, Any], None] | None" = None,
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
        quiet: no summary of what was refused.
        strict: refuse when hand-off files have changed, and harvest nothing then.
        wants: told what the command wants; `entry.filter` was made for watching then.
        started: nanoseconds since the epoch that name the session's ledger; 0 for now.
        on_start: told the process id of the jail's init, with which everything in the jail ends.
        observer: told how far the run is, with plain data: "session" when it has its directory, "jail" with the
            process id of the jail's first process, "started" right before the command is executed, "ended".

    Returns:
        The exit status: the command's own, or 128+N when signal N ended it.

    Raises:
        Refusal: nothing was started, or the command could not be executed; nothing is left behind then. Or the work is
            not handed over (`strict`).
    """
    hygiene.fill_standard_fds()
    plan = entry.plan
    target = None
    if report is not None:
        from launcher.session import report_file

        target = report_file.Target(report)
    for warning in plan.warnings:
        messages.say(f"paddock: warning: {printable(warning)}")
    session = state.open_session(places, plan.worktree_id, name, mounts=promises.has_mounts(plan.backend))
    facts: list[tuple[str, str, str]] = []
    status_code: int | None = None
    limits: Limits | None = None
    egress: Egress | None = None
    denials: Denials | None = None
    ended: list[str] = []
    git: Lease | None = None
    logins: Logins | None = None
    harvested: dict[str, Any] | None = None
    refused: Refusal | None = None
    told = observer if observer is not None else _nobody
    told("session", (session.name, session.directory, plan.worktree, plan.worktree_id, plan.backend, plan.net))

    def on_report(rows: "tuple[tuple[str, str, str], ...]") -> None:
        facts.extend(rows)
        if any(name == "seccomp" for name, _, _ in rows):  # the last one, see `launcher.jail.enter`
            told("started", ())

    def on_child(pid: int) -> None:
        told("jail", pid)
        if on_start is not None:
            on_start(pid)

    watch = handoff.Watch(plan)
    ending = _Ending(session, watch, thorough=strict or report is not None)
    try:
        if plan.net == "proxy":
            from launcher.egress import start

            egress = start.Egress(plan, session.directory, _packages)
            session.slots.update(egress.slots)
        if plan.git == "private":
            from launcher.session import private_git

            git = ending.git = private_git.take(places, plan, session.slots)
        if plan.logins:
            from launcher.session import logins as session_logins

            logins = session_logins.Logins(plan, session.slots["home"])
            for line in logins.bring():
                messages.say(f"paddock: warning: {printable(line)}")
        session.slots["secret"] = os.urandom(24).hex()
        bound = plan.bind(session.slots)
        if verbose:
            messages.say(f"paddock: provider {plan.provider or 'none'} ({printable(plan.provider_source)})")
            messages.say(f"paddock: session {session.name}, {plan.backend}, worktree {printable(plan.worktree)}")
        if _costly(plan):
            from launcher.session import limits as session_limits

            private = (*session.private.values(),) or (session.slots["tmp"],)
            private = (session.slots["home"], *private, *((git.directory,) if git is not None else ()))
            limits = session_limits.Limits(bound, session.directory, private, uid=os.geteuid())
            bound = limits.plan
        worker = Worker(
            bound,
            bound.argv(arguments),
            hygiene.environment(bound, os.environ, given),
            entry.filter,
            session,
            limits,
            entry.support,
            egress,
        )
        denials = _denials(places, session, bound, wants, started)
        if wants is not None:
            worker.watch()
        if denials is not None and denials.fd != -1:
            worker.be_heard()
        listener = worker.take_further(session.listen())
        status_code = terminal.supervise(
            worker,
            namespaces=worker.namespaces,
            on_report=facts.extend if observer is None else on_report,
            on_child=on_child,
            handed_over=(listener, *(egress.handed_over if egress is not None else ())),
            watch=limits.watch if limits is not None else None,
            denials=denials,
            # Nothing is in the way of the end then but the kernel, which takes the namespaces apart meanwhile.
            when_empty=ending.come if limits is None and egress is None and denials is None else _not_yet,
        )
    finally:
        failures: list[str] = []
        if limits is not None:
            facts[:] = limits.facts(tuple(facts))
            ended = limits.told()
            failures += limits.close()
        if egress is not None and (lost := egress.close()):
            ended.append(lost)
        if denials is not None:
            ended += denials.close()
        if logins is not None:
            ended += logins.take_back()
        ending.come()
        failures += ending.failures
        changes = ending.changes
        if git is not None:
            from launcher.session import private_git

            finished = private_git.finish(
                git, plan, strict=strict, hold=strict and bool(changes), nothing=ending.nothing_to_harvest
            )
            ended += finished.lines
            harvested, refused = finished.data, finished.refusal
        passed = limits.watch.ended if limits is not None and limits.watch is not None else ""
        refusals = denials.total if denials is not None else 0
        told("ended", (status_code, passed, refusals, harvested, changes, tuple(ended)))
        if target is not None:
            from launcher.ledger import enforcement

            content = enforcement.document(
                plan, tuple(facts), session=session.name, status=status_code, changes=changes, harvest=harvested
            )
            try:
                target.write(enforcement.text(content))
            except Refusal as refusal:
                if status_code is not None:
                    raise
                messages.say(str(refusal))  # what is being raised already matters more
    for line in (*ended, *(() if strict else handoff.told(changes))):  # a refusal names them itself
        messages.say(f"paddock: {printable(line)}")
    if denials is not None:
        for line in denials.summary(quiet=quiet):
            messages.say(f"paddock: {line}")
    for failure in failures:
        messages.say(f"paddock: warning: not removed: {printable(failure)}")
    if strict and (refused is not None or changes):
        raise refused or handoff.refused(changes)
    return status_code


def _nobody(what: str, data: "Any") -> None:  # noqa: ANN401  # as `observer`
    del what, data


class _Ending:
    """What is done once the jail is empty: the session's directories go, the worktree is looked at.

    Attributes:
        git: the use of the private git directory, if there is one.
        failures: what could not be removed.
        changes: of hand-off files.
        nothing_to_harvest: False also where nobody has looked.
    """

    __slots__ = ("_session", "_thorough", "_watch", "changes", "come_already", "failures", "git", "nothing_to_harvest")

    def __init__(self, session: state.Session, watch: handoff.Watch, *, thorough: bool) -> None:
        self._session = session
        self._watch = watch
        self._thorough = thorough
        self.git: Lease | None = None
        self.come_already = False
        self.failures: list[str] = []
        self.changes: tuple[handoff.Change, ...] = ()
        self.nothing_to_harvest = False

    def come(self) -> None:
        """Does it, the first time."""
        if self.come_already:
            return
        self.come_already = True
        self.failures = self._session.close()
        self.changes = self._watch.changes(thorough=self._thorough)
        if self.git is not None:
            from launcher.session import private_git

            self.nothing_to_harvest = private_git.nothing_new(self.git)


def _not_yet() -> None:
    """Limits, the proxy and the ledger end first, and need the jail's end for that."""


def _packages() -> None:
    from launcher.session import packages

    packages.enable()


def _audit(places: Places) -> tuple[int, bool]:
    """A socket that hears the kernel's audit (-1 for none), and whether a service of this user's hands it on."""
    if syscalls.capget()[0] >> _CAP_AUDIT_READ & 1:
        from launcher.ledger import audit_socket

        return audit_socket.listening(), False
    for directory in (places.runtime, f"{places.state}/run"):
        if os.access(f"{directory}/{AUDIT_SOCKET}", os.W_OK):
            from launcher.ledger import audit_stream

            return audit_stream.request(f"{directory}/{AUDIT_SOCKET}"), True
    return -1, False


def _denials(
    places: Places, session: state.Session, plan: Plan, wants: "Wants | None", started: int
) -> "Denials | None":
    """What gathers the session's denials; None where nobody could tell of any."""
    audit, handed_on = (-1, False) if plan.backend == promises.BUBBLEWRAP else _audit(places)
    if audit == -1 and wants is None and plan.backend != promises.GUARD and plan.net != "proxy":
        return None
    from launcher.session import denials

    return denials.Denials(
        places.state, session.name, session.directory, plan, audit, wants, started, handed_on=handed_on
    )


def _costly(plan: Plan) -> bool:
    """Whether a limit takes more than rlimits. What the default configuration sets does not."""
    for name, value in plan.limits:
        if name in ("memory", "disk", "cpu_time"):
            return True
        if name == "processes" and value < hygiene.FAR:
            # An ordinary user's are counted per user namespace, for free.
            return os.geteuid() == 0 or plan.backend != promises.NAMESPACES
    return False
