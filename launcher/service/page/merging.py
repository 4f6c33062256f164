"""Merges: which worktrees conflict with which, in which order they go, the merge itself, and taking it back."""

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from pydantic import ValidationError

from launcher.service.api import routes
from launcher.service.api.context import Context, context_of
from launcher.service.page import live
from launcher.service.page.overview import form_of, visit_of
from launcher.service.page.rendering import macros, page
from launcher.service.schema import Directory
from policy.errors import Refusal

router = APIRouter()

MOST_KEPT = 32
MOST_CHILDREN = 100
MOST_RUNS = 50


@dataclass
class Merging:
    """A merge that was begun from the page.

    Attributes:
        number: its name in addresses; counts from 1.
        repository: in which.
        asked: what was asked for, in words.
        done, total, name: how many children are merged, of how many, and the next one.
        answer, refusal: what came of it; None before its end.
    """

    number: int
    repository: str
    asked: str
    done: int = 0
    total: int = 0
    name: str = ""
    answer: routes.Merge | None = None
    refusal: Refusal | None = None
    task: "asyncio.Task[None] | None" = None

    def step(self, said: Mapping[str, Any]) -> None:
        """Takes note of a step of the job's."""
        self.done, self.total, self.name = said["done"], said["total"], said["name"]

    @property
    def moved(self) -> bool:
        """Whether it has done something, which the journal has."""
        return self.answer is not None and bool(self.answer.run.model_dump()["moves"])

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.answer is not None or self.refusal is not None


@dataclass
class Merges:
    """The newest merges that were begun from the page; what they did is in the repositories' journals for good."""

    begun: dict[int, Merging] = field(default_factory=dict)
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def begin(
        self, context: Context, repository: str, asked: str, work: Callable[[Merging], Awaitable[routes.Merge]]
    ) -> Merging:  # fmt: skip
        """Begins a merge, or the end of one, by the control API's function; it goes on when nobody looks."""
        merging = Merging(next(self.numbers), repository, asked)

        async def run() -> None:
            try:
                merging.answer = await work(merging)
            except Refusal as refusal:
                context.supervisor.counters.refused(refusal.as_dict())
                merging.refusal = refusal

        merging.task = asyncio.get_running_loop().create_task(run(), name="merge from the page")
        self.begun[merging.number] = merging
        for number in [each.number for each in self.begun.values() if each.over][:-MOST_KEPT]:
            del self.begun[number]
        return merging


def _merges(request: Request) -> Merges:
    found: Merges = request.app.state.merges
    return found


