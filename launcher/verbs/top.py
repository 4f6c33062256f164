"""`paddock top`: the service's sessions, live."""

import json
import os
import select
import sys
import termios
import time
import tty
from typing import Any

from launcher.service.client import Client
from launcher.session import messages
from launcher.verbs.ps import session_lines, short_place, worktrees
from launcher.verbs.style import BOLD, DIM, GREEN, RED, YELLOW, styled
from launcher.verbs.table import ago, client, counted, cut, lines, size, tokens
from policy.pasted import joined

_WIDE, _NAME, _SHORT_NAME = 100, 40, 24
"""Columns of a terminal that shows everything, and of a session's name there and elsewhere."""
_STYLES = {"running": GREEN, "starting": YELLOW, "stopping": YELLOW, "failed": RED, "lost": RED}
_OTHER_SCREEN, _OWN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""To the other screen and back, without and with a cursor."""
_HOME, _CLEAR_LINE = "\x1b[H\x1b[J", "\x1b[K\n"


def top(*, interval: float, once: bool, as_json: bool) -> int:
    """Exit status 0; `q` and Ctrl-C end it well."""
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
            messages.show("\n".join([_head(health, sessions), *session_lines(sessions)]))
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
    """Draws on the terminal's other screen, each time over what is there, until `q` or Ctrl-C."""
    kept = termios.tcgetattr(0) if os.isatty(0) else None
    print(_OTHER_SCREEN, end="")
    try:
        if kept is not None:
            tty.setcbreak(0)  # keys come one by one, and are not shown; Ctrl-C and Ctrl-Z work
        while True:
            print(_HOME + _CLEAR_LINE.join([*_screen(*_look(service)), ""]), end="", flush=True)
            if kept is None:
                time.sleep(interval)
            elif select.select([0], [], [], interval)[0] and os.read(0, 64)[:1] in (b"q", b"Q", b""):
                return 0
    except KeyboardInterrupt:
        return 0
    finally:
        print(_OWN_SCREEN, end="", flush=True)
        if kept is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, kept)


def _screen(health: dict[str, Any], sessions: list[dict[str, Any]]) -> list[str]:
    """The lines that fit the terminal's present size."""
    size_now = os.get_terminal_size(1)
    columns, rows = size_now.columns or 80, size_now.lines or 24  # a serial line may not know
    room = max(1, rows - 4)
    wide = columns >= _WIDE
    heading = (
        "SESSION",
        "STATE",
        "AGE",
        "CPU",
        "MEMORY",
        *(("TOKENS", "PROCS", "CLIENTS", "WORKTREE") if wide else ()),
        "COMMAND",
    )
    cells = []
    places = worktrees(sessions[:room]) if wide else {}
    for session in sessions[:room]:
        usage = session["usage"]
        cells.append((
            cut(session["name"], _NAME if wide else _SHORT_NAME),
            session["state"],
            ago(session["created"]),
            f"{usage['cpu_percent']:.0f}%" if usage else "-",
            size(usage["memory"]) if usage else "-",
            *((tokens(session), usage["processes"] if usage else "-", session["attached"],
               cut(short_place(places, session), 24)) if wide else ()),
            joined(session["command"]),
        ))  # fmt: skip
    first, *others = [cut(line, columns) for line in lines(heading, cells)]
    at = first.index("STATE")
    for place, (session, line) in enumerate(zip(sessions, others, strict=False)):
        end = at + len(session["state"])
        others[place] = line[:at] + styled(line[at:end], _STYLES.get(session["state"], "")) + line[end:]
    more = f"and {len(sessions) - room} more" if len(sessions) > room else "q quits, and leaves the sessions running"
    return [styled(cut(_head(health, sessions), columns), BOLD), styled(first, BOLD), *others, styled(more, DIM)]
