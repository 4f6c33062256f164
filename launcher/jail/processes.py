"""Making the jail's first process, tying it to the launcher's life, and ending whatever it leaves.

Launch path: see launcher/jail/syscalls.py.
"""

import errno
import select
import time

from launcher.jail import syscalls
from launcher.lean import ctypes, os
from policy.errors import Refusal, in_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal

GUARD = b"paddock-guard"
"""The name of processes that make calls for a jail (proc_pid_comm(5)): nobody but themselves can change it."""

WAKE = _signal.SIGURG
"""Interrupts a thread that waits in a connect. Ignored by default, so one from elsewhere does nothing either."""

_CLONE = {"x86_64": 56, "aarch64": 220}
_GENERATIONS = 1000
"""Between a process and one that it comes of; process ids that are used again could make a circle meanwhile."""


def fork(namespaces: int = 0) -> int:
    """Like `os.fork`, but the child starts in new namespaces: with CLONE_NEWPID it is their first process.

    One fork instead of unshare(2) and two: 0.5 ms less, and no idle process that waits in between.

    Args:
        namespaces: CLONE_NEW* flags, 0 for none; or CLONE_PARENT, for a child of the caller's parent.

    Returns:
        0 in the child, the child's process id (as the caller sees it) in the parent.

    Raises:
        Refusal: the kernel or the system's settings do not allow user namespaces.
    """
    if not namespaces:
        return os.fork()
    # The interpreter's own steps around fork(2), and PyDLL, which keeps its lock held across the call: together the
    # child's interpreter is in the state that `os.fork` leaves.
    python = ctypes.pythonapi
    for name in ("PyOS_BeforeFork", "PyOS_AfterFork_Child", "PyOS_AfterFork_Parent"):
        python[name].restype = None
    clone = ctypes.PyDLL(None, use_errno=True)["syscall"]
    clone.restype = ctypes.c_long
    clone.argtypes = (ctypes.c_long, ctypes.c_ulong, *(ctypes.c_void_p,) * 4)
    python["PyOS_BeforeFork"]()
    pid: int = clone(_CLONE[syscalls.MACHINE], namespaces | _signal.SIGCHLD, None, None, None, None)
    number = ctypes.get_errno()
    if pid == 0:
        python["PyOS_AfterFork_Child"]()
        return 0
    python["PyOS_AfterFork_Parent"]()
    if pid < 0:
        if number == errno.EINVAL and namespaces & syscalls.CLONE_NEWCGROUP:
            # The youngest kind of namespace (Linux 4.6), and one that a kernel may be built without.
            return fork(namespaces & ~syscalls.CLONE_NEWCGROUP)
        raise userns_unavailable("clone", OSError(number, os.strerror(number)))
    return pid


def userns_unavailable(step: str, error: OSError) -> Refusal:
    """The Refusal for a host that does not let this user make user namespaces, or use them."""
    return Refusal(
        "userns-unavailable",
        "user namespaces cannot be used here",
        context=in_rows(
            f"{step}: {error.strerror}",
            "blocked by one of: kernel.unprivileged_userns_clone, user.max_user_namespaces, "
            "kernel.apparmor_restrict_unprivileged_userns, a container's seccomp profile, a bounding set without "
            "CAP_SETFCAP, chroot",
        ),
        hint="paddock doctor says which; PADDOCK_NO_USERNS=1 uses the guard instead",
    )


def tie_to_launcher(launcher_pidfd: int) -> None:
    """Makes SIGKILL the answer to the launcher's death, in the first process of a PID namespace.

    The signal comes when the *thread* that forked ends (prctl(2), PR_SET_PDEATHSIG). A launcher that died before
    this call is noticed by its pidfd: then the process ends at once.
    """
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, _signal.SIGKILL)
    if _ended(launcher_pidfd):
        os._exit(128 + _signal.SIGKILL)


