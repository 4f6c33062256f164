"""One run from start to end: private directories, supervision, what was enforced, the end.

Launch path: see launcher/jail/syscalls.py.
"""

import time

from launcher.jail import hygiene, init, layout, processes, syscalls
from launcher.jail.spec import Facts, JailSpec
from launcher.lean import os
from launcher.session import cache, handoff_changes, messages, state, submodule_places, terminal
from launcher.session.places import AUDIT_SOCKET, Places
from policy import promises
from policy.errors import Refusal, printable, unusable
from policy.plan import Place, Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from launcher.egress.handle import Egress
    from launcher.session.credentials import Logins
    from launcher.session.denial_collector import Denials
    from launcher.session.generous import Generous
    from launcher.session.limits import Limits
    from launcher.session.state import Session
    from launcher.session.teach import Wants
    from launcher.vcs.private.lease import Lease
    from policy.keys import Key
    from policy.plan import Bind


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
    asker: int = -1,
) -> int:
    """Runs the planned command to its end.

    Args:
        entry: the Plan with what goes with it.
        arguments: the caller's arguments for the command.
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
            process id of the jail's first process, "started" with the time (`time.monotonic`) when the command was
            executed, "ended".
        asker: a socket to who asks a person about refused hosts, owned from now on; -1 for nobody.

    Returns:
        The exit status: the command's own, or 128+N when signal N ended it, or asked for the end after it had ended.

    Refusals: nothing was started, or the command could not be executed; nothing is left behind then. Or the work is not
    handed over (`strict`).
    """
    hygiene.fill_standard_fds()
    to_carry = hygiene.streams_to_carry()
    plan = entry.plan
    if plan.ask == "yes" and asker == -1 and not plan.notify and wants is None and observer is None:
        raise Refusal(
            "ask-nobody",
            "nobody could be asked about refused hosts",
            context="--ask yes needs a terminal that the command reads from and writes to, an editor, the service, or "
            "a command under network.notify",
            hint="--ask auto asks where it can; or allow hosts beforehand: --allow-domain HOST",
        )
    target = None
    if report is not None:
        from launcher.ledger import enforcement
        from launcher.vcs import worktree_words

        target = enforcement.Target(report, worktree_words.is_agents)
    for warning in plan.warnings:
        _warn(warning)
    mounts = promises.has_mounts(plan.backend)
    brings = sorted(f"~/{path}" for source, path, _ in plan.brought if source)
    session = state.open_session(
        places,
        plan.worktree_id,
        name,
        mounts=mounts,
        writes=state.writable(plan),
        brings=(state.SHOWN if mounts else state.COPIED, *brings) if brings else (),
    )
    told = observer if observer is not None else _nobody
    told("session", (session.name, session.directory, plan.worktree, plan.worktree_id, plan.backend, plan.net))
    status_code: int | None = None
    parts = _Parts(plan, session, places, strict=strict, thorough=strict or target is not None)
    parts.tell, parts.on_start = told, on_start
    if asker != -1 or (plan.ask == "yes" and wants is None):
        parts.askers = _askers(plan, session, places, asker)
    try:
        if state.vouches(places) != entry.vouches:  # now that `paddock trust` would find this session
            from launcher.vcs import written

            written.refuse_late(places.state, plan)
        if verbose:
            messages.say(f"paddock: provider {plan.provider or 'none'} ({printable(plan.provider_source)})")
            messages.say(f"paddock: session {session.name}, {plan.backend}, worktree {printable(plan.worktree)}")
            if plan.brought or plan.logins:
                from launcher.session import mcp_servers

                for line in (
                    *(line for line in plan.describe() if line.startswith("bring ")),
                    *mcp_servers.lines_of(plan),
                ):
                    messages.say(f"paddock: {printable(line)}")
        spec = parts.made(entry, arguments, given, wants, started)
        status_code = terminal.supervise(parts.carried(spec, to_carry) if to_carry else spec, parts)
    finally:
        try:
            parts.end()
        finally:
            if status_code and not quiet and parts.sought_network():
                parts.lines.append(NO_NETWORK)
            refusals = parts.denials.total if parts.denials is not None else 0
            told("ended", (status_code, parts.passed, refusals, parts.harvested, parts.changes, tuple(parts.lines)))
            late = init.take_ending()
            init.unblock_signals()
        if target is not None:
            from launcher.ledger import enforcement

            content = enforcement.document(
                plan, tuple(parts.facts), session=session.name, status=status_code, changes=parts.changes,
                harvest=parts.harvested,
            )  # fmt: skip
            try:
                target.write(enforcement.text(content))
            except Refusal as refusal:
                if status_code is not None:
                    raise
                messages.say(str(refusal))  # what is being raised already matters more
    parts.say(quiet=quiet)
    if verbose and not parts.searched:
        messages.say(handoff_changes.UNSEARCHED)
    if strict and (parts.refused is not None or parts.changes):
        raise parts.refused or handoff_changes.refused(parts.changes)
    status_code = 128 + late if late else status_code
    if parts.lost is not None:
        parts.lost.exit_code = status_code or parts.lost.exit_code
        raise parts.lost
    return status_code


