"""What runs in the child process of a launch: the jail's view, then init, then the command and further ones.

Launch path: see launcher/jail/syscalls.py.
"""

from launcher.jail import enter, hygiene, init, status, syscalls
from launcher.jail.guard.attach import Guard
from launcher.lean import os
from launcher.session import state
from policy import promises
from policy.errors import Refusal
from policy.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from launcher.egress.handle import Egress
    from launcher.jail.bubblewrap.enter import Jail
    from launcher.jail.namespaces.layout import Operation
    from launcher.jail.watch.observer import Watch
    from launcher.session.limits import Limits


class Worker:
    """The jail's view, then init, then commands, of which `enter` is the last step.

    Attributes:
        streams: descriptors that are the command's standard input, output and error.
    """

    __slots__ = (
        "_argv", "_bubblewrap", "_bwrap", "_code", "_egress", "_filter", "_gid", "_held", "_limits", "_listener",
        "_operations", "_status_fd", "_telling", "_uid", "_watch", "environment", "namespaces", "plan", "proof",
        "streams",
    )  # fmt: skip

    def __init__(
        self,
        plan: Plan,
        argv: list[str],
        environment: dict[str, str],
        filter_program: bytes,
        session: state.Session,
        limits: "Limits | None",
        support: tuple[object, ...],
        egress: "Egress | None",
    ) -> None:
        self._limits = limits
        self._egress = egress
        self.plan = plan
        self.environment = environment
        self.streams = (0, 1, 2)
        self._argv = argv
        self._filter = filter_program
        self._listener = -1
        self.proof = b""
        self._code = (-1, 0)
        self._status_fd = -1
        self._held: tuple[str, ...] = ()
        self._uid, self._gid = os.geteuid(), os.getegid()
        self._operations: tuple[Operation, ...] = ()
        self.namespaces = 0
        self._bwrap = ""
        self._bubblewrap: Jail | None = None
        self._watch: type[Watch] | None = None
        self._telling: Callable[[bytes], bytes] | None = None
        from launcher.jail.namespaces import layout

        if promises.has_mounts(plan.backend):
            from launcher.jail.namespaces import enter as namespaces

            nested = [path for path, _, source in plan.grants if source == promises.NESTED]
            exempt = (*(session.slots[name] for name in ("home", "git") if name in session.slots), *nested)
            self._operations = layout.prepare(plan, exempt, session.private)
            if plan.backend == promises.NAMESPACES:
                self.namespaces = namespaces.flags(plan)
            else:
                from launcher.jail import probe

                known = probe.Support.from_data(support)
                self._bwrap = known.bubblewrap if known is not None else ""
        elif terminal_name := layout.terminal_name():
            # Exactly the caller's own; the rest of /dev/pts stays closed.
            self.plan = plan.replace(grants=(*plan.grants, (terminal_name, "rwi", "the caller's terminal")))

    def __call__(self, status_fd: int, launcher_pidfd: int) -> "NoReturn":
        """The child's whole life; see `terminal.supervise`."""
        self._status_fd = status_fd
        hygiene.take_streams(self.streams)
        held = ["survival"]
        if self.namespaces:
            from launcher.jail.namespaces import enter as namespaces

            self._bound_pids(status_fd)
            facts = namespaces.enter(self.plan, self._operations, uid=self._uid, gid=self._gid)
            status.send_report(status_fd, facts)
            held += [name for name, state, _ in facts if state == "held"]
        bubblewrap = self._bubblewrap = self._bubblewrapped()
        if bubblewrap is not None:
            status.send_report(status_fd, bubblewrap.facts)
            held += [name for name, state, _ in bubblewrap.facts if state == "held"]
        if self._egress is not None:
            self._egress.hand_out()
        self._held = tuple(held)
        guard = self.guard(self.plan, status_fd)
        pid_namespace = bool(self.namespaces & syscalls.CLONE_NEWPID)

        def start() -> "NoReturn":
            self.start(guard)

        init.run_init(
            status_fd,
            launcher_pidfd,
            start,
            pid_namespace=pid_namespace,
            attend=guard.serve if guard else bubblewrap.on_command if bubblewrap else None,
            further=(self._listener, self._serve),
            end=bubblewrap.end if bubblewrap is not None else None,
        )

    def start(self, guard: "Guard | None" = None) -> "NoReturn":
        """Turns the command's process into the command."""
        status_fd = self._status_fd
        if self._bubblewrap is not None:
            self._bubblewrap.join_user()

        def report(facts: enter.Facts) -> None:
            status.send_report(status_fd, facts)
            status.send_executing(status_fd)

        self.enter(self.plan, self._argv, self.environment, guard=guard, keep=status_fd, report=report)

    def be_heard(self) -> None:
        """Has the kernel's audit told of the session. Loaded now, for the same reason as `watch` does it."""
        from launcher.jail import seccomp

        self._telling = seccomp.telling

    def watch(self) -> None:
        """Has the command watched. Loads all that takes: in the jail's view there is nothing to load."""
        from launcher.jail.watch import observer

        self._watch = observer.WatchfulGuard if self.plan.backend == promises.GUARD else observer.Watch

    def take_further(self, listener: int, proof: bytes) -> int:
        """Makes the jail's init take further commands from `listener`, which is returned. To be called once.

        What serves them is not loaded now, when every launch would wait for it, and cannot be found later, when the
        view is the jail's: its directory is kept open.
        """
        directory = os.open(os.path.dirname(init.__file__), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.proof = proof
        self._listener, self._code = listener, (directory, os.fstat(directory).st_mtime_ns)
        return listener

    def _serve(self, connection: int, parent: int) -> "NoReturn":
        """Serves a client of the control socket, in a process of its own; see `init.run_init`."""
        if self._bubblewrap is not None:
            self._bubblewrap.join_user()
        _load(*self._code)
        from launcher.jail import minder

        inside = promises.has_mounts(self.plan.backend)
        minder.run(connection, self, uid=self._uid, pid_namespace=inside)

    def _bubblewrapped(self) -> "Jail | None":
        """Into the namespaces that bubblewrap makes, in the backend that has it."""
        if self.plan.backend != promises.BUBBLEWRAP:
            return None
        from launcher.jail.bubblewrap import enter as bubblewrap

        hygiene.close_callers()
        return bubblewrap.enter(self.plan, self._operations, path=self._bwrap, filter_program=self._filter)

    def _bound_pids(self, status_fd: int) -> None:
        """The number of root's processes, which no rlimit bounds."""
        count = dict(self.plan.limits).get("processes", 0)
        if self._uid == 0 and count >= hygiene.FAR:  # else an rlimit bounds them, or a control group
            status.send_report(status_fd, hygiene.bound_pids_row(count))
            self.plan = self.plan.replace(limits=tuple(limit for limit in self.plan.limits if limit[0] != "processes"))

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the process that starts a further command must keep, for `enter` and for its guard."""
        told = (self._status_fd,) if self.plan.backend == promises.GUARD else ()
        return (*told, *(self._limits.descriptors if self._limits is not None else ()))

    def guard(self, plan: Plan, status_fd: int) -> "Guard | None":
        """The guard of one command, in the backend that has one. To be made in the command's parent."""
        addresses = self._egress.addresses if self._egress is not None else ()
        if self._watch is not None:
            return self._watch(plan, status_fd, addresses, self._status_fd)
        if plan.backend != promises.GUARD:
            return None
        return Guard(plan, status_fd, addresses, self._status_fd)

    def separate(self) -> int:
        """Keeps the next child, a further command, apart from the others. Returns this process's id as it sees it."""
        if self.plan.backend != promises.BUBBLEWRAP:
            return os.getpid()  # each has a Landlock domain of its own
        from launcher.jail.bubblewrap import process

        process.separate(self._filter, self.plan.limits, last=True)
        return 0

    def enter(
        self,
        plan: Plan,
        argv: list[str],
        environment: dict[str, str],
        *,
        guard: "Guard | None",
        keep: int,
        report: "Callable[[enter.Facts], None]" = lambda facts: None,
        search: tuple[str, ...] = (),
    ) -> "NoReturn":
        """Turns this process into a jailed command: the session's first one, or a further one; see `enter.enter`."""
        if self._limits is not None:
            self._limits.enter()
        if plan.backend == promises.BUBBLEWRAP:
            from launcher.jail.bubblewrap import process

            process.own_proc()
        enter.enter(
            plan,
            argv,
            environment,
            filter_program=self._filter,
            kernel_uid=self._uid,
            held_outside=self._held,
            report=report,
            keep=(keep, *(guard.descriptors if guard else ())),
            install=guard.install if guard else None,
            search=search,
            telling=self._telling,
        )


def _load(directory: int, changed: int) -> None:
    """Loads the modules of `launcher.jail` that serve further commands.

    Args:
        directory: the package's, open.
        changed: when an entry of it changed last, in nanoseconds; another answer now is another Paddock.
    """
    import marshal
    import sys

    from launcher import jail

    tag = sys.implementation.cache_tag
    for name in ("request", "minder"):
        try:
            found = os.stat(f"{name}.py", dir_fd=directory)
            outdated = os.fstat(directory).st_mtime_ns != changed
            content = b"" if outdated else _read(f"__pycache__/{name}.{tag}.pyc", directory)
            # After PEP 552, as `launcher.start` does; without a compiled form that is up to date, from the source.
            stamp = b"".join((number & 0xFFFFFFFF).to_bytes(4, "little") for number in
                             (0, int(found.st_mtime), found.st_size))  # fmt: skip
            if content[4:16] == stamp and content[:4] == _magic():
                code = marshal.loads(memoryview(content)[16:])
            else:
                code = compile(_read(f"{name}.py", directory), f"{jail.__path__[0]}/{name}.py", "exec")
        except OSError:
            outdated = True
        if outdated:
            raise Refusal(
                "session-outdated",
                "the session cannot take further commands",
                context="Paddock has been changed or removed since the session started",
                hint="start the session again",
            )
        module = type(sys)(f"{jail.__name__}.{name}")
        module.__file__ = f"{jail.__path__[0]}/{name}.py"
        sys.modules[module.__name__] = module
        exec(code, module.__dict__)
        setattr(jail, name, module)


def _magic() -> bytes:
    from _frozen_importlib_external import MAGIC_NUMBER

    return MAGIC_NUMBER


def _read(name: str, directory: int) -> bytes:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return b""
    try:
        return os.read(fd, 1 << 20)
    finally:
        os.close(fd)
