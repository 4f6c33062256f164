"""Denials and questions of all sessions, what repeats put together."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from launcher.ledger import ledgers
from launcher.service.api import routes
from launcher.service.api.context import context_of
from launcher.service.page import live
from launcher.service.page.overview import form_of, visit_of
from launcher.service.page.rendering import macros, page
from launcher.service.page.watcher import MOST_KINDS, Glance, fold
from launcher.service.schema import SessionName
from policy import asking
from policy.errors import Refusal

router = APIRouter()

MOST_SHOWN = 200
MOST_LEDGERS = 50
_known: dict[str, tuple[int, int, Glance]] = {}
"""What ended sessions' ledgers say, by their path: inode and size when they were read."""


@router.get("/denials")
async def show_denials(request: Request, ended: bool = False) -> HTMLResponse:
    """Questions, and denials: those of live sessions, or of those that have ended, too."""
    return page(request, "denials.html", ended=ended, **await _content(request, ended))


@router.get("/live/denials")
async def follow_denials(request: Request, ended: bool = False) -> StreamingResponse:
    """What moves there."""
    parts = macros("denied.html", visit_of(request))

    async def make() -> Mapping[str, str]:
        content = await _content(request, ended)
        return {
            "questions": str(parts.questions(content["questions"], content["risk"])),
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
    denials = _together(found)
    more = max(0, len(denials) - MOST_SHOWN) + sum(glance.more for glance in found.values())
    return {"questions": questions, "denials": denials[:MOST_SHOWN], "more": more, "risk": asking.RISK}


def _kept(state: str, but: frozenset[str]) -> dict[str, Glance]:
    """Denials of sessions that have ended, by their newest ledgers."""
    found: dict[str, Glance] = {}
    paths = set()
    for one in ledgers.kept(state)[:MOST_LEDGERS]:
        if one.session in but or one.session in found:
            continue
        try:
            about = os.stat(one.path)
        except FileNotFoundError:
            continue
        paths.add(one.path)
        inode, size, glance = _known.get(one.path, (0, 0, Glance()))
        if (inode, size) != (about.st_ino, about.st_size):
            glance = Glance()
            for content in ledgers.lines(one.path):
                if content.pop("kind", "") == "denial":
                    fold(glance, content)
            _known[one.path] = (about.st_ino, about.st_size, glance)
        found[one.session] = glance
    for path in set(_known) - paths:
        del _known[path]
    return found


def _together(found: Mapping[str, Glance]) -> list[dict[str, Any]]:
    """Denials that mean the same in several sessions, in one; the latest first."""
    rows: dict[str, dict[str, Any]] = {}
    for session, glance in found.items():
        for key, content in tuple(glance.denials.items()):
            row = rows.setdefault(key, {**content, "count": 0, "sessions": [], "subject": subject(content)})
            row["count"] += content["count"]
            row["last"] = max(str(row.get("last")), str(content.get("last")))
            row["sessions"].append(session)
            # The proxy's own log names no risk; its ledger will, at the session's end.
            row["risk"] = row.get("risk") or (asking.RISK if content.get("host") else "")
    return sorted(rows.values(), key=lambda row: str(row["last"]), reverse=True)


def subject(content: Mapping[str, Any]) -> str:
    """What a denial was about."""
    return ledgers.subject(content.get("path"), content.get("host"), content.get("port"), content.get("target"))


def denials_of(glance: Glance) -> list[dict[str, Any]]:
    """A session's denials for its own page, the latest first."""
    return _together({"": glance})[:MOST_KINDS]


@router.post("/sessions/{name}/questions/{number}")
async def answer_question(name: SessionName, number: int, request: Request) -> Response:
    """Answers a question, as `paddock answer` does."""
    word = (await form_of(request)).get("answer", "")
    if word not in asking.ANSWERS:
        raise Refusal("request-invalid", f"an answer is one of {', '.join(asking.ANSWERS)}")
    body = routes.HostAnswer.model_validate({"answer": word})
    await routes.answer_question(name, number, body, request)
    return RedirectResponse("/denials", 303)
