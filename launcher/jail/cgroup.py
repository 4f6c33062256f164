"""Control groups of one jail: found, made, entered, read and removed. Version 1 where root has it, version 2 where the
caller may write it.

A group is made below the caller's own, so whatever bounds the caller still bounds the jail. The process that will be
the jail's first enters it by a descriptor that the launcher has opened: the kernel judges the opener (cgroups(7)), so
nothing has to be visible, let alone writable, from inside. Entering the first group in a while costs 10 to 15 ms, a
grace period of RCU; so this module is loaded only for limits that need it.

Launch path of such limits: see launcher/jail/syscalls.py.
"""

import errno
import time

from launcher.lean import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX = "paddock-"
PATIENCE = 2.0
"""Seconds for which a removal is tried again: ended processes leave their group a moment after they were reaped."""

MEMORY, PIDS, CPU = "memory", "pids", "cpuacct"


class Place:
    """Where groups with one controller can be made: `version` 1 or 2, the `controller`, the `parent` directory."""

    __slots__ = ("controller", "parent", "version")

    def __init__(self, version: int, controller: str, parent: str) -> None:
        self.version = version
        self.controller = controller
        self.parent = parent

    def __repr__(self) -> str:
        return f"Place({self.version}, {self.controller!r}, {self.parent!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


def hierarchies(mounts: bytes) -> "list[tuple[str, str, str, str]]":
    """(``cgroup`` or ``cgroup2``, root, mount point, options) of each hierarchy of control groups that is mounted.

    Args:
        mounts: content of /proc/PID/mountinfo (proc_pid_mountinfo(5)). What is mounted elsewhere may have any name: the
            kernel writes spaces and newlines of it as numbers, and everything else as it is, carriage returns too.
    """
    found = []
    for line in mounts.split(b"\n"):
        before, _, after = line.partition(b" - ")
        fields, kinds = before.split(b" "), after.split(b" ")
        if len(fields) > 4 and len(kinds) > 2 and kinds[0] in (b"cgroup", b"cgroup2"):
            kind, root, point, options = map(os.fsdecode, (kinds[0], fields[3], fields[4], kinds[2]))
            found.append((kind, _plain(root), _plain(point), options))
    return found


def groups(own: bytes) -> dict[str, str]:
    """The path of a process's group by its controller, "" for version 2.

    Args:
        own: content of /proc/PID/cgroup (cgroups(7)): ``9:memory:/a``, and ``0::/a`` for version 2.
    """
    found: dict[str, str] = {}
    for line in filter(None, own.split(b"\n")):
        _, names, path = line.split(b":", 2)
        found.update(dict.fromkeys(os.fsdecode(names).split(","), os.fsdecode(path)))
    return found


def content(path: str) -> bytes:
    """Of a file of the kernel's; b"" where there is none: no control groups, or the process has ended."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def places(own: bytes, mounts: bytes, wanted: "Iterable[str]") -> dict[str, Place]:
    """The places for the `wanted` controllers that this process may use.

    Args:
        own: see `groups`.
        mounts: see `hierarchies`.
        wanted: out of `MEMORY`, `PIDS`, `CPU`.

    Returns:
        Controller -> place; one that is missing cannot be used here.
    """
    here = groups(own)
    found: dict[str, Place] = {}
    unified = ""
    for kind, root, point, options in hierarchies(mounts):
        if kind == "cgroup2":
            unified = unified or below(point, root, here.get(""))
            continue
        for name in set(options.split(",")).intersection(wanted) & here.keys():
            parent = below(point, root, here[name])
            if name not in found and parent and _writable(parent):
                found[name] = Place(1, name, parent)
    rest = [name for name in wanted if name not in found]
    if rest and unified:
        found.update(_unified(unified, rest))
    return found


def _plain(path: str) -> str:
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


def below(point: str, root: str, own: str | None) -> str:
    """Where the group `own` is seen, when the hierarchy's `root` is mounted at `point`; "" when it is not."""
    if own is None:
        return ""
    if root == "/":
        return (point + own).rstrip("/")
    if own == root or own.startswith(root + "/"):
        return point + own[len(root) :]
    return ""


def _unified(own: str, wanted: list[str]) -> dict[str, Place]:
    """Version 2: the caller's group, or the one above, if it hands the controllers down and this user may write it.

    A group with processes hands nothing down (cgroup-v2.rst, "No Internal Process Constraint"), so it is mostly the
    group above. Every group accounts for processor time, so `CPU` needs no controller.
    """
    needed = {name for name in wanted if name != CPU}
    for parent in (own, os.path.dirname(own)):
        # Who moves a process writes the list of the nearest common group too.
        if os.path.exists(f"{parent}/cgroup.procs") and _writable(parent):
            handed = set(_read(f"{parent}/cgroup.subtree_control").split())
            if needed <= handed:
                return {name: Place(2, name, parent) for name in wanted}
    return {}


def _writable(parent: str) -> bool:
    return os.access(parent, os.W_OK) and os.access(f"{parent}/cgroup.procs", os.W_OK)