WAITS = "paddock: taking the work over; one more signal leaves that for later: paddock worktree harvest"
NO_NETWORK = "the command wanted the network, and this jail has none: --allow-domain HOST (paddock help network)"


def _nobody(what: str, data: "Any") -> None:  # noqa: ANN401  # as `observer`
    del what, data


class _Parts(terminal.Listener):
    """What a session has beside its command. Made one after the other, ended together, however many there are by then.

    Attributes:
        limits, egress, denials: None where the plan has no need of them.
        facts: of the jail, and of the limits at the end.
        tell, on_start: see `run`.
        askers: sockets to who asks people about refused hosts; the proxy's.
        changes: of hand-off files, once the jail is empty.
        passed: the limit that ended the session, or "".
        harvested: the report of the harvest; None without a private git directory.
        refused: why nothing was handed over, if so.
        searched: whether the whole worktree was looked at.
        lines: what is to be said at the end.
        lost: what became of bytes on standard streams.
    """

    def __init__(self, plan: Plan, session: state.Session, places: Places, *, strict: bool, thorough: bool) -> None:
        self._plan = plan
        self._bound: Plan | None = None
        self._started = 0
        self._session = session
        self._places = places
        self._strict = strict
        self._thorough = thorough
        self._watch = handoff_changes.Watch(plan, os.path.dirname(session.slots["home"]), session.directory)
        self._emptied = False
        self._trouble: Exception | None = None
        self._nothing_to_harvest = False  # also where nobody has looked
        self._failures: list[str] = []
        self._git: Lease | None = None
        self._logins: Logins | None = None
        self._trusting = False
        self.lost: Refusal | None = None
        self._keys: tuple[Key, ...] = ()
        self.limits: Limits | None = None
        self._generous: Generous | None = None
        self.egress: Egress | None = None
        self.denials: Denials | None = None
        self.changes: tuple[handoff_changes.Change, ...] = ()
        self.passed = ""
        self.searched = False
        self._first = 0
        self._counters = -1
        self.facts: list[tuple[str, str, str]] = []
        self.tell: Callable[[str, Any], None] = _nobody
        self.on_start: Callable[[int], None] | None = None
        self.askers: tuple[int, ...] = ()
        self.harvested: dict[str, Any] | None = None
        self.refused: Refusal | None = None
        self.lines: list[str] = []

    def made(
        self,
        entry: cache.Entry,
        arguments: tuple[str, ...],
        given: dict[str, str],
        wants: "Wants | None",
        started: int,
    ) -> JailSpec:
        """Makes what the plan asks for. Returns the jail to be spawned."""
        plan, session = self._plan, self._session
        self._watch.begin()
        binds: tuple[Bind, ...] = ()
        if plan.brought or os.path.lexists(f"{os.path.dirname(session.slots['home'])}/brought"):
            from launcher.session import brought

            binds, lines = brought.provided(plan, session)
            for line in lines:
                _warn(line)
        if plan.files or os.path.lexists(f"{os.path.dirname(session.slots['home'])}/written"):
            from launcher.session import brought

            for line in brought.written(plan, session):
                _warn(line)
        secret, believed, mint = b"", True, None
        if plan.logins:
            from launcher.session import brought

            secret, believed = brought.logins_agreed(plan, session)
        if plan.net == "proxy":
            from launcher.egress import handle

            held: tuple[tuple[Key, str], ...] = ()
            if plan.keys:
                from launcher.session import key_sources
                from policy.keys import active, of, passes, unheld, without_covered

                keys = self._keys = active(plan, arguments, given)
                for key in of(plan):
                    if key not in keys and key.variable not in given:
                        messages.say(f"paddock: warning: {passes(key.variable, 'your own words have it so')}")
                if plan.budget and plan.provider and not keys:
                    raise unheld(plan.provider, plan.budget[0][0])
                held = key_sources.values_of(keys, self._places.home, plan.grants, _warn)
                keys = self._keys = tuple(key for key, _ in held)
                self._plan = plan = without_covered(plan, keys)
            here = any(key.ambient for key, _ in held)
            kept = None
            if here or secret:
                from launcher.session import keeper

                kept = keeper.kept(plan, self._keys, secret)
            self.egress = handle.Egress(plan, session.directory, _packages, held, kept, self.askers)
            session.slots.update(self.egress.slots)
        if plan.git == "private":
            from launcher.session import private_git

            self._git = private_git.take(self._places, plan, session.slots, session.directory, strict=self._strict)
        if plan.logins:
            from launcher.session import credentials

            if secret:
                from policy.phantoms import Mint

                mint = Mint(secret)
            self._logins = credentials.Logins(plan, session.slots["home"], mint)
            for line in self._logins.bring(believed=believed):
                _warn(line)
        if plan.left_open:
            self._note()
        session.slots["secret"] = os.urandom(24).hex()
        bound = plan.bind(session.slots)
        if self._keys:
            from policy.keys import told

            bound = told(bound, self._keys, session.slots)
        if self.egress is not None and (self.egress.certificate != -1 or plan.authorities):
            from launcher.session import brought, keeper

            living = [other.name for other in brought.others(session, plan.worktree)]
            trusted = keeper.trusted(plan, self._keys, session, living, self.egress.certificate)
            self._trusting = True
            bound = bound.replace(env_set=tuple((dict(bound.env_set) | trusted).items()))
        bound = bound.replace(binds=(*bound.binds, *binds)) if binds else bound
        if needs_more_than_rlimits(plan):
            from launcher.session import limits

            self.limits = limits.Limits(bound, session.directory, self._private(), uid=os.geteuid())
            bound = self.limits.plan
        if plan.bounds:
            from launcher.session.generous import Generous

            self._generous = Generous(
                dict(plan.bounds),
                tuple(filter(os.path.isdir, (*(() if plan.cow else (plan.worktree,)), *self._private()))),
                scratch=promises.has_mounts(plan.backend),
                other=self.limits.watch if self.limits is not None else None,
            )
        self._bound, self._started = bound, started or time.time_ns()
        self.denials = _denials(self._places, session, bound, wants, self._started)
        environment = jail_environment(bound, os.environ, given)
        spec = jail_spec(bound, arguments, environment)
        spec = of_session(spec, session, entry.support, plan.backend).replace(
            **self._layers(),
            filter=entry.filter,
            listener=session.listen(),
            watch=wants is not None,
            audited=self.denials is not None and self.denials.fd != -1,
        )
        spec.proof = session.proof
        if self.limits is not None:
            self.watchdog, spec.cgroups = self.limits.watch, self.limits.descriptors
        if self._generous is not None:
            self.watchdog = self._generous
        if self.egress is not None:
            spec.addresses, spec.sockets = self.egress.addresses, self.egress.sockets
        return spec

    def _layers(self) -> dict[str, str]:
        """Where what is written in a copy of the worktree, and of an image, goes: by `JailSpec`'s names for it."""
        plan, found = self._plan, {}
        for name, tree in (("copy", plan.worktree if plan.cow else ""), ("root_copy", plan.root)):
            if not tree:
                continue
            from contextlib import suppress

            from launcher.session.places import made

            found[name] = f"{self._session.directory}/{name}"
            for layer in ("upper", "work"):
                made(f"{found[name]}/{layer}")
            with suppress(OSError):  # the jail finds it missing
                os.chmod(f"{found[name]}/upper", os.stat(tree).st_mode & 0o7777)  # shown as that of the whole
        return found

    def _private(self) -> tuple[str, ...]:
        """The private home first, temporary directories, the private git directory, what copies have of their own."""
        slots = self._session.slots
        temporary = (*self._session.private.values(),) or (slots["tmp"],)
        git = (self._git.directory,) if self._git is not None else ()
        return (slots["home"], *temporary, *git, *self._layers().values())

    def carried(self, spec: JailSpec, streams: tuple[int, ...]) -> JailSpec:
        """The spec with pipes in the places of the caller's files, which stay out of the jail."""
        from launcher.session.carrier import Carrier

        self.carrier = Carrier(streams)
        self.carrier.limit(spec.limits)
        return spec.replace(streams=self.carrier.streams)

    def on_report(self, facts: Facts) -> None:
        self.facts += facts

    def on_child(self, pid: int) -> None:
        self._first = pid
        self.tell("jail", pid)
        if self.on_start is not None:
            self.on_start(pid)

    def on_executing(self, when: float) -> None:
        if self._plan.net == "none" and promises.has_mounts(self._plan.backend):
            self._counters = processes.network_counters(self._first)
        self.tell("started", when)

    def sought_network(self) -> bool:
        """Whether something in a jail without a network wanted to leave it, or asked for a name."""
        counters, self._counters = self._counters, -1
        return counters != -1 and processes.sought_network(counters)

    def first_denial(self) -> "Denials":
        """What gathers the session's denials where only the guard tells of any, and now has: few sessions need it."""
        from launcher.session import denial_collector

        assert self._bound is not None
        self.denials = denial_collector.Denials(
            self._places.state, self._session.name, self._session.directory, self._bound, -1, None, self._started
        )
        return self.denials

    def when_empty(self) -> None:
        """While the kernel takes the namespaces apart, where nothing else has to end first."""
        if self.limits is None and self.egress is None and self.denials is None:
            try:
                self._empty()
            except Exception as error:  # raised at the end, when the command's own status is known
                self._trouble = error

    def _empty(self) -> None:
        """What is done once the jail is empty: the session's directories go, the worktree is looked at."""
        if self._emptied:
            return
        self._emptied = True
        if self._generous is not None:
            self._generous.over()
        if made := submodule_places.made_in(self._plan.left_open):
            self._put_aside(made)  # before the note of it goes with the session's directory
        if self._git is not None:
            from launcher.session import private_git

            self._nothing_to_harvest = private_git.nothing_new(self._git)  # a review's goes with the session's own
        self._failures += self._session.close()
        self.changes = self._watch.changes(thorough=self._thorough)
        self.searched = self._watch.searched

    def end(self) -> None:
        """Ends all of it, and hands over the work; with a strict hand-off none when hand-off files have changed."""
        try:
            self._end()
        finally:  # last: it waits for whoever reads what the command has written
            if self.carrier is not None:
                self.lost = self.carrier.finish(ended=True, impatient=self.asked_to_end)

    def _end(self) -> None:
        if self._started:
            state.remember_last(self._places, self._session.name, self._started)
        if self.limits is not None:
            self.facts[:] = self.limits.facts(tuple(self.facts))
            self.lines += self.limits.report_lines()
            self._failures += self.limits.close()
            self.passed = self.limits.passed
        if self._generous is not None and self._generous.passed:
            self.lines += self._generous.report_lines()
            self.passed = self.passed or self._generous.passed
        if self.egress is not None and (lost := self.egress.close()):
            self.lines.append(lost)
        if self._plan.notify:
            from launcher.session import notifier

            self.lines += notifier.failure(self._session.directory)
        if self._trusting:
            from launcher.session import keeper

            keeper.forget(self._session)
        if self._keys or self._trusting:
            from launcher.session import key_sources

            self.lines += key_sources.spent(
                self._session.directory, self._keys, login=any(login[-1] for login in self._plan.logins)
            )
        if self.denials is not None:
            self.lines += self.denials.close()
        if self._logins is not None:
            self.lines += self._logins.take_back()
        self._empty()
        if self._trouble is not None:
            raise self._trouble
        if self._git is not None:
            from launcher.session import private_git

            with init.Patience(lambda: messages.say(WAITS)):
                finished = private_git.finish(
                    self._git,
                    self._plan,
                    strict=self._strict,
                    changes=self.changes,
                    nothing=self._nothing_to_harvest,
                )
            self.lines += finished.lines
            self.harvested, self.refused = finished.data, finished.refusal
        if made := submodule_places.made_in(submodule_places.open_places(self._plan)):
            self._put_aside(made)  # by the indexes as they are now that the work is taken over

    def _aside(self) -> str:
        """Where what the command has put in a submodule's place goes."""
        from launcher.session.places import made

        return (
            self._git.directory
            if self._git is not None and not self._plan.review
            else made(f"{self._places.state}/planted")
        )

    def _note(self) -> None:
        """Has somebody else look at the places that the jail leaves open, should this process be killed."""
        from launcher.vcs.private import planted

        try:
            planted.write(self._session.directory, self._plan.left_open, self._aside())
        except OSError as error:
            raise unusable(self._session.directory, error) from None

    def _put_aside(self, places: list[Place]) -> None:
        """What the command has put where git outside expects a submodule."""
        from launcher.session import packages

        packages.enable()
        from launcher.vcs.private import planted

        directory = self._aside()
        for root, git_dir, place in places:
            try:
                aside = planted.of_place(root, place, git_dir, directory)
            except Refusal as refusal:
                messages.say(str(refusal))
            else:
                self.lines += [planted.report_line(place, aside)] if aside is not None else ()

    def say(self, *, quiet: bool) -> None:
        """Tells the user what there is to know; of hand-off files only where no refusal will name them."""
        # What was put aside is named as a whole: who is sent to a file that is gone reads nothing.
        root = f"{self._plan.worktree}/"
        in_commits = {path for _, path, _ in (self.harvested or {}).get("handoff", ())}
        there = () if self._strict else tuple(
            (what, path, mode) for what, path, mode in self.changes
            if path not in in_commits and (what != "created" or os.path.lexists(os.path.join(root, path)))
        )  # fmt: skip
        for line in (*self.lines, *handoff_changes.report_lines(there)):
            messages.say(f"paddock: {printable(line)}")
        if self.denials is not None:
            for line in self.denials.summary(quiet=quiet):
                messages.say(f"paddock: {line}")
        for failure in self._failures:
            messages.say(f"paddock: warning: not removed: {printable(failure)}")