def tie_to_parent(parent: int) -> None:
    """The same in a child whose parent has the process id `parent` in its own eyes (0: outside of the namespace)."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, _signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + _signal.SIGKILL)


def _ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def adopt_orphans() -> None:
    """From now on processes below this one whose parent dies become its children (PR_SET_CHILD_SUBREAPER)."""
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)


def children(pid: int) -> list[int]:
    """Process ids of the children of `pid` (zombies included), oldest first for a single thread."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                found += map(int, file.read().split())
    except FileNotFoundError:
        # Either the process is gone or the kernel lacks CONFIG_PROC_CHILDREN; the slow way tells them apart.
        return [child for child in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent(child) == pid]
    except ProcessLookupError:
        return found
    return found


def parent(pid: int) -> int:
    """The parent's process id, 0 when the process is gone or not visible from here (proc_pid_stat(5))."""
    return max(0, name_and_parent(pid)[1])


def name_and_parent(pid: int) -> tuple[bytes, int]:
    """A process's name and its parent's id, which is 0 where that is not visible from here; -1 of one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            # The name in the second field may hold anything, even ") "; nothing behind it can.
            head, _, tail = file.read().rpartition(b")")
    except OSError:
        return b"", -1
    return head.partition(b" (")[2], int(tail.split()[1])


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, the state first (proc_pid_stat(5)); [] when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def threads(pid: int) -> list[int]:
    """Ids of the threads of a process, or of the one that `pid` is a thread of; [] when it is gone."""
    try:
        return sorted(map(int, os.listdir(f"/proc/{pid}/task")))
    except (FileNotFoundError, ProcessLookupError):
        return []


def jailed(pid: int) -> bool:
    """Whether a process is in a jail of any session, or makes calls for one; True too for one that cannot be seen.

    With namespaces a jail is a PID namespace below the caller's. Without, its connections are made by its guard, and
    whatever lives in it lives below that: orphans are adopted.
    """
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            numbers = next(line.split()[1:] for line in file.read().split(b"\n") if line.startswith(b"NSpid:"))
    except (OSError, StopIteration):
        return True
    if len(numbers) != 1:
        return True
    for _ in range(_GENERATIONS):
        name, above = name_and_parent(pid)
        if name == GUARD:
            return True
        if above <= 0:
            return above < 0  # one that is gone since: who adopts what it leaves is not known yet
        pid = above
    return True


def is_below(pid: int, above: int) -> bool:
    """Whether a process is `above`, or one that comes of it; False when it is gone."""
    for _ in range(_GENERATIONS):
        if pid == above:
            return True
        if pid <= 1:
            return False
        pid = parent(pid)
    return False


def descendants(pid: int, keep: "frozenset[int] | set[int]" = frozenset()) -> list[int]:
    """Every process below `pid`, parents before children, without those of `keep` and what is below them."""
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for parent in level for child in children(parent) if child not in keep]
        found += level
    return found


LOOK = 1.0
"""Seconds between two looks at who may sleep for good."""

_SLEPT = 5
"""Looks of `Sleep` after which who has not run in between is given up."""

MOST_SLEPT = 20
"""Seconds that somebody else may have processes sleep in all, beside `_PER_WORKED` of each that they have worked."""
_PER_WORKED = 4
_CPU_TIMES = slice(11, 15)
"""Of `stat_fields`: the processor time of a process, and of its children that have ended."""


class Sleep:
    """Whether processes sleep all the time, and will hardly wake up: for a FIFO without another side, say.

    Who reads or writes wakes up in between, however slow the disk is; while it waits for a disk, it does not sleep. Who
    waits for a child sleeps as long as that one.

    Args:
        pid: above the processes.
        name: of theirs; what is below them has any.
        before: of processes that did a part of the same work; how they slept and worked counts, too.
    """

    def __init__(self, pid: int, name: bytes, before: "Sleep | None" = None) -> None:
        self._pid = pid
        self._name = name
        self._seen: list[tuple[int, bytes, bytes]] = []
        self._looks = 0
        self._slept: float = before._slept if before else 0.0
        self._worked_before: float = before._worked_before + before._worked if before else 0.0
        self._worked: float = 0.0
        self._last = time.monotonic()

    def for_good(self) -> bool:
        """Looks again: whether none of them has run since several looks ago; False when there is none."""
        now = self._sleepers()
        self._looks = self._looks + 1 if now and now == self._seen else 0
        self._seen = now
        last, self._last = self._last, time.monotonic()
        self._slept += self._last - last if now else 0.0
        return self._looks >= _SLEPT

    def for_long(self) -> bool:
        """Whether they sleep by now, and have slept for long in all and hardly worked, however often they were woken.

        A file system that is another process's (FUSE) can be as slow: who asks knows who else has the files in hand.
        """
        worked = self._worked_before + self._worked
        return bool(self._seen) and self._slept > MOST_SLEPT + _PER_WORKED * worked

    def _sleepers(self) -> list[tuple[int, bytes, bytes]]:
        """Each thread with how often it gave its processor up and lost it; [] when one does not sleep."""
        found = []
        named = {pid for pid in descendants(self._pid) if name_and_parent(pid)[0] == self._name}
        alive = sorted(named.union(*map(descendants, named)))
        ticks = sum(sum(map(int, stat_fields(pid)[_CPU_TIMES])) for pid in alive)
        self._worked = max(self._worked, ticks / os.sysconf("SC_CLK_TCK"))
        for pid in alive:
            for thread in threads(pid):
                try:
                    with open(f"/proc/{pid}/task/{thread}/status", "rb", buffering=0) as file:
                        values = dict(line.partition(b":\t")[::2] for line in file.read().split(b"\n"))
                except (FileNotFoundError, ProcessLookupError):
                    return []
                if not values[b"State"].startswith(b"S"):
                    return []
                found.append((thread, values[b"voluntary_ctxt_switches"], values[b"nonvoluntary_ctxt_switches"]))
        return found


def sweep(keep: "frozenset[int] | set[int]" = frozenset()) -> int:
    """Ends (SIGKILL) and reaps every process below this one until none is left.

    The caller must have called `adopt_orphans`, or daemons that let their parent die are not below it any more.

    Args:
        keep: children that are to live, with everything below them.

    Returns:
        How many children were reaped.
    """
    own = os.getpid()
    reaped = 0
    while True:
        below = descendants(own, keep)
        direct = [pid for pid in children(own) if pid not in keep]
        if not direct:
            return reaped
        for pid in direct:
            # A child that has not been waited for keeps its number: this cannot meet a stranger.
            os.kill(pid, _signal.SIGKILL)
        known = {own, *below}
        for pid in below:
            if pid not in direct:
                _kill_below(pid, known)
        # Whoever has ended first: a PID namespace's first process cannot before the others in it are reaped.
        while direct:
            left = [pid for pid in direct if not os.waitpid(pid, os.WNOHANG)[0]]
            reaped += len(direct) - len(left)
            if len(left) == len(direct):
                time.sleep(0.0005)
            direct = left


def _kill_below(pid: int, parents: set[int]) -> None:
    """SIGKILL for a grandchild, whose number may have gone to somebody else since it was read."""
    try:
        pidfd = syscalls.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if parent(pid) in parents:
            _signal.pidfd_send_signal(pidfd, _signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(pidfd)


# What a process's network namespace counts. A descriptor of it can be read when the processes there have gone.


def network_counters(pid: int) -> int:
    """A descriptor of the counters of a process's network namespace (proc_pid_net(5)); -1 when it has ended."""
    try:
        return os.open(f"/proc/{pid}/net/snmp", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def sought_network(counters: int) -> bool:
    """Whether something in a namespace without a network wanted to leave it, or asked for a name; closes `counters`.

    Either is counted: packets that no route was found for, and datagrams to a port of the loopback where nobody
    listens, as the machine's resolver may have one.
    """
    lines = os.read(counters, 1 << 16).decode().splitlines()
    os.close(counters)
    counted: dict[str, str] = {}
    for names, numbers in zip(lines[::2], lines[1::2], strict=False):
        protocol = names.partition(":")[0]
        counted.update(
            (f"{protocol}.{name}", number) for name, number in zip(names.split(), numbers.split(), strict=False)
        )
    return counted.get("Ip.OutNoRoutes", "0") != "0" or counted.get("Udp.NoPorts", "0") != "0"
