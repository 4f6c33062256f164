"""bubblewrap as the maker of a jail's namespaces and view: its options, its process, and how the jail enters them.

The command stays this process's own child, as on the other backends: stops, signals, exit statuses and failures to
execute are seen directly, and no process of bubblewrap's stands in the terminal's process group, where Ctrl-C would
kill it with the whole jail.

Launch path: see launcher/jail/syscalls.py.
"""

import errno
from _stat import S_ISDIR

from launcher.jail import hygiene, layout, syscalls
from launcher.jail.layout import Operation
from launcher.jail.spec import Facts, JailSpec
from launcher.lean import os
from launcher.safefs import walk
from policy.errors import Refusal
from policy.plan import beneath

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from typing import NoReturn
else:
    import _signal


# What bubblewrap is told: from the operations of `layout` to its options. Pure.
#
# bubblewrap carries its options out in order, each source seen outside and each target inside; what a later one
# mounts covers what lies there. So an option for a directory always comes before those for what lies below it.
#
# Launch path: no imports but the spec's and the layout's.


def argv(
    spec: JailSpec,
    operations: tuple[Operation, ...],
    *,
    uid: int,
    gid: int,
    files: frozenset[str] = frozenset(),
    terminal: str = "",
) -> list[str]:
    """The options of bwrap(1) that show `spec`, without descriptors and command.

    Args:
        operations: from `layout.prepare`, without those whose path is not there.
        uid: effective user id, kept inside.
        gid: effective group id, kept inside.
        files: those paths of operations that are no directories.
        terminal: path of the caller's terminal, "" without one.
    """
    size = dict(spec.limits).get("disk")
    words = ["--unshare-all", "--unshare-user", *(("--share-net",) if spec.net == "open" else ())]
    # `--die-with-parent` ends everything with the process above; no `--new-session`: nobody inside has the terminal,
    # and the command, which does, cannot push input into it (seccomp).
    words += ["--die-with-parent", "--as-pid-1", "--cap-drop", "ALL", "--chdir", "/"]
    words += ["--uid", str(uid), "--gid", str(gid)]
    last: list[str] = []
    made = {"/"}
    for operation in sorted((o for o in operations if o.kind != layout.LINK), key=lambda o: o.path):
        path = operation.path
        words += _parents(path, made) if operation.makes else []
        made.add(path)
        if operation.kind == layout.PRIVATE:
            words += _dev(terminal, size) if path == "/dev" else _temp(operation)
        elif operation.kind == layout.MASK:
            # A device on a mount without devices can be neither opened nor read, not by root either.
            words += ["--ro-bind", "/dev/null", path] if path in files else _mask(operation)
            last += [] if path in files else ["--remount-ro", path]
        elif _is_device(operation):
            words += ["--dev-bind", path, path]
        else:
            writable = operation.kind == layout.PIN or (operation.kind == layout.BIND and operation.writable)
            words += ["--bind" if writable else "--ro-bind", operation.source or path, path]
    words += _links(operations)
    last += ["--remount-ro", "/dev"]
    # Read-only as a whole: started by root, the files of /proc/sys and their like are this user's.
    return [*words, *last, "--proc", "/proc", "--remount-ro", "/proc", "--remount-ro", "/"]


def to_lock(operations: tuple[Operation, ...], files: frozenset[str], terminal: str) -> tuple[str, ...]:
    """Mounts in /dev that are still to be made read-only: a device is written all the same, its mode and owner are not.

    `--remount-ro` makes devices unusable, because it adds the flag nodev. Arguments as for `argv`.
    """
    nodes = [f"/dev/{name}" for name in layout.DEVICE_NODES] + (["/dev/console"] if terminal else [])
    nodes += [o.path for o in operations if _is_device(o) and (o.path in files or not o.writable)]
    return tuple(nodes)


def _parents(path: str, made: set[str]) -> list[str]:
    """Makes the directories above a mount point that are on the jail's own tmpfs; left to itself, bwrap closes them."""
    missing = []
    parent = path.rpartition("/")[0] or "/"
    while parent not in made:
        made.add(parent)
        missing.append(parent)
        parent = parent.rpartition("/")[0] or "/"
    return [word for directory in reversed(missing) for word in ("--dir", directory)]


