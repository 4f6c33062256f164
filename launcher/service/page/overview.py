"""Sessions, all of them in a table and each on a page of its own; how the service and its machine are."""

import asyncio
import json
import os
import time
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from launcher import programmes
from launcher.ledger import ledgers
from launcher.service import log_files
from launcher.service.api import health, routes
from launcher.service.api.context import context_of
from launcher.service.page import live
from launcher.service.page.admission import Visit
from launcher.service.page.rendering import macros, page
from launcher.service.page.watcher import Watcher, of_ledger, together, waits_for
from launcher.service.schema import Session, SessionDetails, SessionName, SessionState
from launcher.service.shim.attempt import SENDABLE

router = APIRouter()

MOST_LISTED = 500
MOST_FAILED = 50
FAILED_SECONDS = 600.0
"""For which a session that has failed is shown beside the live ones."""
MOST_LINES = 300
_LOG_BYTES, _OUTPUT_CHARACTERS = 512 << 10, 96 << 10
"""Of a log's end that is read: a line of 64 KiB may be longer there; and of what it says that is shown."""
_RENDER_SECONDS = 10.0
_renderers = asyncio.Semaphore(2)


def visit_of(request: Request) -> Visit:
    """The browser's session."""
    found: Visit = request.scope["state"]["visit"]
    return found


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form that was sent."""
    return dict(parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True))


# All sessions


async def _rows(request: Request, ended: bool) -> tuple[Watcher, list[Session]]:
    watcher = live.watcher_of(request)
    sessions = (await routes.list_sessions(request, live=not ended, limit=MOST_LISTED)).sessions
    if not ended:  # those that have failed just now, whoever looks wants to see
        over = await routes.list_sessions(request, [SessionState.FAILED, SessionState.LOST], limit=MOST_FAILED)
        lately = [each for each in over.sessions if time.time() - (each.ended or each.created) < FAILED_SECONDS]
        sessions = sorted([*sessions, *lately], key=lambda each: -each.created)
    await watcher.look(each.worktree for each in sessions if each.worktree)
    return watcher, sessions


def _row(watcher: Watcher, session: Session) -> dict[str, Any]:
    glance = watcher.glance(session.name)
    ticket, branch = watcher.places.get(session.worktree, ("", ""))
    return {
        "session": session, "glance": glance, "ticket": ticket, "branch": branch,
        "waits": waits_for(session, glance), "age": time.time() - session.created,
    }  # fmt: skip


@router.get("/")
async def show_overview(request: Request, ended: Annotated[bool, Query(alias="all")] = False) -> HTMLResponse:
    """The sessions: those that live, or those that have ended, too."""
    watcher, sessions = await _rows(request, ended)
    return page(request, "overview.html", rows=[_row(watcher, each) for each in sessions], ended=ended)


@router.get("/live/sessions")
async def follow_overview(request: Request, ended: Annotated[bool, Query(alias="all")] = False) -> StreamingResponse:
    """What moves there: rows, or the table where there are others."""
    parts = macros("sessions.html", visit_of(request))
    before: list[str] = []

    async def make() -> Mapping[str, str]:
        watcher, sessions = await _rows(request, ended)
        rows = [_row(watcher, each) for each in sessions]
        names = [each.name for each in sessions]
        if names != before:
            before[:] = names
            return {"sessions": str(parts.table(rows, ended))}
        return {f"session-{row['session'].name}": str(parts.row(row)) for row in rows}

    return live.stream(request, make)


@router.get("/live/notes")
async def follow_notes(request: Request) -> StreamingResponse:
    """On a page on which nothing else moves: what every stream tells of."""

    async def make() -> Mapping[str, str]:
        return {}

    return live.stream(request, make)


# One session


@router.get("/sessions/{name}")
async def show_session(name: SessionName, request: Request) -> HTMLResponse:
    """All about a session."""
    content = await _details(name, request)
    return page(request, "session.html", output=await _output(content["session"], request), **content)


async def _details(name: str, request: Request) -> dict[str, Any]:
    watcher = live.watcher_of(request)
    session = await routes.show_session(name, request)
    await watcher.look([session.worktree] if session.worktree else ())
    denied = watcher.glance(name)
    if session.state.final:
        path = await asyncio.to_thread(ledgers.path_of, context_of(request).places.state, name)
        kept = await asyncio.to_thread(of_ledger, path) if path is not None else None
        denied = denied if kept is None else kept
    return {
        **_row(watcher, session), "signals": list(SENDABLE), "now": time.time(), "denials": together({"": denied}),
        "more": denied.more, "questions": [(name, each) for each in denied.questions],
    }  # fmt: skip


@router.get("/live/sessions/{name}")
async def follow_session(name: SessionName, request: Request) -> StreamingResponse:
    """What moves there."""
    parts = macros("sessions.html", visit_of(request))
    denied = macros("denied.html", visit_of(request))
    directory = f"{context_of(request).supervisor.log_of(name)}/{log_files.NAME}"
    known: dict[str, Any] = {"changed": 0.0, "output": ""}

    async def make() -> Mapping[str, str]:
        content = await _details(name, request)
        changed = await asyncio.to_thread(_changed, directory)
        if changed != known["changed"]:
            known.update(changed=changed, output=await _output(content["session"], request))
        return {
            "facts": str(parts.facts(content)),
            "state": str(parts.state(content)),
            "output": str(parts.output(known["output"])),
            "questions": str(denied.questions(content["questions"], back=True)),
            "denials": str(denied.denials(content["denials"], content["more"])),
        }

    return live.stream(request, make)


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


async def _output(session: SessionDetails, request: Request) -> str:
    """The last lines of a session's output, as its terminal shows them where it has one."""
    directory = context_of(request).supervisor.log_of(session.name)
    records = _last(await asyncio.to_thread(log_files.latest, directory, _LOG_BYTES))
    if session.stdin != "terminal":
        lines = (f"paddock: {each['text']}" if each.get("stream") == "paddock" else str(each.get("text", ""))
                 for each in records[-MOST_LINES:])  # fmt: skip
        return "\n".join(lines)[-_OUTPUT_CHARACTERS:]
    return (await _rendered(records))[-_OUTPUT_CHARACTERS:]


