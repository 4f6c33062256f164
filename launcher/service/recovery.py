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
    for row in rows:
        _end_launcher(row["process"], row["process_started"])
    found.groups = groups.sweep()
    for row in rows:
        if row["process"]:
            _end_followers(row["process"])
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


def _end_followers(launcher: int) -> None:
    """Ends what is left of a launcher's session (setsid(2)): git processes that it had started, say.

    The number cannot be anybody else's session: a session id is not given out again while the session has members.
    """
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != launcher and _session_of(int(name)) == launcher:
            try:
                os.kill(int(name), signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


def _session_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return int(file.read().rpartition(b")")[2].split()[3])
    except (OSError, ValueError, IndexError):
        return 0
