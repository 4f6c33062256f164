"""How the guard comes to its listener: what the process above the command does, and what the command's own does.

The filter is installed in the command's process, and so the listener is born there. Its number is told over a pipe, the
guard fetches it with pidfd_getfd(2), and the command starts when it has: at no moment is a call allowed that nobody
judged. When the guard dies, the last copy of the listener is gone and the kernel answers ENOSYS.

What answers the calls (`launcher.jail.guard.server`) is loaded when the listener has been taken over: a command that
makes one earlier waits, and most make none for a while.

Launch path of the backend landlock+guard: see launcher/jail/syscalls.py.
"""

import _thread
import posix

from launcher.jail import hygiene, init, landlock, processes, reports, syscalls
from launcher.jail.spec import Facts, JailSpec
from launcher.lean import ctypes, os
from policy.errors import EXIT_REFUSED, Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal


# Held while a thread loads what answers the calls. A fork waits for that: a module that is half there in this moment
# would stay so in the child, which runs a further command, for ever.
_loading = _thread.allocate_lock()
posix.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)

# Whether this process is in the guard's domain. Inherited over fork: the guards of a jail's further commands share it,
# so that these commands reach each other's abstract sockets.
_confined = False

names = b""
"""Abstract addresses of the jail begin with this: the names of the machine's network namespace are not its to take."""


class Guard:
    """The guard of one jail. To be made in the process that will be the command's parent, before it forks."""

    FACTS: Facts = (
        ("guard", "layer", "seccomp user notification, performed on behalf of the process"),
        ("metadata", "held", "the guard makes such changes where writing is granted, nowhere else"),
        (
            "unix-sockets",
            "held",
            "the guard connects where writing is granted; abstract names: a prefix, and Landlock's scope",
        ),
        ("terminals", "held", "/dev/pts is not granted; the guard opens the other side of new ones"),
    )

    def __init__(self, spec: JailSpec, status_fd: int, ledger_fd: int | None = None) -> None:
        """Opens the pipes and moves this process into a Landlock domain of which the jail's is a part.

        The domain takes nothing away but abstract sockets made outside, so that a connect that is performed here is
        judged as if the jail made it (landlock(7), LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET).

        Args:
            spec: of the jail.
            status_fd: where faults are told (`launcher.jail.reports`).
            ledger_fd: a pipe to whoever keeps the session's ledger, where refused calls are told. None for `status_fd`.

        Raises:
            Refusal: Landlock cannot scope abstract sockets (before ABI 6).
        """
        self._spec = spec
        self._status_fd = status_fd
        self._ledger_fd = status_fd if ledger_fd is None else ledger_fd
        self._makes = -1
        self._prepare()
        self._number, self._tell = os.pipe()
        self._wait, self._go = os.pipe()
        hygiene.no_new_privs()

    def _prepare(self) -> None:
        if landlock.abi() < 6:
            raise Refusal("landlock-too-old", "without Landlock's scopes the guard cannot judge abstract sockets")
        hygiene.no_new_privs()
        if not _confined:
            _confine()
        self._makes = landlock.ruleset(self._spec.grants, network=self._spec.net == "open")

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the command's process must keep until `install`; of all else of the guard it must have no copy."""
        return self._tell, self._wait

    def install(self, program: bytes) -> Facts:
        """In the command's process: applies the filter and waits until the guard serves. Returns what is held then.

        Raises:
            Refusal: the kernel refused the filter, or the guard did not take over.
        """
        fd = hygiene.install_notifying(program)
        os.write(self._tell, fd.to_bytes(4, "little"))
        if not os.read(self._wait, 1):
            raise Refusal("guard-lost", "the guard could not intercept the command's system calls")
        for own in (fd, self._tell, self._wait):
            os.close(own)
        return self.FACTS

    def serve(self, agent: int) -> None:
        """In the command's parent, right after the fork: starts the guard's threads and returns.

        From here on this process has no capability: performing calls must not lend any to the jail. And it has the
        name by which control sockets know it (`processes.jailed`).

        Args:
            agent: process id of the command's process.
        """
        for fd in self.descriptors:
            os.close(fd)
        hygiene.drop_all()
        name = ctypes.create_string_buffer(processes.GUARD)
        syscalls.prctl(syscalls.PR_SET_NAME, ctypes.addressof(name))
        _signal.signal(processes.WAKE, _wake)
        _thread.start_new_thread(self._take_over, (agent,))

    def _take_over(self, agent: int) -> None:
        try:
            said = os.read(self._number, 4)
            os.close(self._number)
            if not said:
                return  # the command's process has refused to start, and says so itself
            try:
                pidfd = syscalls.pidfd_open(agent)
                fd = syscalls.pidfd_getfd(pidfd, int.from_bytes(said, "little"))
            except OSError as error:
                raise _untraceable(error) from None
            os.close(pidfd)
            os.write(self._go, b"!")
            os.close(self._go)
            self._start(fd)
        except BaseException as error:
            self._fault(error)

    def _start(self, fd: int) -> None:
        with _loading:
            from launcher.jail.guard import server

        server.start(fd, self._spec, self._ledger_fd, self._fault, names=names, makes=self._makes)

    def _fault(self, error: BaseException) -> None:
        """Ends this process, and with it the jail: the launcher sees to that. Nothing goes on without its guard."""
        try:
            refusal = error if isinstance(error, Refusal) else init.failure("the guard failed", error)
            reports.send_refusal(self._status_fd, refusal)
        finally:
            os._exit(EXIT_REFUSED)


def _confine() -> None:
    global _confined, names
    try:
        # Every domain, one without file system rights too, denies renames and links from one directory to
        # another unless it grants them (landlock(7), LANDLOCK_ACCESS_FS_REFER); this one must take nothing away.
        ruleset = syscalls.landlock_create_ruleset((landlock.FS_REFER, 0, landlock.SCOPE_ABSTRACT_UNIX))
        try:
            root = os.open("/", os.O_PATH | os.O_CLOEXEC)
            rule = landlock.FS_REFER.to_bytes(8, "little") + root.to_bytes(4, "little")
            syscalls.landlock_add_rule(ruleset, syscalls.LANDLOCK_RULE_PATH_BENEATH, rule)
            os.close(root)
            syscalls.landlock_restrict_self(ruleset)
        finally:
            os.close(ruleset)
    except OSError as error:
        raise Refusal("landlock-refused", "the guard cannot be confined", context=str(error)) from None
    _confined = True
    names = b"paddock-" + os.urandom(8).hex().encode() + b"/"


def _wake(signal: int, frame: object) -> None:
    """Does nothing: that the signal came has interrupted the call that it was meant for."""


def _untraceable(error: OSError) -> Refusal:
    return Refusal(
        "guard-untraceable",
        "the guard is not allowed to read the command's memory",
        context=f"pidfd_getfd: {error.strerror}; blocked by Yama (kernel.yama.ptrace_scope above 1), a container's "
        "seccomp profile or a security module",
        hint="paddock doctor says which; allowing user namespaces makes the guard unnecessary",
    )
