"""The one way into a jail: `spawn` makes it as a `JailSpec` says, forward only.

Everything that the jail's processes need is in the spec or loaded before the fork: nothing is called back across it,
and in the jail's view there is nothing to load. The first process of the jail builds the view and becomes its init; the
command is its child (`launcher.jail.enter`), and so is what serves further commands (`launcher.jail.minder`).

Launch path: see launcher/jail/syscalls.py.
"""

from launcher.jail import enter, hygiene, init, layout, processes, reports, syscalls
from launcher.jail.spec import Facts, JailSpec
from launcher.lean import os
from policy.errors import EXIT_REFUSED, Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from launcher.jail.bubblewrap import Jail
    from launcher.jail.guard.guard import Guard
    from launcher.jail.layout import Operation


class Jailed:
    """A jail as its launcher sees it.

    Attributes:
        pid: of its first process, a child of the caller; with it everything inside ends.
        status: what the processes inside send (`launcher.jail.reports`); owned by the caller.
    """

    __slots__ = ("pid", "status")

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.status = status


def spawn(spec: JailSpec, *, close: tuple[int, ...] = (), own_session: bool = False) -> Jailed:
    """Starts a jail and its command. What goes wrong inside comes as `status.REFUSED`.

    The calling thread must be the only one, and must live as long as the jail. Signals are blocked
    (`init.block_signals`); for a jail without namespaces the caller adopts orphans.

    Args:
        spec: `spec.handed_over` is closed here, in every case.
        close: descriptors of the caller that the jail must not have.
        own_session: the jail leads a session of its own.

    Raises:
        Refusal: userns-unavailable, and what the spec itself is refused for.
    """
    opened = list(spec.handed_over)
    try:
        inside = Inside(spec)
        if inside.code[0] != -1:
            opened.append(inside.code[0])
        pidfd = syscalls.pidfd_open(os.getpid())
        opened.append(pidfd)
        reader, writer = os.pipe()
        opened += [reader, writer]
        child = processes.fork(inside.flags)
        if child == 0:
            inside.live(writer, pidfd, (*close, reader), own_session=own_session)
        opened.remove(reader)
        return Jailed(child, reader)
    finally:
        for fd in opened:
            os.close(fd)