def _last(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many of the last records as there is room for, and the terminal's size before them."""
    total, at = 0, len(records)
    while at and total < _OUTPUT_CHARACTERS:
        at -= 1
        total += len(str(records[at].get("text", "")))
    sizes = [each for each in records[:at] if each.get("stream") == "terminal"]
    return [*sizes[-1:], *records[at:]]


async def _rendered(records: list[dict[str, Any]]) -> str:
    """What a terminal showed: an agent wrote it, so a confined process reads it (`launcher.service.screen`)."""
    async with _renderers:
        process = await asyncio.create_subprocess_exec(
            *programmes.helper("screen", str(os.getpid()), str(MOST_LINES)), cwd="/",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        content = "".join(json.dumps(each) + "\n" for each in records).encode()
        try:
            said, _ = await asyncio.wait_for(process.communicate(content), _RENDER_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
            return "(what the session wrote could not be rendered in time)"
    # Once more: what moves of the cursor kept apart in the log has come together.
    redact = log_files.Redactor(log_files.secrets(os.environ, ()))
    return redact(said).decode(errors="replace")


@router.post("/sessions/{name}/stop")
async def stop_session(name: SessionName, request: Request) -> Response:
    """Ends a session, in order or at once."""
    fields = await form_of(request)
    await routes.stop_session(name, routes.Stop(term_seconds=0 if fields.get("now") else None), request)
    return _back(name)


@router.post("/sessions/{name}/signal")
async def signal_session(name: SessionName, request: Request) -> Response:
    """Sends its command a signal."""
    fields = await form_of(request)
    await routes.signal_session(name, routes.Signal(signal=fields.get("signal", "")[:32]), request)
    return _back(name)


@router.post("/sessions/{name}/freeze")
async def freeze_session(name: SessionName, request: Request) -> Response:
    """Lets nothing of it run, or lets it go on."""
    fields = await form_of(request)
    await routes.freeze_session(name, routes.Freeze(frozen=fields.get("frozen") == "1"), request)
    return _back(name)


@router.post("/sessions/{name}/forget")
async def forget_session(name: SessionName, request: Request) -> Response:
    """Forgets a session that is over."""
    await routes.forget_session(name, request)
    return RedirectResponse("/?all=1", 303)


def _back(name: str) -> Response:
    return RedirectResponse(f"/sessions/{name}", 303)


@router.post("/leave")
async def leave(request: Request) -> HTMLResponse:
    """Ends this browser's session."""
    answer = page(request, "left.html")
    visit_of(request).end()
    return answer


# How this machine and the service are: promises, figures, what is wrong, what could be removed.

_HEALTH_SECONDS = 5.0


@router.get("/health")
async def show_health(request: Request) -> HTMLResponse:
    """The service's own figures, and buttons for what takes longer."""
    return page(request, "health.html", health=await health.read_health(request), now=time.time())


@router.get("/live/health")
async def follow_health(request: Request) -> StreamingResponse:
    """What moves there."""
    parts = macros("figures.html", visit_of(request))

    async def make() -> Mapping[str, str]:
        return {"figures": str(parts.figures(await health.read_health(request), time.time()))}

    return live.stream(request, make, _HEALTH_SECONDS)


@router.post("/health/promises")
async def test_promises(request: Request) -> HTMLResponse:
    """Proves what this machine can enforce, in a jail of its own."""
    return page(request, "promises.html", found=await health.test_promises(request))


@router.post("/health/unneeded")
async def look_for_unneeded(request: Request) -> HTMLResponse:
    """What `paddock prune` would remove."""
    return page(request, "unneeded.html", found=await health.read_unneeded(request))
