"""Where ledgers are kept, for how long, and reading them.

``<state>/ledgers/<session>.<nanoseconds>.jsonl``: Paddock's state directory is denied to every jail. Names of sessions
may come again, so the time of the start belongs to the name.
"""

import json
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from launcher.lean import os
from launcher.ledger.denial import PROXY, Denial, Process
from policy.errors import Refusal

VERSION = 1
SUFFIX = ".jsonl"

KEEP_FILES = 200
KEEP_BYTES = 64 << 20
KEEP_SECONDS = 30 * 24 * 3600


class Kept(NamedTuple):
    """One ledger on disk."""

    session: str
    started: int  # nanoseconds since the epoch
    path: str


def directory(state: str) -> str:
    """Where ledgers lie below Paddock's state directory."""
    return f"{state}/ledgers"


def path_for(state: str, session: str, started: int) -> str:
    """The file for a session that started at this time, in nanoseconds since the epoch."""
    return f"{directory(state)}/{session}.{started}{SUFFIX}"


def create(path: str) -> int:
    """Makes a ledger (mode 0600) that must not exist yet, and its directory; returns a descriptor for appending.

    Raises:
        OSError: it cannot be made.
    """
    place = os.path.dirname(path)
    if not os.path.isdir(place):
        os.makedirs(place, mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)


def kept(state: str) -> list[Kept]:
    """All ledgers, the newest first."""
    found = []
    try:
        names = os.listdir(directory(state))
    except FileNotFoundError:
        return []
    for name in names:
        session, _, number = name.removesuffix(SUFFIX).rpartition(".")
        if name.endswith(SUFFIX) and session and number.isascii() and number.isdigit():
            found.append(Kept(session, int(number), f"{directory(state)}/{name}"))
    return sorted(found, key=lambda one: -one.started)


def path_of(state: str, session: str) -> str | None:
    """The newest ledger of a session by its name; None when there is none."""
    return next((one.path for one in kept(state) if one.session == session), None)


def prune(state: str, now: float) -> None:
    """Removes ledgers beyond `KEEP_FILES`, `KEEP_BYTES` and `KEEP_SECONDS`, the oldest first.

    Args:
        state: Paddock's state directory.
        now: seconds since the epoch.
    """
    size = 0
    for index, one in enumerate(kept(state)):
        try:
            size += os.stat(one.path).st_size
            old = one.started < (now - KEEP_SECONDS) * 1e9
            # The newest is kept however large it is: somebody is about to read it.
            if index and (index >= KEEP_FILES or size > KEEP_BYTES or old):
                os.unlink(one.path)
        except FileNotFoundError:
            continue  # another launch was quicker


def lines(path: str) -> Iterator[dict[str, Any]]:
    """The lines of a file of JSON objects that are whole; one that is just being written is left out."""
    try:
        file = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115  # closed below; the error is ours
    except FileNotFoundError:
        return
    except OSError as error:
        raise Refusal("ledger-unreadable", f"cannot read {path}", context=error.strerror or str(error)) from None
    with file:
        for text in file:
            content = decoded(text)
            if content is not None:
                yield content


def decoded(text: str) -> dict[str, Any] | None:
    """One line's object, None when it is no whole one."""
    if not text.endswith("\n"):
        return None
    try:
        content = json.loads(text)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


class Contents(NamedTuple):
    """A whole ledger.

    Attributes:
        facts: of the session.
        denials: with their counts added up.
        end: what was said at the end.
        decisions: what a bridge let pass (`launcher.bridges.acp.rulings.Decisions`).
    """

    facts: dict[str, Any]
    denials: list[dict[str, Any]]
    end: dict[str, Any]
    decisions: list[dict[str, Any]]


def read(path: str) -> Contents:
    """A ledger, with lines that mean the same put together.

    Raises:
        Refusal: ledger-unreadable.
    """
    facts: dict[str, Any] = {}
    end: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {}
    decisions: list[dict[str, Any]] = []
    for content in lines(path):
        kind = content.pop("kind", "")
        if kind == "session":
            facts = content
        elif kind == "end":
            end = content
        elif kind == "denial":
            merge(found, content)
        elif kind == "decision":
            decisions.append(content)
    return Contents(facts, list(found.values()), end, decisions)


def merge(found: dict[str, dict[str, Any]], content: dict[str, Any]) -> None:
    """Adds one denial's line to those of the same key."""
    process = content.get("process") or {}
    who = process.get("exe") or process.get("comm")
    subject = [content.get(name) for name in ("layer", "operation", "rights", "path", "host", "port", "target")]
    key = json.dumps([*subject, who])
    known = found.setdefault(key, content | {"count": 0, "last": content.get("time")})
    known["count"] += content.get("count", 1)
    known["last"] = content.get("time")


# What the proxy refused, from the log of decisions that it writes in the session's directory.


PROXY_LOG = "egress.jsonl"

_DENIED = "deny"
_LOST = "lost"


def read_proxy_log(path: str) -> tuple[list[Denial], int]:
    """The refusals in a log of decisions, in order, and how many decisions are not in it for want of room."""
    found, lost = [], 0
    for content in lines(path):
        denial = of_decision(content)
        if denial is not None:
            found.append(denial)
        elif content.get("operation") == _LOST and isinstance(content.get("count"), int):
            lost += content["count"]
    return found, lost


def of_decision(content: dict[str, Any]) -> Denial | None:
    """The denial that one line of the log tells of (`launcher.egress.log`); None when it tells of something else."""
    if content.get("decision") != _DENIED:
        return None
    port, rule, asked = content.get("port"), content.get("rule"), content.get("process")
    return Denial(
        _seconds(content.get("time")),
        PROXY,
        str(content.get("operation") or "connect"),
        host=str(content.get("host") or ""),
        port=port if isinstance(port, int) else 0,
        target=str(content.get("reason") or ""),
        rights=(str(rule),) if rule else (),
        process=_process(asked) if isinstance(asked, dict) else Process(),
        hint=str(content.get("suggestion") or ""),
    )


def _process(content: dict[str, Any]) -> Process:
    pid = content.get("pid")
    names = (str(content.get(name) or "") for name in ("comm", "exe"))
    return Process(pid if isinstance(pid, int) else 0, *names)


def _seconds(value: object) -> float:
    if isinstance(value, int | float):
        return float(value)
    try:
        return datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return time.time()