def _askers(plan: Plan, session: state.Session, places: Places, asker: int) -> tuple[int, ...]:
    """The socket for answers with its proof, and sockets to who asks people: for the proxy."""
    listener, proof = session.listen_for_answers()
    found = [listener, proof] if asker == -1 else [listener, proof, asker]
    if plan.notify:
        from launcher.session import notifier

        found.append(notifier.started(plan, session.name, places, session.directory))
    return tuple(found)


def _warn(text: str) -> None:
    messages.say(f"paddock: warning: {printable(text)}")


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
            from launcher.ledger import audit_socket

            return audit_socket.request_stream(f"{directory}/{AUDIT_SOCKET}"), True
    return -1, False


def _denials(
    places: Places, session: state.Session, plan: Plan, wants: "Wants | None", started: int
) -> "Denials | None":
    """What gathers the session's denials; None where nobody could tell of any, or only the guard."""
    audit, handed_on = (-1, False) if plan.backend == promises.BUBBLEWRAP else _audit(places)
    if audit == -1 and wants is None and plan.net != "proxy":
        return None
    from launcher.session import denial_collector

    return denial_collector.Denials(
        places.state, session.name, session.directory, plan, audit, wants, started, handed_on=handed_on
    )


# From a Plan to the JailSpec of its launch: the one place where they meet.
#
# Launch path: see launcher/jail/syscalls.py.