def _is_device(operation: Operation) -> bool:
    return operation.kind == layout.BIND and beneath(operation.path, "/dev") and operation.path != "/dev"


def _temp(operation: Operation) -> list[str]:
    if operation.text:
        return ["--bind", operation.text, operation.path]
    return ["--perms", "1777", "--tmpfs", operation.path]


def _dev(terminal: str, size: int | None) -> list[str]:
    console = ["--dev-bind", terminal, "/dev/console"] if terminal else []
    bound = [] if size is None else ["--size", str(max(size, 4096))]
    return ["--dev", "/dev", "--perms", "1777", *bound, "--tmpfs", "/dev/shm", "--mqueue", "/dev/mqueue", *console]


def _mask(operation: Operation) -> list[str]:
    return ["--perms", "0555" if operation.holes else "0000", "--tmpfs", operation.path]


def _links(operations: tuple[Operation, ...]) -> list[str]:
    """Symbolic links, except where a mount point had to be made in their place: what was granted wins."""
    taken = [operation.path for operation in operations if operation.kind != layout.LINK]
    words = []
    for operation in operations:
        if operation.kind == layout.LINK and not any(beneath(path, operation.path) for path in taken):
            words += ["--symlink", operation.text, operation.path]
    return words


# The first process of bubblewrap's PID namespace: a programme of some 250 bytes that only has to be there.
#
# bubblewrap has to execute something. A shell or an interpreter would have to exist inside the jail. bubblewrap's
# own first process runs without the system call filter and in reach of the command's ptrace(2), so the filter could
# be walked around. This programme says that it has started (one NUL on standard output), waits for a byte on
# standard input, makes itself untouchable (prctl(2), PR_SET_DUMPABLE), says so, closes every descriptor and sleeps.
# It is started with SIGCHLD ignored: what it inherits from dead parents is reaped by the kernel (wait(2)). It needs
# nothing of the jail's file system, and may do nothing that the command may not.


_KEEPER_BASE = 0x10000  # above vm.mmap_min_addr everywhere
_KEEPER_HEADERS = 64 + 56
_MFD_EXEC = 0x10  # memfd_create(2), Linux 6.3

# The machine's number in an ELF header (elf(5)), and the programme of the text above. What it writes is at its end;
# what it reads goes onto the stack.
_KEEPER_CODE = {
    "x86_64": (
        62,
        "bf01000000 488d3557000000 ba01000000 b801000000 0f05"  # write(1, end, 1)
        "31ff 4889e6 b800000000 0f05"  # read(0, stack, 1)
        "bf04000000 31f6 b89d000000 0f05"  # prctl(PR_SET_DUMPABLE, 0)
        "bf01000000 488d3525000000 ba01000000 b801000000 0f05"  # write(1, end, 1)
        "31ff beffffffff 31d2 b8b4010000 0f05"  # close_range(0, ~0, 0)
        "b822000000 0f05 ebf7"  # pause(), again and again
        "00",
    ),
    "aarch64": (
        183,
        "200080d2 a1030010 220080d2 080880d2 010000d4"  # write(1, end, 1)
        "000080d2 e1030091 e80780d2 010000d4"  # read(0, stack, 1)
        "800080d2 010080d2 e81480d2 010000d4"  # prctl(PR_SET_DUMPABLE, 0)
        "200080d2 01020010 220080d2 080880d2 010000d4"  # write(1, end, 1)
        "000080d2 01008012 020080d2 883680d2 010000d4"  # close_range(0, ~0, 0)
        "000080d2 010080d2 020080d2 030080d2 280980d2 010000d4 faffff17"  # ppoll(0, 0, 0, 0), again and again
        "00",
    ),
}


