"""A programme that uses too much of one thing, and never more than it is told: `bombs.py KIND MOST [UNIT]`.

It runs inside the jail. When it has used MOST it says ``used MOST`` and waits until its standard input ends, so a jail
that lets it go on is seen, and one that ends it too.
"""

import contextlib
import ctypes
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

STEP = 2 << 20
DEADLINE = 30.0


def used(what: object) -> None:
    """Says how far it came, and waits for the end of standard input."""
    print("used", what, flush=True)
    sys.stdin.read()


def touched(size: int, flags: int) -> Iterator[mmap.mmap]:
    """Anonymous memory in steps, every page of it written."""
    for _ in range(0, size, STEP):
        piece = mmap.mmap(-1, STEP, flags | mmap.MAP_ANONYMOUS)
        for at in range(0, STEP, 4096):
            piece[at] = 1
        yield piece


def private(most: int, within: Callable[[Callable[[], None]], None] = lambda had: had()) -> None:
    """Children of which each takes an eighth; the parent ends as the first that is ended does."""

    def had() -> None:
        os.close(reading)
        kept = list(touched(most // 8, mmap.MAP_PRIVATE))
        with contextlib.suppress(BrokenPipeError):  # the parent was killed a moment before this child is
            os.write(writing, b"!")
        sys.stdin.read()
        os._exit(len(kept) * 0)

    def gone(*_: object) -> None:
        code = os.waitstatus_to_exitcode(os.wait()[1])
        if code:
            os._exit(128 - code)

    signal.signal(signal.SIGCHLD, gone)
    reading, writing = os.pipe()
    for _ in range(8):
        if os.fork() == 0:
            within(had)
    os.close(writing)
    for _ in range(8):
        os.read(reading, 1)
    used(most)


def shared(most: int) -> None:
    """Memory that would be shared with children."""
    kept = list(touched(most, mmap.MAP_SHARED))
    used(len(kept) * STEP)


def memory_file(most: int) -> None:
    """A file without a name, in memory, mapped by nobody."""
    fd = os.memfd_create("bomb")
    for _ in range(0, most, STEP):
        os.write(fd, b"x" * STEP)
    used(most)


def without_first(work: Callable[[], None]) -> None:
    """Has a second thread do the work, once the first one has ended: /proc/PID tells nothing more of the process."""
    ended = threading.Event()

    def begin() -> None:
        ended.wait(0.2)
        work()

    threading.Thread(target=begin).start()
    ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)  # _exit(2), of this thread alone


def awake(most: int) -> None:
    """A child takes shared memory, and has the kernel continue it ten times a second; this process stops itself."""

    class Event(ctypes.Structure):
        """struct sigevent, see timer_create(2)."""

        _fields_ = (("value", ctypes.c_long), ("signo", ctypes.c_int), ("notify", ctypes.c_int),
                    ("rest", ctypes.c_int * 12))  # fmt: skip

    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGCONT, lambda *_: None)
        libc, timer, every = ctypes.CDLL(None), ctypes.c_void_p(), (ctypes.c_long * 4)(0, 10**8, 0, 10**8)
        libc.timer_create(1, ctypes.byref(Event(0, signal.SIGCONT, 0)), ctypes.byref(timer))
        libc.timer_settime(timer, 0, ctypes.byref(every), None)
        os.write(writing, b"!")
        time.sleep(1.5)
        kept = list(touched(most, mmap.MAP_SHARED))
        time.sleep(20 + len(kept) * 0)
        os._exit(0)
    os.read(reading, 1)
    os.kill(os.getpid(), signal.SIGSTOP)
    used(most)


def of_a_thread(most: int) -> None:
    """A file in memory that one thread alone has open."""

    def had() -> None:
        ctypes.CDLL(None).unshare(0x400)  # CLONE_FILES
        memory_file(most)

    thread = threading.Thread(target=had)
    thread.start()
    thread.join()


def page_tables(most: int) -> None:
    """A page of nothing in each two MiB of addresses: the tables that say so take 4 KiB for each."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    size = (most // 4096) << 21
    begin = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, -1, 0)  # _NORESERVE
    libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), 15)  # MADV_NOHUGEPAGE
    for address in range(begin, begin + size, 1 << 21):
        assert ctypes.c_ubyte.from_address(address).value == 0
    used(most)


def shares(most: int) -> None:
    """Says when it has some memory that would be shared with children, and waits."""
    kept = list(touched(most, mmap.MAP_SHARED))
    print("shares", flush=True)
    sys.stdin.read()
    used(len(kept) * STEP)


def written(path: str, most: int, *, keep_name: bool = True) -> None:
    """A file at `path`."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    if not keep_name:
        os.unlink(path)
    done = 0
    try:
        while done < most:
            done += os.write(fd, b"x" * STEP)
    except OSError as error:
        print(f"errno {error.errno} after {done}", flush=True)
        return
    used(most)


