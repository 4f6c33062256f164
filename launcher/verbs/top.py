"""`paddock top`: the service's sessions, live."""

import json
import sys
import time
from typing import Annotated, Any

import typer

from launcher.service.client import Client
from launcher.session import messages
from launcher.verbs import typer_verb
from launcher.verbs.ps import table
from launcher.verbs.service_common import ago, client, counted, cut, size
from policy.pasted import joined

EXAMPLES = (
    ("paddock top", "sessions by what they use, until Ctrl-C"),
    ("paddock top --once", "one look, as plain lines"),
    ("paddock top --json --interval 10", "one JSON object per look"),
)
_WIDE, _NAME, _SHORT_NAME = 100, 40, 24
"""Columns of a terminal that shows everything, and of a session's name there and elsewhere."""
_STYLES = {"running": "green", "starting": "yellow", "stopping": "yellow", "failed": "red", "lost": "red"}


def main(argv: list[str]) -> int:
    """Exit status 0; Ctrl-C ends it well."""
    return typer_verb.run("top", top, argv, examples=EXAMPLES)


def top(
    interval: Annotated[
        float, typer.Option("--interval", "-d", metavar="SECONDS", min=0.2, max=3_600, help="Between two looks.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="One look only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per look.")] = False,
) -> int:
    """Shows the sessions that live, those that use most first, and looks again and again."""
    service = client()
    if as_json or once or not sys.stdout.isatty():
        try:
            _plainly(service, interval, once=once, as_json=as_json)
        except KeyboardInterrupt:
            return 0
        return 0
    return _live(service, interval)


def _look(service: Client) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    health = service.call("GET", "/v1/health")
    sessions = service.call("GET", "/v1/sessions", query={"live": True, "limit": 1_000})["sessions"]
    sessions.sort(key=lambda session: (-_cpu(session), -_memory(session), session["name"]))
    return health, sessions


def _cpu(session: dict[str, Any]) -> float:
    return float(session["usage"]["cpu_percent"]) if session["usage"] else 0.0


def _memory(session: dict[str, Any]) -> int:
    return int(session["usage"]["memory"]) if session["usage"] else 0


def _plainly(service: Client, interval: float, *, once: bool, as_json: bool) -> None:
    while True:
        health, sessions = _look(service)
        if as_json:
            messages.show(json.dumps({"time": time.time(), "health": health, "sessions": sessions}))
        else:
            messages.show("\n".join([_head(health, sessions), *table(sessions)]))
        if once:
            return
        time.sleep(interval)


def _head(health: dict[str, Any], sessions: list[dict[str, Any]]) -> str:
    helpers = counted(health["helpers"], "helper", "helpers")
    return (
        f"paddock: {len(sessions)} live, up {ago(health['started'])}, {helpers}, "
        f"{sum(map(_cpu, sessions)):.0f}% of a processor, {size(sum(map(_memory, sessions)))} of memory"
    )


def _live(service: Client, interval: float) -> int:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    console = Console()

    def drawn() -> Group:
        health, sessions = _look(service)
        grid = Table(box=None, pad_edge=False, header_style="bold", expand=True)
        wide = console.size.width >= _WIDE
        for name in ("SESSION", "STATE"):
            grid.add_column(name, no_wrap=True)
        for name in ("AGE", "CPU", "MEMORY", *(("PROCS", "CLIENTS") if wide else ())):
            grid.add_column(name, justify="right", no_wrap=True)
        grid.add_column("COMMAND", ratio=1, no_wrap=True, overflow="ellipsis")
        room = max(1, console.size.height - 4)
        for session in sessions[:room]:
            usage = session["usage"]
            grid.add_row(
                Text(cut(session["name"], _NAME if wide else _SHORT_NAME)),
                Text(session["state"], style=_STYLES.get(session["state"], "")),
                ago(session["created"]),
                f"{usage['cpu_percent']:.0f}%" if usage else "-",
                size(usage["memory"]) if usage else "-",
                *((str(usage["processes"]) if usage else "-", str(session["attached"])) if wide else ()),
                Text(joined(session["command"])),
            )
        left = len(sessions) - room
        foot = Text(f"and {left} more" if left > 0 else "Ctrl-C ends this, not the sessions", style="dim")
        return Group(Text(_head(health, sessions), style="bold"), grid, foot)

    try:
        with Live(drawn(), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                live.update(drawn(), refresh=True)
    except KeyboardInterrupt:
        return 0