def keeper_program(machine: str) -> bytes:
    """The keeper as an ELF file with one read-only segment."""
    if machine not in _KEEPER_CODE:
        raise Refusal("machine-unsupported", f"the bubblewrap backend does not know {machine}")
    number, text = _KEEPER_CODE[machine]
    code = bytes.fromhex(text)
    size = _KEEPER_HEADERS + len(code)
    header = (
        b"\x7fELF\x02\x01\x01" + bytes(9)  # 64 bits, little-endian, version 1
        + _fields((2, 2), (number, 2), (1, 4))  # executable
        + _fields((_KEEPER_BASE + _KEEPER_HEADERS, 8), (64, 8), (0, 8), (0, 4))  # entry, program headers, no sections
        + _fields((64, 2), (56, 2), (1, 2), (64, 2), (0, 2), (0, 2))
    )  # fmt: skip
    segment = _fields((1, 4), (5, 4), (0, 8), (_KEEPER_BASE, 8), (_KEEPER_BASE, 8), (size, 8), (size, 8), (0x10000, 8))
    return header + segment + code


def keeper_descriptor(machine: str) -> int:
    """The keeper as a file in memory, executable by its descriptor, which the caller owns. Close-on-exec."""
    try:
        fd = os.memfd_create("paddock-keeper", os.MFD_CLOEXEC | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fd = os.memfd_create("paddock-keeper", os.MFD_CLOEXEC)  # an older kernel, where every such file can be executed
    os.write(fd, keeper_program(machine))
    return fd


def _fields(*values: tuple[int, int]) -> bytes:
    return b"".join(value.to_bytes(size, "little") for value, size in values)


_NAMESPACES = ("mnt", "net", "ipc", "uts", "cgroup", "pid")
_NS_GET_USERNS = 0xB701  # ioctl_ns(2)
_SAID_AT_MOST = 65536
_LAST_FD = 0xFFFFFFFF
_MS_NOATIME, _MS_NODIRATIME, _MS_RELATIME, _ST_RELATIME = 0x400, 0x800, 0x200000, 0x1000  # statvfs(3), mount(2)


Limits = tuple[tuple[str, int], ...]
"""As `JailSpec.limits`."""


class Bubblewrap:
    """A running bwrap with its keeper. `join` enters what it made, `end` ends everything in there.

    The process that made it is their only tie to life: bwrap ends with it, the keeper with bwrap, and as the keeper is
    the first process of its PID namespace, everything else with the keeper.
    """

    __slots__ = ("_filter", "_listening", "_pidfds", "_pids", "_releasing", "_user", "mounts", "pid")

    def __init__(self, path: str, arguments: list[str], filter_program: bytes) -> None:
        """Starts it and waits until the keeper runs.

        Args:
            path: of bwrap.
            arguments: from `argv`.
            filter_program: from `seccomp.program`; the keeper runs under it too.

        Raises:
            Refusal: bubblewrap-failed, with what it said.
        """
        self._filter = filter_program
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

    def limit(self, limits: Limits) -> None:
        """Gives the keeper the command's limits, or a debugger in the jail could use it as a way around them."""
        own = tuple((name, hygiene.RESOURCES[name], value) for name, value in limits if name in hygiene.RESOURCES)
        for _, resource, value in (*hygiene.standing(), *own):
            hard = syscalls.prlimit64(self.pid, resource)[1]
            syscalls.prlimit64(self.pid, resource, (min(value, hard),) * 2)

    def join(self, to_lock: tuple[str, ...] = ()) -> None:
        """Moves this process, single-threaded, into the keeper's namespaces; children are in its PID namespace too.

        This process itself stays out of sight there. It has every capability inside, and none of them outside. It is in
        the user namespace that the others belong to; `join_user` takes a child to the keeper's.

        Args:
            to_lock: mount points inside that are to be made read-only.

        Raises:
            Refusal: bubblewrap-closed.
        """
        try:
            # Not the network when it is shared: that is no namespace of bubblewrap's, and joined already.
            fds = [self._namespace(name) for name in _NAMESPACES if _is_new(self.pid, name)]
            self._user = self._namespace("user")
            self._pids = self._namespace("pid")
            # The mounts belong to another user namespace than the keeper is in at last, where ids were mapped to 0.
            outer = syscalls.ioctl(fds[0], _NS_GET_USERNS)
            self._release()
            syscalls.setns(outer, syscalls.CLONE_NEWUSER)
            for fd in fds:
                syscalls.setns(fd)
            for path in to_lock:
                _lock(path)
            if os.path.samestat(os.fstat(self._user), os.fstat(outer)):
                os.close(self._user)
                self._user = -1
            for fd in (*fds, outer):
                os.close(fd)
        except OSError as error:
            context, hint = syscalls.explained(
                error, "bwrap is installed set-uid root, or a container's filter blocks it"
            )
            raise Refusal("bubblewrap-closed", "the namespaces that bubblewrap made cannot be joined",
                          context=context, hint=hint) from None  # fmt: skip

    def join_user(self) -> None:
        """Moves a child of the process that called `join` into the user namespace in which the user has its own id."""
        if self._user != -1:
            syscalls.setns(self._user, syscalls.CLONE_NEWUSER)
            os.close(self._user)
            self._user = -1

    def separate_first(self, limits: Limits) -> None:
        """Has this process's next child made as `separate` does it; `separated` is to be called then.

        Such a namespace is made by a process that is in the jail's itself, which this one is not.
        """
        asking, telling = os.pipe()
        helper = os.fork()
        if helper == 0:
            try:
                self.join_user()
                separate(self._filter, limits, last=False)
                os.write(telling, str(os.getpid()).encode())
                while True:
                    _signal.pause()
            finally:
                os._exit(1)
        os.close(telling)
        number = os.read(asking, 16)  # as the jail's /proc has it
        os.close(asking)
        try:
            if number:
                own = os.open(b"/proc/%s/ns/pid_for_children" % number, os.O_RDONLY | os.O_CLOEXEC)
                syscalls.setns(own, syscalls.CLONE_NEWPID)
                os.close(own)
        except OSError as error:
            raise _not_separate(error) from None
        finally:
            os.kill(helper, _signal.SIGKILL)
            os.waitpid(helper, 0)
        if not number:
            raise _not_separate(None)

    def separated(self, command: int) -> None:
        """The child has been made, as process `command`: further ones are beside it, in the jail's PID namespace."""
        del command
        syscalls.setns(self._pids, syscalls.CLONE_NEWPID)

    def _namespace(self, name: str) -> int:
        return os.open(f"/proc/{self.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)

    def _release(self) -> None:
        """Lets the keeper close itself off, and waits until it has."""
        os.write(self._releasing, b"x")
        if os.read(self._listening, 1) != b"\0":
            raise _failed("its first process died")
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


def separate(filter_program: bytes, limits: Limits, *, last: bool) -> None:
    """Gives the children that this process has from now on a PID namespace of their own, inside the jail's.

    Without Landlock nothing else keeps the commands of one session from signalling and tracing each other.

    Args:
        filter_program: from `seccomp.program`, for the namespace's first process.
        limits: the command's, for that process too.
        last: the namespace ends with the last process in it, once this one has ended. Else it ends with the jail.

    Raises:
        Refusal: bubblewrap-closed.
    """
    waiting, ready = os.pipe()
    try:
        syscalls.unshare(syscalls.CLONE_NEWPID)
        if os.fork() == 0:
            _be_first(filter_program, limits, ready, last=last)
    except OSError as error:
        raise _not_separate(error) from None
    os.close(ready)
    said = os.read(waiting, 1)
    if not said or os.read(waiting, 1):  # the end comes when it has closed everything
        raise _not_separate(None)
    os.close(waiting)


def _be_first(filter_program: bytes, limits: Limits, ready: int, *, last: bool) -> "NoReturn":
    """The first process of a command's PID namespace, which reaps what others leave (pid_namespaces(7)).

    Like the keeper it may do nothing that the command may not, cannot be traced, and has nothing open.
    """
    # Nothing may escape from here: this is a copy of the launcher, with all that it has on its stack.
    try:
        os.setsid()
        _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        if last:
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, _signal.SIGTERM)
        hygiene.rlimits(tuple(limit for limit in limits if limit[0] in hygiene.RESOURCES), kernel_uid=0)
        hygiene.no_new_privs()
        hygiene.drop_all()
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        hygiene.install_filter(filter_program)
        os.write(ready, b"x")
        syscalls.close_range(0, _LAST_FD)
        # From inside this process has a number: the signal is the parent's end then, and from nobody else.
        while _signal.sigwaitinfo({_signal.SIGTERM}).si_pid != 0:
            continue
        while True:
            os.waitpid(-1, 0)
    finally:
        os._exit(0)


def own_proc() -> None:
    """Shows this process its own PID namespace in /proc, and nobody else's; read-only, as the jail's."""
    try:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        flags = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
        syscalls.mount("proc", "/proc", "proc", flags)
    except OSError as error:
        raise _not_separate(error) from None


def _not_separate(error: OSError | None) -> Refusal:
    return Refusal(
        "bubblewrap-closed",
        "the command cannot be isolated from its session's other commands",
        context=f"a PID namespace of its own, with /proc: {error.strerror if error else 'its first process died'}",
        hint="paddock doctor shows what this machine allows",
    )


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
        _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)  # the kernel reaps what it does not wait for
        # A set-uid bwrap would make namespaces that cannot be joined; without privilege it makes those that can.
        hygiene.no_new_privs()
        if os.geteuid() != 0:
            syscalls.capset(0, 0, 0)  # bwrap refuses to start with some; root needs them to map itself
        started = keeper_descriptor(syscalls.MACHINE)
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
    context, hint = said or "it exited without saying why", "paddock doctor shows what this machine allows"
    if f"[Errno {errno.EMFILE}]" in said:
        context, hint = syscalls.explained(OSError(errno.EMFILE, os.strerror(errno.EMFILE)), hint)
    return Refusal("bubblewrap-failed", "bubblewrap could not build the jail", context=context, hint=hint)


