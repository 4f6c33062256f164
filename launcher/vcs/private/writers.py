"""Which live sessions can write a tree, whatever their git mode; and keeping new sessions from it for a while.

Each session's directory has a record of what its jail may write (`launcher.session.state`), and a lock that is held as
long as an unjailed process of the session lives. Whoever has to be alone in a tree writes a hold first and looks for
sessions then; a session writes its record first and looks for holds then. So at least one of them sees the other.

A session that starts beside a hold comes here: standard library only.
"""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import NamedTuple

from launcher.jail import cgroup, processes, syscalls
from launcher.vcs.private import lock, swap
from policy.errors import Refusal
from policy.plan import beneath

# Whether every session that uses a private git directory is frozen: nothing in its jail runs until it is thawed.
#
# A jail is frozen when all of its threads are stopped (SIGSTOP; proc_pid_stat(5)), or when its control group is
# (cgroup.freeze; cgroup-v2.rst). Who may write the directory are the jailed processes, known by their filter (a mode
# of seccomp(2) that no process loses); launcher and init only wait for them. In doubt a session is not frozen.
#
# A stopped process may have asked the kernel to continue it (timer_create(2) with SIGCONT): being stopped is a promise
# of the agent's, and protects nothing but its own work.

BESIDE = "lock-beside"
"""Lock file for whoever works on a directory whose sessions are frozen: one at a time."""


class Use(Enum):
    """Who uses a private git directory that somebody wants to work on."""

    ENDED = "ended"  # no session uses it, and none can begin to
    FROZEN = "frozen"  # those that use it cannot run
    BUSY = "busy"  # a session is alive, or another harvest or merge is at work


_STOPPED = frozenset("TtZXx")
_LOCKS, _MOST_LOCKS = "/proc/locks", 4096


@contextmanager
def held(directory: str) -> Iterator[Use]:
    """Takes a private git directory for work on it, unless one of its sessions is alive. Does not wait.

    A frozen session keeps its share of the lock, so nobody has the directory alone. It can be thawed at any time: only
    what another git of the agent's could do as well may be done beside it.
    """
    beside = -1
    descriptor = lock.opened(directory)
    try:
        if lock.alone(descriptor, wait=False):
            yield Use.ENDED
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        beside = os.open(f"{directory}/{BESIDE}", flags, 0o600)
        if not all_frozen(directory) or not lock.alone(beside, wait=False):
            yield Use.BUSY
            return
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield Use.FROZEN if all_frozen(directory) else Use.BUSY
    finally:
        os.close(descriptor)
        if beside != -1:
            os.close(beside)
        if swap.is_swapped(directory):
            swap.settle(directory)  # a session that has ended meanwhile did not get it alone


