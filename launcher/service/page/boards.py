"""Ticket runs, each as a board: its tickets by what they are at."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from launcher.service import ticket_words
from launcher.service.api import routes
from launcher.service.api.context import context_of
from launcher.service.page import live
from launcher.service.page.overview import visit_of
from launcher.service.page.rendering import macros, page
from launcher.service.schema import SessionName
from launcher.service.ticket_schema import OVER, TicketResume, TicketRun, TicketState, TicketStatus, TicketStep
from policy import launch

router = APIRouter()

MOST_RUNS = 20
MOST_CARDS = 100

COLUMNS: tuple[tuple[str, tuple[TicketStep, ...]], ...] = (
    ("waiting", (TicketStep.WAITING, TicketStep.PREPARED)),
    ("running", (TicketStep.RUNNING,)),
    ("in review", (TicketStep.REVIEWING,)),
    ("to merge", (TicketStep.ENDED,)),
    ("conflict", (TicketStep.CONFLICTED, TicketStep.RESOLVING)),
    ("failed", (TicketStep.FAILED,)),
    ("merged", (TicketStep.MERGED,)),
)
"""Every step is in one column."""


def board(run: TicketRun, *, lacks: bool = False) -> dict[str, Any]:
    """A run for its template: its columns, each with a name, how many cards there are, and the first of them.

    Args:
        run: as the API shows it.
        lacks: whether to go on it needs an environment that only the command line has.
    """
    steps: Sequence[TicketStatus] = [*([run.orchestrator] if run.orchestrator else []), *run.steps]
    result = run.result or {}
    merged = ticket_words.merged_of(result)
    agents = {each["ticket"]: each for each in ticket_words.agents_of(result)}
    columns = []
    for name, states in COLUMNS:
        found = [each for each in steps if each.state in states]
        cards = [_card(each, agents.get(each.ticket), merged, result) for each in found[:MOST_CARDS]]
        columns.append((name, len(found), cards))
    return {
        "run": run, "columns": columns, "over": run.state in OVER, "failed": run.state is TicketState.FAILED,
        "lacks": lacks,
    }  # fmt: skip


def _card(
    step: TicketStatus, agent: dict[str, Any] | None, merged: dict[str, Any], result: dict[str, Any]
) -> dict[str, Any]:
    """One ticket: where it is, why, and what to look at; its worktree only while that is there."""
    descriptor = (merged.get(agent["session_id"]) or {}).get("merge_descriptor") if agent else None
    return {
        "step": step,
        "why": ticket_words.fate(agent, merged, result) if agent else "",
        "review": launch.worktree_id(step.worktree) if step.worktree and os.path.lexists(step.worktree) else "",
        "merge": (descriptor or {}).get("run_id") or "",
        "trunk": ticket_words.landed(result) or result.get("trunk", ""),
    }


async def _boards(request: Request) -> list[dict[str, Any]]:
    return [board(run) for run in (await routes.list_ticket_runs(request, MOST_RUNS)).ticket_runs]


async def _board(name: str, request: Request) -> dict[str, Any]:
    run = await routes.show_ticket_run(name, request, 0, None)
    return board(run, lacks=context_of(request).tickets.records.lacks_environment(name))


@router.get("/tickets")
async def show_boards(request: Request) -> HTMLResponse:
    """The newest runs."""
    return page(request, "tickets.html", boards=await _boards(request))


@router.get("/live/tickets")
async def follow_boards(request: Request) -> StreamingResponse:
    """What moves there."""
    parts = macros("board.html", visit_of(request))

    async def make() -> Mapping[str, str]:
        return {"boards": str(parts.boards(await _boards(request)))}

    return live.stream(request, make)


@router.get("/tickets/{name}")
async def show_board(name: SessionName, request: Request) -> HTMLResponse:
    """One run, with what came of it."""
    return page(request, "ticket_run.html", board=await _board(name, request))


@router.get("/live/tickets/{name}")
async def follow_board(name: SessionName, request: Request) -> StreamingResponse:
    """What moves there."""
    parts = macros("board.html", visit_of(request))

    async def make() -> Mapping[str, str]:
        return {"board": str(parts.whole(await _board(name, request)))}

    return live.stream(request, make)


@router.post("/tickets/{name}/stop")
async def stop_run(name: SessionName, request: Request) -> Response:
    """Stops a run."""
    await routes.stop_ticket_run(name, request)
    return RedirectResponse(f"/tickets/{name}", 303)


@router.post("/tickets/{name}/resume")
async def resume_run(name: SessionName, request: Request) -> Response:
    """Goes on with a run that failed or was stopped."""
    await routes.resume_ticket_run(name, TicketResume(on_conflict=None, environment=None), request)
    return RedirectResponse(f"/tickets/{name}", 303)