def jail_spec(plan: Plan, arguments: tuple[str, ...] = (), environment: "Mapping[str, str] | None" = None) -> JailSpec:
    """The jail of a bound Plan; the rest of a session is at its defaults."""
    search: tuple[str, ...] = ()
    if plan.root and "/" not in plan.command:  # in an image only the jail looks anything up
        entries = ((environment or {}).get("PATH") or os.defpath).split(":")
        search = tuple(f"{entry.rstrip('/')}/{plan.command}" for entry in entries if entry.startswith("/"))
    return JailSpec(
        tuple(plan.argv(arguments)),
        environment,
        program=plan.program,
        worktree=plan.worktree,
        cwd=plan.cwd,
        grants=plan.grants,
        binds=plan.binds,
        links=plan.links,
        denied=plan.denied,
        read_only=plan.read_only,
        narrowed=plan.narrowed,
        handoff=plan.handoff,
        root=plan.root,
        search=search,
        net=plan.net,
        limits=plan.limits,
        required=plan.required,
        namespaces=plan.backend == promises.NAMESPACES,
        landlock=plan.backend != promises.BUBBLEWRAP,
        guard=plan.backend == promises.GUARD,
        about=(plan.worktree, plan.command, plan.backend, plan.net, plan.provider),
    )


def of_session(spec: JailSpec, session: "Session", support: tuple[object, ...], backend: str) -> JailSpec:
    """The spec with what the session and the machine give: private directories, the caller's terminal, bubblewrap.

    Args:
        spec: from `jail_spec`.
        session: open.
        support: of `cache.Entry`.
        backend: of the Plan.
    """
    if not promises.has_mounts(backend):
        terminal = layout.terminal_name()
        # Exactly the caller's own; the rest of /dev/pts stays closed.
        more = ((terminal, "rwi", "the caller's terminal"),) if terminal else ()
        return spec.replace(grants=(*spec.grants, *more))
    bwrap = ""
    if backend == promises.BUBBLEWRAP:
        from launcher.jail import probe

        known = probe.Support.from_data(support)
        bwrap = known.bubblewrap if known is not None else ""
        if not bwrap:
            raise Refusal("bubblewrap-failed", "bubblewrap could not build the jail", context="its location is unknown")
    nested = [path for path, _, source in spec.grants if source == promises.NESTED]
    # Paddock's state is denied, and the private home lies in it; so may granted submodules of hidden ones.
    exempt = (*(session.slots[name] for name in ("home", "git") if name in session.slots), *nested)
    return spec.replace(exempt=exempt, private=session.private, bwrap=bwrap)


