"""What the proxy refused, from the log of decisions that it writes in the session's directory."""

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from launcher.ledger import store
from launcher.ledger.denial import PROXY, Denial

ALLOWED = frozenset({"allow", "allowed", "ok"})


def denials(path: str) -> Iterator[Denial]:
    """The refusals in a log of decisions, in order."""
    for content in store.lines(path):
        found = of_decision(content)
        if found is not None:
            yield found


def of_decision(content: dict[str, Any]) -> Denial | None:
    """The denial that one decision is; None when it allowed.

    Args:
        content: time (RFC 3339, or seconds since the epoch), operation, host, port, decision, rule.
    """
    if str(content.get("decision", "")).lower() in ALLOWED:
        return None
    port = content.get("port")
    rule = content.get("rule")
    return Denial(
        _seconds(content.get("time")),
        PROXY,
        str(content.get("operation") or "connect"),
        host=str(content.get("host") or ""),
        port=port if isinstance(port, int) else 0,
        rights=(str(rule),) if rule else (),
    )


def _seconds(value: object) -> float:
    if isinstance(value, int | float):
        return float(value)
    try:
        return datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return time.time()