def many(directory: str, most: int) -> None:
    """Small files in directories inside of each other."""
    for number in range(0, most, 1 << 16):
        if number % (1 << 20) == 0:
            directory = os.path.join(directory, "d")
            os.mkdir(directory)
        with open(f"{directory}/{number}", "wb") as file:
            file.write(b"x" * (1 << 16))
    used(most)


def unreadable(directory: str, most: int) -> None:
    """A file in a directory that nobody may list."""
    place = f"{directory}/closed"
    os.mkdir(place)
    fd = os.open(f"{place}/file", os.O_WRONLY | os.O_CREAT, 0o600)
    os.chmod(place, 0)
    for _ in range(0, most, STEP):
        os.write(fd, b"x" * STEP)
    used(most)


def spin(most: int) -> None:
    """Two processes that compute, `most` seconds of processor time each."""
    pid = os.fork()
    while time.process_time() < most:
        pass
    if pid:
        used(most)


def computed(seconds: float) -> None:
    """Spends processor time of this process."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def spin_apart(most: int) -> None:
    """`most` milliseconds of processor time, a third each: this process, one that lives on, many that end at once."""
    third = most / 3000
    if os.fork() == 0:
        computed(third)
        signal.pause()
    computed(third)
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            computed(third / 8)
            os._exit(0)
        os.waitpid(pid, 0)
    used(most)


def modest(home: str, temp: str, most: int) -> None:
    """Half of `most` of each kind of memory, a quarter of it of disk in each place, twice as much in the worktree."""
    try:
        bytearray(9 * most)
    except MemoryError:
        print("MemoryError", flush=True)
    kept = [*touched(most // 2, mmap.MAP_PRIVATE)]
    fd = os.memfd_create("modest")
    for _ in kept:
        os.write(fd, b"x" * STEP)
    for place, size in ((home, most // 4), (temp, most // 4), (".", 2 * most)):
        with open(f"{place}/modest", "wb") as file:
            for _ in range(0, size, STEP):
                file.write(b"x" * STEP)
    for _ in range(8):
        if os.fork() == 0:
            signal.pause()
    computed(0.1)
    used(len(kept) * STEP * 2)


def fork(most: int) -> None:
    """Processes that wait; says how many could be had."""
    pids: list[int] = []
    try:
        while len(pids) < most:
            pid = os.fork()
            if pid == 0:
                signal.pause()
            pids.append(pid)
    except OSError as error:
        print("errno", error.errno, flush=True)
    used(len(pids))


def fork_on(most: int) -> None:
    """Processes that start processes, which start processes ...; all end by themselves after `most` seconds."""
    end = time.monotonic() + most
    print("started", flush=True)
    while time.monotonic() < end:
        try:
            os.fork()
        except OSError:
            time.sleep(0.02)  # as many as there may be are waiting to be more: enough of them for two processors


def main() -> None:
    """See the module's text."""
    kind, most = sys.argv[1], int(sys.argv[2])
    home, temp = os.environ["HOME"], os.environ.get("TMPDIR", "/tmp")
    bombs: dict[str, Callable[[], None]] = {
        "private": lambda: private(most),
        "shared": lambda: shared(most),
        "memory-file": lambda: memory_file(most),
        "first-threads": lambda: private(most, without_first),
        "of-a-thread": lambda: of_a_thread(most),
        "page-tables": lambda: page_tables(most),
        "shares": lambda: shares(most),
        "tmpfs": lambda: written("/dev/shm/bomb", most),
        "home": lambda: written(f"{home}/bomb", most),
        "home-many": lambda: many(home, most),
        "home-nameless": lambda: written(f"{home}/bomb", most, keep_name=False),
        "home-unreadable": lambda: unreadable(home, most),
        "temp": lambda: written(f"{temp}/bomb", most),
        "var-temp": lambda: written("/var/tmp/bomb", most),
        "worktree": lambda: written("bomb", most),
        "spin": lambda: spin(most),
        "spin-without-first": lambda: without_first(lambda: computed(most)),
        "awake": lambda: awake(most),
        "spin-apart": lambda: spin_apart(most),
        "modest": lambda: modest(home, temp, most),
        "fork": lambda: fork(most),
        "fork-on": lambda: fork_on(most),
    }
    signal.alarm(int(DEADLINE))
    bombs[kind]()


main()
