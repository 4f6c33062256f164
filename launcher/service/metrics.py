"""Metrics in Prometheus' text format (prometheus.io/docs/instrumenting/exposition_formats)."""

import platform
from collections.abc import Iterable, Mapping

from launcher.service.models import Usage
from launcher.service.supervisor import Supervisor
from policy.errors import Refusal

Sample = tuple[Mapping[str, str], float]


def render(
    supervisor: Supervisor,
    usage: Mapping[str, Usage],
    *,
    version: str,
    started: float,
    uptime: float,
    descriptors: int,
    disk: Mapping[str, int],
    logs: int,
    ticket_runs: Mapping[str, int],
    tickets: Mapping[str, int],
) -> str:
    """All metrics of the service.

    Args:
        supervisor: of its sessions.
        usage: of each session.
        version: of Paddock.
        started: when its process was started, in seconds since the epoch.
        uptime: seconds for which it has answered.
        descriptors: how many it has open.
        disk: bytes that are free where its directories lie, by what they are for.
        logs: bytes of all sessions' logs.
        ticket_runs: how many there are of each state.
        tickets: the same of their tickets.
    """
    try:
        counts = supervisor.store.counts()
    except Refusal:  # the database is away; all else can be told
        counts = {}
    counters = supervisor.counters
    conditions = supervisor.store.database.conditions
    built = {"version": version, "python": platform.python_version(), "kernel": platform.release()}
    lines = _metric("paddock_build_info", "gauge", "what runs here", [(built, 1)])
    lines += _metric("process_start_time_seconds", "gauge", "when the service's process was started, since the epoch",
                     [({}, started)])  # fmt: skip
    lines += _metric("paddock_degraded", "gauge", "conditions of GET /v1/health, by id",
                     [({"id": name}, conditions.number(name)) for name in conditions.names()])  # fmt: skip
    lines += _metric("paddock_sessions", "gauge", "sessions that are remembered, by state",
                    [({"state": str(state)}, number) for state, number in counts.items()])  # fmt: skip
    lines += _metric("paddock_sessions_created_total", "counter", "sessions that were accepted",
                     [({}, counters.created)])  # fmt: skip
    lines += _metric("paddock_attempts_ended_total", "counter", "ended attempts, by reason",
                     [({"reason": reason}, number) for reason, number in sorted(counters.ended.items())])  # fmt: skip
    lines += _metric(
        "paddock_denials_total", "counter", "denials in sessions that have ended", [({}, counters.denials)]
    )
    for name, text, label, counted in (
        ("harvests", "harvests of ended sessions and of the service's own, by result", "result", counters.harvests),
        ("refusals", "refused requests, sessions and harvests, by id", "id", counters.refusals),
    ):
        numbers = [({label: each}, number) for each, number in sorted(counted.items())]
        lines += _metric(f"paddock_{name}_total", "counter", text, numbers)
    for name, text, states in (("ticket_runs", "ticket runs", ticket_runs), ("tickets", "tickets", tickets)):
        numbers = [({"state": state}, number) for state, number in sorted(states.items())]
        lines += _metric(f"paddock_{name}", "gauge", f"{text} that are remembered, by state", numbers)
    lines += _metric("paddock_disk_free_bytes", "gauge", "room where the service's directories lie",
                     [({"directory": name}, free) for name, free in sorted(disk.items())])  # fmt: skip
    lines += _metric("paddock_logs_bytes", "gauge", "logs of all sessions", [({}, logs)])
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
                     [({}, descriptors)])  # fmt: skip
    lines += _metric("paddock_uptime_seconds", "gauge", "since the service was ready", [({}, uptime)])
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, text: str, samples: Iterable[Sample]) -> list[str]:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        shown = ",".join(f'{label}="{_escaped(content)}"' for label, content in labels.items())
        lines.append(f"{name}{{{shown}}} {value!r}" if shown else f"{name} {value!r}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
