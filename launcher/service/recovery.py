"""What a service finds of its earlier life: sessions that died with it, what they held, work not handed over.

A service that was killed has taken its sessions with it (their helpers are tied to it, and jails to them), but nothing
could tidy up: rows still say that sessions live, their directories and control groups are there, commits wait in
private git directories, a merge may be half done. All of that is put right before the first request is served, except
harvests and merges, which take their time: those are done by `launcher.service.jobs` while the service runs.
"""

import json
import logging
import os
import select
import signal
import time

from launcher.service.groups import Groups
from launcher.service.models import Outcome, Reason
from launcher.service.pool import start_time
from launcher.service.states import SessionState
from launcher.service.store import SessionStore
from launcher.session import state
from launcher.session.places import Places

log = logging.getLogger("paddock.service")

_PATIENCE = 10.0


class Found:
    """What was found.

    Attributes:
        lost: names of sessions that died with the service.
        worktrees: roots of the worktrees they worked in, and whether their hand-off was to be strict.
        groups: how many control groups were left.
        merging: git directories of repositories in which a merge was under way.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self.lost: list[str] = []
        self.worktrees: dict[str, bool] = {}
        self.groups = 0
        self.merging: list[str] = []


def recover(store: SessionStore, groups: Groups, places: Places) -> Found:
    """Accounts for every session of the earlier life.

    Args:
        store: of sessions.
        groups: of this life.
        places: of this user.
    """
    found = Found()
    rows = store.listed(live=True, limit=1_000_000)
    booted = _booted()
    for row in rows:
        if row["created"] > booted:  # else the number and the time are those of a process before
            _end_launcher(row["process"], row["process_started"])
    found.groups = groups.sweep()
    for row in rows:
        outcome = Outcome(reason=Reason.LOST)
        why = "the service had been killed, and the session with it"
        store.move(
            row["name"], SessionState.LOST, why, ended=time.time(), process=None, outcome=outcome.model_dump_json()
        )
        found.lost.append(row["name"])
        if row["worktree"]:
            strict = "--strict-handoff" in json.loads(row["request"])["options"]
            found.worktrees[row["worktree"]] = found.worktrees.get(row["worktree"], False) or strict
    state.sweep(places)
    if rows:
        log.warning("%d sessions were lost with an earlier life of the service", len(rows))
    return found


def _end_launcher(pid: int | None, started: int | None) -> None:
    """Makes sure that a session's launcher has ended. The kernel ends it with the service; this waits for that."""
    if not pid or start_time(pid) != started:
        return
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if start_time(pid) == started:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if not poll.poll(_PATIENCE * 1_000):
                log.error("process %d of an earlier life does not end", pid)
    except ProcessLookupError:
        return
    finally:
        os.close(pidfd)


def _booted() -> float:
    """When the machine was started, in seconds since the epoch (proc_stat(5)): nothing older can still run."""
    with open("/proc/stat", encoding="ascii") as file:
        return next((float(line.split()[1]) for line in file if line.startswith("btime ")), 0.0)
