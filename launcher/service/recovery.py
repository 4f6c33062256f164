"""What a service finds of its earlier life: sessions that go on, that ended meanwhile, and that are lost.

Sessions belong to their shims, so a service that was killed, restarted or upgraded has taken none with it. A shim is
found by its directory below the runtime directory: one that answers is adopted, one that is over has left its end
there, and what is neither was killed, or died with the machine. All of that is put right before the first request is
served, except harvests and merges, which take their time (`collecting`).
"""

import logging
import sqlite3
import time

from launcher.jail.remove import remove_tree
from launcher.service.groups import Groups
from launcher.service.pool import Shim
from launcher.service.rooms import Rooms
from launcher.service.states import SessionState
from launcher.service.store import session_of
from launcher.service.supervisor import Live, Supervisor
from launcher.session import state
from launcher.session.places import Places
from policy.errors import Refusal

log = logging.getLogger("paddock.service")

_YOUNG_SECONDS = 3.0
"""Within which a shim that was told to begin is sure to listen."""
_WHY = "its processes were killed while there was no service"


class Recovery:
    """Accounts for every session of the earlier life: `run` before the first request, `again` for what had to wait.

    Attributes:
        adopted: names of sessions that go on.
        over: names of sessions that came to their end while there was no service.
        lost: names of sessions whose processes were killed.
        later: sessions that could not be asked yet, and why.
    """

    def __init__(self, supervisor: Supervisor, own: Rooms, groups: Groups, places: Places) -> None:
        """Args: of this life, adopts sessions; the service's directories; of this life; of this user."""
        self._supervisor = supervisor
        self._own = own
        self._groups = groups
        self._places = places
        self.adopted: list[str] = []
        self.over: list[str] = []
        self.lost: list[str] = []
        self.later: dict[str, str] = {}

    def run(self) -> None:
        """Accounts for all."""
        store = self._supervisor.store
        for name in self._own.known_sessions():
            self._take_over(name)
        known = {*self._supervisor.live, *self.later}
        for row in store.listed(live=True, limit=1_000_000):
            if row["name"] not in known:
                self._take_over(row["name"])
        self._sweep()
        state.sweep(self._places)
        if self.adopted or self.over:
            log.info("sessions of an earlier service: %d go on, %d are over", len(self.adopted), len(self.over))
        if self.lost:
            log.warning("%d sessions were lost since an earlier service ended", len(self.lost))

    def again(self) -> None:
        """Asks those that could not be asked before. To be called now and then."""
        if not self.later:
            return
        for name in list(self.later):
            del self.later[name]
            self._take_over(name)
        self._sweep()

    def _sweep(self) -> None:
        """Ends what is left in control groups of an earlier life, once it is known which of them are needed."""
        rows = self._supervisor.store.listed(live=True, limit=1_000_000)
        waiting = {row["cgroup"] for row in rows if row["name"] in self.later}
        if "" not in waiting:  # a service that is killed may not have written yet where its newest session lives
            kept = {live.shim.group for live in self._supervisor.live.values() if live.shim is not None}
            self._groups.sweep(kept | waiting)

    def _take_over(self, name: str) -> None:
        try:
            if not self._find(name):
                self._lose(self._supervisor.store.required(name))
        except (OSError, Refusal) as error:
            why = error.message if isinstance(error, Refusal) else error.strerror or str(error)
            log.warning("session %s cannot be asked now: %s", name, why)
            self.later[name] = why

    def _find(self, name: str) -> bool:
        """Adopts a session, or takes its end over; False when nobody answers for it any more.

        Raises:
            OSError: it cannot be asked now.
            Refusal: it cannot be asked, or the database does not take it.
        """
        store, directory = self._supervisor.store, f"{self._own.sessions}/{name}"
        record = self._own.of_session(name)
        if store.row(name) is None and record is not None:  # the database was damaged, and has begun anew
            store.restore(name, record["request"], record["client_uid"], record["created"])
        row = store.row(name)
        if row is None or SessionState(row["state"]).final:
            remove_tree(directory)
            return True
        live = Live(name, directory, session_of(row).model_dump(mode="json"))
        live.moves = row["moves"]
        if (end := self._own.end(name)) is not None:
            self._supervisor.live[name] = live
            self._supervisor.heard(live, end["about"], end["moves"])
            self.over.append(name)
            return True
        try:
            shim = Shim.join(directory)
        except ConnectionRefusedError:
            return False
        except FileNotFoundError as error:
            if time.time() - row["created"] < _YOUNG_SECONDS:
                raise OSError(error.errno, "it is just beginning") from None
            if name in state.live_sessions(self._places):
                raise OSError(error.errno, "its directory is gone, so it is about to end by itself") from None
            return False
        shim.group = self._groups.of(shim.pid) or row["cgroup"]
        self._supervisor.adopt(live, shim)
        self.adopted.append(name)
        return True

    def _lose(self, row: sqlite3.Row) -> None:
        name = row["name"]
        if row["cgroup"]:
            self._groups.kill(row["cgroup"])
        live = Live(name, f"{self._own.sessions}/{name}", session_of(row).model_dump(mode="json"))
        self._supervisor.lose(live, _WHY)
        self.lost.append(name)