# Into the namespaces that bubblewrap makes, and what they hold, read back from the kernel.
#
# The process above the command joins the namespaces and starts the command in them, as on the other backends. So
# stops, signals, exit statuses and failures to execute are seen directly; no process of bubblewrap's stands in the
# terminal's process group, where Ctrl-C would kill it with the whole jail; and the command's environment is in no
# other process.
#
# bubblewrap works with paths, which another jail may lead elsewhere meanwhile. So each mount is compared afterwards
# with what was found before: its place, its inode, whether it can be written.
#
# Launch path: see launcher/jail/syscalls.py.

_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES)


class Jail:
    """What `enter` entered.

    Attributes:
        facts: for the ledger.
        end: ends all its processes and waits for them.
        on_command: to be called with the process id of the next child, which is the command's, when it has been made.
        join_user: to be called by every child, first of all.
    """

    __slots__ = ("end", "facts", "join_user", "on_command")

    def __init__(self, facts: Facts, running: Bubblewrap) -> None:
        self.facts = facts
        self.end = running.end
        self.on_command = running.separated
        self.join_user = running.join_user


class _Seen:
    """What is at a path: which inode, whether it is a directory, whether its mount is read-only."""

    __slots__ = ("directory", "inode", "read_only")

    def __init__(self, fd: int) -> None:
        status = os.fstat(fd)
        self.inode = (status.st_dev, status.st_ino)
        self.directory = S_ISDIR(status.st_mode)
        self.read_only = bool(os.fstatvfs(fd).f_flag & os.ST_RDONLY)


