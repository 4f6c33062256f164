"""Whether every session that uses a private git directory is frozen: nothing in its jail can run until it is let go on.

A jail is frozen when all of its threads are stopped (SIGSTOP; proc_pid_stat(5)), or when its control group is
(cgroup.freeze; cgroup-v2.rst). Who may write the directory are the jailed processes, known by their filter (a mode of
seccomp(2) that no process loses); launcher and init only wait for them. In doubt a session is not frozen.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from launcher.jail import processes
from launcher.vcs.quarantine import lock, swap

BESIDE = "lock-beside"
"""Lock file for whoever works on a directory whose sessions are frozen: one at a time."""


class Rest(Enum):
    """What keeps a private git directory as it is while somebody else works on it."""

    ENDED = "ended"  # no session uses it, and none can begin to
    FROZEN = "frozen"  # those that use it cannot run
    NONE = "none"  # a session is alive, or another harvest or merge is at work


_STOPPED = frozenset("TtZXx")


@contextmanager
def held(directory: str) -> Iterator[Rest]:
    """Takes a private git directory for work on it, unless one of its sessions is alive. Does not wait.

    A frozen session keeps its share, so nobody has the directory alone meanwhile. It can be let go on at any time: what
    is done then has to be what another git of the agent's own could do, too.

    Args:
        directory: see `record`.
    """
    beside = -1
    descriptor = lock.opened(directory)
    try:
        if lock.alone(descriptor, wait=False):
            yield Rest.ENDED
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        beside = os.open(f"{directory}/{BESIDE}", flags, 0o600)
        if not all_frozen(directory) or not lock.alone(beside, wait=False):
            yield Rest.NONE
            return
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield Rest.FROZEN if all_frozen(directory) else Rest.NONE
    finally:
        os.close(descriptor)
        if beside != -1:
            os.close(beside)
        if swap.is_swapped(directory):
            swap.settle(directory)  # a session that has ended meanwhile did not get it alone


def sessions(directory: str) -> list[int] | None:
    """Process ids of the launchers that use a private git directory, this process's own left out.

    Args:
        directory: see `record`.

    Returns:
        None when somebody has it alone (it is being made, renewed or harvested) or cannot be named (another PID
        namespace).
    """
    found = []
    for kind, pid in _holders(os.stat(f"{directory}/{lock.LOCK}").st_ino):
        if kind != "READ" or not pid.isdigit():
            return None
        if int(pid) != os.getpid():
            found.append(int(pid))
    return found


def stands_still(inode: int) -> bool:
    """Whether the session is frozen whose launcher holds the lock of its directory.

    Args:
        inode: of the session's directory.
    """
    pids = [pid for kind, pid in _holders(inode) if kind == "WRITE"]
    return bool(pids) and all(pid.isdigit() and _frozen(int(pid)) for pid in pids)


def _holders(inode: int) -> list[tuple[str, str]]:
    """READ or WRITE, and the process id as the kernel tells it, for each flock(2) on a file."""
    found = []
    with open("/proc/locks", encoding="ascii") as file:
        for line in file:
            # 1: FLOCK  ADVISORY  READ 4711 fe:00:131 0 EOF; waiting ones have an arrow (proc_locks(5))
            words = line.split()
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode):
                found.append((words[3], words[4]))
    return found


def all_frozen(directory: str) -> bool:
    """Whether sessions use a private git directory, and each of them is frozen.

    Args:
        directory: see `record`.
    """
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
    """Whether every thread is stopped or has ended."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return True
    states = [_read(f"/proc/{pid}/task/{thread}/stat").rpartition(b") ")[2][:1].decode() for thread in threads]
    return all(state in _STOPPED for state in states if state)


def _in_frozen_group(pid: int) -> bool:
    """Whether the process's control group (version 2), or one above it, is frozen."""
    for line in _read(f"/proc/{pid}/cgroup").splitlines():
        if line.startswith(b"0::/"):
            path = os.fsdecode(line[3:]).rstrip("/")
            return any(b"frozen 1\n" in _read(f"{mount}{path}/cgroup.events") for mount in _mounts())
    return False


def _mounts() -> list[str]:
    """Where the whole hierarchy of control groups is to be seen."""
    rows = [line.partition(b" - ") for line in _read("/proc/self/mountinfo").splitlines()]
    return [
        os.fsdecode(before.split()[4])
        for before, _, after in rows
        if after.startswith(b"cgroup2 ") and before.split()[3] == b"/"
    ]


def _read(path: str) -> bytes:
    """Content of a file of the kernel's; b"" where the process or the group has gone."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except (FileNotFoundError, ProcessLookupError):
        return b""