def _repositories(worktrees: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The worktrees that can be merged, by the root of their repository."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(worktrees, key=lambda row: row["created"]):
        common = row["main"]["common_dir"]
        root = os.path.dirname(common) if os.path.basename(common) == ".git" else row["main"]["path"]
        if row["state"] == "ready":
            found.setdefault(root, []).append(row)
    return found


@router.get("/merges")
async def show_merges(
    request: Request, repository: Annotated[Directory | None, Query()] = None
) -> HTMLResponse:  # fmt: skip
    """What can be merged in a repository, and what was."""
    return page(request, "merges.html", **await _content(request, repository, [], ""), forecast=None)


@router.post("/merges/forecast")
async def forecast_merge(request: Request) -> HTMLResponse:
    """What a merge in this order would come to."""
    body = _asked(await request.body())
    # Asked for before, so that what is newer than the forecast is refused, and not merged.
    content = await _content(request, body.repository, body.children, body.into or "")
    forecast = await routes.preview_merge(body, request)
    content["warnings"] = forecast.warnings
    order = forecast.forecast["in_order"]
    return page(request, "merges.html", **content, forecast=matrix(forecast.forecast), order=order)


@router.post("/merges")
async def begin_merge(request: Request) -> Response:
    """Begins a merge."""
    body, context = _asked(await request.body()), context_of(request)
    merging = _merges(request).begin(
        context, body.repository, f"merge of {', '.join(map(os.path.basename, body.children))}",
        lambda merging: routes.merge(context, body, merging.step),
    )  # fmt: skip
    return RedirectResponse(f"/merges/begun/{merging.number}", 303)


def _asked(body: bytes) -> routes.MergeRequest:
    """A form as the control API's request. Each child in it is the commit that was shown, and the worktree's root."""
    fields = parse_qs(body.decode("utf-8", "replace"))
    children = fields.get("child", [])[:MOST_CHILDREN]
    if not children:
        raise Refusal("request-invalid", "nothing was chosen to be merged", hint="mark at least one worktree")
    content = {
        "repository": fields.get("repository", [""])[0],
        "children": [each.partition(" ")[2] for each in children],
        "commits": [each.partition(" ")[0] for each in children],
        "into": fields.get("into", [None])[0],
    }
    try:
        return routes.MergeRequest.model_validate(content)
    except ValidationError as error:
        raise Refusal("request-invalid", "this cannot be merged", context=error.errors()[0]["msg"]) from None


async def _content(request: Request, repository: str | None, chosen: Sequence[str], into: str) -> dict[str, Any]:
    """What the page shows of a repository.

    Args:
        chosen: roots of worktrees, in their order; those that are not in it come behind, unmarked, unless it is empty.
    """
    worktrees = [each.model_dump() for each in (await routes.list_worktrees(request, None)).worktrees]
    known = _repositories(worktrees)
    if repository is None:
        repository = next(iter(known), None)
    rows = known.get(repository or "", [])
    order = {root: at for at, root in enumerate(chosen)}
    rows = sorted(rows, key=lambda row: order.get(row["main"]["path"], len(order)))
    for row in rows:
        row["seen"] = visit_of(request).reviewed.get(row["worktree_id"], "")
        reviewed = row["seen"] == row["head"] != "" and row["work"] == "to merge"
        row["chosen"] = row["main"]["path"] in order if order else reviewed
    runs = (await routes.list_merges(request, repository)).runs if repository is not None else []
    shown = [each.model_dump() for each in reversed(runs[-MOST_RUNS:])]
    begun = [each for each in reversed(_merges(request).begun.values()) if each.repository == repository]
    return {"repositories": list(known), "repository": repository, "children": rows, "into": into, "runs": shown,
            "begun": begun, "warnings": []}  # fmt: skip


def matrix(forecast: Mapping[str, Any]) -> dict[str, Any]:
    """A forecast as a table: for each child its cells with the trunk and with each child before it.

    Returns:
        ``target``; ``names`` of the children; ``rows``: each with its ``name`` and its ``cells`` (None where it would
        meet itself or one that is behind it); ``conflicts``: the cells that are not clean.
    """
    children = forecast["children"]
    pairs = {(each["into"], each["source"]): each for each in forecast["pairs"]}
    names = [each["source"] for each in children]
    rows = []
    for at, child in enumerate(children):
        cells = [child, *(pairs.get((name, child["source"])) for name in names[:at]), *[None] * (len(names) - at)]
        rows.append({"name": child["source"], "cells": cells})
    conflicts = [each for row in rows for each in row["cells"] if each is not None and not each["clean"]]
    return {"target": forecast["target"], "names": names, "rows": rows, "conflicts": conflicts}


def _begun(request: Request, number: int) -> Merging:
    found = _merges(request).begun.get(number)
    if found is None:
        raise Refusal("merge-run-unknown", f"no merge {number} was begun here", hint="the merges page lists all runs")
    return found


@router.get("/merges/begun/{number}")
async def show_begun(number: int, request: Request) -> HTMLResponse:
    """A merge that was begun from the page: how far it is, and what came of it."""
    return page(request, "merging.html", merging=_begun(request, number))


@router.get("/live/merges/{number}")
async def follow_begun(number: int, request: Request) -> StreamingResponse:
    """What moves there."""
    parts = macros("merge_parts.html", visit_of(request))

    async def make() -> Mapping[str, str]:
        return {"merge": str(parts.progress(_begun(request, number)))}

    _begun(request, number)
    return live.stream(request, make)


RunId = Annotated[str, Path(max_length=64)]


@router.get("/merges/runs/{run_id}")
async def show_run(run_id: RunId, request: Request, repository: Annotated[Directory, Query()]) -> HTMLResponse:
    """A run of merges, as its journal has it."""
    for run in (await routes.list_merges(request, repository)).runs:
        if run.run_id == run_id:
            return page(request, "merge_run.html", run=run.model_dump(), repository=repository)
    raise Refusal("merge-run-unknown", "there is no such run", hint="the merges page lists all runs")


@router.post("/merges/runs/{run_id}/rollback")
async def roll_back(run_id: RunId, request: Request) -> Response:
    """Takes a run back."""
    fields = await form_of(request)
    try:
        body = routes.MergeRollback.model_validate({"repository": fields.get("repository", "")})
    except ValidationError as error:
        raise Refusal("request-invalid", "this is not a repository", context=error.errors()[0]["msg"]) from None
    merging = _merges(request).begin(
        context_of(request), body.repository, f"roll back of {run_id}",
        lambda _: routes.roll_back_merge(run_id, body, request),
    )  # fmt: skip
    return RedirectResponse(f"/merges/begun/{merging.number}", 303)
