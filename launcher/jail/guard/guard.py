"""How the guard comes to its listener: what the process above the command does, and what the command's own does.

The filter is installed in the command's process, and so the listener is born there. Its number is told over a pipe, the
guard fetches it with pidfd_getfd(2), and the command starts when it has: at no moment is a call allowed that nobody
judged. When the guard dies, the last copy of the listener is gone and the kernel answers ENOSYS.

What answers the calls (`launcher.jail.guard.server`) is loaded when the listener has been taken over: a command that
makes one earlier waits, and most make none for a while.

Launch path of the backend landlock+guard: see launcher/jail/syscalls.py.
"""

import _thread

from launcher.jail import hygiene, init, landlock, processes, reports, syscalls
from launcher.jail.spec import Facts, JailSpec
from launcher.lean import ctypes, os
from policy import promises
from policy.errors import EXIT_REFUSED, Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal


# What the guard lets through: a pure reading of the JailSpec.
#
# A path may be changed, and a socket file connected to, where the spec says "write" and no exception takes it away.
# The arithmetic is the one of `policy.verdict.decide`; a test holds the two against each other.

DELETED = " (deleted)"

# Sources of grants that hold although a denied path lies above them: the slots lie in Paddock's own state, which is
# denied (as in `layout`, where they are exempt).
_BEYOND_DENIAL = (promises.NESTED, promises.PRIVATE_HOME, promises.PRIVATE_TEMP, promises.PRIVATE_GIT)


class Refused(PermissionError):
    """The spec does not let it happen; what it was is for the ledger.

    Args:
        number: the errno for the caller.
        path: the file that it was about, "" when it was about none.
        host: the address, with `port`.
        target: what it was about in other cases.
    """

    def __init__(self, number: int, path: str = "", *, host: str = "", port: int = 0, target: str = "") -> None:
        super().__init__(number, os.strerror(number))
        self.number = number
        self.subject = (path, "w", host, port, target)


class Rules:
    """The answers for one jail."""

    __slots__ = ("_denied", "_nested", "_read_only", "_writable", "addresses")

    def __init__(self, spec: JailSpec) -> None:
        grants = [(path, source) for path, access, source in spec.grants if "w" in access]
        self._writable = frozenset(path for path, _ in grants)
        self._nested = frozenset(path for path, source in grants if source in _BEYOND_DENIAL)
        self._denied = frozenset(path for path, _ in spec.denied)
        self._read_only = frozenset(path for path, _ in spec.read_only)
        self.addresses = None if spec.net == "open" else frozenset(spec.addresses)

    def may_write(self, path: str) -> bool:
        """Whether the spec lets `path` (absolute, canonical) be written."""
        granted = nested = False
        while True:
            nested = nested or path in self._nested
            if path in self._read_only or (path in self._denied and not nested):
                return False
            granted = granted or path in self._writable
            if path in ("/", ""):
                return granted
            path = path.rpartition("/")[0] or "/"

    def may_change(self, name: str) -> bool:
        """Whether an open file may be changed that the kernel calls `name` (readlink(2) on /proc/self/fd/N)."""
        if not name.startswith("/"):
            # "socket:[N]" and others exist only as descriptors. A pipe may be the caller's of the launcher.
            return name.startswith("socket:")
        if name.endswith(DELETED):
            # The name is gone or really ends like this: both have to be allowed.
            bare = name.removesuffix(DELETED)
            return name.startswith("/memfd:") or (self.may_write(bare) and self.may_write(name))
        return self.may_write(name)

    def may_reach(self, address: bytes, port: int) -> bool:
        """Whether a TCP connection to an address (4 or 16 bytes) and port may be made."""
        if self.addresses is None:
            return True
        if address.startswith(bytes(10) + b"\xff\xff"):
            address = address[12:]  # IPv4 in IPv6's clothes
        return (address, port) in self.addresses


WAKE = _signal.SIGURG
"""Interrupts a thread that waits in a connect. Ignored by default, so one from elsewhere does nothing either."""

# Whether this process is in the guard's domain. Inherited over fork: the guards of a jail's further commands share it,
# so that these commands reach each other's abstract sockets.
_confined = False

names = b""
"""Abstract addresses of the jail begin with this: the names of the machine's network namespace are not its to take."""


class Guard:
    """The guard of one jail. To be made in the process that will be the command's parent, before it forks."""

    FACTS: Facts = (
        ("guard", "layer", "seccomp user notification, performed on behalf of the process"),
        ("metadata", "held", "the guard changes what is writable, and nothing else"),
        (
            "unix-sockets",
            "held",
            "the guard connects to what is writable; abstract names: its own, and Landlock's scope",
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
            raise Refusal("guard-lost", "the guard did not take over the command's system calls")
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
        _signal.signal(WAKE, _wake)
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
        from launcher.jail.guard import server

        server.start(fd, self._spec, self._ledger_fd, self._fault, makes=self._makes)

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
        "the guard may not read the command's process",
        context=f"pidfd_getfd: {error.strerror}; closed by Yama (kernel.yama.ptrace_scope above 1), a container's "
        "seccomp profile or a security module",
        hint="paddock doctor says which; allowing user namespaces makes the guard unnecessary",
    )
