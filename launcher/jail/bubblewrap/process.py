"""bubblewrap's own process: started, listened to until the keeper runs, ended. And the way into what it made.

Launch path: see launcher/jail/syscalls.py.
"""

from launcher.jail import hygiene, syscalls
from launcher.jail.bubblewrap import keeper
from launcher.lean import os
from policy.errors import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from typing import NoReturn
else:
    import _signal

_NAMESPACES = ("mnt", "net", "ipc", "uts", "cgroup", "pid")
_NS_GET_USERNS = 0xB701  # ioctl_ns(2)
_SAID_AT_MOST = 65536
_MS_NOATIME, _MS_NODIRATIME, _MS_RELATIME, _ST_RELATIME = 0x400, 0x800, 0x200000, 0x1000  # statvfs(3), mount(2)


class Bubblewrap:
    """A running bwrap with its keeper. `join` enters what it made, `end` ends everything in there.

    The process that made it is their only tie to life: bwrap ends with it, the keeper with bwrap, and as the keeper is
    the first process of its PID namespace, everything else with the keeper.
    """

    __slots__ = ("_listening", "_pidfds", "_releasing", "mounts", "pid")

    def __init__(self, path: str, arguments: list[str], filter_program: bytes) -> None:
        """Starts it and waits until the keeper runs.

        Args:
            path: of bwrap.
            arguments: from `arguments.argv`.
            filter_program: from `seccomp.program`; the keeper runs under it too.

        Raises:
            Refusal: bubblewrap-failed, with what it said.
        """
        self._listening, saying = os.pipe()
        waiting, self._releasing = os.pipe()
        asking, telling = os.pipe()
        child = os.fork()
        if child == 0:
            _execute(path, arguments, filter_program, (waiting, saying, telling))
        self._pidfds = [syscalls.pidfd_open(child)]
        for fd in (waiting, saying, telling):
            os.close(fd)
        said = b""
        while not said.endswith(b"\0") and len(said) < _SAID_AT_MOST and (block := os.read(self._listening, 4096)):
            said += block
        told = os.read(asking, 4096)
        os.close(asking)
        if not said.endswith(b"\0"):
            self.end()
            raise _failed(said.decode(errors="backslashreplace").strip())
        # One JSON object, one name a line; importing json costs more than all the rest of this.
        self.pid = int(told.partition(b'"child-pid":')[2].partition(b",")[0].partition(b"\n")[0])
        self._pidfds.append(syscalls.pidfd_open(self.pid))
        with open(f"/proc/{self.pid}/mountinfo", "rb") as file:
            self.mounts = _mount_points(file.read())

    def limit(self, limits: tuple[tuple[str, int], ...]) -> None:
        """Gives the keeper the command's limits, or a debugger in the jail could use it as a way around them."""
        for name, value in limits:
            if name in hygiene.RESOURCES:
                hard = syscalls.prlimit64(self.pid, hygiene.RESOURCES[name])[1]
                syscalls.prlimit64(self.pid, hygiene.RESOURCES[name], (min(value, hard),) * 2)

    def join(self, to_lock: tuple[str, ...] = ()) -> None:
        """Moves this process, single-threaded, into the keeper's namespaces; children are in its PID namespace too.

        This process itself stays out of sight there. It has every capability inside, and none of them outside.

        Args:
            to_lock: mount points inside that are to be made read-only.

        Raises:
            Refusal: bubblewrap-closed.
        """
        try:
            # Not the network when it is shared: that is no namespace of bubblewrap's, and joined already.
            fds = [self._namespace(name) for name in _NAMESPACES if _is_new(self.pid, name)]
            inner = self._namespace("user")
            # The mounts belong to another user namespace than the keeper is in at last, where ids were mapped to 0.
            outer = syscalls.ioctl(fds[0], _NS_GET_USERNS)
            self._release()
            syscalls.setns(outer, syscalls.CLONE_NEWUSER)
            for fd in fds:
                syscalls.setns(fd)
            for path in to_lock:
                _lock(path)
            if not os.path.samestat(os.fstat(inner), os.fstat(outer)):
                syscalls.setns(inner, syscalls.CLONE_NEWUSER)
            for fd in (*fds, inner, outer):
                os.close(fd)
        except OSError as error:
            raise Refusal(
                "bubblewrap-closed",
                "the namespaces that bubblewrap made cannot be joined",
                context=error.strerror or str(error),
                hint="a bwrap that is installed set-uid root, or a container's filter, keeps them closed",
            ) from None

    def _namespace(self, name: str) -> int:
        return os.open(f"/proc/{self.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)

    def _release(self) -> None:
        """Lets the keeper close itself off, and waits until it has."""
        os.write(self._releasing, b"x")
        if os.read(self._listening, 1) != b"\0":
            raise _failed("its first process has died")
        os.close(self._releasing)
        os.close(self._listening)

    def end(self) -> None:
        """Ends bwrap, the keeper and everything in its namespaces, and reaps what are this process's children."""
        for pidfd in self._pidfds:
            try:
                _signal.pidfd_send_signal(pidfd, _signal.SIGKILL)
            except ProcessLookupError:
                continue  # somebody else has killed it, or it died with bwrap
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return


def _lock(path: str) -> None:
    """Makes one mount read-only. Its other flags are named again: to leave one out is to lift it, which is EPERM."""
    flags = os.statvfs(path).f_flag
    kept = flags & (syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC | _MS_NOATIME | _MS_NODIRATIME)
    kept |= _MS_RELATIME if flags & _ST_RELATIME else 0
    syscalls.mount("", path, flags=syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | kept)


def _is_new(pid: int, name: str) -> bool:
    """Whether a process is in another namespace of a kind than this one."""
    return os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")


def _execute(path: str, arguments: list[str], filter_program: bytes, pipes: tuple[int, int, int]) -> "NoReturn":
    """Becomes bwrap. Nothing may escape from here: this is a copy of the launcher."""
    waiting, saying, telling = pipes
    parent = os.getppid()
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, _signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(128 + _signal.SIGKILL)
        # Away from the terminal and its signals, which are the command's.
        os.setsid()
        _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)  # see `keeper`
        # A set-uid bwrap would make namespaces that cannot be joined; without privilege it makes those that can.
        hygiene.no_new_privs()
        if os.geteuid() != 0:
            syscalls.capset(0, 0, 0)  # bwrap refuses to start with some; root needs them to map itself
        started = keeper.descriptor(syscalls.MACHINE)
        words = ["--info-fd", str(telling), "--seccomp", str(_file("filter", filter_program)), *arguments]
        given = _file("arguments", b"".join(os.fsencode(word) + b"\0" for word in words))
        for fd, end in ((0, waiting), (1, saying), (2, saying)):
            os.dup2(end, fd)
        kept = (started, given, telling, int(words[3]))
        hygiene.close_inherited(kept)
        for fd in kept:
            os.set_inheritable(fd, True)
        os.chdir("/")
        os.execve(path, ["bwrap", "--args", str(given), "--", f"/proc/self/fd/{started}"], {})
    except (OSError, Refusal) as error:
        os.write(saying, str(error).encode(errors="backslashreplace"))
    finally:
        os._exit(1)


def _file(name: str, content: bytes) -> int:
    """A file in memory that holds `content`, to be read from its start; owned by the caller."""
    fd = os.memfd_create(f"paddock-{name}")
    while content:
        content = content[os.write(fd, content) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _mount_points(text: bytes) -> frozenset[str]:
    """The mount points that /proc/PID/mountinfo names (proc_pid_mountinfo(5))."""
    found = set()
    for line in text.split(b"\n"):
        if line:
            place = line.split(b" ", 5)[4]
            for escaped, char in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
                place = place.replace(escaped, char)
            found.add(os.fsdecode(place))
    return frozenset(found)


def _failed(said: str) -> Refusal:
    return Refusal(
        "bubblewrap-failed",
        "bubblewrap could not build the jail",
        context=said or "it ended without a word",
        hint="paddock doctor shows what this machine allows",
    )
