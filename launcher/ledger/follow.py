"""Reading a ledger while its session writes it."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from launcher.lean import os
from launcher.ledger import store
from launcher.ledger.denial import PROXY, Denial
from launcher.ledger.record import line
from policy.remedy import Remedy

_LOOK = 0.2
"""Seconds between two looks at the files."""


def follow(state: str, session: str, lives: Callable[[], bool], show: Callable[[dict[str, Any]], None]) -> None:
    """Shows the denials of a live session, those that are there and those that come, until it has ended.

    The proxy's come into the ledger at the session's end; until then its own log has them.

    Args:
        state: Paddock's state directory.
        session: the session's name.
        lives: whether it runs.
        show: called with each denial's line.
    """
    ledger: Tail | None = None
    log = Tail(f"{state}/sessions/{session}/{store.PROXY_LOG}")
    started = time.time_ns()
    while True:
        # Asked before the files are read: what a session wrote before it ended is not missed.
        going_on = lives()
        for content in log.new():
            denial = store.of_decision(content)
            if denial is not None:
                show(proxied(denial))
        if ledger is None:
            path = _current(state, session, started)
            ledger = Tail(path) if path is not None else None
        for content in ledger.new() if ledger is not None else ():
            if content.pop("kind", "") == "denial" and not (log.at and content.get("layer") == PROXY):
                show(content)
        if not going_on:
            return
        time.sleep(_LOOK)


def proxied(denial: Denial) -> dict[str, Any]:
    """A line as the ledger will have it, as far as the proxy's own words go."""
    option = denial.hint.startswith("--")
    content = line(denial, Remedy(flag=denial.hint if option else "", note="" if option else denial.hint))
    content.pop("kind")
    return content


def _current(state: str, session: str, now: int) -> str | None:
    """The live session's own ledger: an earlier session may have had its name."""
    path = store.path_of(state, session)
    if path is None:
        return None
    contents = store.read(path)
    pid = contents.facts.get("pid")
    newer = int(path.removesuffix(store.SUFFIX).rpartition(".")[2]) > now
    return path if newer or (not contents.end and isinstance(pid, int) and os.path.exists(f"/proc/{pid}")) else None


class Tail:
    """What is new in a file of JSON lines."""

    def __init__(self, path: str) -> None:
        """Args: of the file, which need not be there yet."""
        self._path = path
        self.at = 0
        """Where the next line starts; 0 as long as there was none."""

    def new(self) -> Iterator[dict[str, Any]]:
        """The whole lines that have come since; none when the file is not there."""
        try:
            file = open(self._path, "rb")  # noqa: SIM115  # closed below; the error is expected
        except FileNotFoundError:
            return
        with file:
            file.seek(self.at)
            for text in file:
                if not text.endswith(b"\n"):
                    return
                self.at += len(text)
                content = store.decoded(text.decode(errors="replace"))
                if content is not None:
                    yield content