def enter(spec: JailSpec, operations: tuple[Operation, ...]) -> "Jail":
    """Lets bubblewrap build the jail's view and namespaces, and joins them.

    To be called once, single-threaded, in the process that will start the command.

    Args:
        spec: with `bwrap` and `filter`.
        operations: from `layout.prepare` for it.

    Returns:
        What is held now, and what ends everything in there.

    Raises:
        Refusal: bubblewrap-failed, bubblewrap-closed, view-changed, worktree-missing.
    """
    found: dict[str, _Seen] = {}
    skipped: list[tuple[str, str]] = []
    for operation in operations:
        if operation.kind != layout.LINK:
            try:
                found[operation.path] = _look(operation.source or operation.path)
            except OSError as error:
                if operation.source or error.errno not in _GONE:
                    raise
                if operation.nested or operation.kind != layout.PRIVATE:
                    skipped.append((operation.path, error.strerror or ""))
    gone = {where for where, _ in skipped}
    if spec.worktree in gone:
        raise Refusal("worktree-missing", f"{spec.worktree} no longer exists", hint="was it removed in the meantime?")
    kept = tuple(operation for operation in operations if operation.path not in gone)
    files = frozenset(where for where, seen in found.items() if not seen.directory)
    terminal = layout.terminal_name()
    words = argv(spec, kept, uid=os.geteuid(), gid=os.getegid(), files=files, terminal=terminal)
    running = Bubblewrap(spec.bwrap, words, spec.filter)
    try:
        running.limit(spec.limits)
        running.join(to_lock(kept, files, terminal))
        for operation in kept:
            if operation.kind not in (layout.LINK, layout.PRIVATE):
                _compare(operation, found[operation.path], running.mounts)
        _check_own()
        running.separate_first(spec.limits)
    except BaseException:
        running.end()
        raise
    return Jail(_facts(spec, kept, skipped), running)


