"""Denials and questions of all sessions, what repeats put together."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from launcher.ledger import ledgers
from launcher.ledger.switching import describe_audit
from launcher.service.api import routes
from launcher.service.api.context import context_of
from launcher.service.page import live
from launcher.service.page.overview import form_of, visit_of
from launcher.service.page.rendering import macros, page
from launcher.service.page.watcher import MOST_LEDGERS, Glance, of_ledger, together
from launcher.service.schema import SessionName
from launcher.session.places import AUDIT_SOCKET
from policy import asking
from policy.errors import Refusal

router = APIRouter()

MOST_SHOWN = 200


@router.get("/denials")
async def show_denials(request: Request, ended: bool = False) -> HTMLResponse:
    """Questions, and denials: those of live sessions, or of those that have ended, too."""
    return page(request, "denials.html", ended=ended, recorded=_recorded(request), **await _content(request, ended))


@router.get("/live/denials")
async def follow_denials(request: Request, ended: bool = False) -> StreamingResponse:
    """What moves there."""
    parts = macros("denied.html", visit_of(request))

    async def make() -> Mapping[str, str]:
        content = await _content(request, ended)
        return {
            "questions": str(parts.questions(content["questions"])),
            "denials": str(parts.denials(content["denials"], content["more"])),
        }

    return live.stream(request, make)


async def _content(request: Request, ended: bool) -> dict[str, Any]:
    watcher = live.watcher_of(request)
    await watcher.look()
    found = dict(watcher.glances)
    questions = [(name, each) for name, glance in sorted(found.items()) for each in glance.questions]
    if ended:
        state = context_of(request).places.state
        found = {**await asyncio.to_thread(_kept, state, frozenset(found)), **found}
    denials = together(found)
    more = max(0, len(denials) - MOST_SHOWN) + sum(glance.more for glance in found.values())
    return {"questions": questions, "denials": denials[:MOST_SHOWN], "more": more}


def _kept(state: str, but: frozenset[str]) -> dict[str, Glance]:
    """Denials of sessions that have ended, by their newest ledgers."""
    found: dict[str, Glance] = {}
    for one in ledgers.kept(state)[:MOST_LEDGERS]:
        if one.session not in but and one.session not in found and (glance := of_ledger(one.path)) is not None:
            found[one.session] = glance
    return found


def _recorded(request: Request) -> bool:
    """Whether denials by Landlock reach the ledgers here: the service passes them on, or launchers hear themselves."""
    return os.path.exists(f"{context_of(request).places.runtime}/{AUDIT_SOCKET}") or describe_audit()[2]


@router.post("/sessions/{name}/questions/{number}")
async def answer_question(name: SessionName, number: int, request: Request) -> Response:
    """Answers a question, as `paddock answer` does."""
    form = await form_of(request)
    try:
        body = routes.HostAnswer.model_validate({key: form.get(key, "") for key in ("answer", "host", "port")})
    except ValueError:
        words = ", ".join(asking.ANSWERS)
        raise Refusal(
            "request-invalid", f"an answer is one of {words}, and names the question's host and port"
        ) from None
    await routes.answer_question(name, number, body, request)
    return RedirectResponse(f"/sessions/{name}" if form.get("back") else "/denials", 303)