class Cgroup:
    """The groups of one jail, made by `make`. `close` lets go of the descriptors, `remove` ends them."""

    __slots__ = ("_entries", "_groups", "paths")

    def __init__(self, groups: dict[str, tuple[Place, str]], entries: list[int]) -> None:
        self._groups = groups
        self._entries = entries
        self.paths = tuple(dict.fromkeys(path for _, path in groups.values()))

    def enter(self) -> None:
        """Moves the calling process in, and lets go of the way in. To be called before it forks.

        Raises:
            OSError: the kernel refused; nothing of the jail may start then.
        """
        for fd in self._entries:
            os.write(fd, b"0")
        self.close()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The way in, which a process that is to call `enter` later must keep."""
        return tuple(self._entries)

    def close(self) -> None:
        """Lets go of the way in."""
        while self._entries:
            os.close(self._entries.pop())

    def ended_for_memory(self) -> int:
        """How many processes the kernel has ended because the group was out of memory."""
        if MEMORY not in self._groups:
            return 0
        place, path = self._groups[MEMORY]
        return _counter(f"{path}/memory.{'oom_control' if place.version == 1 else 'events'}", "oom_kill")

    def refused_processes(self) -> int:
        """How often a process or thread was not started because there were too many."""
        return _counter(f"{self._groups[PIDS][1]}/pids.events", "max") if PIDS in self._groups else 0

    def processor_time(self) -> float | None:
        """Seconds that all processes that ever were inside have used; None when the group does not account for it."""
        if CPU not in self._groups:
            return None
        place, path = self._groups[CPU]
        if place.version == 1:
            return int(_read(f"{path}/cpuacct.usage") or 0) / 1e9
        return _counter(f"{path}/cpu.stat", "usage_usec") / 1e6

    def version(self, controller: str) -> int:
        """1 or 2, the version that serves `controller`; 0: none does."""
        return self._groups[controller][0].version if controller in self._groups else 0


def label(record: str) -> str:
    """What stands for a session in the names of its groups, which other jails may see: a hash of its record's path."""
    import _imp

    return _imp.source_hash(2, os.fsencode(record)).hex()


def make(where: dict[str, Place], limits: dict[str, int], record: str) -> Cgroup:
    """Makes the groups and sets their limits. The caller removes them, or whoever finds `record`.

    Args:
        where: from `places`.
        limits: bytes for `MEMORY`, tasks for `PIDS`; `CPU` has none and is only counted.
        record: file that keeps the groups' paths, made first: a launcher that is killed leaves it behind.

    Raises:
        OSError: a group cannot be made; nothing is left then.
    """
    unique = f"{PREFIX}{label(record)}-{os.urandom(4).hex()}"
    groups = {controller: (place, f"{place.parent}/{unique}") for controller, place in where.items()}
    paths = list(dict.fromkeys(path for _, path in groups.values()))
    fd = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, "\n".join(paths).encode("utf-8", "surrogateescape"))
    finally:
        os.close(fd)
    entries: list[int] = []
    try:
        for path in paths:
            os.mkdir(path, 0o755)
        for controller, value in limits.items():
            place, path = groups[controller]
            _bound(place.version, controller, path, value)
        for path in paths:
            entries.append(os.open(f"{path}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
    except OSError:
        for entry in entries:
            os.close(entry)
        remove(paths)
        os.unlink(record)
        raise
    return Cgroup(groups, entries)


def _bound(version: int, controller: str, path: str, value: int) -> None:
    if controller == PIDS:
        _write(f"{path}/pids.max", value)
    elif controller == MEMORY and version == 1:
        _write(f"{path}/memory.limit_in_bytes", value)
        # Memory and swap together: else what is too much goes to the disk. Absent where nothing can be swapped.
        _write(f"{path}/memory.memsw.limit_in_bytes", value, optional=True)
    elif controller == MEMORY:
        _write(f"{path}/memory.max", value)
        _write(f"{path}/memory.swap.max", 0, optional=True)


def remove(paths: "Iterable[str]") -> list[str]:
    """Removes groups whose processes have ended. Returns one line per group that is still there.

    Only groups of Paddock's are touched, and a group with a process in it is nobody's to remove (EBUSY).
    """
    failures = []
    deadline = time.monotonic() + PATIENCE
    for path in paths:
        if not os.path.basename(path).startswith(PREFIX):
            continue
        while True:
            try:
                os.rmdir(path)
            except FileNotFoundError:
                break
            except OSError as error:
                if error.errno == errno.EBUSY and time.monotonic() < deadline:
                    time.sleep(0.001)
                    continue
                failures.append(f"{path}: {error.strerror}")
            break
    return failures


def remove_recorded(record: str) -> list[str]:
    """Removes the groups that a killed launcher's `record` names; see `remove`. Without a record there are none."""
    try:
        with open(record, encoding="utf-8", errors="surrogateescape") as file:
            paths = file.read().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{record}: {error.strerror}"]
    return remove(paths)


def _write(path: str, value: int, *, optional: bool = False) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if optional:
            return
        raise
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)


def _read(path: str) -> str:
    """The content, "" when the file is not there."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _counter(path: str, name: str) -> int:
    """The value of a line ``name value``; 0 when there is none."""
    for line in _read(path).splitlines():
        words = line.split()
        if words[0] == name:
            return int(words[1])
    return 0
