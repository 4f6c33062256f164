"""Sessions: all of them in a table, and each on a page of its own."""

import time
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, StreamingResponse

from launcher.service.api import routes
from launcher.service.page import live
from launcher.service.page.admission import Visit
from launcher.service.page.rendering import fragment, page

router = APIRouter()

MOST_LISTED = 500


@router.get("/")
async def show_overview(request: Request, ended: Annotated[bool, Query(alias="all")] = False) -> HTMLResponse:
    """The sessions: those that live, or those that have ended, too."""
    sessions = (await routes.list_sessions(request, live=not ended, limit=MOST_LISTED)).sessions
    return page(request, "overview.html", sessions=sessions, ended=ended, now=time.time())


@router.get("/live/sessions")
async def follow_overview(request: Request, ended: Annotated[bool, Query(alias="all")] = False) -> StreamingResponse:
    """What moves there."""
    visit: Visit = request.scope["state"]["visit"]

    async def make() -> Mapping[str, str]:
        sessions = (await routes.list_sessions(request, live=not ended, limit=MOST_LISTED)).sessions
        return {"sessions": fragment("overview.html", "table", sessions, ended, time.time(), visit=visit)}

    return live.stream(request, make)


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form that was sent."""
    return dict(parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True))


@router.post("/leave")
async def leave(request: Request) -> HTMLResponse:
    """Ends this browser's session."""
    visit: Visit = request.scope["state"]["visit"]
    answer = page(request, "left.html")
    visit.end()
    return answer
