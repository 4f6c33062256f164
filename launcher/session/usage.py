"""What the processes of a jail use, read from /proc: memory, processor time, how many they are, what they hold open.

Everything is seen from outside, by the launcher. A process can make itself unreadable to an ordinary user
(prctl(2), PR_SET_DUMPABLE); then the growth of the whole machine's shared memory is held against it.

Launch path of the limits that need it: `os` only.
"""

from _stat import S_ISREG

from launcher.jail import processes
from launcher.lean import os

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")

# Fields of /proc/PID/stat behind the name (proc_pid_stat(5)), counted from 0: utime, stime, cutime, cstime.
_TIMES = slice(11, 15)
_THREADS = 17
_STARTED = 19


class Usage:
    """The processes below `first`, which is Paddock's own and not counted, as they were at the last `look`."""

    def __init__(self, first: int, *, scratch: bool) -> None:
        """Prepares.

        Args:
            first: process id of the jail's first process, to which all orphans inside go.
            scratch: the jail has a private /tmp, which takes memory.
        """
        self._first = first
        self._scratch = scratch
        self._shared_before = _shared_memory()
        self._unreadable: set[int] = set()
        self._seen: dict[tuple[int, str], int] = {}
        self._gone = 0
        self.pids: list[int] = []
        self.tasks = 0
        self.ticks = 0

    def look(self) -> None:
        """Lists the processes, counts their tasks, and adds up the processor time they have used.

        Two sums are made, for each misses something: what processes tell about themselves and the children they have
        waited for, and what was seen of every process while it lived. The larger one counts. What neither sees: a
        process that lives less than a poll, and whose parent ignores SIGCHLD.
        """
        self.pids = []
        self.tasks = 0
        waited = 0
        seen = {}
        for pid in (self._first, *processes.descendants(self._first)):
            fields = _stat(pid)
            if not fields:
                continue
            own, system, below, below_system = map(int, fields[_TIMES])
            waited += below + below_system
            if pid == self._first:
                continue
            waited += own + system
            seen[pid, fields[_STARTED]] = own + system
            self.pids.append(pid)
            self.tasks += int(fields[_THREADS])
        self._gone += sum(ticks for key, ticks in self._seen.items() if key not in seen)
        self._seen = seen
        self.ticks = max(waited, self._gone + sum(seen.values()))

    @property
    def processor_time(self) -> float:
        """Seconds of processor time, user and system, of everything that has run so far."""
        return self.ticks / _TICKS

    def memory(self, limit: int) -> int:
        """Bytes in use: at most `limit` as a cheap reading allows, else the exact reading.

        The cheap one counts a page in as many processes as share it, and all of the machine's new shared memory, so
        it is never the lower one.
        """
        rough = sum(map(_private, self.pids)) + self._shared_growth()
        return rough if rough <= limit else min(rough, self._exact())

    def _exact(self) -> int:
        """Private memory by share, plus shared memory, of which two readings overlap: the larger one counts.

        One sees what is mapped, the other what is in files without a name (memfd_create(2)) and the private /tmp.
        """
        private = mapped = 0
        for pid in self.pids:
            share = _shares(pid)
            private += share[0] if share is not None else _private(pid)
            mapped += share[1] if share is not None else 0
        nameless, unreadable = nameless_files(self.pids, {_shared_memory_device()})
        hidden = bool(unreadable & self._unreadable)
        self._unreadable = unreadable
        shared = max(mapped, nameless + self._scratch_use())
        return private + (max(shared, self._shared_growth()) if hidden else shared)

    def _shared_growth(self) -> int:
        return max(0, _shared_memory() - self._shared_before)

    def _scratch_use(self) -> int:
        """Bytes on the tmpfs that /tmp, /var/tmp and /dev/shm of the jail lie on."""
        if self._scratch:
            for pid in self.pids:
                try:
                    found = os.statvfs(f"/proc/{pid}/root/dev/shm")
                except OSError:
                    continue  # it has ended, or may not be looked into: any other will do
                return (found.f_blocks - found.f_bfree) * found.f_frsize
        return 0


def nameless_files(pids: list[int], devices: set[int]) -> tuple[int, set[int]]:
    """Bytes in open files that no directory names any more, on the given devices, and the processes not looked into.

    Such a process hides if it still cannot be looked into the next time: the command's is so too, until it is executed.
    """
    found: dict[tuple[int, int], int] = {}
    unreadable: set[int] = set()
    for pid in pids:
        directory = f"/proc/{pid}/fd"
        try:
            names = os.listdir(directory)
        except PermissionError:
            unreadable.add(pid)
            continue
        except OSError:
            continue  # it has ended
        for name in names:
            try:
                file = os.stat(f"{directory}/{name}")
            except OSError:
                continue  # closed meanwhile
            if file.st_nlink == 0 and file.st_dev in devices and S_ISREG(file.st_mode):
                found[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(found.values()), unreadable


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on; [] when the process has gone."""
    # The name in the second field may hold anything, even ") "; nothing behind it can.
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _private(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return (int(fields[1]) - int(fields[2])) * _PAGE if fields else 0


def _shares(pid: int) -> tuple[int, int] | None:
    """(private, shared) bytes by share; None when this user may not know. The kernel walks all its pages for that."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
    except PermissionError:
        return None
    except OSError:
        return 0, 0  # it has ended
    figures = {words[0]: int(words[1]) * 1024 for words in map(str.split, lines) if words[-1] == "kB"}
    if "Pss_Anon:" not in figures:  # before Linux 5.3
        return None
    return figures["Pss_Anon:"], figures["Pss_Shmem:"]


def _shared_memory() -> int:
    """Bytes of shared memory and tmpfs on the whole machine."""
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    return 0


def _shared_memory_device() -> int:
    """The device number of the kernel's own tmpfs, where memory files and anonymous shared memory lie."""
    fd = os.memfd_create("paddock", os.MFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def _read(path: str) -> str:
    """The content, "" when the process has gone."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""