class Inside:
    """What the processes of a jail know of it.

    Attributes:
        spec: as given, changed only by what the jail itself finds out.
        flags: CLONE_NEW* for its first process.
        code: directory of this package, open, and when it was changed last; (-1, 0) where no further command can come.
    """

    __slots__ = ("_bubblewrap", "_held", "_ids", "_operations", "_prepared", "_status_fd", "code", "flags", "spec")

    def __init__(self, spec: JailSpec) -> None:
        """Decides and loads, outside of the jail, all that can be."""
        self._ids = (os.geteuid(), os.getegid())
        self._status_fd = -1
        self._held: tuple[str, ...] = ()
        self._bubblewrap: Jail | None = None
        self._prepared: enter.Prepared | None = None
        self.spec = spec if spec.filter else spec.replace(filter=_filter(spec))
        self.flags = 0
        self.code = (-1, 0)
        self._operations: tuple[Operation, ...] = layout.prepare(spec) if spec.mounts else ()
        if spec.namespaces:
            from launcher.jail import namespaces

            self.flags = namespaces.flags(spec)
        if spec.bwrap:
            from launcher.jail import bubblewrap  # noqa: F401
        if spec.guard:
            from launcher.jail.guard import guard as attach  # noqa: F401
        if spec.watch:
            from launcher.jail.guard import watch  # noqa: F401
        if spec.audited:
            from launcher.jail import seccomp  # noqa: F401
        if spec.sockets[0] != -1:
            from launcher.jail import namespaces
        if spec.listener != -1:
            # What serves further commands is not loaded now, when every launch would wait for it, and cannot be found
            # later, when the view is the jail's: its directory stays open.
            directory = os.open(os.path.dirname(init.__file__), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self.code = (directory, os.fstat(directory).st_mtime_ns)

    def live(self, status_fd: int, launcher_pidfd: int, close: tuple[int, ...], *, own_session: bool) -> "NoReturn":
        """The life of the jail's first process."""
        # Nothing may escape from here: this is a copy of the launcher, with all that it has on its stack.
        try:
            if own_session:
                os.setsid()
            if self.flags & syscalls.CLONE_NEWPID:
                processes.tie_to_launcher(launcher_pidfd)
            else:
                processes.adopt_orphans()
            for fd in close:
                if fd != -1:
                    os.close(fd)
            self._build(status_fd)
            self._run(status_fd, launcher_pidfd)
        except Refusal as refusal:
            reports.send_refusal(status_fd, refusal)
        except BaseException as error:
            reports.send_refusal(status_fd, init.failure("the jail could not be built", error))
        finally:
            os._exit(EXIT_REFUSED)

    def _build(self, status_fd: int) -> None:
        """The view and the namespaces, from inside."""
        self._status_fd = status_fd
        hygiene.take_streams(self.spec.streams)
        held = ["survival"]
        for facts in self._namespaces(status_fd), self._bubblewrapped():
            if facts:
                reports.send_report(status_fd, facts)
                held += [name for name, state, _ in facts if state == "held"]
        if self.spec.namespaces and not self.spec.landlock:
            held += ["reads", "writes"]  # by the view
        if self.spec.sockets[0] != -1:
            from launcher.jail import namespaces

            namespaces.hand_out(self.spec.sockets)
        self._held = tuple(held)

    def _namespaces(self, status_fd: int) -> Facts:
        if not self.spec.namespaces:
            return ()
        from launcher.jail import namespaces

        count = dict(self.spec.limits).get("processes", 0)
        if self._ids[0] == 0 and count >= hygiene.FAR:  # else an rlimit bounds them, or a control group
            reports.send_report(status_fd, hygiene.bound_pids_row(count))
            limits = tuple(limit for limit in self.spec.limits if limit[0] != "processes")
            self.spec = self.spec.replace(limits=limits)
        return namespaces.enter(self.spec, self._operations, uid=self._ids[0], gid=self._ids[1])

    def _bubblewrapped(self) -> Facts:
        if not self.spec.bwrap:
            return ()
        from launcher.jail import bubblewrap

        hygiene.close_callers()
        self._bubblewrap = bubblewrap.enter(self.spec, self._operations)
        return self._bubblewrap.facts

    def _run(self, status_fd: int, launcher_pidfd: int) -> "NoReturn":
        """Becomes the init."""
        bubblewrap = self._bubblewrap
        guard = self.guard(self.spec, status_fd)
        told = os.pipe() if status_fd == reports.NOBODY else (reports.NOBODY, reports.NOBODY)
        pipe = told[1] if status_fd == reports.NOBODY else status_fd

        def start() -> "NoReturn":
            if bubblewrap is not None:
                bubblewrap.join_user()
            self.enter(self.spec, guard=guard, pipe=pipe, first=True, search=self.spec.search)

        init.run_init(
            status_fd,
            launcher_pidfd,
            start,
            pid_namespace=bool(self.flags & syscalls.CLONE_NEWPID),
            attend=guard.serve if guard else bubblewrap.on_command if bubblewrap else None,
            further=(self.spec.listener, self._serve) if self.spec.listener != -1 else None,
            end=bubblewrap.end if bubblewrap is not None else None,
            told=told,
        )

    def _serve(self, connection: int, parent: int) -> "NoReturn":
        """Serves a client of the control socket, in a process of its own; see `init.run_init`."""
        del parent
        if self._bubblewrap is not None:
            self._bubblewrap.join_user()
        _load(*self.code)
        from launcher.jail import minder

        minder.run(connection, self, uid=self._ids[0], pid_namespace=self.spec.mounts)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the process that starts a further command must keep, for `enter` and for its guard."""
        return (*((self._status_fd,) if self.spec.guard else ()), *self.spec.cgroups)

    def guard(self, spec: JailSpec, status_fd: int) -> "Guard | None":
        """The guard of one command of the jail, where it has one. To be made in the command's parent."""
        if spec.watch:
            from launcher.jail.guard import watch

            watching = watch.WatchfulGuard if spec.guard else watch.Watch
            return watching(spec, status_fd, self._status_fd)
        if not spec.guard:
            return None
        from launcher.jail.guard import guard as attach

        return attach.Guard(spec, status_fd, self._status_fd)

    def separate(self) -> int:
        """Keeps the next child, a further command, apart from the others. Returns this process's id as it sees it."""
        if not self.spec.bwrap:
            return os.getpid()  # each has a Landlock domain of its own
        from launcher.jail import bubblewrap

        bubblewrap.separate(self.spec.filter, self.spec.limits, last=True)
        return 0

    def share(self) -> None:
        """Does once, in the process that many further commands are forked from, what each would do for itself.

        They see each other's processes then as the commands of one shell do, where a PID namespace keeps them from
        all others; and what is granted is what is there now.
        """
        if syscalls.capget()[0] >> hygiene.CAP_SETPCAP & 1:
            hygiene.drop_bounding()
        if self.spec.landlock and self.ahead:
            self._prepared = enter.prepare(self.spec, set(self._held), signals=not self.spec.mounts)

    @property
    def ahead(self) -> bool:
        """Whether a process can be confined before its command is known: nothing outside has to follow it."""
        return not (self.spec.guard or self.spec.watch or self.spec.bwrap)

    def confine(self, keep: int) -> None:
        """All of `enter` but the command, which comes over the descriptor `keep`."""
        self._join(self.spec)
        enter.confine(self.spec, uid=self._ids[0], held=self._held, keep=(keep,), prepared=self._prepared)

    def enter(
        self,
        spec: JailSpec,
        *,
        guard: "Guard | None",
        pipe: int,
        first: bool = False,
        search: tuple[str, ...] = (),
    ) -> "NoReturn":
        """Turns this process into a command of the jail, the first one or a further one; see `enter.enter`."""
        self._join(spec)
        if spec.bwrap:
            from launcher.jail import bubblewrap

            bubblewrap.own_proc()
        enter.enter(spec, uid=self._ids[0], held=self._held, pipe=pipe, first=first, guard=guard, search=search)

    @staticmethod
    def _join(spec: JailSpec) -> None:
        """Into the control groups that hold the jail's commands."""
        for fd in spec.cgroups:
            os.write(fd, b"0")
            os.close(fd)


def _filter(spec: JailSpec) -> bytes:
    """The system call filter of a helper: what a guard would have to judge is not there at all (ENOSYS)."""
    from launcher.jail import seccomp

    return seccomp.program(
        syscalls.MACHINE,
        net=spec.net,
        own_network=spec.mounts and spec.net != "open",
        own_processes=spec.mounts,
        own_ipc=spec.mounts,
        kill_zero=False,
        unix_datagrams=False,
        guard=not spec.mounts,
    )


def _load(directory: int, changed: int) -> None:
    """Loads `launcher.jail.minder`, which serves further commands."""
    import marshal
    import sys

    from launcher import jail

    name = "minder"
    try:
        found = os.stat(f"{name}.py", dir_fd=directory)
        outdated = os.fstat(directory).st_mtime_ns != changed
        content = b"" if outdated else _read(f"__pycache__/{name}.{sys.implementation.cache_tag}.pyc", directory)
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