def jail_environment(
    plan: Plan, environ: "Mapping[str, str] | Mapping[bytes, bytes]", given: dict[str, str]
) -> dict[str, str]:
    """The environment of the command, from nothing: what the plan lets pass, then what it sets, then `given`.

    Args:
        plan: bound (`Plan.bind`); env_pass names variables, or all that begin with PREFIX as `PREFIX_*`.
        environ: the caller's environment, `os.environ` or `os.environb`.
        given: values that the caller named explicitly; they win.

    Refusals: a name to be set is empty or holds "=" or NUL, or a value holds NUL: execve(2) would read another variable
    than was meant.
    """
    names = {name for name in plan.env_pass if not name.endswith("*")}
    prefixes = tuple(name[:-1] for name in plan.env_pass if name.endswith("*"))
    result: dict[str, str] = {}
    for raw, value in environ.items():
        name = os.fsdecode(raw)
        if name in names or (prefixes and name.startswith(prefixes)):
            result[name] = os.fsdecode(value)
    for name, value in (*plan.env_set, *given.items()):
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise Refusal("environment-invalid", f"{name!r} cannot be set in an environment")
        result[name] = value
    return result


def needs_more_than_rlimits(plan: Plan) -> bool:
    """Whether a limit of the plan takes more than rlimits. The bounds of every session (`generous`) are none."""
    for name, value in plan.limits:
        if name in ("memory", "disk", "cpu_time"):
            return True
        if name == "processes" and value < hygiene.FAR:
            # An ordinary user's are counted per user namespace, for free.
            return os.geteuid() == 0 or plan.backend != promises.NAMESPACES
    return False
