"""Metrics in Prometheus' text format (prometheus.io/docs/instrumenting/exposition_formats)."""

import os
from collections.abc import Iterable, Mapping

from launcher.service.models import Usage
from launcher.service.supervisor import Supervisor

Sample = tuple[Mapping[str, str], float]


def render(supervisor: Supervisor, usage: Mapping[str, Usage], *, uptime: float) -> str:
    """All metrics of the service."""
    counts = supervisor.store.counts()
    counters = supervisor.counters
    lines = _metric("paddock_sessions", "gauge", "sessions that are remembered, by state",
                    [({"state": str(state)}, number) for state, number in counts.items()])  # fmt: skip
    lines += _metric("paddock_sessions_created_total", "counter", "sessions that were accepted",
                     [({}, counters.created)])  # fmt: skip
    lines += _metric("paddock_attempts_ended_total", "counter", "ended attempts, by reason",
                     [({"reason": reason}, number) for reason, number in sorted(counters.ended.items())])  # fmt: skip
    lines += _metric(
        "paddock_denials_total", "counter", "denials in sessions that have ended", [({}, counters.denials)]
    )
    lines += counters.spawn.lines("paddock_spawn_seconds", "from the hand-over to a helper to the command's execution")
    lines += _metric("paddock_jails_ahead_total", "counter", "commands executed in a jail that was made ahead",
                     [({}, counters.ahead)])  # fmt: skip
    lines += _metric("paddock_helpers_ready", "gauge", "warm helpers", [({}, len(supervisor.pool))])
    for name, text, attribute in (
        ("processes", "processes of a session", "processes"),
        ("memory_bytes", "resident memory of a session", "memory"),
        ("cpu_seconds", "processor time of a session's living processes", "cpu_seconds"),
    ):
        samples = [({"session": session}, getattr(found, attribute)) for session, found in sorted(usage.items())]
        lines += _metric(f"paddock_session_{name}", "gauge", text, samples)
    lines += _metric("paddock_descriptors", "gauge", "open descriptors of the service",
                     [({}, len(os.listdir("/proc/self/fd")) - 1)])  # fmt: skip
    lines += _metric("paddock_uptime_seconds", "gauge", "since the service was ready", [({}, uptime)])
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, text: str, samples: Iterable[Sample]) -> list[str]:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        shown = ",".join(f'{label}="{_escaped(content)}"' for label, content in labels.items())
        lines.append(f"{name}{{{shown}}} {value:g}" if shown else f"{name} {value:g}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