def sessions(directory: str) -> list[int] | None:
    """Process ids of the launchers that use a private git directory, this process's own left out.

    None when a process has it alone (it is being made, renewed or harvested), or when one is of another PID namespace.
    """
    file = os.open(f"{directory}/{lock.LOCK}", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        holders = _holders(file)
    finally:
        os.close(file)
    if holders is None or any(kind != "READ" or not pid.isdigit() for kind, pid in holders):
        return None
    return [int(pid) for _, pid in holders if int(pid) != os.getpid()]


def stands_still(directory: int) -> bool:
    """Whether the session is frozen whose directory this is (a descriptor): its launcher holds that one's lock."""
    pids = [pid for kind, pid in _holders(directory) or () if kind == "WRITE"]
    return bool(pids) and all(pid.isdigit() and _frozen(int(pid)) for pid in pids)


def _holders(file: int) -> list[tuple[str, str]] | None:
    """READ or WRITE, and the process id as the kernel tells it, for each flock(2) on a file; `file` is a descriptor.

    None where the machine has so many locks that this would take long: anybody may take them, jailed or not.
    """
    name, found = f"{_device(file)}:{os.fstat(file).st_ino}", []
    with open(_LOCKS, encoding="ascii") as locks:
        for number, line in enumerate(locks):
            if number >= _MOST_LOCKS:
                return None
            # 1: FLOCK  ADVISORY  READ 4711 fe:00:131 0 EOF; waiting ones have an arrow (proc_locks(5))
            words = line.split()
            if words[1] == "FLOCK" and words[5] == name:
                found.append((words[3], words[4]))
    return found


def _device(file: int) -> str:
    """The device that /proc/locks names: of the mount, where stat(2) may tell one of a part of it (btrfs)."""
    mount = next(line.split()[1] for line in _read(f"/proc/self/fdinfo/{file}").split(b"\n") if line[:7] == b"mnt_id:")
    rows = (line.split(b" ", 3) for line in _read("/proc/self/mountinfo").split(b"\n"))
    device = next((row[2] for row in rows if row[0] == mount), b"0:0")
    return ":".join(f"{int(number):02x}" for number in device.split(b":"))


def all_frozen(directory: str) -> bool:
    """Whether sessions use a private git directory, and each of them is frozen."""
    launchers = sessions(directory)
    return bool(launchers) and all(map(_frozen, launchers or ()))


def _frozen(launcher: int) -> bool:
    jailed = [pid for pid in _below(launcher) if _filtered(pid)]
    return bool(jailed) and all(_stopped(pid) or _in_frozen_group(pid) for pid in jailed)


def _below(pid: int) -> list[int]:
    found = []
    pending = [pid]
    while pending:
        below = processes.children(pending.pop())
        found += below
        pending += below
    return found


def _filtered(pid: int) -> bool:
    return b"\nSeccomp:\t2\n" in _read(f"/proc/{pid}/status")


def _stopped(pid: int) -> bool:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return True
    states = [_read(f"/proc/{pid}/task/{thread}/stat").rpartition(b") ")[2][:1].decode() for thread in threads]
    return all(state in _STOPPED for state in states if state)


def _in_frozen_group(pid: int) -> bool:
    """Whether the process's control group (version 2), or one above it, is frozen."""
    path = cgroup.groups(_read(f"/proc/{pid}/cgroup")).get("", "").rstrip("/")
    mounts = cgroup.hierarchies(_read("/proc/self/mountinfo"))
    return any(
        b"frozen 1\n" in _read(f"{point}{path}/cgroup.events")
        for kind, root, point, _ in mounts
        if path and kind == "cgroup2" and root == "/"
    )


def _read(path: str) -> bytes:
    """Content of a file of the kernel's; b"" where the process or the group has ended."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except (FileNotFoundError, ProcessLookupError):
        return b""


WRITES, BRINGS = "writes", "brings"
WRITES_IN = "writes-in"
HOLDS = "holds"
"""`launcher.session.state` has these names, too."""

_OWN, _TRUST, _ALL = b"own", b"trust", b"all"


class Writer(NamedTuple):
    """A live session that can write a tree, and is not frozen.

    Attributes:
        name: of the session.
        worktree: its own; "" when an older Paddock has started it, which recorded none.
        brings: what of the user's it is shown in its private home, and how; () for nothing.
    """

    name: str
    worktree: str
    brings: tuple[str, ...] = ()


def live(state: str, root: str, *, own: bool = False, frozen: bool = False) -> list[Writer]:
    """The sessions that could write something in a tree now, or replace it.

    Args:
        root: canonical root of the tree.
        own: only those whose own worktree it is, lies in, or holds; not those that were granted it beside theirs.
        frozen: those that are frozen, too: they could go on later.
    """
    try:
        names = sorted(os.listdir(f"{state}/sessions"))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        if name.startswith("."):
            continue  # not begun, or ended
        try:
            descriptor = os.open(f"{state}/sessions/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            trees, known = _recorded(descriptor, WRITES), _recorded(descriptor, WRITES_IN) or []
            concerned = trees is None or _meet(
                [root], trees[:1] if own else trees, identities_of([root]), known[:1] if own else known
            )
            if concerned and _lives(descriptor) and (frozen or not stands_still(descriptor)):
                brings = _recorded(descriptor, BRINGS) or ()
                found.append(Writer(name, trees[0] if trees else "", tuple(brings)))
        finally:
            os.close(descriptor)
    return found


@contextmanager
def excluded(state: str, roots: Iterable[str], *, own: bool = False, frozen: bool = False) -> Iterator[None]:
    """Makes sure that no session can write these trees, and that none begins to meanwhile; see `live`.

    Those that are frozen count for `paddock trust`.

    Refusals: session-running.
    """
    wanted = list(roots)
    if not wanted:
        yield
        return
    holds = f"{state}/{HOLDS}"
    os.makedirs(holds, 0o700, exist_ok=True)
    _sweep(holds)
    name = os.urandom(8).hex()
    descriptor = os.open(f"{holds}/.{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with open(descriptor, "wb", closefd=False) as file:
            kind = _OWN if own else _TRUST if frozen else _ALL
            parts = (kind, *map(os.fsencode, (*wanted, *identities_of(wanted))))
            file.write(b"".join(part + b"\0" for part in parts))
        os.rename(f"{holds}/.{name}", f"{holds}/{name}")
        for root in wanted:
            if writers := live(state, root, own=own, frozen=frozen):
                raise running(root, writers, "try" if frozen else "merge")
        yield
    finally:
        for path in (f"{holds}/.{name}", f"{holds}/{name}"):
            with suppress(FileNotFoundError):
                os.unlink(path)
        os.close(descriptor)


def wait(state: str, holds: Iterable[str], writes: tuple[str, ...], say: Callable[[str], None]) -> None:
    """Waits until none of `holds` (names of files) is about what a session may write, its own worktree first."""
    for name in holds:
        if name.startswith("."):
            continue  # whoever makes it has not looked for sessions yet
        try:
            descriptor = os.open(f"{state}/{HOLDS}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            with open(descriptor, "rb", closefd=False) as file:
                kind, *parts = file.read().split(b"\0")[:-1]
            entries = [os.fsdecode(part) for part in parts]
            trees = [each for each in entries if each.startswith("/")]
            known, own = [each for each in entries if not each.startswith("/")], identities_of(writes)
            # Exactly: the check of a merge is a session, too, and its scratch worktree may lie in the tree (TMPDIR).
            if not (_same(trees, writes[:1], known, own[:1]) if kind == _OWN else _meet(trees, writes, known, own)):
                continue
            if _lives(descriptor):
                say(f"waiting until {'`paddock trust`' if kind == _TRUST else 'a merge'} in {trees[0]} has ended")
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)


def _sweep(holds: str) -> None:
    for name in os.listdir(holds):
        path = f"{holds}/{name}"
        if name.startswith("."):
            continue  # its lock comes next
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if not _lives(descriptor):
                os.unlink(path)
        except FileNotFoundError:
            continue  # somebody else was quicker
        finally:
            os.close(descriptor)


def running(root: str, writers: Iterable[Writer] = (), then: str = "merge") -> Refusal:
    """The Refusal for a tree that a session can write."""
    names = [f"session {each.name}" + (f" of {each.worktree}" if each.worktree != root else "") for each in writers]
    return Refusal(
        "session-running",
        f"a session is still working in {root}",
        context="; ".join([*names, "its branch and files belong to it until it has ended, or is frozen"]),
        hint=f"wait for its end, and {then} again",
    )


def _recorded(directory: int, name: str) -> list[str] | None:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        return [os.fsdecode(path) for path in file.read().split(b"\0")[:-1]]


def identities_of(trees: Iterable[str]) -> tuple[str, ...]:
    """Which directories these trees are, each with those above it: a tree may be moved, or mounted elsewhere."""
    return tuple(",".join(syscalls.identities(tree)) for tree in trees)


def _same(roots: Iterable[str], trees: Iterable[str], *known: Iterable[str]) -> bool:
    ours, theirs = ({each.partition(",")[0] for each in some} - {""} for some in known)
    return not (set(roots).isdisjoint(trees) and ours.isdisjoint(theirs))


def _meet(roots: Iterable[str], trees: Iterable[str], *known: Iterable[str]) -> bool:
    """Whether one tree lies in another one, by their paths or by what `identities_of` gave for them."""
    names = list(trees)
    if any(beneath(root, tree) or beneath(tree, root) for root in roots for tree in names):
        return True
    ours, theirs = ([each.split(",") for each in some] for some in known)
    return any((one[0] and one[0] in other) or (other[0] and other[0] in one) for one in ours for other in theirs)


def _lives(descriptor: int) -> bool:
    """Whether a process holds this lock alone. A shared lock is asked for, so askers do not see each other."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False
