"""Other names of a live session: the ids that a protocol gives to what runs in it (`paddock acp`).

An agent chooses the id of a session of the Agent Client Protocol, and its tools are called with that id. Under
``<state>/sessions/<session>/known-as`` lies a file for each, named by a digest, so that any text can be an id. They go
with the session. A name that a session has itself counts before, and an id that two sessions claim names none of them.
"""

import hashlib
import os

from launcher.session import state
from launcher.session.places import Places

DIRECTORY = "known-as"

MOST = 1000
"""Ids of one session."""


def remember(places: Places, session: str, identifier: str) -> bool:
    """Takes note that a live session is known by this id, too.

    Returns:
        Whether it was noted: not when the session has too many already.

    Raises:
        OSError: it cannot be written, or the session has ended.
    """
    place = f"{places.state}/sessions/{state.check_name(session)}/{DIRECTORY}"
    try:
        os.mkdir(place, 0o700)
    except FileExistsError:
        if len(os.listdir(place)) >= MOST:
            return False
    os.close(os.open(f"{place}/{_digest(identifier)}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    return True


def resolved(places: Places, name: str) -> str:
    """The name of the live session that is known by `name`; `name` itself when there is none, or more than one."""
    live = state.live_sessions(places)
    if name in live:
        return name
    digest = _digest(name)
    found = [each for each in live if os.path.lexists(f"{places.state}/sessions/{each}/{DIRECTORY}/{digest}")]
    return found[0] if len(found) == 1 else name


def _digest(identifier: str) -> str:
    return hashlib.sha256(identifier.encode("utf-8", "surrogatepass")).hexdigest()
