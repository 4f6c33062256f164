"""What the proxy refused, from the log of decisions that it writes in the session's directory."""

import time
from datetime import datetime
from typing import Any

from launcher.ledger import store
from launcher.ledger.denial import PROXY, Denial, Process

FILE = "egress.jsonl"

_DENIED = "deny"
_LOST = "lost"


def read(path: str) -> tuple[list[Denial], int]:
    """The refusals in a log of decisions, in order, and how many decisions are not in it for want of room."""
    found, lost = [], 0
    for content in store.lines(path):
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
