"""What the tools refused, in the session's ledger: shown by `paddock denials`, with what would allow it."""

import os
import threading
import time

from launcher.bridges.files.calls import Call
from launcher.ledger import record, store
from launcher.ledger.denial import VALIDATOR, Denial
from launcher.session import messages
from policy.plan import Plan

MOST_KINDS = 2000
"""Kinds of denials that are written down for one worker; those beyond, and repetitions, are left out."""


class Denials:
    """Writes denials of one session. Safe to share between threads.

    Args:
        state: Paddock's state directory.
        session: the session's name.
        plan: of its jail; says what would allow a denial.
    """

    def __init__(self, state: str, session: str, plan: Plan) -> None:
        self._state = state
        self._session = session
        self._plan = plan
        self._started = time.time_ns()
        self._lock = threading.Lock()
        self._known: set[tuple[str, str]] = set()
        self._broken = False

    def add(self, call: Call) -> None:
        """A call was refused for its path."""
        path = os.path.normpath(os.path.join(self._plan.worktree, call.path.replace("\0", "")))
        with self._lock:
            key = (call.tool, path)
            if key in self._known or len(self._known) >= MOST_KINDS or self._broken:
                return
            self._known.add(key)
            # A live session may have one by now, made by whoever was first to refuse something.
            ledger = store.path_of(self._state, self._session)
            try:
                record.append(
                    ledger or store.path_for(self._state, self._session, self._started),
                    self._plan,
                    Denial(
                        time.time(),
                        VALIDATOR,
                        call.operation.value.lower(),
                        path,
                        rights=(call.tool,),
                        wanted="w" if call.operation.mutates else "r",
                    ),
                    record.facts_of(self._session, self._plan),
                )
            except OSError as error:
                self._broken = True  # the denial holds without its record; that it is missing is said once
                messages.say(f"paddock: the ledger cannot be written: {error.strerror}")
