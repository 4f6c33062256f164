"""The watchdog: ends a jail that has used too much, where no limit of the kernel's does.

It looks ten times a second, more often at first, when half of a limit is used and when use grows, and never for more
than a tenth of the time. So it contains: what is used between two looks is over the limit. It runs in the launcher's
own loop, and ending a jail is SIGKILL for its first process, with which all others end: no need to stop them before.

It goes on looking while the command is stopped: others inside may run, or have the kernel continue it (timer_create(2)
with SIGCONT).

Launch path of the limits that need it: see launcher/session/limits.py.
"""

import time
from _stat import S_ISDIR, S_ISREG, S_ISSOCK

from launcher.jail import processes, syscalls
from launcher.lean import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator


# How much disk some directories take, measured a little at a time while a jail fills them.
#
# A walk through a large home takes a second or more, so it is cut in pieces, and made when something speaks for it:
# the file system has lost as much space since the last one as the limit leaves, or some time has passed (space that
# others free, or that the jail itself frees elsewhere, hides what is taken). What a walk cannot measure
# (directories without permission to read, or nested very deep) is taken to be all that the file system has lost
# since the start.


DISK_EVERY = 2.0
"""Seconds between walks that nothing speaks for; more where a walk takes long."""

_SELDOM = 15.0
_DEPTH = 100
_PIECE = 32
_BLOCK = 4096
"""What a file or directory counts as at least: an empty one takes an inode, and those run out, too."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def disks(paths: tuple[str, ...]) -> "dict[int, os.statvfs_result]":
    """The file systems of some directories, by device number. One that was moved away counts for nothing."""
    found = {}
    for path in paths:
        try:
            found[os.stat(path).st_dev] = os.statvfs(path)
        except OSError:
            continue
    return found


class DiskUse:
    """The use of some directories. `share` is called often; it says how much of the limit is used."""

    def __init__(self, paths: tuple[str, ...], limit: int, since: int = 0) -> None:
        """Takes the directories and bytes; with `since` (ns since the epoch) only what was changed after that counts.

        Then it is walked less often where nothing speaks for it: a worktree may be large. And a file counts as at least
        its share of what is free, so that a share of the bytes is the same share of the inodes.
        """
        self._since = since
        self._paths = paths
        self._limit = limit
        found = disks(paths)
        self._devices = set(found)
        shares = (each.f_bavail * each.f_frsize // each.f_favail for each in found.values() if since and each.f_favail)
        self._block = max((_BLOCK, *shares))
        self._at_start = self._at_walk = self._taken()
        self._before = 0
        self._measured: int | None = None
        self._walk: Generator[None, None, None] | None = None
        self._total = 0
        self._blind = False
        self._hiding: set[int] = set()
        self._links: set[tuple[int, int]] = set()
        self._every, self._rest = (_SELDOM, 50) if since else (DISK_EVERY, 20)
        self._next = time.monotonic() + _SELDOM if since else 0.0
        self._spent = 0.0

    def share(self, pids: list[int], budget: float) -> float:
        """How much of the limit is in use, as far as is known after `budget` more seconds of measuring.

        More than 1 is certain. What the file system has lost since the last walk may be others' doing: it makes 1 at
        most, and a new walk.

        Args:
            pids: the jail's processes; files that they hold without a name count.
            budget: seconds.
        """
        if self._walk is None and self._guess() <= self._limit and time.monotonic() < self._next:
            return self._guess() / self._limit
        began = time.monotonic()
        if self._walk is None:
            self._start()
        while self._walk is not None and self._total <= self._limit:
            try:
                next(self._walk)
            except StopIteration:
                self._finish(pids)
            if time.monotonic() - began > budget:
                break
        self._spent += time.monotonic() - began
        if self._total > self._limit:
            return self._total / self._limit
        return min(1.0, self._guess() / self._limit)

    def _guess(self) -> int:
        return (self._measured or 0) + self._lost(self._at_walk)

    @property
    def idle(self) -> bool:
        """Whether no walk is under way."""
        return self._walk is None

    def _taken(self) -> tuple[int, int]:
        """Of the file systems: bytes in blocks, and in inodes."""
        found = disks(self._paths).values()
        blocks = sum((each.f_blocks - each.f_bfree) * each.f_frsize for each in found)
        return blocks, sum(each.f_files - each.f_ffree for each in found) * self._block

    def _lost(self, before: tuple[int, int]) -> int:
        return max(0, *(now - then for now, then in zip(self._taken(), before, strict=True)))

    def _start(self) -> None:
        self._at_walk = self._taken()
        self._total, self._spent, self._blind = 0, 0.0, False
        self._links = set()
        self._walk = self._all()

    def _finish(self, pids: list[int]) -> None:
        nameless, hiding = nameless_files(pids, self._devices, wide=bool(self._since))
        self._total += nameless
        if self._measured is None:
            self._before = self._total
        if self._blind or hiding & self._hiding:
            self._total = max(self._total, self._before + self._lost(self._at_start))
        self._hiding = hiding
        self._measured = self._total
        self._walk = None
        self._next = time.monotonic() + max(self._every, self._rest * self._spent)

    def _all(self) -> "Generator[None, None, None]":
        for path in self._paths:
            yield from self._tree(path)

    def _tree(self, path: str) -> "Generator[None, None, None]":
        here = self._opened(path, None)
        if here is None:
            return
        held: list[tuple[int, list[str]]] = [(here, [])]
        try:
            yield from self._entries(*held[0])
            while held:
                fd, names = held[-1]
                if not names:
                    os.close(held.pop()[0])
                    continue
                name = names.pop()
                if len(held) >= _DEPTH:
                    self._blind = True
                    continue
                below = self._opened(name, fd)
                if below is not None:
                    held.append((below, []))
                    yield from self._entries(*held[-1])
        finally:
            for fd, _ in held:
                os.close(fd)

    def _entries(self, directory: int, names: list[str]) -> "Generator[None, None, None]":
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                except OSError:
                    self._blind = True
                    continue
                if S_ISDIR(found.st_mode):
                    names.append(entry.name)
                elif found.st_nlink > 1:
                    if (found.st_dev, found.st_ino) in self._links:
                        continue
                    self._links.add((found.st_dev, found.st_ino))
                if found.st_ctime_ns >= self._since:
                    self._total += max(self._block, found.st_blocks * 512)
                if number % _PIECE == 0:
                    yield

    def _opened(self, name: str, directory: int | None) -> int | None:
        try:
            return os.open(name, _DIRECTORY, dir_fd=directory)
        except (FileNotFoundError, NotADirectoryError):
            return None  # gone meanwhile, or a link or file is there now
        except OSError:
            self._blind = True
            return None


# What the processes of a jail use, read from /proc: memory, processor time, how many they are, what they hold open.
#
# Everything is seen from outside, by the launcher. A process can make itself unreadable to an ordinary user
# (prctl(2), PR_SET_DUMPABLE), send descriptors to itself that nobody has received, or keep a file by mapping a page of
# it; nobody is told how large such a file is. Then all that it maps is held against it, and the growth of the whole
# machine's shared memory, or of the file system, which others may hide by freeing some (mappings: `nameless_files`).
# What neither shows: a file that only a call under way holds any more, and what the kernel keeps for sockets and pipes.


_TICKS = os.sysconf("SC_CLK_TCK")

# Fields of /proc/PID/stat behind the name (proc_pid_stat(5)), counted from 0: utime, stime, cutime, cstime.
_TIMES = slice(11, 15)
_THREADS = 17
_ENDED = "ZX"
_STARTED = 19

MOST_SECONDS = 0.5
"""Of processor time for one look at the files of all processes: who has too many to be looked at in that hides some."""
FILES_EVERY = 2.0
"""Seconds between looks at memory that nobody maps, where the machine has so much shared memory that it may matter; a
look lists what every process holds open.
"""


class Usage:
    """The processes below `first`, which is Paddock's own and not counted, as they were at the last `look`."""

    def __init__(self, first: int, *, scratch: bool, wide: bool = False) -> None:
        """Prepares.

        Args:
            first: process id of the jail's first process, to which all orphans inside go.
            wide: for a bound that protects the machine; see `nameless_files`.
        """
        self._first, self._wide = first, wide
        self._scratch = scratch
        self._shared_before = _shared_memory()
        self._hiding: set[int] = set()
        self._nameless, self._hidden, self._next = 0, False, 0.0
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
            fields = processes.stat_fields(pid)
            if not fields:
                continue
            own, system, below, below_system = map(int, fields[_TIMES])
            waited += below + below_system
            if pid == self._first:
                continue
            waited += own + system
            seen[pid, fields[_STARTED]] = own + system
            self.pids.append(pid if fields[0] not in _ENDED else _living(pid))
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

        The cheap one counts a page in as many processes as have it, with what nobody maps as it was at the last look
        at that, or all of the machine's new shared memory. That alone is no measure: others free some meanwhile.
        """
        resident = sum(map(_resident, self.pids))
        if resident + _shared_memory() > limit and time.monotonic() >= self._next:
            self._look_for_files()
        rough = resident + max(self._nameless + self._scratch_use(), self._shared_growth())
        return rough if rough <= limit else min(rough, self._exact())

    def _exact(self) -> int:
        """Private memory by share, plus shared memory, of which two readings overlap: the larger one counts.

        One sees what is mapped, the other what is in files without a name (memfd_create(2)) and the private /tmp.
        """
        private = mapped = 0
        for pid in self.pids:
            share = _shares(pid)
            private += share[0]
            mapped += share[1]
        self._look_for_files()
        shared = max(mapped, self._nameless + self._scratch_use())
        return private + (max(shared, self._shared_growth()) if self._hidden else shared)

    def _look_for_files(self) -> None:
        self._nameless, hiding = nameless_files(self.pids, {_shared_memory_device()}, wide=self._wide)
        self._hidden = bool(hiding & self._hiding)
        self._hiding = hiding
        self._next = time.monotonic() + FILES_EVERY

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


def nameless_files(pids: list[int], devices: set[int], *, wide: bool) -> tuple[int, set[int]]:
    """Bytes in open files that no directory names any more, on the given devices, and the processes that hide some.

    Such a process hides if it still does the next time: the command's cannot be looked into until it is executed, and
    what was sent is received.

    Args:
        wide: who maps a nameless file that nobody has open hides, too. Honest programmes do (databases, Python's
            `multiprocessing`), and what others take meanwhile must not end them: so only for a bound that is wide
            enough for others, too.
    """
    found: dict[tuple[int, int], int] = {}
    mapped: dict[int, set[tuple[int, int]]] = {}
    hiding: set[int] = set()
    memory, until = _shared_memory_device(), time.thread_time() + MOST_SECONDS
    for pid in pids:
        try:
            for table in _tables(pid):
                for path, file in _open_files(table, until):
                    if S_ISREG(file.st_mode) and file.st_nlink == 0 and file.st_dev in devices:
                        found[file.st_dev, file.st_ino] = file.st_blocks * 512
                    elif S_ISSOCK(file.st_mode) and _in_flight(path):
                        hiding.add(pid)
            if wide:
                mapped[pid] = {each for each in _mapped_alone(pid) if (each[0] == memory) == (memory in devices)}
        except (PermissionError, TimeoutError):
            hiding.add(pid)
    hiding.update(pid for pid, files in mapped.items() if not files <= found.keys())
    return sum(found.values()), hiding


def _open_files(pid: int, until: float) -> "Generator[tuple[str, os.stat_result], None, None]":
    """What a process, or a thread, has open: the path of its information in /proc, and its status.

    PermissionError: it cannot be looked into. TimeoutError: this thread has used more than `until`.
    """
    if time.thread_time() > until:
        raise TimeoutError
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except (FileNotFoundError, ProcessLookupError):
        return  # it has ended
    for number, name in enumerate(names):
        if number % 256 == 255 and time.thread_time() > until:
            raise TimeoutError
        try:
            file = os.stat(f"/proc/{pid}/fd/{name}")
        except PermissionError:
            raise
        except OSError:
            continue  # closed meanwhile
        yield f"/proc/{pid}/fdinfo/{name}", file


def _tables(pid: int) -> list[int]:
    """One thread of a process for each table of descriptors that its threads have (clone(2), CLONE_FILES)."""
    others = (each for each in processes.threads(pid) if each != pid)
    return [pid, *(each for each in others if not syscalls.share_descriptors(pid, each))]


def _in_flight(path: str) -> bool:
    """Whether descriptors wait in a socket, by its file in /proc/PID/fdinfo (since Linux 5.11)."""
    _, _, behind = _read(path).partition("scm_fds:")
    return behind.split()[:1] not in ([], ["0"])


def _mapped_alone(pid: int) -> set[tuple[int, int]]:
    """(device, inode) of the files that a process maps, and no directory names (proc_pid_maps(5))."""
    found = set()
    for line in _read(f"/proc/{pid}/maps").split("\n"):
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].endswith(" (deleted)"):
            major, minor = (int(number, 16) for number in fields[3].split(":"))
            found.add((os.makedev(major, minor), int(fields[4])))
    return found


def _living(pid: int) -> int:
    """A thread of a process whose first one has ended, which tells as much of all of them; else the process itself."""
    for thread in processes.threads(pid):
        if processes.stat_fields(thread)[:1] not in ([], *map(list, _ENDED)):
            return thread
    return pid


def _resident(pid: int) -> int:
    """Bytes of all pages that a process has, whoever else has them, and of the tables that name them."""
    return sum(_figures(_read(f"/proc/{pid}/status"), ("VmRSS:", "VmPTE:")).values())


def _shares(pid: int) -> tuple[int, int]:
    """(private, shared) bytes, by share where this user may know. The kernel walks all pages for that."""
    names, text = ("Pss_Anon:", "Pss_Shmem:"), ""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii", errors="replace") as file:
            text = file.read()
    except PermissionError:
        pass
    except OSError:
        return 0, 0  # it has ended
    status = _read(f"/proc/{pid}/status")
    if names[0] not in text:  # or before Linux 5.3
        names, text = ("RssAnon:", "RssShmem:"), status
    figures = _figures(text, names)
    tables = sum(_figures(status, ("VmPTE:",)).values())
    return figures.get(names[0], 0) + tables, figures.get(names[1], 0)


def _figures(text: str, names: tuple[str, ...]) -> dict[str, int]:
    """Bytes by name, of lines ``NAME: NUMBER kB``. A process may be named like one; the kernel's own comes later."""
    lines = (words for words in map(str.split, text.split("\n")) if len(words) == 3 and words[0] in names)
    return {words[0]: int(words[1]) * 1024 for words in lines if words[1].isdecimal()}


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


