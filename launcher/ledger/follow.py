"""Reading a ledger while its session writes it."""

import time
from collections.abc import Callable
from typing import Any

from launcher.lean import os
from launcher.ledger import store

_LOOK = 0.2
"""Seconds between two looks at the file."""


def follow(state: str, session: str, lives: Callable[[], bool], show: Callable[[dict[str, Any]], None]) -> None:
    """Shows the denials of a live session, those that are there and those that come, until it has ended.

    Args:
        state: Paddock's state directory.
        session: the session's name.
        lives: whether it runs.
        show: called with each denial's line.
    """
    path: str | None = None
    at = 0
    started = time.time_ns()
    while True:
        # Asked before the file is read: what a session wrote before it ended is not missed.
        going_on = lives()
        if path is None:
            path = _current(state, session, started)
        if path is not None:
            at = _show_from(path, at, show)
        if not going_on:
            return
        time.sleep(_LOOK)


def _current(state: str, session: str, now: int) -> str | None:
    """The live session's own ledger: an earlier session may have had its name."""
    path = store.path_of(state, session)
    if path is None:
        return None
    contents = store.read(path)
    pid = contents.facts.get("pid")
    newer = int(path.removesuffix(store.SUFFIX).rpartition(".")[2]) > now
    return path if newer or (not contents.end and isinstance(pid, int) and os.path.exists(f"/proc/{pid}")) else None


def _show_from(path: str, at: int, show: Callable[[dict[str, Any]], None]) -> int:
    """Shows the whole lines from this offset on; returns where the next one starts."""
    with open(path, "rb") as file:
        file.seek(at)
        for line in file:
            content = store.decoded(line.decode(errors="replace"))
            if content is None and not line.endswith(b"\n"):
                break
            at += len(line)
            if content is not None and content.pop("kind", "") == "denial":
                show(content)
    return at