def _look(path: str) -> _Seen:
    """What is at `path`, in the view that this process has at present, with no link on the way."""
    fd = walk.open_canonical(path, os.O_PATH)
    try:
        return _Seen(fd)
    finally:
        os.close(fd)


def _compare(operation: Operation, before: _Seen, mount_points: frozenset[str]) -> None:
    """Whether an operation was carried out at its own place and with its own source."""
    try:
        inside = _look(operation.path)
    except OSError as error:
        raise _changed(operation, error.strerror or "") from None
    if operation.path not in mount_points:
        raise _changed(operation, "nothing is mounted there")
    if (inside.inode == before.inode) == (operation.kind == layout.MASK):
        raise _changed(operation, "something else is there now")
    writable = operation.kind == layout.PIN or operation.writable
    if not writable and not inside.read_only:
        raise _changed(operation, "it is writable")


def _check_own() -> None:
    for path in ("/", "/dev", "/proc"):
        if not _look(path).read_only:
            raise Refusal("view-incomplete", f"bubblewrap left {path} of the jail writable")


def _changed(operation: Operation, why: str) -> Refusal:
    return Refusal(
        "view-changed",
        f"cannot {operation.describe()}",
        context=f"{why}; part of its path changed while the jail was being built",
        hint="run the command again",
    )


def _facts(spec: JailSpec, operations: tuple[Operation, ...], skipped: list[tuple[str, str]]) -> Facts:
    kinds = "user, mount, pid, ipc, uts, cgroup" + ("" if spec.net == "open" else ", net")
    protected = sum(operation.kind == layout.PROTECT for operation in operations)
    facts = [
        ("bubblewrap", "layer", f"{spec.bwrap}: {kinds}; {len(operations)} operations"),
        ("reads", "held", "what is not granted is not mounted"),
        ("deny-inside-allow", "held", "covered by mounts"),
        ("toolchains", "held", "mounted one by one"),
        ("writes", "held", "what is not writable is on read-only mounts"),
        ("handoff", "held", f"{protected} path{'' if protected == 1 else 's'} read-only, parents pinned"),
        ("metadata", "held", "what is not writable is on read-only mounts"),
        ("signals", "held", "PID namespace, one for each command; its own process group: system call filter"),
        ("visibility", "held", "/proc of the jail's own PID namespace"),
        ("survival", "held", "PID namespace that ends with the launcher"),
        ("shared-memory", "held", "private /dev/shm, IPC namespace"),
        ("terminals", "held", "private devpts"),
    ]
    if spec.net == "open":
        facts.append(("unix-sockets", "not held", "abstract names: the network is the machine's"))
    else:
        facts.append(("unix-sockets", "held", "paths: not mounted; abstract names: network namespace"))
        facts.append(("network", "held", "network namespace with a loopback interface only"))
    facts += [("skipped", "layer", f"{where}: {reason}") for where, reason in skipped]
    return tuple(facts)