INTERVAL = 0.1
NEAR_INTERVAL = 0.02
MOST_INTERVAL = 1.0
_NEAR, _LITTLE, _GROWTH, _EASE = 0.5, 0.2, 0.05, 1.25
_SHARE = 9  # seconds of rest for each second of looking


class Watchdog:
    """Watches one jail. `ended` names the limit that was passed, "" as long as none was."""

    def __init__(
        self,
        limits: dict[str, int],
        paths: tuple[str, ...],
        *,
        scratch: bool,
        time_used: "Callable[[], float | None]",
        since: int = 0,
        slow: float = INTERVAL,
    ) -> None:
        """Prepares; `attach` begins.

        Args:
            time_used: seconds of processor time, None where nobody knows better than /proc.
            since: see `DiskUse`.
            slow: seconds between looks at a jail that uses little.
        """
        self._slow, self._wide = slow, bool(since)
        self._limits = limits
        self._scratch = scratch
        self._time_used = time_used
        self._disk = DiskUse(paths, limits["disk"], since) if "disk" in limits else None
        self._usage: Usage | None = None
        self._next = 0.0
        self._interval = NEAR_INTERVAL
        self._before = 0.0
        self.ended = ""

    def attach(self, first: int) -> None:
        """Begins to watch what is below the process `first`, a child of this one that has not been reaped."""
        self._usage = Usage(first, scratch=self._scratch, wide=self._wide)

    def look(self) -> float:
        """Looks, if it is time. Returns the seconds until the next time, 0 when the jail is to be ended."""
        now = time.monotonic()
        if now < self._next:
            return self._next - now
        shares = self._shares()
        for name, share in shares.items():
            if share > 1:
                self.ended = name
                return 0.0
        most = max(shares.values(), default=0.0)
        if most > _NEAR or most - self._before > _GROWTH:
            self._interval = NEAR_INTERVAL
        else:
            self._interval = min(self._slow if most < _LITTLE else INTERVAL, self._interval * _EASE)
        self._before = most
        ended = time.monotonic()
        rest = min(MOST_INTERVAL, max(self._interval, _SHARE * (ended - now)))
        self._next = ended + rest
        return rest

    def _shares(self) -> dict[str, float]:
        """For each limit the share of it that is in use."""
        usage = self._usage
        assert usage is not None, "attach comes first"
        usage.look()
        shares: dict[str, float] = {}
        for name, limit in self._limits.items():
            if name == "memory":
                shares[name] = usage.memory(limit) / limit
            elif name == "processes":
                shares[name] = usage.tasks / limit
            elif name == "cpu_time":
                shares[name] = max(self._time_used() or 0.0, usage.processor_time) / limit
            elif self._disk is not None:
                shares[name] = self._disk.share(usage.pids, NEAR_INTERVAL / 2)
        return shares
