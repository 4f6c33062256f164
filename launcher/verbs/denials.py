"""`paddock denials`: what sessions were refused, and what would allow it."""

import json
import os
from datetime import datetime
from typing import Any

from launcher.ledger import ledgers
from launcher.session import messages, places, state
from launcher.verbs import style, table
from policy.errors import Refusal, printable

NONE = (
    "no denial was recorded\n"
    "  what a jail does not show looks missing, and leaves no record: paddock learn -- COMMAND finds it\n"
    "  paddock doctor says what can be recorded here"
)


def denials(session: str | None, *, follow: bool, show_list: bool, as_json: bool, decisions: bool) -> int:
    """Exit status 0; 125 when there is no such session."""
    where = places.places(os.environ)
    places.is_there(where.state)
    if show_list:
        if session is not None or follow:
            raise Refusal("usage", "--list can only be combined with --json", hint="paddock denials --help")
        _list(where.state, as_json=as_json)
        return 0
    if session is not None:
        state.check_name(session)
    live = state.live_sessions(where)
    if follow:
        _follow(where, session or _only(live), as_json=as_json)
        return 0
    contents = ledgers.so_far(where.state, session) if session is not None and session in live else None
    path = _path(where.state, session) if contents is None else None
    if session is None and path is not None:
        last, started = state.last_session(where)
        (shown,) = (one for one in ledgers.kept(where.state) if one.path == path)
        if shown.started < started:  # without a ledger, or with none of any denial
            if not as_json:
                messages.show(f"{NONE.replace('recorded', f'recorded in the last session, {last}', 1)}\n"
                              f"  an earlier session had some: paddock denials {shown.session}")  # fmt: skip
            return 0
    if path is not None:
        contents = ledgers.read(path)
    passed = contents.decisions if contents is not None and decisions else []
    if contents is None or not (contents.facts or contents.denials or passed):
        if not as_json:
            messages.show(f"nothing was denied in session {session}, as far as could be recorded: "
                          "see paddock doctor" if session else NONE)  # fmt: skip
    elif as_json:
        for content in (*contents.denials, *passed):
            messages.show(json.dumps(content))
    else:
        _show(contents)
        for content in passed:
            messages.show(ledgers.decision(content))
    return 0


def _path(directory: str, session: str | None) -> str | None:
    """The ledger of a session that has ended, or of the last one with denials; None when there is none of any."""
    kept = ledgers.kept(directory)
    if session is None:
        return next((one.path for one in kept if (found := ledgers.read(one.path)).denials or found.end), None)
    path = ledgers.path_of(directory, session)
    if path is None:
        known = ", ".join(dict.fromkeys(one.session for one in kept[:10]))
        raise Refusal(
            "session-unknown",
            f"no ledger of a session {session}",
            context=f"ledgers: {known or 'none'}; a session without recorded denials leaves none",
            hint="paddock denials --list; `paddock doctor` says what is recorded here; `paddock learn` finds the rest",
        )
    return path


def _only(live: list[str]) -> str:
    if len(live) == 1:
        return live[0]
    raise Refusal(
        "session-unknown",
        "there is no session to follow" if not live else "several sessions are running",
        context="live: " + (", ".join(live) or "none"),
        hint="paddock denials SESSION --follow",
    )


def _show(contents: ledgers.Contents) -> None:
    facts = contents.facts
    if facts:
        about = (f"{facts.get(name)}" for name in ("session", "command", "worktree", "backend"))
        said = "session {}: {} in {}, {}".format(*about)
        if "time" in facts:
            said += f"; started {table.ago(datetime.fromisoformat(facts['time']).timestamp())} ago"
        messages.show(printable(said))
    for content in contents.denials:
        first, *more = ledgers.paragraph(content)
        messages.show("\n".join([style.styled(first, style.YELLOW), *more]))
    if lost := contents.end.get("lost"):
        messages.show(f"lost: {lost} denial{'' if lost == 1 else 's'}, only counted")
    if contents.full:
        messages.show("not recorded: what came when the ledger was full")
    for note in contents.end.get("notes", ()):
        messages.show(f"not recorded: {printable(str(note))}")


def _follow(where: places.Places, session: str, *, as_json: bool) -> None:
    def show(content: dict[str, Any]) -> None:
        messages.show(json.dumps(content) if as_json else "\n".join(ledgers.paragraph(content)))

    ledgers.follow(where.state, session, lambda: session in state.live_sessions(where), show)


def _list(directory: str, *, as_json: bool) -> None:
    rows = []
    for one in ledgers.kept(directory):
        contents = ledgers.read(one.path)
        number = sum(content.get("count", 1) for content in contents.denials)
        rows.append((one.session, contents.facts.get("time", ""), number, contents.facts.get("command", "")))
    names = ("session", "time", "denials", "command")
    if as_json:
        messages.show(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=2))
        return
    messages.show("\n".join(table.lines(("SESSION", "TIME", "DENIALS", "COMMAND"), rows)) if rows else NONE)
